// Writing what a model computed, each output checked against the manifest.
#pragma once

#include <sys/stat.h>

#include "manifest.h"
#include "output_files.h"
#include "tvm_c.h"

// An output as what the library made of it, which has to be what the manifest says.
inline Tensor checked_output(const TVMFFIAny& any, const Spec& spec) {
  if (any.type_index != kTVMFFITensor) die(kModel, "the output %s is no tensor", spec.name);
  const DLTensor* found = TVMFFITensorGetDLTensorPtr(any.v_obj);
  Tensor tensor;
  tensor.dtype = found->dtype;
  tensor.ndim = found->ndim;
  tensor.data = static_cast<char*>(found->data) + found->byte_offset;
  bool fits = found->ndim == spec.tensor.ndim && found->dtype.code == spec.tensor.dtype.code &&
              found->dtype.bits == spec.tensor.dtype.bits && found->dtype.lanes == 1;
  int64_t stride = 1;
  for (int i = fits ? found->ndim - 1 : -1; i >= 0; i--) {
    tensor.shape[i] = found->shape[i];
    fits = fits && (spec.tensor.shape[i] == kUnknown || spec.tensor.shape[i] == found->shape[i]);
    bool next = found->strides == nullptr || found->strides[i] == stride || found->shape[i] <= 1;
    if (!next) die(kModel, "the output %s does not lie row by row", spec.name);
    stride *= found->shape[i];
  }
  char wants[256];
  if (!fits) {
    die(kModel, "the output %s is not %s, as the manifest says: make the bundle again", spec.name,
        describe(spec.tensor, wants, sizeof wants));
  }
  return tensor;
}

inline void write_outputs(const char* folder, const Array<Spec>& outputs, const Value& result) {
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    die(kOutput, "cannot make the folder %s: %s", folder, strerror(errno));
  }
  bool several = result.is(kTVMFFIArray);
  size_t count = several ? static_cast<size_t>(length(result, "the outputs")) : 1;
  if (count != outputs.size) {
    die(kModel, "the library has %zu outputs, the manifest %zu: make the bundle again", count,
        outputs.size);
  }
  Array<const char*> names;
  for (size_t i = 0; i < count; i++) names.push(outputs.items[i].name);
  Array<char*> files;
  output_files(names, &files);
  for (size_t i = 0; i < count; i++) {
    Value owner;
    if (several) owner = item(result, static_cast<int64_t>(i), "an output");
    const TVMFFIAny& any = several ? owner.any : result.any;
    write_npy(joined(folder, files[i]), checked_output(any, outputs.items[i]));
  }
}
