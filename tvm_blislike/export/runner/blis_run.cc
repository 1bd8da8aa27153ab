// Runs the model of a bundle: inputs and outputs as .npy files, repeats timed, per-layer times.

#include <unistd.h>

#include "huge_pages.h"
#include "model.h"
#include "outputs.h"
#include "probe.h"

static const char kHelp[] =
    "usage: blis_run [OPTIONS] [BUNDLE]\n"
    "Runs the model of the folder BUNDLE (default: the one this program lies in).\n"
    "  --input NAME=FILE.npy  value of an input; all of them, or none for pseudo-random values\n"
    "  --shape NAME=3x4       shape of an input without a value, of a model that takes several\n"
    "  --output DIR           write each output to DIR/NAME.npy; where two would share a file, the\n"
    "                         second one becomes NAME.1.npy\n"
    "  --repeat N             timed runs, after one that is not counted (default 1)\n"
    "  --threads N            instead of those the model was compiled for\n"
    "  --layers               print the time of each layer\n"
    "  --json                 print the times as JSON\n"
    "  --no-verify            load the library without comparing it with its SHA-256\n"
    "  --probe                instead of a model run: measure this board and print its core as TOML,\n"
    "                         with --output FILE write it; BUNDLE is one of tvm-blislike probe\n";

struct Options {
  const char* bundle = nullptr;
  Array<const char*> inputs;
  Array<const char*> shapes;
  const char* output = nullptr;
  int repeat = 1;
  int threads = 0;
  bool layers = false;
  bool json = false;
  bool verify = true;
  bool probe = false;
};

static int positive(const char* option, const char* text, int most) {
  char* end = nullptr;
  long value = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < 1 || value > most) {
    die(kUsage, "%s takes a number from 1 to %d, not %s", option, most, text);
  }
  return static_cast<int>(value);
}

static void parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; i++) {
    const char* option = argv[i];
    auto value = [&] {
      if (i + 1 == argc) die(kUsage, "%s needs a value", option);
      return argv[++i];
    };
    if (strcmp(option, "--input") == 0) {
      options->inputs.push(value());
    } else if (strcmp(option, "--shape") == 0) {
      options->shapes.push(value());
    } else if (strcmp(option, "--output") == 0) {
      options->output = value();
    } else if (strcmp(option, "--repeat") == 0) {
      options->repeat = positive(option, value(), 1000000);
    } else if (strcmp(option, "--threads") == 0) {
      options->threads = positive(option, value(), kMostThreads);
    } else if (strcmp(option, "--layers") == 0) {
      options->layers = true;
    } else if (strcmp(option, "--json") == 0) {
      options->json = true;
    } else if (strcmp(option, "--no-verify") == 0) {
      options->verify = false;
    } else if (strcmp(option, "--probe") == 0) {
      options->probe = true;
    } else if (strcmp(option, "--help") == 0) {
      fputs(kHelp, stdout);
      exit(0);
    } else if (option[0] == '-') {
      die(kUsage, "unknown option %s\n%s", option, kHelp);
    } else if (options->bundle != nullptr) {
      die(kUsage, "one bundle at a time");
    } else {
      options->bundle = option;
    }
  }
}

// The folder this program lies in.
static const char* own_folder() {
  static char path[4096];
  ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
  if (size <= 0) return ".";
  path[size] = '\0';
  *strrchr(path, '/') = '\0';
  return path;
}

