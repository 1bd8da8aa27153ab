/* How long two CPUs take to hand a line of memory to each other and back.
 *
 * 50 to 60 ns where they share a cache, several hundred where none is between them but memory's. A
 * hypervisor may move the CPUs of a virtual machine from one state to the other at any time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static _Alignas(128) atomic_long turn;
static long trips;
static int cpu_of_other;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void stay_on(int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  pthread_setaffinity_np(pthread_self(), sizeof only, &only);
}

static void* answer(void* unused) {
  stay_on(cpu_of_other);
  for (long trip = 0; trip < trips; ++trip) {
    while (atomic_load_explicit(&turn, memory_order_acquire) != 2 * trip + 1) {
    }
    atomic_store_explicit(&turn, 2 * trip + 2, memory_order_release);
  }
  return unused;
}

/* Nanoseconds of a round trip between two CPUs, on average of so many behind a tenth of them that
 * is not counted. The calling thread stays on the first one. */
double round_trip_ns(int first, int second, long count) {
  pthread_t other;
  double started = 0;
  trips = count;
  cpu_of_other = second;
  atomic_store(&turn, 0);
  stay_on(first);
  if (pthread_create(&other, NULL, answer, NULL)) return -1;
  for (long trip = 0; trip < trips; ++trip) {
    if (trip == trips / 10) started = now();
    atomic_store_explicit(&turn, 2 * trip + 1, memory_order_release);
    while (atomic_load_explicit(&turn, memory_order_acquire) != 2 * trip + 2) {
    }
  }
  double taken = now() - started;
  pthread_join(other, NULL);
  return taken / (double)(trips - trips / 10);
}
