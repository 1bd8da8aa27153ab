// Arrays in NumPy's file format (.npy versions 1 to 3): C order, little-endian numbers and booleans.
#pragma once

#include <dlpack/dlpack.h>

#include "common.h"

// Of a tensor here; NumPy and TVM allow more.
constexpr int kMostDimensions = 8;
// An extent of an output that only running the model tells.
constexpr int64_t kUnknown = -1;

struct Tensor {
  DLDataType dtype = {};
  int ndim = 0;
  int64_t shape[kMostDimensions] = {};
  void* data = nullptr;

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    return count;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype.bits / 8; }
};

// Whether the bytes of a tensor can be counted at all; the two functions above count on it.
inline bool can_exist(const Tensor& tensor) {
  int64_t bytes = tensor.dtype.bits / 8;
  for (int i = 0; i < tensor.ndim; i++) {
    int64_t extent = tensor.shape[i] == kUnknown ? 1 : tensor.shape[i];
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return false;
  }
  // What comes on top: alignment.
  return bytes < PTRDIFF_MAX / 2;
}

inline bool parse_kind(char letter, long bytes, DLDataType* dtype) {
  uint8_t code = letter == 'f'   ? kDLFloat
                 : letter == 'i' ? kDLInt
                 : letter == 'u' ? kDLUInt
                                 : kDLBool;
  bool power = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  bool exists = letter == 'f' ? bytes != 1 : letter == 'b' ? bytes == 1 : true;
  if (letter == '\0' || strchr("fiub", letter) == nullptr || !power || !exists) return false;
  *dtype = {code, static_cast<uint8_t>(8 * bytes), 1};
  return true;
}

// Parses names such as float32, int64, uint8 and bool; false for any other.
inline bool parse_dtype(const char* name, DLDataType* dtype) {
  if (strcmp(name, "bool") == 0) return parse_kind('b', 1, dtype);
  const char* kinds[] = {"float", "int", "uint"};
  const char* widths[] = {"8", "16", "32", "64"};
  for (const char* kind : kinds) {
    size_t size = strlen(kind);
    if (strncmp(name, kind, size) != 0) continue;
    for (const char* bits : widths) {
      if (strcmp(name + size, bits) == 0) return parse_kind(kind[0], atol(bits) / 8, dtype);
    }
  }
  return false;
}

inline char npy_letter(DLDataType dtype) {
  return dtype.code == kDLFloat ? 'f' : dtype.code == kDLInt ? 'i' : dtype.code == kDLUInt ? 'u' : 'b';
}

// Writes "1x3x8x8 float32" into `text`.
inline const char* describe(const Tensor& tensor, char* text, size_t room) {
  int used = 0;
  for (int i = 0; i < tensor.ndim; i++) {
    const char* times = i != 0 ? "x" : "";
    used += tensor.shape[i] == kUnknown
                ? snprintf(text + used, room - used, "%s?", times)
                : snprintf(text + used, room - used, "%s%lld", times,
                           static_cast<long long>(tensor.shape[i]));
  }
  if (tensor.ndim == 0) used += snprintf(text + used, room - used, "scalar");
  const char* kind = tensor.dtype.code == kDLFloat  ? "float"
                     : tensor.dtype.code == kDLInt  ? "int"
                     : tensor.dtype.code == kDLUInt ? "uint"
                                                    : "bool";
  if (tensor.dtype.code == kDLBool) {
    snprintf(text + used, room - used, " bool");
  } else {
    snprintf(text + used, room - used, " %s%d", kind, tensor.dtype.bits);
  }
  return text;
}

// What follows `key` and blanks in the header of a .npy file, a Python dictionary; null without it.
inline const char* npy_field(const char* header, const char* key) {
  const char* found = strstr(header, key);
  if (found == nullptr) return nullptr;
  found += strlen(key);
  return found + strspn(found, " ");
}

