/* A model without TVM's runtime: calls its kernels in order, for any number of runners.
 *
 * Compiled together with tables.h, which is generated for each model and defines NAME(x), the
 * tables below and the sizes. Kernels follow the C calling convention of TVM's FFI; the structures
 * here are those of tvm/ffi/c_api.h, dlpack.h and tvm/runtime/c_backend_api.h that they read.
 */
#include "blislike.h"

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

typedef int32_t (*Kernel)(void* self, const Any* arguments, int32_t count, Any* result);

typedef struct {
  void* pool;
  int32_t tasks;
} ParallelEnv;

typedef int32_t (*Task)(int32_t number, ParallelEnv* group, void* data);

enum Kind { kInput, kOutput, kWeight, kWorkspace };

typedef struct {
  uint8_t kind, code, bits, ndim;
  uint32_t number; /* of its input or output */
  uint64_t offset; /* in its input or output, in the weights or in the workspace */
  int64_t* shape;
} TensorEntry;

typedef struct {
  Kernel kernel;
  uint32_t first, count; /* of its tensors in call_tensors */
} CallEntry;

typedef struct {
  uint32_t tensor;
  uint32_t is_written; /* by kernels, wherever it lies */
  uint64_t place;      /* in the workspace, where the caller's memory does not do */
} OutputEntry;

#include "tables.h"

extern const unsigned char NAME(weights)[];
extern const blislike_model NAME(model);

enum { kTensorPointer = 7, kCpu = 1 };

typedef struct Runner Runner;
typedef struct Pool Pool;

/* What one thread of a runner has for itself: memory that kernels ask for and give back in reverse
 * order. */
typedef struct {
  Runner* runner;
  int32_t number;
  unsigned char* memory;
  uint64_t used, room;
  uint64_t thread; /* what the system calls it */
  /* No two lanes share a line of the cache, nor the pairs of lines that are loaded together. */
  uint64_t unused[10];
} Lane;

struct Runner {
  blislike_runner head;
  int32_t started;
  int32_t is_busy;
  int32_t is_of_heap;
  Pool* pool;
  Lane* lanes;
  unsigned char* workspace;
  const unsigned char* inputs[INPUTS + 1];
  unsigned char* outputs[OUTPUTS + 1];
};

#include "text.h"
#include "check.h"
#ifdef BLISLIKE_THREADS
#include "workers.h"
#else
#include "one_thread.h"
#endif

/* Sizes that the generated header has, too. */
typedef char HeadFits[sizeof(Runner) + sizeof(Pool) + BLISLIKE_ALIGNMENT <= HEAD_BYTES ? 1 : -1];
typedef char LaneFits[sizeof(Lane) == LANE_BYTES ? 1 : -1];

/* What kernels call, through variables of names of the model's own. */

static void* take(int32_t device, int32_t id, uint64_t bytes, int32_t code, int32_t bits) {
  (void)device, (void)id, (void)code, (void)bits;
  bytes = (bytes + 63) / 64 * 64 + 64;
  if (lane->used + bytes > lane->room) return NULL;
  unsigned char* memory = lane->memory + lane->used + 64;
  lane->used += bytes;
  *(uint64_t*)(memory - 64) = bytes;
  return memory;
}

static int32_t give_back(int32_t device, int32_t id, void* memory) {
  (void)device, (void)id;
  lane->used -= *(uint64_t*)((unsigned char*)memory - 64);
  return 0;
}

/* Weak, so that several models in one program have one of it. */
__attribute__((weak)) void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts,
                                                              int32_t count) {
  (void)kind, (void)parts, (void)count;
}

/* The kernels' object has those of these variables that it needs; TVM's runtime would fill them. */
static void connect_kernels(void) {
  static void* const functions[] = {(void*)take, (void*)give_back, (void*)launch, (void*)barrier};
  static void** const variables[] = {TAKE, GIVE_BACK, LAUNCH, BARRIER};
  for (int i = 0; i < 4; i++) {
    if (variables[i] != NULL) __atomic_store_n(variables[i], functions[i], __ATOMIC_RELAXED);
  }
}

