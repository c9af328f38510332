#include "bench.h"

#include <chrono>
#include <cstdio>
#include <fstream>

#include "inputs.h"

namespace nfat_host {

using executorch::extension::Module;
using executorch::runtime::Error;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Bytes that this process has in memory.
long resident() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word == "Rss:") {
      long kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return 0;
}

} // namespace

int bench(
    const std::string& path,
    const std::string& method,
    const std::vector<std::string>& arguments,
    size_t calls) {
  const long before = resident();
  const auto start = Clock::now();
  Module module(path, Module::LoadMode::Mmap);
  const Error loaded = module.load_method(method);
  const double load = seconds_since(start);
  const long after = resident();
  if (loaded != Error::Ok) {
    std::fprintf(stderr, "nfat_run: the method does not load: %s\n", executorch::runtime::to_string(loaded));
    return 1;
  }
  Inputs inputs;
  if (!read_inputs(module, method, arguments, inputs)) {
    return 2;
  }
  std::vector<double> taken;
  taken.reserve(calls);
  for (size_t call = 0; call < calls; ++call) {
    const auto called = Clock::now();
    const auto outputs = module.execute(method, inputs.values);
    taken.push_back(seconds_since(called));
    if (!outputs.ok()) {
      std::fprintf(
          stderr, "nfat_run: the method does not run: %s\n", executorch::runtime::to_string(outputs.error()));
      return 1;
    }
  }
  std::printf("{\"load\": %.9f, \"resident_before\": %ld, \"resident_loaded\": %ld, ", load, before, after);
  std::printf("\"resident_called\": %ld, \"calls\": [", resident());
  for (size_t call = 0; call < calls; ++call) {
    std::printf(call != 0 ? ", %.9f" : "%.9f", taken[call]);
  }
  std::printf("]}\n");
  return 0;
}

} // namespace nfat_host