// Parses the text of a header; the file's name is for messages.
inline Tensor parse_npy(const char* path, const char* header) {
  Tensor tensor;
  const char* type = npy_field(header, "'descr':");
  const char* order = npy_field(header, "'fortran_order':");
  const char* shape = npy_field(header, "'shape':");
  if (type == nullptr || order == nullptr || shape == nullptr) {
    die(kInput, "%s is damaged: write it with numpy.save", path);
  }
  // '<f4': byte order, kind, bytes.
  bool plain = strnlen(type, 5) == 5 && type[0] == '\'' && type[4] == '\'' &&
               strchr("<>|=", type[1]) != nullptr;
  if (!plain || !parse_kind(type[2], type[3] - '0', &tensor.dtype)) {
    die(kInput, "%s holds no array of numbers", path);
  }
  if (type[1] == '>') die(kInput, "%s is big-endian: convert the array first", path);
  if (strncmp(order, "True", 4) == 0) {
    die(kInput, "%s is in Fortran order: save numpy.ascontiguousarray of it", path);
  }
  const char* at = shape + (*shape == '(');
  while (*at >= '0' && *at <= '9') {
    if (tensor.ndim == kMostDimensions) die(kInput, "%s has more than 8 dimensions", path);
    char* next = nullptr;
    // What does not fit becomes the largest number, which cannot exist.
    tensor.shape[tensor.ndim++] = strtoll(at, &next, 10);
    at = next + strspn(next, " ");
    if (*at != ',') break;
    at += 1 + strspn(at + 1, " ");
  }
  if (*shape != '(' || *at != ')') die(kInput, "%s is damaged: its shape is none", path);
  if (!can_exist(tensor)) die(kInput, "%s is larger than any memory", path);
  return tensor;
}

inline Tensor read_npy(const char* path) {
  size_t size = 0;
  char* file = read_file(path, &size, kInput);
  if (size < 12 || memcmp(file, "\x93NUMPY", 6) != 0 || file[6] < 1 || file[6] > 3) {
    die(kInput, "%s is no .npy file: write it with numpy.save", path);
  }
  auto byte = [file](int i) { return static_cast<size_t>(static_cast<uint8_t>(file[i])); };
  size_t start = file[6] == 1 ? 10 : 12;
  size_t header_size = byte(8) | byte(9) << 8;
  if (file[6] != 1) header_size |= byte(10) << 16 | byte(11) << 24;
  if (header_size > size - start) die(kInput, "%s is truncated", path);
  char* header = printed("%.*s", static_cast<int>(header_size), file + start);
  Tensor tensor = parse_npy(path, header);
  if (size - start - header_size < tensor.bytes()) die(kInput, "%s is truncated", path);
  tensor.data = allocate(tensor.bytes());
  memcpy(tensor.data, file + start + header_size, tensor.bytes());
  free(header);
  free(file);
  return tensor;
}

// Writes a complete file or none: to PATH.part first.
inline void write_npy(const char* path, const Tensor& tensor) {
  char header[512];
  char letter = npy_letter(tensor.dtype);
  int used = snprintf(header, sizeof header, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                      tensor.dtype.bits == 8 ? '|' : '<', letter, tensor.dtype.bits / 8);
  for (int i = 0; i < tensor.ndim; i++) {
    used += snprintf(header + used, sizeof header - used, "%lld, ",
                     static_cast<long long>(tensor.shape[i]));
  }
  used += snprintf(header + used, sizeof header - used, "), }");
  // Magic, version, length, text, spaces and a newline fill a multiple of 64 bytes.
  int total = (10 + used + 1 + 63) / 64 * 64;
  uint8_t start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
  start[8] = static_cast<uint8_t>(total - 10);
  start[9] = static_cast<uint8_t>((total - 10) >> 8);

  char* part = printed("%s.part", path);
  FILE* file = fopen(part, "wb");
  if (file == nullptr) die(kOutput, "cannot write %s: %s", path, strerror(errno));
  bool good = fwrite(start, 1, sizeof start, file) == sizeof start;
  good = good && fprintf(file, "%s%*s\n", header, total - 10 - used - 1, "") == total - 10;
  good = good && fwrite(tensor.data, 1, tensor.bytes(), file) == tensor.bytes();
  good = (fclose(file) == 0) && good;
  if (!good || rename(part, path) != 0) {
    int cause = errno;
    remove(part);
    die(kOutput, "cannot write %s: %s", path, strerror(cause));
  }
  free(part);
}
