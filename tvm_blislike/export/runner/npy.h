// Arrays in NumPy's file format (.npy versions 1 to 3): C order, little-endian numbers and booleans.
#pragma once

#include <dlpack/dlpack.h>

#include "common.h"

struct Tensor {
  DLDataType dtype = {};
  int ndim = 0;
  int64_t shape[8] = {};
  void* data = nullptr;

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    return count;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype.bits / 8; }
};

// Parses names such as float32, int64, uint8 and bool; false for any other.
inline bool parse_dtype(const char* name, DLDataType* dtype) {
  struct {
    const char* name;
    uint8_t code;
  } kinds[] = {{"float", kDLFloat}, {"int", kDLInt}, {"uint", kDLUInt}, {"bool", kDLBool}};
  for (auto& kind : kinds) {
    size_t size = strlen(kind.name);
    if (strncmp(name, kind.name, size) != 0) continue;
    int bits = kind.code == kDLBool ? 8 : atoi(name + size);
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64) continue;
    *dtype = {kind.code, static_cast<uint8_t>(bits), 1};
    return true;
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
    used += snprintf(text + used, room - used, "%s%lld", i != 0 ? "x" : "",
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

inline Tensor read_npy(const char* path) {
  size_t size = 0;
  char* file = read_file(path, &size, kInput);
  if (size < 12 || memcmp(file, "\x93NUMPY", 6) != 0) {
    die(kInput, "%s is no .npy file: write it with numpy.save", path);
  }
  auto byte = [file](int i) { return static_cast<size_t>(static_cast<uint8_t>(file[i])); };
  size_t start = file[6] == 1 ? 10 : 12;
  size_t header_size = byte(8) | byte(9) << 8;
  if (file[6] != 1) header_size |= byte(10) << 16 | byte(11) << 24;
  if (header_size > size - start) die(kInput, "%s is truncated", path);
  char* header = static_cast<char*>(malloc(header_size + 1));
  if (header == nullptr) die(kInput, "out of memory");
  memcpy(header, file + start, header_size);
  header[header_size] = '\0';

  const char* type = strstr(header, "'descr':");
  const char* order = strstr(header, "'fortran_order':");
  const char* shape = strstr(header, "'shape':");
  const char* open = shape != nullptr ? strchr(shape, '(') : nullptr;
  char endian = 0;
  char letter = 0;
  int item = 0;
  if (type == nullptr || order == nullptr || open == nullptr ||
      sscanf(type, "'descr': '%c%c%d'", &endian, &letter, &item) != 3) {
    die(kInput, "%s holds no array of numbers", path);
  }
  if (endian == '>') die(kInput, "%s is big-endian: convert the array first", path);
  if (strncmp(order + strlen("'fortran_order':"), " True", 5) == 0) {
    die(kInput, "%s is in Fortran order: save numpy.ascontiguousarray of it", path);
  }
  Tensor tensor;
  uint8_t code = letter == 'f'   ? kDLFloat
                 : letter == 'i' ? kDLInt
                 : letter == 'u' ? kDLUInt
                                 : kDLBool;
  if (strchr("fiub", letter) == nullptr) die(kInput, "%s holds no array of numbers", path);
  tensor.dtype = {code, static_cast<uint8_t>(8 * item), 1};
  for (const char* at = open + 1; *at != ')' && *at != '\0';) {
    char* next = nullptr;
    long long extent = strtoll(at, &next, 10);
    if (next == at) break;
    if (tensor.ndim == 8) die(kInput, "%s has more than 8 dimensions", path);
    tensor.shape[tensor.ndim++] = extent;
    for (at = next; *at == ',' || *at == ' '; at++) {
    }
  }
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

  size_t room = strlen(path) + 6;
  char* part = static_cast<char*>(malloc(room));
  if (part == nullptr) die(kOutput, "out of memory");
  snprintf(part, room, "%s.part", path);
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
