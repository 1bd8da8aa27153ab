/* Runs the model `net`: inputs from files of plain numbers, outputs into such files.
 *
 *   run_net [-t THREADS] INPUT... OUTPUT...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

enum { kMost = 16 };

static void print_tensor(const char* side, const blislike_tensor* tensor) {
  printf("%s %s:", side, tensor->name);
  for (int i = 0; i < tensor->rank; i++) printf(" %lld", (long long)tensor->shape[i]);
  printf(", %zu bytes\n", tensor->bytes);
}

/* Returns the file's content and its size; NULL where it cannot be read. */
static void* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return NULL;
  *bytes = (size_t)ftell(file);
  rewind(file);
  void* content = malloc(*bytes + 1);
  if (content != NULL && fread(content, 1, *bytes, file) != *bytes) content = NULL;
  fclose(file);
  return content;
}

static int write_file(const char* path, const blislike_output* output) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) return 0;
  size_t written = fwrite(output->data, 1, output->bytes, file);
  return fclose(file) == 0 && written == output->bytes;
}

static int complain(const char* text) {
  fprintf(stderr, "%s\n", text);
  return 1;
}

int main(int argc, char** argv) {
  const blislike_model* model = &net_model;
  int threads = 0, first = 1;
  if (argc > 2 && strcmp(argv[1], "-t") == 0) threads = atoi(argv[2]), first = 3;
  if (argc - first != model->input_count + model->output_count || argc - first > kMost) {
    for (int i = 0; i < model->input_count; i++) print_tensor("input", &model->inputs[i]);
    for (int i = 0; i < model->output_count; i++) print_tensor("output", &model->outputs[i]);
    return complain("usage: run_net [-t THREADS] INPUT... OUTPUT...");
  }

  blislike_runner* runner;
  blislike_error error;
  if (blislike_create(model, threads, &runner, &error)) return complain(error.text);

  blislike_input inputs[kMost] = {{0}};
  for (int i = 0; i < model->input_count; i++) {
    inputs[i].data = read_file(argv[first + i], &inputs[i].bytes);
    if (inputs[i].data == NULL) return complain(argv[first + i]);
  }
  blislike_output outputs[kMost] = {{0}};
  for (int i = 0; i < model->output_count; i++) {
    outputs[i].bytes = model->outputs[i].bytes;
    outputs[i].data = malloc(outputs[i].bytes + 1);
  }

  if (blislike_run(runner, inputs, model->input_count, outputs, model->output_count, &error)) {
    return complain(error.text);
  }
  for (int i = 0; i < model->output_count; i++) {
    const char* path = argv[first + model->input_count + i];
    if (!write_file(path, &outputs[i])) return complain(path);
    free(outputs[i].data);
  }
  for (int i = 0; i < model->input_count; i++) free((void*)inputs[i].data);
  blislike_free(runner);
  return 0;
}
