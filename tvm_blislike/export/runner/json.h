// Values of a JSON file that are what they should be, or end the program with their place in it.
#pragma once

#include "cjson/cJSON.h"
#include "common.h"

struct Json {
  const cJSON* value;
  const char* place;  // such as "ship/manifest.json: inputs[0].shape"
  bool whole;         // the file itself

  [[noreturn]] void refuse(const char* wanted) const {
    die(kModel, "%s is not %s: make the bundle again", place, wanted);
  }

  // A member of an object: there, and there once.
  Json operator[](const char* key) const {
    if (!cJSON_IsObject(value)) refuse("an object");
    const cJSON* found = nullptr;
    for (const cJSON* child = value->child; child != nullptr; child = child->next) {
      if (strcmp(child->string, key) != 0) continue;
      if (found != nullptr) die(kModel, "%s has %s twice: make the bundle again", place, key);
      found = child;
    }
    if (found == nullptr) die(kModel, "%s has no %s: make the bundle again", place, key);
    return {found, printed("%s%s%s", place, whole ? ": " : ".", key), false};
  }

  const char* text() const {
    if (!cJSON_IsString(value)) refuse("a text");
    return value->valuestring;
  }

  int64_t integer(int64_t least, int64_t most) const {
    double number = cJSON_IsNumber(value) ? value->valuedouble : -1.0;
    // Not written as "<": not even that is true of NaN.
    bool fits = number >= static_cast<double>(least) && number <= static_cast<double>(most);
    if (!fits || static_cast<double>(static_cast<int64_t>(number)) != number) {
      refuse(printed("a whole number from %lld to %lld", static_cast<long long>(least),
                     static_cast<long long>(most)));
    }
    return static_cast<int64_t>(number);
  }

  bool is_null() const { return cJSON_IsNull(value); }

  // Calls `visit` with each item of an array.
  template <class Visit>
  void each(Visit visit) const {
    if (!cJSON_IsArray(value)) refuse("a list");
    int index = 0;
    for (const cJSON* child = value->child; child != nullptr; child = child->next) {
      visit(Json{child, printed("%s[%d]", place, index++), false});
    }
  }
};

// Texts here end at their first zero: one inside of them would hide the rest.
inline bool has_zero_inside(const char* text) {
  for (const char* at = strchr(text, '\\'); at != nullptr; at = strchr(at + 2, '\\')) {
    if (strncmp(at, "\\u0000", 6) == 0) return true;
    if (at[1] == '\0') return false;
  }
  return false;
}

// Reads a file; what it returns is never freed. cJSON limits how deeply values may be nested.
inline Json read_json(const char* path) {
  size_t size = 0;
  char* text = read_file(path, &size, kModel);
  const char* end = text;
  const cJSON* root = cJSON_ParseWithLengthOpts(text, size + 1, &end, 1);
  if (root == nullptr || has_zero_inside(text)) {
    int line = 1;
    for (const char* at = text; root == nullptr && at < end; at++) line += *at == '\n';
    die(kModel, "%s is damaged in line %d: make the bundle again", path, line);
  }
  free(text);
  return {root, path, true};
}
