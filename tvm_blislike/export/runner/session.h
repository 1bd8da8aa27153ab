// The functions that clients of TVM's RPC expect of a server, for the one session of a process.
#pragma once

#include <dirent.h>

#include "tvm_c.h"

// Where its files lie.
inline char session_folder[256];

inline int return_text(const char* text, TVMFFIAny* result) {
  TVMFFIByteArray bytes = bytes_of(text);
  return TVMFFIStringFromByteArray(&bytes, result);
}

inline int refuse(const char* message) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", message);
  return -1;
}

// Path of a file of the session; false for one that leads out of its folder.
inline bool session_path(const TVMFFIAny& name, char* path, size_t room) {
  char* text = text_of(name);
  bool inside = strstr(text, "..") == nullptr && text[0] != '/';
  inside = inside && snprintf(path, room, "%s/%s", session_folder, text) < static_cast<int>(room);
  free(text);
  return inside;
}

inline int work_path(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512];
  return session_path(args[0], path, sizeof path) ? return_text(path, result)
                                                  : refuse("a path outside of the session");
}

inline int load_module(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512];
  if (!session_path(args[0], path, sizeof path)) return refuse("a path outside of the session");
  TVMFFIAny argument = as_any(static_cast<const char*>(path));
  Value load = global_function("ffi.ModuleLoadFromFile");
  return TVMFFIFunctionCall(load.any.v_obj, &argument, 1, result);
}

inline int list_files(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  char path[512], names[8192] = "";
  if (!session_path(args[0], path, sizeof path)) return refuse("a path outside of the session");
  DIR* folder = opendir(path);
  size_t used = 0;
  while (dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    if (entry->d_name[0] == '.' || used + strlen(entry->d_name) + 2 > sizeof names) continue;
    used += static_cast<size_t>(sprintf(names + used, "%s%s", used != 0 ? "," : "", entry->d_name));
  }
  if (folder != nullptr) closedir(folder);
  return return_text(names, result);
}

// Fills a tensor with small numbers: what MetaSchedule's runner measures with.
inline int fill_randomly(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* tensor = args[0].type_index == kTVMFFITensor
                               ? TVMFFITensorGetDLTensorPtr(args[0].v_obj)
                               : static_cast<const DLTensor*>(args[0].v_ptr);
  char* data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  size_t count = 1;
  for (int i = 0; i < tensor->ndim; i++) count *= static_cast<size_t>(tensor->shape[i]);
  size_t bytes = count * tensor->dtype.bits / 8;
  uint32_t state = 1;
  bool floats = tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32;
  // Any other type: bytes from 0 to 3 are small, finite numbers of every integer and float type.
  for (size_t i = 0; i < (floats ? count : bytes); i++) {
    state = state * 1664525u + 1013904223u;
    if (floats) {
      reinterpret_cast<float*>(data)[i] = static_cast<float>(state >> 8) / 16777216.0f;
    } else {
      data[i] = static_cast<char>(state >> 30);
    }
  }
  return 0;
}

inline void offer_function(const char* name, TVMFFISafeCallType implementation) {
  Value function = as_function(nullptr, implementation);
  TVMFFIByteArray bytes = bytes_of(name);
  if (TVMFFIFunctionSetGlobal(&bytes, function.any.v_obj, 1) != 0) die_of_tvm(kModel, name);
}

inline void offer_session_functions() {
  offer_function("tvm.rpc.server.workpath", work_path);
  offer_function("tvm.rpc.server.load_module", load_module);
  offer_function("tvm.rpc.server.listdir", list_files);
  offer_function("tvm.contrib.random.random_fill", fill_randomly);
  offer_function("tvm.contrib.random.random_fill_for_measure", fill_randomly);
}
