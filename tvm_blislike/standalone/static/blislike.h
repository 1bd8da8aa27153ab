/* The C interface of models that tvm-blislike compiled with --standalone: C99, also for C++.
 *
 * A model is constant: code, weights, and what the structure below tells of it. A runner is the
 * memory of one run after another; runners of one model share its weights. Different runners may
 * run at once, one runner serves one call at a time.
 *
 *   blislike_runner* runner;
 *   blislike_error error;
 *   if (blislike_create(&net_model, 0, &runner, &error)) puts(error.text);
 *   blislike_input image = {.data = pixels, .bytes = sizeof pixels};
 *   blislike_output scores = {.data = results, .bytes = sizeof results};
 *   if (blislike_run(runner, &image, 1, &scores, 1, &error)) puts(error.text);
 *   blislike_free(runner);
 *
 * Nothing here ends the program, prints, or keeps a pointer of the caller's after it returned.
 */
#ifndef BLISLIKE_H
#define BLISLIKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this file. A model of another interface is refused. */
#define BLISLIKE_INTERFACE 1
/* Inputs and outputs at multiples of it are read and written where they lie; others are copied. */
#define BLISLIKE_ALIGNMENT 64
#define BLISLIKE_MOST_THREADS 1024

typedef int32_t blislike_type;
enum {
  BLISLIKE_ANY_TYPE, /* of what a caller gives: that of the model, without a check */
  BLISLIKE_BOOL,     /* a byte, 0 or 1 */
  BLISLIKE_INT8,
  BLISLIKE_INT16,
  BLISLIKE_INT32,
  BLISLIKE_INT64,
  BLISLIKE_UINT8,
  BLISLIKE_UINT16,
  BLISLIKE_UINT32,
  BLISLIKE_UINT64,
  BLISLIKE_FLOAT16,
  BLISLIKE_BFLOAT16,
  BLISLIKE_FLOAT32,
  BLISLIKE_FLOAT64
};

/* What functions return. */
typedef int32_t blislike_status;
enum {
  BLISLIKE_OK,
  BLISLIKE_INVALID,   /* an argument is not what the model takes; the text says what to change */
  BLISLIKE_NO_MEMORY, /* neither memory nor threads are left, or what was given is too little */
  BLISLIKE_UNFIT,     /* this processor, or this program, cannot run the model */
  BLISLIKE_FAILED     /* a kernel failed: a fault of the library */
};

/* Why a function failed; wherever one is asked for it may be NULL. */
typedef struct blislike_error {
  char text[256];
} blislike_error;

/* An input or output as the model has it; C order. */
typedef struct blislike_tensor {
  const char* name;
  blislike_type type;
  int32_t rank;
  const int64_t* shape; /* `rank` sizes */
  size_t bytes;
} blislike_tensor;

/* An array of the caller's, in C order. Its bytes are always compared with the model's, its type
 * unless it is BLISLIKE_ANY_TYPE, its shape unless that is NULL. */
typedef struct blislike_input {
  const void* data;
  size_t bytes;
  blislike_type type;
  int32_t rank;
  const int64_t* shape;
} blislike_input;

/* The same to be written; no two outputs may overlap. One that overlaps an input is copied. */
typedef struct blislike_output {
  void* data;
  size_t bytes;
  blislike_type type;
  int32_t rank;
  const int64_t* shape;
} blislike_output;

typedef struct blislike_model blislike_model;
/* Its other members are the model's own. */
typedef struct blislike_runner {
  const blislike_model* model;
  int32_t threads;
} blislike_runner;

struct blislike_model {
  int32_t interface_version; /* BLISLIKE_INTERFACE of what it was compiled with */
  int32_t threads;           /* it was compiled for */
  const char* name;
  const char* version; /* of tvm-blislike */
  const char* core;    /* it was compiled for */
  int32_t input_count, output_count;
  const blislike_tensor* inputs;
  const blislike_tensor* outputs;
  /* What the functions below call. */
  size_t (*bytes)(int32_t threads);
  blislike_status (*create)(void* memory, size_t bytes, int32_t threads, blislike_runner** runner,
                            blislike_error* error);
  blislike_status (*run)(blislike_runner* runner, const blislike_input* inputs, int32_t input_count,
                         const blislike_output* outputs, int32_t output_count,
                         blislike_error* error);
  void (*free)(blislike_runner* runner);
};

/* Bytes of memory of a runner. */
static inline size_t blislike_bytes(const blislike_model* model, int32_t threads) {
  return model->bytes(threads);
}

/* Makes a runner in `memory`, which the caller frees after the runner, and which is aligned to
 * BLISLIKE_ALIGNMENT; in memory of the C library's if it is NULL.
 *
 * It runs with so many threads, the calling one among them; 0 stands for those that the model was
 * compiled for. */
static inline blislike_status blislike_create_in(const blislike_model* model, void* memory,
                                                 size_t bytes, int32_t threads,
                                                 blislike_runner** runner, blislike_error* error) {
  static const char other[] = "the model is of another version of blislike.h: compile it anew";
  size_t i;
  *runner = NULL;
  if (model->interface_version == BLISLIKE_INTERFACE) {
    return model->create(memory, bytes, threads, runner, error);
  }
  for (i = 0; error != NULL && i < sizeof other; i++) error->text[i] = other[i];
  return BLISLIKE_UNFIT;
}

static inline blislike_status blislike_create(const blislike_model* model, int32_t threads,
                                              blislike_runner** runner, blislike_error* error) {
  return blislike_create_in(model, NULL, 0, threads, runner, error);
}

/* Runs the model once: arrays in the order of the model's inputs and outputs. When it fails, what
 * outputs hold is of no account. */
static inline blislike_status blislike_run(blislike_runner* runner, const blislike_input* inputs,
                                           int32_t input_count, const blislike_output* outputs,
                                           int32_t output_count, blislike_error* error) {
  return runner->model->run(runner, inputs, input_count, outputs, output_count, error);
}

/* Ends the runner's threads and frees its memory; NULL is allowed. */
static inline void blislike_free(blislike_runner* runner) {
  if (runner != NULL) runner->model->free(runner);
}

/* The number of the tensor of that name, -1 for none. */
static inline int32_t blislike_find(const blislike_tensor* tensors, int32_t count,
                                    const char* name) {
  int32_t i;
  for (i = 0; i < count; i++) {
    size_t c = 0;
    while (name[c] != '\0' && tensors[i].name[c] == name[c]) c++;
    if (tensors[i].name[c] == name[c]) return i;
  }
  return -1;
}

#ifdef __cplusplus
}
#endif

#endif
