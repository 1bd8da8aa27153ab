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

// One of the sizes that a model takes.
struct Variant {
  const char* function;
  Array<Spec> inputs;
  Array<Spec> outputs;
};

struct Manifest {
  char* library;         // path
  char library_sha256[65];
  char* core;
  int threads;
  Array<Variant*> variants;  // the largest first
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

inline void read_variant(const Json& entry, const char* function, Manifest* manifest) {
  Variant* variant = static_cast<Variant*>(calloc(1, sizeof(Variant)));
  if (variant == nullptr) die(kModel, "out of memory");
  variant->function = function;
  read_specs(entry["inputs"], false, &variant->inputs);
  read_specs(entry["outputs"], true, &variant->outputs);
  manifest->variants.push(variant);
}

// The inputs of another size have the names and types of the largest one's, and so many outputs.
inline void check_variant(const Json& entry, const Variant& largest, const Variant& other) {
  bool same = other.inputs.size == largest.inputs.size && other.outputs.size == largest.outputs.size;
  for (size_t i = 0; same && i < largest.inputs.size; i++) {
    const Spec &a = largest.inputs.items[i], &b = other.inputs.items[i];
    same = strcmp(a.name, b.name) == 0 && a.tensor.ndim == b.tensor.ndim &&
           a.tensor.dtype.code == b.tensor.dtype.code && a.tensor.dtype.bits == b.tensor.dtype.bits;
  }
  if (!same) entry.refuse("of the same inputs and outputs as the model");
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
  read_variant(root, "main", manifest);
  root["variants"].each([&](const Json& entry) {
    read_variant(entry, copied(entry["function"].text()), manifest);
    Array<Variant*>& all = manifest->variants;
    check_variant(entry, *all[0], *all[all.size - 1]);
  });
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