static bool same_type(const Tensor& a, const Tensor& b) {
  if (a.ndim != b.ndim || a.dtype.code != b.dtype.code || a.dtype.bits != b.dtype.bits) return false;
  for (int i = 0; i < a.ndim; i++) {
    if (a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

// Values in [-1, 1) for floats, 0 for integers, the same in every run.
static void fill(Tensor* tensor) {
  tensor->data = allocate(tensor->bytes());
  memset(tensor->data, 0, tensor->bytes());
  if (tensor->dtype.code != kDLFloat || tensor->dtype.bits != 32) return;
  uint32_t state = 1;
  float* values = static_cast<float*>(tensor->data);
  for (int64_t i = 0; i < tensor->elements(); i++) {
    state = state * 1664525u + 1013904223u;
    values[i] = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
}

static size_t named(const Array<Spec>& specs, const char* name, size_t size) {
  for (size_t i = 0; i < specs.size; i++) {
    const char* known = specs.items[i].name;
    if (strlen(known) == size && strncmp(known, name, size) == 0) return i;
  }
  fputs("the model's inputs:", stderr);
  char text[256];
  for (size_t i = 0; i < specs.size; i++) {
    const Spec& spec = specs.items[i];
    fprintf(stderr, " %s (%s)", spec.name, describe(spec.tensor, text, sizeof text));
  }
  fputc('\n', stderr);
  die(kInput, "the model has no input named %.*s", static_cast<int>(size), name);
}

// What a user says of an input: its value, or its shape alone.
struct Given {
  const char* from;  // nothing said
  Tensor tensor;
};

static Tensor parse_shape(const char* option, const char* text, const Spec& spec) {
  Tensor shape = spec.tensor;
  shape.ndim = 0;
  for (const char* at = text;; at++) {
    char* end = nullptr;
    long long extent = strtoll(at, &end, 10);
    if (end == at || extent < 0 || shape.ndim == kMostDimensions || strchr("x,", *end) == nullptr) {
      die(kUsage, "%s is not of the form NAME=1x3x224x224", option);
    }
    shape.shape[shape.ndim++] = extent;
    if (*end == '\0') return shape;
    at = end;
  }
}

static void read_given(const Options& options, const Array<Spec>& specs, Array<Given>* given) {
  for (size_t i = 0; i < specs.size; i++) given->push({nullptr, Tensor()});
  for (size_t i = 0; i < options.inputs.size + options.shapes.size; i++) {
    bool is_value = i < options.inputs.size;
    const char* option =
        is_value ? options.inputs.items[i] : options.shapes.items[i - options.inputs.size];
    const char* equals = strrchr(option, '=');
    if (equals == nullptr) {
      die(kUsage, "%s is not of the form NAME=%s", option, is_value ? "FILE.npy" : "1x3x224x224");
    }
    size_t place = named(specs, option, static_cast<size_t>(equals - option));
    Tensor tensor =
        is_value ? read_npy(equals + 1) : parse_shape(option, equals + 1, specs.items[place]);
    given->items[place] = {equals + 1, tensor};
  }
}

static bool takes(const Variant& variant, const Array<Given>& given, size_t place) {
  return given.items[place].from == nullptr ||
         same_type(given.items[place].tensor, variant.inputs.items[place].tensor);
}

// Of so many sizes all are listed.
static const size_t kMostListed = 16;

// The largest sizes that are those of the given inputs.
static Variant* chosen(const Manifest& manifest, const Array<Given>& given) {
  for (size_t i = 0; i < manifest.variants.size; i++) {
    bool all = true;
    for (size_t place = 0; place < given.size; place++) {
      all = all && takes(*manifest.variants.items[i], given, place);
    }
    if (all) return manifest.variants.items[i];
  }
  size_t place = 0;
  while (place + 1 < given.size && takes(*manifest.variants.items[0], given, place)) place++;
  char has[256], wants[256];
  if (manifest.variants.size > 1) {
    size_t count = manifest.variants.size;
    fprintf(stderr, "the sizes of %s:", manifest.variants.items[0]->inputs.items[place].name);
    for (size_t i = 1; i <= count; i++) {
      if (count > kMostListed && i == kMostListed) {
        fprintf(stderr, " and %zu more up to", count - i);
        i = count;
      }
      const Spec& spec = manifest.variants.items[i % count]->inputs.items[place];
      fprintf(stderr, " %s", describe(spec.tensor, wants, sizeof wants));
    }
    fputc('\n', stderr);
  }
  const Spec& spec = manifest.variants.items[0]->inputs.items[place];
  die(kInput, "%s holds %s; the input %s is %s%s", given.items[place].from,
      describe(given.items[place].tensor, has, sizeof has), spec.name,
      describe(spec.tensor, wants, sizeof wants),
      manifest.variants.size > 1 ? ", or smaller as listed" : "");
}

// Chooses the sizes of a run, whose inputs get values.
static Variant* load_inputs(const Options& options, const Manifest& manifest) {
  Array<Given> given;
  read_given(options, manifest.variants.items[0]->inputs, &given);
  Variant* variant = chosen(manifest, given);
  for (size_t i = 0; i < given.size; i++) {
    Spec& spec = variant->inputs[i];
    spec.tensor.data = given[i].tensor.data;
    if (spec.tensor.data != nullptr) continue;
    if (options.inputs.size != 0) die(kInput, "missing input: %s", spec.name);
    fill(&spec.tensor);
  }
  return variant;
}

static const char* workload_of(const Manifest& manifest, const char* kernel) {
  for (size_t i = 0; i < manifest.layers.size; i++) {
    if (strcmp(manifest.layers.items[i].name, kernel) == 0) return manifest.layers.items[i].workload;
  }
  return "";
}

static void print_layers(const Manifest& manifest, KernelClock* clock, bool json) {
  double total = 0;
  for (KernelTime& kernel : clock->kernels) total += median(kernel.runs);
  if (!json) printf("%10s %7s %5s  layer\n", "ms", "%", "calls");
  for (size_t i = 0; i < clock->kernels.size; i++) {
    KernelTime& kernel = clock->kernels[i];
    double ms = median(kernel.runs);
    const char* workload = workload_of(manifest, kernel.name);
    if (json) {
      printf("%s{\"name\": \"%s\", \"ms\": %.6f, \"calls\": %d}", i != 0 ? ", " : "", kernel.name, ms,
             kernel.calls);
    } else {
      printf("%10.4f %7.2f %5d  %s  %s\n", ms, 100 * ms / total, kernel.calls, kernel.name, workload);
    }
  }
}

int main(int argc, char** argv) {
  Options options;
  parse(argc, argv, &options);
  keep_together();
  const char* bundle = options.bundle != nullptr ? options.bundle : own_folder();
  if (options.probe) {
    probe_board(bundle, options.output);
    return 0;
  }
  Manifest manifest;
  read_manifest(bundle, &manifest);
  if (options.verify) verify_library(manifest);
  Variant* variant = load_inputs(options, manifest);

  // TVM reads this when it starts its pool, on the first parallel loop.
  char threads[16];
  int asked = options.threads != 0 ? options.threads : manifest.threads;
  snprintf(threads, sizeof threads, "%d", asked);
  setenv("TVM_NUM_THREADS", threads, 1);
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (asked > cpus) {
    fprintf(stderr, "warning: %d threads on %ld CPUs: waiting threads spin; try --threads %ld\n",
            asked, cpus, cpus);
  }

  Model model(manifest.library, variant->function);
  Array<TVMFFIAny> inputs;
  for (Spec& spec : variant->inputs) inputs.push(view_of(&spec.tensor));
  Value result = model.run(inputs);
  if (options.output != nullptr) write_outputs(options.output, variant->outputs, result);
  if (options.repeat != 0) move_to_huge_pages();

  Array<double> times;
  double least = 0;
  for (int i = 0; i < options.repeat; i++) {
    double started = now_ms();
    result = model.run(inputs);
    times.push(now_ms() - started);
    if (i == 0 || times[times.size - 1] < least) least = times[times.size - 1];
  }
  double typical = median(&times);

  // Layers are timed in runs of their own: the clock costs a little in every call.
  KernelClock clock;
  if (options.layers) {
    model.set_clock(&clock);
    for (clock.run = 0; clock.run < times.size; clock.run++) result = model.run(inputs);
  }
  if (options.json) {
    printf("{\"median_ms\": %.6f, \"min_ms\": %.6f, \"repeat\": %d, \"threads\": %d, \"layers\": [",
           typical, least, options.repeat, asked);
    print_layers(manifest, &clock, true);
    printf("]}\n");
  } else {
    if (options.layers) print_layers(manifest, &clock, false);
    printf("%.3f ms (median of %d; minimum %.3f ms), %d threads, compiled for %s\n", typical,
           options.repeat, least, asked, manifest.core);
  }
  return 0;
}
