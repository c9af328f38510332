#include "bench.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "inputs.h"

namespace nfat_host {

using executorch::etdump::ETDumpGen;
using executorch::extension::Module;
using executorch::runtime::Error;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A number of bytes that /proc has in KiB; 0 where it is not there.
long proc(const char* path, const char* name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (word == name) {
      long kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return 0;
}

/// Bytes that this process has in memory.
long resident() {
  return proc("/proc/self/smaps_rollup", "Rss:");
}

} // namespace

int fail(const char* what, Error error) {
  std::fprintf(stderr, "nfat_run: the method does not %s: %s\n", what, executorch::runtime::to_string(error));
  return 1;
}

int bench(const Measured& measured) {
  const long before = resident();
  const auto start = Clock::now();
  Module module(measured.path, measured.data_files, Module::LoadMode::Mmap);
  const Error loaded = module.load_method(measured.method);
  const double load = seconds_since(start);
  const long after = resident();
  if (loaded != Error::Ok) {
    return fail("load", loaded);
  }
  Inputs inputs;
  if (!read_inputs(module, measured.method, measured.arguments, inputs)) {
    return 2;
  }
  std::vector<double> taken;
  taken.reserve(measured.calls);
  for (size_t call = 0; call < measured.calls; ++call) {
    const auto called = Clock::now();
    const auto outputs = module.execute(measured.method, inputs.values);
    taken.push_back(seconds_since(called));
    if (!outputs.ok()) {
      return fail("run", outputs.error());
    }
  }
  std::printf("{\"load\": %.9f, \"resident_before\": %ld, \"resident_loaded\": %ld, ", load, before, after);
  std::printf("\"resident_called\": %ld, ", resident());
  std::printf("\"resident_peak\": %ld, \"calls\": [", proc("/proc/self/status", "VmHWM:"));
  for (size_t call = 0; call < measured.calls; ++call) {
    std::printf(call != 0 ? ", %.9f" : "%.9f", taken[call]);
  }
  std::printf("]}\n");
  return 0;
}

int trace(const Measured& measured) {
  auto tracer = std::make_unique<ETDumpGen>();
  ETDumpGen& dump = *tracer;
  Module module(measured.path, measured.data_files, Module::LoadMode::Mmap, std::move(tracer));
  if (const Error loaded = module.load_method(measured.method); loaded != Error::Ok) {
    return fail("load", loaded);
  }
  Inputs inputs;
  if (!read_inputs(module, measured.method, measured.arguments, inputs)) {
    return 2;
  }
  for (size_t call = 0; call < measured.calls; ++call) {
    if (const auto outputs = module.execute(measured.method, inputs.values); !outputs.ok()) {
      return fail("run", outputs.error());
    }
  }
  const auto written = dump.get_etdump_data();
  const bool whole = written.buf != nullptr && std::fwrite(written.buf, 1, written.size, stdout) == written.size;
  std::free(written.buf);
  return whole ? 0 : 1;
}

} // namespace nfat_host