static unsigned char* address(const TensorEntry* entry, const Runner* runner) {
  const unsigned char* start = runner->workspace;
  if (entry->kind == kInput) start = runner->inputs[entry->number];
  if (entry->kind == kOutput) start = runner->outputs[entry->number];
  if (entry->kind == kWeight) start = NAME(weights);
  return (unsigned char*)start + entry->offset;
}

static int32_t call(const CallEntry* entry, const Runner* runner) {
  Tensor tensors[MOST_ARGUMENTS];
  Any arguments[MOST_ARGUMENTS];
  for (uint32_t i = 0; i < entry->count; i++) {
    const TensorEntry* tensor = &tensor_entries[call_tensors[entry->first + i]];
    Tensor view = {address(tensor, runner), {kCpu, 0}, tensor->ndim,
                   {tensor->code, tensor->bits, 1}, tensor->shape, NULL, 0};
    tensors[i] = view;
    arguments[i].type_index = kTensorPointer;
    arguments[i].padding = 0;
    arguments[i].pointer = &tensors[i];
  }
  Any nothing = {0, 0, {0}};
  return entry->kernel(NULL, arguments, (int32_t)entry->count, &nothing);
}

static int is_aligned(const void* memory) {
  return (uintptr_t)memory % BLISLIKE_ALIGNMENT == 0;
}

static void place_inputs(Runner* runner, const blislike_input* inputs) {
  for (int32_t i = 0; i < INPUTS; i++) {
    unsigned char* own = (unsigned char*)runner + input_places[i];
    int stays = is_aligned(inputs[i].data);
    if (!stays) memcpy(own, inputs[i].data, inputs[i].bytes);
    runner->inputs[i] = stays ? (const unsigned char*)inputs[i].data : own;
  }
}

/* Kernels may write an output before they have read an input for the last time. */
static int may_write(const blislike_output* output, const blislike_input* inputs) {
  if (!is_aligned(output->data)) return 0;
  for (int32_t i = 0; i < INPUTS; i++) {
    if (overlap(output->data, output->bytes, inputs[i].data, inputs[i].bytes)) return 0;
  }
  return 1;
}

static void place_outputs(Runner* runner, const blislike_input* inputs,
                          const blislike_output* outputs) {
  for (int32_t i = 0; i < OUTPUTS; i++) {
    int direct = output_entries[i].is_written && may_write(&outputs[i], inputs);
    runner->outputs[i] = direct ? (unsigned char*)outputs[i].data
                                : runner->workspace + output_entries[i].place;
  }
}

static void copy_outputs(const Runner* runner, const blislike_output* outputs) {
  for (int32_t i = 0; i < OUTPUTS; i++) {
    const unsigned char* found = address(&tensor_entries[output_entries[i].tensor], runner);
    if (found != outputs[i].data && outputs[i].bytes) {
      memcpy(outputs[i].data, found, outputs[i].bytes);
    }
  }
}

static blislike_status run_kernels(Runner* runner, blislike_error* error) {
  lane = &runner->lanes[0];
  for (int32_t i = 0; i < runner->head.threads; i++) runner->lanes[i].used = 0;
  for (uint32_t i = 0; i < CALLS; i++) {
    if (call(&call_entries[i], runner) == 0) continue;
    fail(error, BLISLIKE_FAILED, "kernel ");
    say_number(error, i);
    say(error, " of the model failed");
    return BLISLIKE_FAILED;
  }
  return BLISLIKE_OK;
}

