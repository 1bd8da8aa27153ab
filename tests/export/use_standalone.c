/* Runs a model in memory between guards: arrays in one file, results in another.
 *
 * Usage: use IN OUT [THREADS [SHIFT [PAIR]]]. Inputs and outputs begin SHIFT bytes behind an aligned
 * address and end close to a forbidden page; with PAIR two runners run at once, 20 times each.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

enum { kRuns = 3, kMany = 20 };

static size_t shift;

/* Memory between forbidden pages: `bytes` of it, `behind` bytes off an aligned address. */
static char* guarded(size_t bytes, size_t behind) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t whole = (behind + bytes + 63) / 64 * 64;
  size_t pages = (whole + page - 1) / page * page;
  char* start = mmap(NULL, pages + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED || mprotect(start + page, pages, PROT_READ | PROT_WRITE)) exit(3);
  return start + page + pages - whole + behind;
}

typedef struct {
  blislike_runner* runner;
  blislike_input inputs[8];
  blislike_output outputs[8];
  int runs;
  int status;
} Use;

static void fail(const char* text) {
  fprintf(stderr, "%s\n", text);
  exit(1);
}

static void prepare(Use* use, const char* path, int threads, void* memory, size_t bytes) {
  const blislike_model* model = &model_model;
  blislike_error error;
  FILE* file = fopen(path, "rb");
  for (int i = 0; i < model->input_count; i++) {
    const blislike_tensor* spec = &model->inputs[i];
    char* data = guarded(spec->bytes, shift);
    if (fread(data, 1, spec->bytes, file) != spec->bytes) exit(3);
    blislike_input given = {data, spec->bytes, spec->type, spec->rank, spec->shape};
    use->inputs[i] = given;
  }
  fclose(file);
  for (int i = 0; i < model->output_count; i++) {
    const blislike_tensor* spec = &model->outputs[i];
    blislike_output given = {guarded(spec->bytes, shift), spec->bytes, 0, 0, NULL};
    use->outputs[i] = given;
  }
  if (blislike_create_in(model, memory, bytes, threads, &use->runner, &error)) fail(error.text);
}

static void* run(void* of) {
  Use* use = of;
  const blislike_model* model = use->runner->model;
  blislike_error error;
  for (int i = 0; i < use->runs && !use->status; i++) {
    for (int o = 0; o < model->output_count; o++) {
      memset(use->outputs[o].data, 0xff, use->outputs[o].bytes);
    }
    use->status = blislike_run(use->runner, use->inputs, model->input_count, use->outputs,
                               model->output_count, &error);
  }
  if (use->status) fprintf(stderr, "%s\n", error.text);
  return NULL;
}

static int same_outputs(const Use* one, const Use* other) {
  for (int o = 0; o < model_model.output_count; o++) {
    if (memcmp(one->outputs[o].data, other->outputs[o].data, one->outputs[o].bytes)) return 0;
  }
  return 1;
}

static void run_two(Use* one, const char* path, int threads) {
  Use other = {0};
  pthread_t thread;
  size_t bytes = blislike_bytes(&model_model, threads);
  prepare(&other, path, threads, guarded(bytes, 0), bytes);
  one->runs = other.runs = kMany;
  pthread_create(&thread, NULL, run, &other);
  run(one);
  pthread_join(thread, NULL);
  if (other.status || !same_outputs(one, &other)) fail("two runners at once differ");
  blislike_free(other.runner);
}

int main(int argc, char** argv) {
  Use use = {0};
  int threads = argc > 3 ? atoi(argv[3]) : 1;
  shift = argc > 4 ? (size_t)atoi(argv[4]) : 0;
  size_t bytes = MODEL_BYTES(threads);
  if (bytes != blislike_bytes(&model_model, threads)) fail("the header tells another size");
  char* memory = guarded(bytes, 0);
  /* Whatever is in it: nothing has to be kept between runs, nor to be zero. */
  memset(memory, 0xff, bytes);
  prepare(&use, argv[1], threads, memory, bytes);
  use.runs = kRuns;
  if (argc > 5) {
    run_two(&use, argv[1], threads);
  } else {
    run(&use);
  }
  if (use.status) return 1;
  FILE* file = fopen(argv[2], "wb");
  for (int o = 0; o < model_model.output_count; o++) {
    fwrite(use.outputs[o].data, 1, use.outputs[o].bytes, file);
  }
  blislike_free(use.runner);
  return fclose(file);
}
