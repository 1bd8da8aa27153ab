// Classifies images by the model `net` of one input and one output, each image in a thread of its
// own: all threads share the weights. Files hold plain numbers (float).
//
//   classify IMAGE...
#include <algorithm>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "net.h"
#include "blislike.hpp"

static std::vector<float> numbers_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<float> numbers(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(numbers.data()),
            static_cast<std::streamsize>(numbers.size() * sizeof(float)));
  return numbers;
}

struct Answer {
  size_t best;
  float score;
};

static Answer classify(const std::string& path) {
  blislike::Runner runner(net_model, 1);
  const std::vector<float> image = numbers_in(path);
  std::vector<float> scores(runner.model().outputs[0].bytes / sizeof(float));
  runner.run({blislike::input(image)}, {blislike::output(scores)});
  const auto best = std::max_element(scores.begin(), scores.end());
  return {static_cast<size_t>(std::distance(scores.begin(), best)), *best};
}

int main(int argc, char** argv) {
  std::vector<std::future<Answer>> answers;
  for (int i = 1; i < argc; i++) {
    answers.push_back(std::async(std::launch::async, classify, std::string(argv[i])));
  }
  int failed = 0;
  for (int i = 1; i < argc; i++) {
    try {
      const Answer answer = answers[static_cast<size_t>(i - 1)].get();
      std::cout << argv[i] << ": class " << answer.best << ", score " << answer.score << '\n';
    } catch (const std::exception& error) {
      std::cerr << argv[i] << ": " << error.what() << '\n';
      failed = 1;
    }
  }
  return failed;
}
