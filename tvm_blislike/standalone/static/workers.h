/* Kernels of a runner in several threads, on systems with POSIX threads. Workers look out for the
 * next parallel loop for a while, then sleep. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

enum {
  /* Some 100 microseconds on processors with a long pause; what one thread computes between two
   * parallel loops is shorter. */
  kLooks = 3000,
  kHugePage = 2 << 20
};

struct Pool {
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pid_t process;
  Task task;
  void* data;
  int32_t tasks;
  int32_t sleeping;   /* atomic, as all below */
  uint32_t loop;      /* counts parallel loops */
  int32_t unfinished; /* workers */
  int32_t failed;
  int32_t arrived; /* at the barrier */
  uint32_t phase;  /* counts barriers */
  int32_t stop;
};

static __thread Lane* lane;

static void pause_a_moment(int32_t looks) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
  if (looks % 64 == 63) sched_yield();
}

/* Runs the present task of a number, unless there are fewer. */
static void take_part(Pool* pool, int32_t number) {
  ParallelEnv group = {pool, pool->tasks};
  if (number < group.tasks && pool->task(number, &group, pool->data) != 0) {
    __atomic_store_n(&pool->failed, 1, __ATOMIC_RELAXED);
  }
}

static uint32_t next_loop(Pool* pool, uint32_t seen) {
  uint32_t found;
  for (int32_t looks = 0; looks < kLooks; looks++) {
    found = __atomic_load_n(&pool->loop, __ATOMIC_ACQUIRE);
    if (found != seen) return found;
    pause_a_moment(looks);
  }
  pthread_mutex_lock(&pool->mutex);
  __atomic_add_fetch(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
  while ((found = __atomic_load_n(&pool->loop, __ATOMIC_SEQ_CST)) == seen) {
    pthread_cond_wait(&pool->wake, &pool->mutex);
  }
  __atomic_sub_fetch(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&pool->mutex);
  return found;
}

static void* work(void* own_lane) {
  lane = (Lane*)own_lane;
  Pool* pool = lane->runner->pool;
  for (uint32_t seen = 0;;) {
    seen = next_loop(pool, seen);
    if (__atomic_load_n(&pool->stop, __ATOMIC_RELAXED)) return NULL;
    take_part(pool, lane->number);
    __atomic_sub_fetch(&pool->unfinished, 1, __ATOMIC_RELEASE);
  }
}

static void begin_loop(Pool* pool) {
  __atomic_add_fetch(&pool->loop, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST) == 0) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
}

/* What a parallel loop of a kernel calls. */
static int32_t launch(Task task, void* data, int32_t tasks) {
  Runner* runner = lane->runner;
  Pool* pool = runner->pool;
  int32_t most = runner->head.threads;
  if (tasks == 0 || tasks > most) tasks = most;
  if (tasks == 1 || lane->number != 0) {
    ParallelEnv one = {NULL, 1};
    return task(0, &one, data);
  }
  pool->task = task, pool->data = data, pool->tasks = tasks;
  pool->failed = pool->arrived = 0;
  /* All take note, also those without a task: none is left behind in an older loop. */
  __atomic_store_n(&pool->unfinished, most - 1, __ATOMIC_RELAXED);
  begin_loop(pool);
  take_part(pool, 0);
  for (int32_t looks = 0; __atomic_load_n(&pool->unfinished, __ATOMIC_ACQUIRE) != 0; looks++) {
    pause_a_moment(looks);
  }
  return __atomic_load_n(&pool->failed, __ATOMIC_RELAXED) ? -1 : 0;
}

/* What tasks call that wait for all others of their loop. */
static int32_t barrier(int32_t number, ParallelEnv* group) {
  Pool* pool = (Pool*)group->pool;
  (void)number;
  if (pool == NULL) return 0;
  uint32_t phase = __atomic_load_n(&pool->phase, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_ACQ_REL) == group->tasks) {
    __atomic_store_n(&pool->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->phase, phase + 1, __ATOMIC_RELEASE);
    return 0;
  }
  for (int32_t looks = 0; __atomic_load_n(&pool->phase, __ATOMIC_ACQUIRE) == phase; looks++) {
    pause_a_moment(looks);
  }
  return 0;
}

static void stop_workers(Runner* runner) {
  Pool* pool = runner->pool;
  /* The threads of a forked process's parent are not in it, but its locks say they wait. */
  if (pool->process != getpid()) return;
  __atomic_store_n(&pool->stop, 1, __ATOMIC_RELAXED);
  begin_loop(pool);
  for (int32_t i = 1; i < runner->started; i++) {
    pthread_join((pthread_t)runner->lanes[i].thread, NULL);
  }
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->mutex);
}

/* Starts all threads but the calling one; returns why it cannot. */
static const char* start_workers(Runner* runner) {
  Pool* pool = runner->pool;
  memset(pool, 0, sizeof *pool);
  pool->process = getpid();
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  sigset_t all, before;
  sigfillset(&all);
  /* Signals are for the program's own threads. */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = 0;
  for (runner->started = 1; runner->started < runner->head.threads; runner->started++) {
    pthread_t thread;
    failed = pthread_create(&thread, NULL, work, &runner->lanes[runner->started]);
    if (failed) break;
    runner->lanes[runner->started].thread = (uint64_t)thread;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failed) return NULL;
  stop_workers(runner);
  return "no threads are left: create the runner with fewer";
}

static const char* why_not_now(Runner* runner) {
  int there = runner->head.threads == 1 || runner->pool->process == getpid();
  return there ? NULL : "the process was forked, which leaves threads behind: create a runner in it";
}

static void* heap_memory(size_t bytes) {
  void* memory = NULL;
  size_t alignment = bytes < kHugePage ? BLISLIKE_ALIGNMENT : kHugePage;
  if (posix_memalign(&memory, alignment, bytes) != 0) return NULL;
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

static void free_heap_memory(void* memory) { free(memory); }

#if defined(__linux__) && defined(__x86_64__)
/* Whether a word of /proc/cpuinfo, whose underscores do not count, is that feature. */
static int is_feature(const char* word, const char* end, const char* feature) {
  for (; word != end; word++) {
    if (*word != '_' && *word != *feature++) return 0;
  }
  return *feature == '\0';
}

static int has_feature(const char* flags, const char* feature) {
  while (*flags != '\0') {
    size_t length = strcspn(flags, " \n");
    if (is_feature(flags, flags + length, feature)) return 1;
    flags += length + (flags[length] != '\0');
  }
  return 0;
}

/* The first feature that the kernels use and this processor lacks, as far as Linux tells. */
static const char* missing_feature(void) {
  static char line[8192];
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  const char* missing = NULL;
  pthread_mutex_lock(&mutex);
  FILE* file = fopen("/proc/cpuinfo", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "flags", 5) != 0) continue;
    for (size_t i = 0; missing == NULL && features[i] != NULL; i++) {
      if (!has_feature(line, features[i])) missing = features[i];
    }
    break;
  }
  if (file != NULL) fclose(file);
  pthread_mutex_unlock(&mutex);
  return missing;
}
#else
static const char* missing_feature(void) { return NULL; }
#endif
