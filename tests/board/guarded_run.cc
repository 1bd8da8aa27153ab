// Calls kernels with arrays that lie against pages which may not be touched.
//
// usage: guarded_run LIBRARY CASES DATA RESULTS
//
// CASES has a line for each kernel: its name, the number of its arguments, and for each argument
// DLPack's code of its type (0: signed, 1: unsigned, 2: float), its bits, the number of its
// dimensions and their sizes. DATA holds the values of all arguments but the last of each kernel,
// one after the other. The last one, the result, has all bits set before each call: NaN, or -1.
// RESULTS gets it twice: all arrays end at, then begin at, a forbidden page. A crash leaves the
// name of the kernel as the last line on stderr.
//
// TVM wants data aligned to 64 bytes, so an array may leave up to 60 bytes before the page behind
// it; a pattern there shows writes.

#include <sys/mman.h>
#include <unistd.h>

#include "tvm_c.h"

static const unsigned char kPattern = 0x5a;

struct Guarded {
  char* base;
  size_t inner;  // bytes of the pages between the forbidden ones
  char* data;
  size_t bytes;
};

static Guarded guarded(size_t bytes, bool at_end) {
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Guarded array = {};
  array.inner = (bytes + page - 1) / page * page;
  array.bytes = bytes;
  void* base = mmap(nullptr, array.inner + 2 * page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) die(kModel, "mmap: %s", strerror(errno));
  array.base = static_cast<char*>(base) + page;
  memset(array.base, kPattern, array.inner);
  if (mprotect(base, page, PROT_NONE) != 0 ||
      mprotect(array.base + array.inner, page, PROT_NONE) != 0) {
    die(kModel, "mprotect: %s", strerror(errno));
  }
  array.data = array.base + (at_end ? (array.inner - bytes) / 64 * 64 : 0);
  return array;
}

static void release(const Guarded& array, const char* name) {
  for (char* at = array.base; at < array.base + array.inner; at++) {
    if (at == array.data) at += array.bytes;
    if (at < array.base + array.inner && static_cast<unsigned char>(*at) != kPattern) {
      die(kModel, "%s wrote beyond the end of an array", name);
    }
  }
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(array.base - page, array.inner + 2 * page);
}

static const int kMost = 16;

struct Case {
  char name[128];
  int count;
  int code[kMost];
  int bits[kMost];
  int ndim[kMost];
  int64_t shape[kMost][8];

  size_t bytes(int i) const {
    size_t size = static_cast<size_t>(bits[i]) / 8;
    for (int d = 0; d < ndim[i]; d++) size *= static_cast<size_t>(shape[i][d]);
    return size;
  }
};

// Reads the next case; false at the end of the file.
static bool next_case(FILE* file, Case* kernel) {
  if (fscanf(file, "%127s %d", kernel->name, &kernel->count) != 2) return false;
  if (kernel->count < 1 || kernel->count > kMost) die(kUsage, "%s: arguments", kernel->name);
  for (int i = 0; i < kernel->count; i++) {
    int read = fscanf(file, "%d %d %d", &kernel->code[i], &kernel->bits[i], &kernel->ndim[i]);
    if (read != 3 || kernel->ndim[i] > 8) {
      die(kUsage, "%s: dimensions", kernel->name);
    }
    for (int d = 0; d < kernel->ndim[i]; d++) {
      long long extent = 0;
      if (fscanf(file, "%lld", &extent) != 1) die(kUsage, "%s: sizes", kernel->name);
      kernel->shape[i][d] = extent;
    }
  }
  return true;
}

// Calls a kernel; returns how many bytes of data it took.
static size_t call_kernel(const Value& library, Case* kernel, const char* data, bool at_end,
                          FILE* results) {
  Guarded arrays[kMost];
  DLTensor tensors[kMost] = {};
  TVMFFIAny arguments[kMost] = {};
  size_t taken = 0;
  int last = kernel->count - 1;
  for (int i = 0; i < kernel->count; i++) {
    arrays[i] = guarded(kernel->bytes(i), at_end);
    if (i == last) {
      memset(arrays[i].data, 0xff, arrays[i].bytes);
    } else {
      memcpy(arrays[i].data, data + taken, arrays[i].bytes);
      taken += arrays[i].bytes;
    }
    tensors[i].data = arrays[i].data;
    tensors[i].device = {kDLCPU, 0};
    tensors[i].dtype = {static_cast<uint8_t>(kernel->code[i]),
                        static_cast<uint8_t>(kernel->bits[i]), 1};
    tensors[i].ndim = kernel->ndim[i];
    tensors[i].shape = kernel->shape[i];
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  fprintf(stderr, "%s at the %s\n", kernel->name, at_end ? "end" : "start");
  Value function = function_of(library, kernel->name);
  Value nothing;
  if (TVMFFIFunctionCall(function.any.v_obj, arguments, kernel->count, &nothing.any) != 0) {
    die_of_tvm(kModel, kernel->name);
  }
  if (fwrite(arrays[last].data, 1, arrays[last].bytes, results) != arrays[last].bytes) {
    die(kOutput, "cannot write the results");
  }
  for (int i = 0; i < kernel->count; i++) release(arrays[i], kernel->name);
  return taken;
}

int main(int argc, char** argv) {
  if (argc != 5) die(kUsage, "guarded_run LIBRARY CASES DATA RESULTS");
  Value library = call(kModel, argv[1], global_function("ffi.ModuleLoadFromFile"),
                       static_cast<const char*>(argv[1]));
  size_t size = 0;
  const char* data = read_file(argv[3], &size, kInput);
  FILE* cases = fopen(argv[2], "r");
  FILE* results = fopen(argv[4], "wb");
  if (cases == nullptr || results == nullptr) die(kInput, "%s: %s", argv[2], strerror(errno));
  Case kernel;
  while (next_case(cases, &kernel)) {
    call_kernel(library, &kernel, data, true, results);
    data += call_kernel(library, &kernel, data, false, results);
  }
  if (fclose(results) != 0) die(kOutput, "cannot write %s", argv[4]);
  return 0;
}
