/* Kernels of a runner in one thread, without an operating system. One call at a time in a program:
 * there is nothing to tell threads apart by. */
struct Pool {
  int32_t unused;
};

static Lane* lane;

static const char* missing_feature(void) { return NULL; }

static void* heap_memory(size_t bytes) {
  (void)bytes;
  return NULL;
}

static void free_heap_memory(void* memory) { (void)memory; }

static const char* start_workers(Runner* runner) {
  return runner->head.threads > 1 ? "an object runs in one thread: compile a folder" : NULL;
}

static void stop_workers(Runner* runner) { (void)runner; }

static const char* why_not_now(Runner* runner) {
  (void)runner;
  return NULL;
}

static int32_t launch(Task task, void* data, int32_t tasks) {
  ParallelEnv one = {NULL, 1};
  (void)tasks;
  return task(0, &one, data);
}

static int32_t barrier(int32_t number, ParallelEnv* group) {
  (void)number, (void)group;
  return 0;
}
