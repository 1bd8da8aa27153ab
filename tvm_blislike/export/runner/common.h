// Shared by the programs for a board: ending with a message, growing arrays, files.
//
// C++17 without exceptions and without the C++ standard library: any compiler for the board will
// do, and none of its C++ runtime can meet the one that TVM's libraries bring along.
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Exit codes, the same as of the command tvm-blislike.
enum Exit { kUsage = 2, kModel = 3, kInput = 5, kTarget = 6, kOutput = 7 };

// Prints "error: ..." to stderr and ends the program.
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void die(Exit code, const char* format,
                                                                   ...) {
  fflush(stdout);
  fputs("error: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(code);
}

inline void* allocate(size_t bytes) {
  // As aligned as TVM's own memory, which kernels count on.
  void* memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  if (memory == nullptr) die(kModel, "out of memory: %zu bytes", bytes);
  return memory;
}

// A growing array of plain values.
template <class T>
struct Array {
  T* items = nullptr;
  size_t size = 0;
  size_t room = 0;

  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(items); }

  T& operator[](size_t i) { return items[i]; }
  T* begin() { return items; }
  T* end() { return items + size; }

  T& push(const T& value) {
    if (size == room) {
      room = room != 0 ? 2 * room : 16;
      items = static_cast<T*>(realloc(items, room * sizeof(T)));
      if (items == nullptr) die(kModel, "out of memory");
    }
    items[size] = value;
    return items[size++];
  }
};

// The whole file, with a zero behind it that `size` does not count.
inline char* read_file(const char* path, size_t* size, Exit code) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) die(code, "cannot read %s: %s", path, strerror(errno));
  // Its end is as far as numbers go; the first read says that it is a directory.
  if (fgetc(file) == EOF && ferror(file) != 0) {
    die(code, "cannot read %s: %s", path, strerror(errno));
  }
  long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (end < 0) die(code, "cannot read %s: %s", path, strerror(errno));
  rewind(file);
  char* text = static_cast<char*>(allocate(static_cast<size_t>(end) + 1));
  *size = fread(text, 1, static_cast<size_t>(end), file);
  if (*size != static_cast<size_t>(end)) die(code, "cannot read %s", path);
  fclose(file);
  text[end] = '\0';
  return text;
}

// Prints into memory that is never freed: the programs are short-lived.
__attribute__((format(printf, 1, 2))) inline char* printed(const char* format, ...) {
  char* text = nullptr;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0) die(kModel, "out of memory");
  va_end(arguments);
  return text;
}

inline char* copied(const char* text) { return printed("%s", text); }

inline char* joined(const char* folder, const char* name) { return printed("%s/%s", folder, name); }
