/* A model without TVM's runtime: calls its kernels in order, in one thread.
 *
 * Compiled together with tables.h, which is generated for each model and defines NAME(x), the
 * tables below and the sizes. Kernels follow the C calling convention of TVM's FFI; the structures
 * here are those of tvm/ffi/c_api.h and dlpack.h that they read.
 */
#include <stddef.h>
#include <stdint.h>

void* memcpy(void* to, const void* from, size_t bytes);

typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t integer;
    void* pointer;
  };
} Any;

typedef struct {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} Tensor;

typedef int (*Kernel)(void* self, const Any* arguments, int32_t count, Any* result);

enum Kind { kInput, kWeight, kWorkspace };

typedef struct {
  uint8_t kind, code, bits, ndim;
  uint32_t input;  /* its number */
  uint64_t offset; /* in its input, in the weights or in the workspace */
  int64_t* shape;
} TensorEntry;

typedef struct {
  Kernel kernel;
  uint32_t first, count; /* of its tensors in call_tensors */
} CallEntry;

typedef struct {
  uint32_t tensor;
  uint64_t bytes;
} OutputEntry;

#include "tables.h"

extern const unsigned char NAME(weights)[];

enum { kTensorPointer = 7, kCpu = 1 };

/* What kernels call. All weak: several models in one program share them. */

static const char* last_error;

__attribute__((weak)) void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts,
                                                              int32_t count) {
  (void)kind;
  (void)parts;
  (void)count;
}

/* Memory that kernels ask for and give back in reverse order, behind the planned tensors. */
static unsigned char* scratch;
static uint64_t scratch_used;

static void* take(int device, int id, uint64_t bytes, int code, int bits) {
  (void)device, (void)id, (void)code, (void)bits;
  bytes = (bytes + 63) / 64 * 64 + 64;
  if (scratch_used + bytes > SCRATCH_BYTES) {
    last_error = "a kernel asked for more memory than planned";
    return NULL;
  }
  unsigned char* memory = scratch + scratch_used + 64;
  scratch_used += bytes;
  *(uint64_t*)(memory - 64) = bytes;
  return memory;
}

static int give_back(int device, int id, void* memory) {
  (void)device, (void)id;
  scratch_used -= *(uint64_t*)((unsigned char*)memory - 64);
  return 0;
}

typedef struct {
  void* handle;
  int32_t tasks;
} ParallelEnv;

static int in_turn(int (*task)(int, ParallelEnv*, void*), void* data, int tasks) {
  ParallelEnv one = {NULL, 1};
  (void)tasks;
  return task(0, &one, data);
}

/* The kernels' object has these variables, which TVM's runtime would fill on loading. */
extern __attribute__((weak)) void* __TVMBackendAllocWorkspace;
extern __attribute__((weak)) void* __TVMBackendFreeWorkspace;
extern __attribute__((weak)) void* __TVMBackendParallelLaunch;

static void connect(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = (void*)take;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = (void*)give_back;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void*)in_turn;
}

static unsigned char* address(const TensorEntry* entry, const void* const* inputs,
                              unsigned char* workspace) {
  if (entry->kind == kInput) return (unsigned char*)inputs[entry->input] + entry->offset;
  if (entry->kind == kWeight) return (unsigned char*)NAME(weights) + entry->offset;
  return workspace + entry->offset;
}

static int call(const CallEntry* entry, const void* const* inputs, unsigned char* workspace) {
  Tensor tensors[MOST_ARGUMENTS];
  Any arguments[MOST_ARGUMENTS];
  for (uint32_t i = 0; i < entry->count; i++) {
    const TensorEntry* tensor = &tensor_entries[call_tensors[entry->first + i]];
    Tensor view = {address(tensor, inputs, workspace), {kCpu, 0}, tensor->ndim,
                   {tensor->code, tensor->bits, 1}, tensor->shape, NULL, 0};
    tensors[i] = view;
    arguments[i].type_index = kTensorPointer;
    arguments[i].padding = 0;
    arguments[i].pointer = &tensors[i];
  }
  Any nothing = {0, 0, {0}};
  return entry->kernel(NULL, arguments, (int32_t)entry->count, &nothing);
}

const char* NAME(error)(void) { return last_error; }

int NAME(run_arrays)(const void* const* inputs, void* const* outputs, void* workspace) {
  last_error = NULL;
  if ((uintptr_t)workspace % 64 != 0) {
    last_error = "the workspace is not aligned to 64 bytes";
    return -1;
  }
  for (uint32_t i = 0; i < INPUTS; i++) {
    if ((uintptr_t)inputs[i] % 64 != 0) {
      last_error = "an input is not aligned to 64 bytes";
      return -1;
    }
  }
  connect();
  scratch = (unsigned char*)workspace + PLANNED_BYTES;
  scratch_used = 0;
  for (uint32_t i = 0; i < CALLS; i++) {
    if (call(&call_entries[i], inputs, workspace) != 0) {
      if (last_error == NULL) last_error = "a kernel refused its arguments";
      return -1;
    }
  }
  for (uint32_t i = 0; i < OUTPUTS; i++) {
    const TensorEntry* tensor = &tensor_entries[output_entries[i].tensor];
    memcpy(outputs[i], address(tensor, inputs, workspace), output_entries[i].bytes);
  }
  return 0;
}
