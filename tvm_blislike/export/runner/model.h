// A compiled model in TVM's virtual machine, and a clock for each of its kernels.
#pragma once

#include <time.h>

#include "npy.h"
#include "tvm_c.h"

inline double now_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

inline double median(Array<double>* values) {
  qsort(values->items, values->size, sizeof(double), [](const void* a, const void* b) {
    double x = *static_cast<const double*>(a), y = *static_cast<const double*>(b);
    return x < y ? -1 : x > y ? 1 : 0;
  });
  size_t half = values->size / 2;
  return values->size % 2 == 1 ? (*values)[half] : ((*values)[half - 1] + (*values)[half]) / 2;
}

// Milliseconds of one kernel: the sum over its calls, for every run.
struct KernelTime {
  char* name;
  int calls;  // in one run
  Array<double>* runs;
};

struct KernelClock {
  Array<KernelTime> kernels;
  size_t run = 0;
  double started = 0;

  void add(const char* name, double ms) {
    KernelTime* found = nullptr;
    for (KernelTime& kernel : kernels) {
      if (strcmp(kernel.name, name) == 0) found = &kernel;
    }
    if (found == nullptr) found = &kernels.push({strdup(name), 0, new_times()});
    if (run == 0) found->calls++;
    while (found->runs->size <= run) found->runs->push(0.0);
    (*found->runs)[run] += ms;
  }

  // Whether a call is the virtual machine's own, such as making a view of a tensor.
  static bool of_the_machine(const char* name) {
    return strncmp(name, "vm.", 3) == 0 || strncmp(name, "runtime.", 8) == 0;
  }

  static Array<double>* new_times() {
    void* memory = calloc(1, sizeof(Array<double>));
    if (memory == nullptr) die(kModel, "out of memory");
    return static_cast<Array<double>*>(memory);
  }

  // What the virtual machine calls before and after every call it makes: function, name, whether
  // before, result, arguments.
  static int instrument(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
    KernelClock* clock = static_cast<KernelClock*>(self);
    *result = as_any(int64_t{0});
    if (count < 3 || args[2].v_int64 != 0) {
      clock->started = now_ms();
      return 0;
    }
    double ms = now_ms() - clock->started;
    char* name = text_of(args[1]);
    if (!of_the_machine(name)) clock->add(name, ms);
    free(name);
    return 0;
  }
};

struct Model {
  Value library;
  Value machine;
  Value main;

  Model(const char* path, const char* function) {
    library = call(kModel, path, global_function("ffi.ModuleLoadFromFile"), path);
    machine = call(kModel, path, function_of(library, "vm_load_executable"));
    const int64_t pooled = 2;
    call(kModel, path, function_of(machine, "vm_initialization"), int64_t{kDLCPU}, int64_t{0}, pooled,
         int64_t{kDLCPU}, int64_t{0}, pooled);
    main = function_of(machine, function);
  }

  void set_clock(KernelClock* clock) {
    Value callback = as_function(clock, KernelClock::instrument);
    call(kModel, "set_instrument", function_of(machine, "set_instrument"), callback);
  }

  Value run(const Array<TVMFFIAny>& inputs) {
    Value result;
    if (TVMFFIFunctionCall(main.any.v_obj, inputs.items, static_cast<int32_t>(inputs.size),
                           &result.any) != 0) {
      die_of_tvm(kModel, "running the model");
    }
    return result;
  }
};

// Gives TVM a view of a tensor that stays alive until the program ends.
inline TVMFFIAny view_of(Tensor* tensor) {
  DLManagedTensor* managed = static_cast<DLManagedTensor*>(calloc(1, sizeof(DLManagedTensor)));
  if (managed == nullptr) die(kModel, "out of memory");
  managed->dl_tensor.data = tensor->data;
  managed->dl_tensor.device = {kDLCPU, 0};
  managed->dl_tensor.ndim = tensor->ndim;
  managed->dl_tensor.dtype = tensor->dtype;
  managed->dl_tensor.shape = tensor->shape;
  TVMFFIAny any = {};
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFITensorFromDLPack(managed, 64, 1, &handle) != 0) die_of_tvm(kInput, "an input");
  any.type_index = kTVMFFITensor;
  any.v_obj = static_cast<TVMFFIObject*>(handle);
  return any;
}
