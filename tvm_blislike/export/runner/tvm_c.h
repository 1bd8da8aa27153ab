// The little that the programs for a board need of TVM's C interface.
#pragma once

#include <tvm/ffi/c_api.h>

#include "common.h"

// A value of TVM that is released at the end of its scope.
struct Value {
  TVMFFIAny any;

  Value() : any() {}
  Value(Value&& other) : any(other.any) { other.any = TVMFFIAny(); }
  Value& operator=(Value&& other) {
    TVMFFIAny mine = any;
    any = other.any;
    other.any = mine;
    return *this;
  }
  ~Value() {
    if (is_object()) TVMFFIObjectDecRef(any.v_obj);
  }
  bool is_object() const { return any.type_index >= kTVMFFIStaticObjectBegin; }
  bool is(int32_t type) const { return any.type_index == type; }
};

inline TVMFFIByteArray bytes_of(const char* text) { return {text, strlen(text)}; }

inline TVMFFIAny as_any(int64_t value) {
  TVMFFIAny any = {};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

inline TVMFFIAny as_any(bool value) {
  TVMFFIAny any = as_any(int64_t{value});
  any.type_index = kTVMFFIBool;
  return any;
}

inline TVMFFIAny as_any(const char* text) {
  TVMFFIAny any = {};
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = text;
  return any;
}

inline TVMFFIAny as_any(const Value& value) { return value.any; }

// A string argument or result as a zero-terminated copy that is never freed.
inline char* text_of(const TVMFFIAny& any) {
  TVMFFIByteArray bytes = {"", 0};
  if (any.type_index == kTVMFFIRawStr) bytes = bytes_of(any.v_c_str);
  if (any.type_index == kTVMFFISmallStr) bytes = TVMFFISmallBytesGetContentByteArray(&any);
  if (any.type_index == kTVMFFIStr) bytes = *TVMFFIBytesGetByteArrayPtr(any.v_obj);
  char* text = static_cast<char*>(malloc(bytes.size + 1));
  if (text == nullptr) die(kModel, "out of memory");
  memcpy(text, bytes.data, bytes.size);
  text[bytes.size] = '\0';
  return text;
}

// Ends the program with the error that TVM raised while `doing` something.
[[noreturn]] inline void die_of_tvm(Exit code, const char* doing) {
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (error == nullptr) die(code, "%s failed", doing);
  TVMFFIByteArray message = TVMFFIErrorGetCellPtr(error)->message;
  die(code, "%s: %.*s", doing, static_cast<int>(message.size), message.data);
}

inline Value global_function(const char* name) {
  TVMFFIByteArray bytes = bytes_of(name);
  Value function;
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIFunctionGetGlobal(&bytes, &handle) != 0 || handle == nullptr) {
    die(kModel, "TVM's runtime libraries have no function %s: another version?", name);
  }
  function.any.type_index = kTVMFFIFunction;
  function.any.v_obj = static_cast<TVMFFIObject*>(handle);
  return function;
}

// Calls a function; ends the program with its error.
template <class... Arguments>
Value call(Exit code, const char* doing, const Value& function, const Arguments&... arguments) {
  TVMFFIAny values[sizeof...(arguments) + 1] = {as_any(arguments)...};
  Value result;
  if (TVMFFIFunctionCall(function.any.v_obj, values, sizeof...(arguments), &result.any) != 0) {
    die_of_tvm(code, doing);
  }
  return result;
}

inline int64_t length(const Value& array, const char* doing) {
  return call(kModel, doing, global_function("ffi.ArraySize"), array).any.v_int64;
}

inline Value item(const Value& array, int64_t index, const char* doing) {
  return call(kModel, doing, global_function("ffi.ArrayGetItem"), array, index);
}

// A function of a module.
inline Value function_of(const Value& module, const char* name) {
  Value get = global_function("ffi.ModuleGetFunction");
  Value function = call(kModel, name, get, module, name, true);
  if (!function.is(kTVMFFIFunction)) die(kModel, "the library has no function %s", name);
  return function;
}

// Makes a C function callable by TVM.
inline Value as_function(void* self, TVMFFISafeCallType implementation) {
  Value function;
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIFunctionCreate(self, implementation, nullptr, &handle) != 0) {
    die_of_tvm(kModel, "creating a function");
  }
  function.any.type_index = kTVMFFIFunction;
  function.any.v_obj = static_cast<TVMFFIObject*>(handle);
  return function;
}
