// Measures this board as probe.json says and fills in its core's TOML: no formula is written here.
#pragma once

#include "huge_pages.h"
#include "json.h"
#include "model.h"

struct ProbeStep {
  char* name;
  Value function;
  double work;
  int64_t tasks, blocks, repeats;
  bool warm;
  Array<double> rates;
  double rate;
};

// What all kernels work on.
struct ProbeBench {
  Tensor data = {}, state = {};
  TVMFFIAny data_view, state_view;
  Value configure;
  int64_t threads = 0;

  double seconds(ProbeStep* step, int64_t repeats) {
    if (step->tasks != threads) {
      const int64_t big_cores = 1;
      call(kModel, "the thread pool", configure, big_cores, step->tasks);
      threads = step->tasks;
    }
    TVMFFIAny arguments[] = {data_view, state_view, as_any(step->tasks), as_any(step->blocks),
                             as_any(repeats)};
    Value result;
    double started = now_ms();
    if (TVMFFIFunctionCall(step->function.any.v_obj, arguments, 5, &result.any) != 0) {
      die_of_tvm(kModel, step->name);
    }
    return 1e-3 * (now_ms() - started);
  }
};

inline Tensor probe_tensor(int64_t size, int64_t sums, int64_t lanes, int32_t value) {
  Tensor tensor = {};
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape[tensor.ndim++] = size;
  if (sums != 0) tensor.shape[tensor.ndim++] = sums;
  if (lanes != 0) tensor.shape[tensor.ndim++] = lanes;
  tensor.data = allocate(tensor.bytes());
  int32_t* values = static_cast<int32_t*>(tensor.data);
  for (int64_t i = 0; i < tensor.elements(); i++) values[i] = value;
  return tensor;
}

// Without the library of mathematics, which the programs are not linked with.
inline int64_t probe_nearest(double number) {
  return static_cast<int64_t>(number < 0 ? number - 0.5 : number + 0.5);
}

// The least time of some runs; of one that is short already, that time. What disturbs a run makes it
// longer: a few repeats that were interrupted look like enough.
inline double probe_undisturbed(ProbeBench* bench, ProbeStep* step, int64_t repeats,
                                double enough) {
  double taken = bench->seconds(step, repeats);
  for (int confirmation = 0; confirmation < 2 && taken >= enough; ++confirmation) {
    double again = bench->seconds(step, repeats);
    taken = again < taken ? again : taken;
  }
  return taken;
}

// So many times as many repeats must take so many times as long before a time counts as the work's:
// where others keep all CPUs busy, every run of several threads waits for one.
constexpr int64_t kProbeMore = 4;
constexpr double kProbeLonger = 3;

// The repeats that take the wanted time, at least one.
inline int64_t probe_repeats(ProbeBench* bench, ProbeStep* step, double wanted) {
  int64_t repeats = 1;
  for (;;) {
    double taken = probe_undisturbed(bench, step, repeats, wanted / 4);
    if (taken < wanted / 4) {
      double factor = wanted / 2 / (taken > 1e-9 ? taken : 1e-9);
      repeats *= factor < 2 ? 2 : factor > 16 ? 16 : static_cast<int64_t>(factor);
      continue;
    }
    double longer = kProbeLonger * taken;
    if (probe_undisturbed(bench, step, kProbeMore * repeats, longer) < longer) {
      repeats *= kProbeMore;
      continue;
    }
    int64_t enough = probe_nearest(static_cast<double>(repeats) * wanted / taken);
    return enough > repeats ? enough : repeats;
  }
}

inline void probe_rounds(ProbeBench* bench, Array<ProbeStep*>* steps, double wanted, double most,
                         int64_t least_rounds) {
  double began = now_ms();
  for (ProbeStep* step : *steps) step->repeats = probe_repeats(bench, step, wanted);
  for (int64_t round = 1;; round++) {
    for (ProbeStep* step : *steps) {
      if (step->warm) bench->seconds(step, step->repeats / 8 > 1 ? step->repeats / 8 : 1);
      double work = step->work * static_cast<double>(step->repeats);
      step->rates.push(work / bench->seconds(step, step->repeats));
    }
    double share = 1e-3 * (now_ms() - began) / most;
    if (round >= least_rounds && share * (1 + 1.0 / static_cast<double>(round)) > 1) return;
  }
}

// The mean of the best rounds.
inline double probe_typical(Array<double>* rates, int64_t percent) {
  median(rates);  // sorts
  size_t best = (rates->size * static_cast<size_t>(percent) + 50) / 100;
  if (best == 0) best = 1;
  double sum = 0;
  for (size_t i = rates->size - best; i < rates->size; i++) sum += (*rates)[i];
  return sum / static_cast<double>(best);
}

inline double probe_number(const Json& json) {
  if (!cJSON_IsNumber(json.value)) json.refuse("a number");
  return json.value->valuedouble;
}

