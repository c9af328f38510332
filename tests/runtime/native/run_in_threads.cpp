// Loads a program in several threads at once, each of which calls a method of its own instance again and again:
//
//   run_in_threads THREADS REPEAT MODEL.pte METHOD [SIZES:INPUT.bin ...] > OUTPUTS.bin
//
// Writes what one thread got, as nfat_run does, or exits with 1 if others got something else.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "inputs.h"

using executorch::extension::Module;

namespace {

struct Work {
  size_t repeat;
  std::string path;
  std::string method;
  std::vector<std::string> arguments;
};

/// The bytes of all outputs; empty if something failed.
std::string outputs_of(const Work& work) {
  Module module(work.path, Module::LoadMode::Mmap);
  nfat_host::Inputs inputs;
  if (module.load_method(work.method) != executorch::runtime::Error::Ok ||
      !nfat_host::read_inputs(module, work.method, work.arguments, inputs)) {
    return "";
  }
  std::string bytes;
  for (size_t call = 0; call < work.repeat; ++call) {
    const auto outputs = module.execute(work.method, inputs.values);
    if (!outputs.ok()) {
      return "";
    }
    for (const auto& output : *outputs) {
      const auto tensor = output.toTensor();
      bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    }
  }
  return bytes;
}

} // namespace

int main(int count, char** values) {
  const Work work{
      std::strtoul(values[2], nullptr, 10), values[3], values[4], std::vector<std::string>(values + 5, values + count)};
  std::vector<std::string> results(std::strtoul(values[1], nullptr, 10));
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&result, &work] { result = outputs_of(work); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& result : results) {
    if (result.empty() || result != results.front()) {
      return 1;
    }
  }
  std::fwrite(results.front().data(), 1, results.front().size(), stdout);
}