static blislike_status run(blislike_runner* head, const blislike_input* inputs, int32_t input_count,
                           const blislike_output* outputs, int32_t output_count,
                           blislike_error* error) {
  Runner* runner = (Runner*)head;
  blislike_status status = check_all(inputs, input_count, outputs, output_count, error);
  if (status) return status;
  const char* reason = why_not_now(runner);
  if (reason != NULL) return fail(error, BLISLIKE_UNFIT, reason);
  if (__atomic_exchange_n(&runner->is_busy, 1, __ATOMIC_ACQUIRE)) {
    return fail(error, BLISLIKE_INVALID, "the runner is in use: create one for each thread");
  }
  place_inputs(runner, inputs);
  place_outputs(runner, inputs, outputs);
  status = run_kernels(runner, error);
  if (!status) copy_outputs(runner, outputs);
  __atomic_store_n(&runner->is_busy, 0, __ATOMIC_RELEASE);
  return status;
}

static size_t bytes_of(int32_t threads) {
  if (threads == 0) threads = COMPILED_THREADS;
  if (threads < 1 || threads > BLISLIKE_MOST_THREADS) return 0;
  return MAIN_BYTES + (size_t)threads * EACH_BYTES;
}

/* Its head, the pool and the copies of inputs, then the workspace, then all lanes and their
 * memory. */
static Runner* laid_out(void* memory, int32_t threads) {
  Runner* runner = (Runner*)memory;
  unsigned char* start = (unsigned char*)memory;
  runner->head.model = &NAME(model);
  runner->head.threads = threads;
  runner->started = 1;
  runner->is_busy = 0;
  runner->pool = (Pool*)(start + (sizeof(Runner) + 63) / 64 * 64);
  runner->workspace = start + WORKSPACE_START;
  runner->lanes = (Lane*)(start + LANES_START);
  unsigned char* free_memory = start + LANES_START + (size_t)threads * LANE_BYTES;
  for (int32_t i = 0; i < threads; i++) {
    uint64_t room = i == 0 ? MAIN_SCRATCH_BYTES + TASK_SCRATCH_BYTES : TASK_SCRATCH_BYTES;
    Lane own = {runner, i, free_memory, 0, room, 0, {0}};
    runner->lanes[i] = own;
    free_memory += room;
  }
  return runner;
}

static blislike_status create(void* memory, size_t bytes, int32_t threads, blislike_runner** result,
                              blislike_error* error) {
  size_t wanted = bytes_of(threads);
  if (wanted == 0) return fail(error, BLISLIKE_INVALID, "threads are 1 to 1024, or 0");
  const char* missing = missing_feature();
  if (missing != NULL) {
    fail(error, BLISLIKE_UNFIT, "this processor lacks ");
    say(error, missing);
    return BLISLIKE_UNFIT;
  }
  if (memory != NULL && (bytes < wanted || !is_aligned(memory))) {
    fail(error, BLISLIKE_NO_MEMORY, "a runner needs aligned memory, in bytes ");
    say_number(error, (int64_t)wanted);
    return BLISLIKE_NO_MEMORY;
  }
  void* place = memory != NULL ? memory : heap_memory(wanted);
  if (place == NULL) return fail(error, BLISLIKE_NO_MEMORY, "no memory is left, or none was given");
  connect_kernels();
  Runner* runner = laid_out(place, threads == 0 ? COMPILED_THREADS : threads);
  runner->is_of_heap = memory == NULL;
  const char* reason = start_workers(runner);
  if (reason != NULL) {
    if (memory == NULL) free_heap_memory(place);
    return fail(error, BLISLIKE_NO_MEMORY, reason);
  }
  *result = &runner->head;
  return BLISLIKE_OK;
}

static void free_runner(blislike_runner* head) {
  Runner* runner = (Runner*)head;
  stop_workers(runner);
  if (runner->is_of_heap) free_heap_memory(runner);
}

const blislike_model NAME(model) = {
    BLISLIKE_INTERFACE, COMPILED_THREADS, MODEL_NAME, VERSION,  CORE,   INPUTS, OUTPUTS,
    input_specs,        output_specs,     bytes_of,   create,   run,    free_runner};