// The value of an expression: a number, ["rate", STEP] or [OPERATION, OPERAND, OPERAND].
inline double probe_value(const Json& json, Array<ProbeStep*>* steps) {
  if (!cJSON_IsArray(json.value)) return probe_number(json);
  const cJSON* child = json.value->child;
  if (!cJSON_IsString(child) || child->next == nullptr) json.refuse("an expression");
  const char* operation = child->valuestring;
  Json first = {child->next, json.place, false};
  if (strcmp(operation, "rate") == 0) {
    for (ProbeStep* step : *steps) {
      if (strcmp(step->name, first.text()) == 0) return step->rate;
    }
    first.refuse("the name of a step");
  }
  if (child->next->next == nullptr) json.refuse("an expression");
  double a = probe_value(first, steps);
  double b = probe_value({child->next->next, json.place, false}, steps);
  if (strcmp(operation, "nearest") == 0) return static_cast<double>(probe_nearest(a * b)) / b;
  if (strcmp(operation, "max") == 0) return a > b ? a : b;
  switch (operation[0]) {
    case '+': return a + b;
    case '-': return a - b;
    case '*': return a * b;
    case '/': return a / b;
  }
  json.refuse("an expression of + - * / max nearest rate");
}

// Writes the TOML with the value of each fact in place of its name.
inline void probe_write(const char* text, const Json& facts, Array<ProbeStep*>* steps, FILE* file) {
  while (const char* at = strchr(text, '@')) {
    const char* end = strchr(at + 1, '@');
    if (end == nullptr) break;
    fwrite(text, 1, static_cast<size_t>(at - text), file);
    char* name = printed("%.*s", static_cast<int>(end - at - 1), at + 1);
    bool found = false;
    facts.each([&](const Json& fact) {
      if (strcmp(fact["name"].text(), name) != 0) return;
      fprintf(file, "%.10g", probe_value(fact["value"], steps));
      found = true;
    });
    if (!found) facts.refuse(printed("a list with %s", name));
    text = end + 1;
  }
  fputs(text, file);
}

inline void read_probe_steps(const Json& plan, const Value& library, Array<ProbeStep*>* steps) {
  const int64_t most = int64_t{1} << 48;
  plan["steps"].each([&](const Json& entry) {
    // All zeros is an empty one.
    ProbeStep* step = static_cast<ProbeStep*>(calloc(1, sizeof(ProbeStep)));
    if (step == nullptr) die(kModel, "out of memory");
    step->name = copied(entry["name"].text());
    step->function = function_of(library, entry["kernel"].text());
    step->work = probe_number(entry["work"]);
    step->tasks = entry["tasks"].integer(1, 4096);
    step->blocks = entry["blocks"].integer(1, most);
    step->warm = cJSON_IsTrue(entry["warm"].value);
    steps->push(step);
  });
}

// Measures the board a bundle lies on; the TOML goes to `output`, or to stdout.
inline void probe_board(const char* bundle, const char* output) {
  const int64_t most = int64_t{1} << 40;
  Json plan = read_json(joined(bundle, "probe.json"));
  plan["format"].integer(1, 1);
  int64_t sums = plan["sums"].integer(1, 64), lanes = plan["lanes"].integer(1, 64);
  int64_t threads = plan["threads"].integer(1, 4096);
  setenv("TVM_NUM_THREADS", printed("%lld", static_cast<long long>(threads)), 1);

  char* path = joined(bundle, plan["library"].text());
  Value library = call(kModel, path, global_function("ffi.ModuleLoadFromFile"),
                       static_cast<const char*>(path));
  ProbeBench bench;
  bench.configure = global_function("runtime.config_threadpool");
  bench.data = probe_tensor(plan["memory_bytes"].integer(4, most) / 4, 0, 0, 0x3f800000);
  int32_t half = static_cast<int32_t>(plan["state"].integer(0, 0x7fffffff));
  bench.state = probe_tensor(threads, sums, lanes, half);
  move_to_huge_pages();
  bench.data_view = view_of(&bench.data);
  bench.state_view = view_of(&bench.state);

  Array<ProbeStep*> steps;
  read_probe_steps(plan, library, &steps);
  FILE* file = output != nullptr ? fopen(output, "w") : stdout;
  if (file == nullptr) die(kOutput, "cannot write %s: %s", output, strerror(errno));
  double seconds = 1e-3 * static_cast<double>(plan["milliseconds"].integer(1, 1000000));
  fprintf(stderr, "measuring this board, about %.0f s\n", seconds);
  probe_rounds(&bench, &steps, 1e-6 * static_cast<double>(plan["run_microseconds"].integer(1, most)),
               seconds, plan["least_rounds"].integer(1, 1000));
  int64_t percent = plan["best_percent"].integer(1, 100);
  for (ProbeStep* step : steps) step->rate = probe_typical(&step->rates, percent);
  probe_write(plan["toml"].text(), plan["facts"], &steps, file);
  if (fflush(file) != 0 || ferror(file) != 0) die(kOutput, "cannot write the TOML");
  if (output != nullptr) fclose(file);
}
