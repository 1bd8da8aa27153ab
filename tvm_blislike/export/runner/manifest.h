// What manifest.json says of a model, read with the JSON parser of TVM's libraries.
#pragma once

#include "npy.h"
#include "tvm_c.h"

struct Spec {
  char* name;
  Tensor tensor;  // without data
};

struct Layer {
  char* name;
  char* workload;
};

struct Manifest {
  char* folder;
  char* library;
  char* core;
  int threads;
  Array<Spec> inputs;
  Array<Spec> outputs;
  Array<Layer> layers;
};

inline Value member(const Value& map, const char* key, const char* path) {
  Value missing = global_function("ffi.MapCount");
  if (!map.is(kTVMFFIMap) || call(kModel, path, missing, map, key).any.v_int64 == 0) {
    die(kModel, "%s has no %s: make the bundle again", path, key);
  }
  return call(kModel, path, global_function("ffi.MapGetItem"), map, key);
}

inline int64_t length(const Value& array, const char* path) {
  if (!array.is(kTVMFFIArray)) die(kModel, "%s is damaged: make the bundle again", path);
  return call(kModel, path, global_function("ffi.ArraySize"), array).any.v_int64;
}

inline Value item(const Value& array, int64_t index, const char* path) {
  return call(kModel, path, global_function("ffi.ArrayGetItem"), array, index);
}

inline void read_specs(const Value& list, const char* path, Array<Spec>* specs) {
  for (int64_t i = 0; i < length(list, path); i++) {
    Value entry = item(list, i, path);
    Spec spec = {text_of(member(entry, "name", path).any), Tensor()};
    Value shape = member(entry, "shape", path);
    int64_t ndim = length(shape, path);
    if (ndim > 8) die(kModel, "%s: %s has more than 8 dimensions", path, spec.name);
    for (int64_t d = 0; d < ndim; d++) spec.tensor.shape[d] = item(shape, d, path).any.v_int64;
    spec.tensor.ndim = static_cast<int>(ndim);
    char* dtype = text_of(member(entry, "dtype", path).any);
    if (!parse_dtype(dtype, &spec.tensor.dtype)) {
      die(kModel, "%s: %s has data type %s, which .npy files cannot hold", path, spec.name, dtype);
    }
    free(dtype);
    specs->push(spec);
  }
}

// Reads the manifest of a bundle; `path` is its folder.
inline void read_manifest(const char* path, Manifest* manifest) {
  manifest->folder = joined(path, "");
  char* file = joined(path, "manifest.json");
  size_t size = 0;
  char* text = read_file(file, &size, kModel);
  Value root = call(kModel, file, global_function("ffi.json.Parse"), static_cast<const char*>(text));
  if (member(root, "format", file).any.v_int64 != 1) {
    die(kModel, "%s was written by another version of tvm-blislike", file);
  }
  manifest->library = text_of(member(root, "library", file).any);
  manifest->core = text_of(member(root, "core", file).any);
  manifest->threads = static_cast<int>(member(root, "threads", file).any.v_int64);
  read_specs(member(root, "inputs", file), file, &manifest->inputs);
  read_specs(member(root, "outputs", file), file, &manifest->outputs);
  Value layers = member(root, "layers", file);
  for (int64_t i = 0; i < length(layers, file); i++) {
    Value entry = item(layers, i, file);
    manifest->layers.push({text_of(member(entry, "name", file).any),
                           text_of(member(entry, "workload", file).any)});
  }
  free(text);
}
