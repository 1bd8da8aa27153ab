/* Linked into every library of candidates that is measured on a board, and called there first. */
#include <signal.h>
#include <unistd.h>

#include <tvm/ffi/c_api.h>

/* TVM's rpc_server stops serving when the process of a session ends by a signal. */
static void end_session(int number) {
  (void)number;
  _exit(0);
}

#ifdef __linux__
#include <elf.h>
#include <fcntl.h>

#if defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#elif defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#else
#define OWN_MACHINE EM_RISCV
#endif

/* Whether the program that the system runs as this process is one for another architecture: then
   it is an emulator. It shows the process another file as /proc/self/exe, but not as this one. */
static int is_emulated(void) {
  Elf64_Ehdr header;
  ssize_t size = -1;
  int file = open("/proc/thread-self/exe", O_RDONLY);
  if (file >= 0) {
    size = read(file, &header, sizeof header);
    close(file);
  }
  return size == (ssize_t)sizeof header && header.e_machine != OWN_MACHINE;
}
#else
static int is_emulated(void) { return 0; }
#endif

/* Prepares the session; returns 1 on an emulated processor, else 0. */
#ifdef __cplusplus
extern "C"
#endif
    int
    __tvm_ffi_blislike_board_side(void* self, const TVMFFIAny* args, int32_t count,
                                  TVMFFIAny* result) {
  const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP};
  (void)self, (void)args, (void)count;
  for (unsigned i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], end_session);
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = is_emulated();
  return 0;
}
