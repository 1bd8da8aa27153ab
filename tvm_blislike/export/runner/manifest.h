// What manifest.json says of a model, every field checked: it may come from anywhere.
#pragma once

#include "json.h"
#include "npy.h"
#include "sha256.h"

// More than any machine has; TVM would start as many as it is told to.
constexpr int kMostThreads = 4096;

struct Spec {
  char* name;
  Tensor tensor;  // without data
};

struct Layer {
  char* name;
  char* workload;
};

struct Manifest {
  char* library;         // path
  char library_sha256[65];
  char* core;
  int threads;
  Array<Spec> inputs;
  Array<Spec> outputs;
  Array<Layer> layers;
};

// Sizes of outputs may be null: only running the model tells them.
inline void read_shape(const Json& list, bool of_output, Tensor* tensor) {
  list.each([&](const Json& extent) {
    if (tensor->ndim == kMostDimensions) die(kModel, "%s has more than 8 dimensions", list.place);
    bool open = of_output && extent.is_null();
    tensor->shape[tensor->ndim++] = open ? kUnknown : extent.integer(0, int64_t{1} << 48);
  });
  if (!can_exist(*tensor)) die(kModel, "%s is larger than any memory", list.place);
}

inline void read_specs(const Json& list, bool of_outputs, Array<Spec>* specs) {
  list.each([&](const Json& entry) {
    Spec spec = {copied(entry["name"].text()), Tensor()};
    Json dtype = entry["dtype"];
    if (!parse_dtype(dtype.text(), &spec.tensor.dtype)) {
      die(kModel, "%s: %s has data type %s, which .npy files cannot hold", dtype.place, spec.name,
          dtype.text());
    }
    read_shape(entry["shape"], of_outputs, &spec.tensor);
    // One tensor may be several outputs; inputs are told apart by their names.
    for (Spec& other : *specs) {
      if (!of_outputs && strcmp(other.name, spec.name) == 0) {
        die(kModel, "%s: %s is the name of another one, too", entry.place, spec.name);
      }
    }
    specs->push(spec);
  });
}

// Finds the checksum of a file of the bundle.
inline void read_checksum(const Json& files, const char* name, char* digits) {
  digits[0] = '\0';
  files.each([&](const Json& entry) {
    if (strcmp(entry["path"].text(), name) != 0) return;
    Json sum = entry["sha256"];
    if (strlen(sum.text()) != 64 || strspn(sum.text(), "0123456789abcdef") != 64) {
      sum.refuse("a SHA-256");
    }
    strcpy(digits, sum.text());
  });
  if (digits[0] == '\0') die(kModel, "%s does not list %s", files.place, name);
}

// Reads the manifest of a bundle.
inline void read_manifest(const char* bundle, Manifest* manifest) {
  Json root = read_json(joined(bundle, "manifest.json"));
  if (cJSON_GetNumberValue(root["format"].value) != 1) {
    die(kModel, "%s was written by another version of tvm-blislike", root.place);
  }
  Json library = root["library"];
  const char* name = library.text();
  if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != nullptr) {
    library.refuse("the name of a file beside it");
  }
  manifest->library = joined(bundle, name);
  read_checksum(root["files"], name, manifest->library_sha256);
  manifest->core = copied(root["core"].text());
  manifest->threads = static_cast<int>(root["threads"].integer(1, kMostThreads));
  read_specs(root["inputs"], false, &manifest->inputs);
  read_specs(root["outputs"], true, &manifest->outputs);
  root["layers"].each([&](const Json& entry) {
    manifest->layers.push({copied(entry["name"].text()), copied(entry["workload"].text())});
  });
}

// Ends the program unless the library is, byte by byte, the one the manifest was written for; to be
// called before any of its code is loaded.
inline void verify_library(const Manifest& manifest) {
  char found[65];
  sha256_of_file(manifest.library, found);
  if (strcmp(found, manifest.library_sha256) == 0) return;
  die(kModel,
      "%s is damaged, or not the library of this bundle: its SHA-256 is not that of the manifest; "
      "copy the bundle again (--no-verify runs it as it is)",
      manifest.library);
}
