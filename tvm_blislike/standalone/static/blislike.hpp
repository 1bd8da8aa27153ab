// The C interface of blislike.h for C++17: errors are exceptions, runners free themselves.
//
//   #include "net.h"
//   #include "blislike.hpp"
//   blislike::Runner runner(net_model, 2);
//   std::vector<float> scores(1000);
//   runner.run({blislike::input(image)}, {blislike::output(scores)});
#pragma once

// "blislike.h" is in the header of each model, which is to be included before this one.
#ifndef BLISLIKE_H
#error "include the header of a model first"
#endif

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace blislike {

class Error : public std::runtime_error {
 public:
  Error(blislike_status status, const char* text) : std::runtime_error(text), status_(status) {}
  blislike_status status() const noexcept { return status_; }

 private:
  blislike_status status_;
};

// The type of a C++ type; of others, such as half floats of a library's own, none that is checked.
template <class T>
constexpr blislike_type type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) return BLISLIKE_BOOL;
  if constexpr (std::is_same_v<U, float>) return BLISLIKE_FLOAT32;
  if constexpr (std::is_same_v<U, double>) return BLISLIKE_FLOAT64;
  if constexpr (std::is_integral_v<U> && !std::is_same_v<U, bool>) {
    constexpr int bytes = sizeof(U);
    constexpr int size = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
    return (std::is_signed_v<U> ? BLISLIKE_INT8 : BLISLIKE_UINT8) + size;
  }
  return BLISLIKE_ANY_TYPE;
}

// What has data() and size(), such as std::vector, std::array and std::span, as an input.
template <class Array>
blislike_input input(const Array& values) {
  using T = std::remove_pointer_t<decltype(values.data())>;
  return {values.data(), values.size() * sizeof(T), type_of<T>(), 0, nullptr};
}

// The same with a shape, which is compared; it has to outlive the run.
template <class Array>
blislike_input input(const Array& values, const std::vector<int64_t>& shape) {
  blislike_input result = input(values);
  result.rank = static_cast<int32_t>(shape.size());
  static const int64_t scalar[1] = {};
  result.shape = shape.empty() ? scalar : shape.data();
  return result;
}

template <class Array>
blislike_output output(Array&& values) {
  using T = std::remove_pointer_t<decltype(values.data())>;
  static_assert(!std::is_const_v<T>, "an output is written");
  return {values.data(), values.size() * sizeof(T), type_of<T>(), 0, nullptr};
}

// Memory for one run after another; runners of one model share its weights. Use one in each thread.
class Runner {
 public:
  // Threads: the calling one counts; 0 stands for those that the model was compiled for.
  explicit Runner(const blislike_model& model, int threads = 0) {
    blislike_runner* made = nullptr;
    blislike_error error{};
    check(blislike_create(&model, threads, &made, &error), error);
    runner_.reset(made);
  }

  const blislike_model& model() const noexcept { return *runner_->model; }
  int threads() const noexcept { return runner_->threads; }

  void run(std::initializer_list<blislike_input> inputs,
           std::initializer_list<blislike_output> outputs) {
    run(inputs.begin(), inputs.size(), outputs.begin(), outputs.size());
  }

  void run(const std::vector<blislike_input>& inputs, const std::vector<blislike_output>& outputs) {
    run(inputs.data(), inputs.size(), outputs.data(), outputs.size());
  }

  // For the functions of C.
  blislike_runner* get() const noexcept { return runner_.get(); }

 private:
  struct Free {
    void operator()(blislike_runner* runner) const noexcept { blislike_free(runner); }
  };

  static void check(blislike_status status, const blislike_error& error) {
    if (status != BLISLIKE_OK) throw Error(status, error.text);
  }

  void run(const blislike_input* inputs, size_t input_count, const blislike_output* outputs,
           size_t output_count) {
    blislike_error error{};
    check(blislike_run(runner_.get(), inputs, static_cast<int32_t>(input_count), outputs,
                       static_cast<int32_t>(output_count), &error),
          error);
  }

  std::unique_ptr<blislike_runner, Free> runner_;
};

}  // namespace blislike
