// Runs one method of a program, fat or plain, without Python:
//
//   nfat_run [--verify LEVEL] [--repeat COUNT] [--bench] MODEL.pte METHOD [SIZES:INPUT.bin ...] [> OUTPUTS.bin]
//
// SIZES are like 2x8 (empty for a scalar), INPUT.bin has the bytes of the tensor, whose dtype is the method's. Calls
// the method COUNT times and writes the bytes of all output tensors one after another, and on the error stream what
// became of each payload. With --bench it prints what loading and calling cost instead. LEVEL is the load option
// verify_digests.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <executorch/runtime/backend/backend_options_map.h>

#include "bench.h"
#include "inputs.h"
#include "nfat_backend.h"

using executorch::extension::Module;
using executorch::runtime::BackendOptions;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::LoadBackendOptionsMap;

namespace {

struct Options {
  std::string verify;
  size_t repeat = 1;
  bool bench = false;
};

void print_report() {
  std::string report(nfat_backend_report(nullptr, 0), '\0');
  nfat_backend_report(report.data(), report.size() + 1);
  std::fputs(report.c_str(), stderr);
}

int fail(const char* what, Error error) {
  std::fprintf(stderr, "nfat_run: %s: %s\n", what, executorch::runtime::to_string(error));
  return 1;
}

/// Loads the program with the option of the backend, as programs do that have options for several backends.
Error load(Module& module, const std::string& verify) {
  if (verify.empty()) {
    return module.load();
  }
  BackendOptions<1> options;
  LoadBackendOptionsMap of_backends;
  if (options.set_option("verify_digests", verify.c_str()) != Error::Ok ||
      of_backends.set_options("NfatBackend", options.view()) != Error::Ok) {
    return Error::InvalidArgument;
  }
  return module.load(of_backends);
}

int run(const Options& options, const std::string& path, const std::string& method,
        const std::vector<std::string>& arguments) {
  Module module(path, Module::LoadMode::Mmap);
  if (const Error loaded = load(module, options.verify); loaded != Error::Ok) {
    return fail("the program does not load", loaded);
  }
  const Error loaded = module.load_method(method);
  print_report();
  if (loaded != Error::Ok) {
    return fail("the method does not load", loaded);
  }
  nfat_host::Inputs inputs;
  if (!nfat_host::read_inputs(module, method, arguments, inputs)) {
    return 2;
  }
  for (size_t call = 0; call < options.repeat; ++call) {
    const auto outputs = module.execute(method, inputs.values);
    if (!outputs.ok()) {
      return fail("the method does not run", outputs.error());
    }
    for (const EValue& output : *outputs) {
      if (output.isTensor()) {
        const auto tensor = output.toTensor();
        std::fwrite(tensor.const_data_ptr(), 1, tensor.nbytes(), stdout);
      }
    }
  }
  return 0;
}

} // namespace

int main(int count, char** values) {
  std::vector<std::string> arguments(values + 1, values + count);
  Options options;
  while (!arguments.empty() && arguments[0].rfind("--", 0) == 0) {
    const size_t taken = arguments[0] == "--bench" ? 1 : 2;
    if (arguments.size() >= 2 && arguments[0] == "--verify") {
      options.verify = arguments[1];
    } else if (arguments.size() >= 2 && arguments[0] == "--repeat") {
      options.repeat = std::strtoul(arguments[1].c_str(), nullptr, 10);
    } else if (arguments[0] == "--bench") {
      options.bench = true;
    } else {
      arguments.clear();
      break;
    }
    arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  if (arguments.size() < 2) {
    std::fputs(
        "usage: nfat_run [--verify LEVEL] [--repeat COUNT] [--bench] MODEL.pte METHOD [SIZES:INPUT.bin ...]\n", stderr);
    return 2;
  }
  if (nfat_backend_status() != 0) {
    std::fputs("nfat_run: the backend is not registered\n", stderr);
    return 1;
  }
  const std::vector<std::string> inputs(arguments.begin() + 2, arguments.end());
  if (!options.bench) {
    return run(options, arguments[0], arguments[1], inputs);
  }
  if (!options.verify.empty() && nfat_backend_verify_digests(options.verify.c_str()) != 0) {
    std::fputs("nfat_run: LEVEL is one of none, parsed, all\n", stderr);
    return 2;
  }
  return nfat_host::bench(arguments[0], arguments[1], inputs, options.repeat);
}
