// Names of the files that outputs are written to: readable, and a different one for each output. The
// same rule as tvm_blislike/export/output_names.py, whose docstring states it.
#pragma once

#include "common.h"

// Of a readable name: with a number and ".npy.part" it is still one that every file system takes.
constexpr size_t kMostOfName = 200;

// The name with "_" for what is not plain in file names.
inline char* readable(const char* name) {
  char* text = copied(name[0] != '\0' ? name : "_");
  if (strlen(text) > kMostOfName) text[kMostOfName] = '\0';
  if (text[0] == '.') text[0] = '_';
  for (char* c = text; *c != '\0'; c++) {
    bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                 strchr("-_.", *c) != nullptr;
    if (!plain) *c = '_';
  }
  return text;
}

// Whether no output has this file yet; some file systems take upper and lower case for the same.
inline bool is_free(const char* file, const Array<char*>& files) {
  for (size_t i = 0; i < files.size; i++) {
    if (files.items[i] != nullptr && strcasecmp(file, files.items[i]) == 0) return false;
  }
  return true;
}

inline char* first_free(const char* name, const Array<char*>& files) {
  char* file = copied(name);
  for (int number = 1; !is_free(file, files); number++) {
    free(file);
    file = printed("%s.%d", name, number);
  }
  return file;
}

// Appends a file name for each output: first come the names that are files as they are.
inline void output_files(const Array<const char*>& names, Array<char*>* files) {
  for (size_t i = 0; i < names.size; i++) {
    char* name = readable(names.items[i]);
    bool plain = strcmp(name, names.items[i]) == 0 && is_free(name, *files);
    files->push(plain ? name : nullptr);
  }
  for (size_t i = 0; i < names.size; i++) {
    if (files->items[i] == nullptr) {
      files->items[i] = first_free(readable(names.items[i]), *files);
    }
  }
  for (char*& file : *files) file = printed("%s.npy", file);
}
