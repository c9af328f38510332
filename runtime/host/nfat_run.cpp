// Runs methods of a program, fat or plain, without Python:
//
//   nfat_run [--verify LEVEL] [--repeat COUNT] [--data WEIGHTS.ptd] [--bench | --etdump | --memory]
//            MODEL.pte METHOD [INPUT ...] [-- METHOD [INPUT ...]]... [> OUTPUTS.bin]
//   nfat_run --about
//
// A tensor is SIZES:INPUT.bin. SIZES are like 2x8 (empty for a scalar), INPUT.bin has the bytes of the tensor as it
// lies in memory; its dtype and dimension order are the method's. Other inputs are numbers. Makes the calls one after
// another on one loaded program, all COUNT times, and writes the elements of all outputs, and on the error stream what
// became of each payload. With --bench it prints how long loading and the only call take instead, with --memory how much
// memory, and with --etdump it writes a trace of the call (bench.h). LEVEL is the load option verify_digests. With --about it prints the version of ExecuTorch, the system, and the backends that can be used.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <sys/utsname.h>

#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/backend/interface.h>

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
  std::string data;
  size_t repeat = 1;
  int (*measure)(const nfat_host::Measured&) = nullptr; // in place of running calls
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

/// A method and its inputs.
struct Call {
  std::string method;
  std::vector<std::string> arguments;
  nfat_host::Inputs inputs;
};

/// Splits `METHOD [INPUT ...] [-- METHOD [INPUT ...]]...`.
std::vector<Call> calls_of(const std::vector<std::string>& words) {
  std::vector<Call> calls;
  for (size_t start = 0; start < words.size();) {
    const auto end = std::find(words.begin() + static_cast<std::ptrdiff_t>(start), words.end(), "--");
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(start);
    if (first == end) {
      return {};
    }
    calls.push_back({*first, {first + 1, end}, {}});
    start = static_cast<size_t>(end - words.begin()) + 1;
  }
  return calls;
}

/// Loads the methods to call after those that share state, since loading sets the initial values.
Error load_methods(Module& module, const std::vector<Call>& calls) {
  const auto names = module.method_names();
  if (!names.ok()) {
    return names.error();
  }
  std::vector<std::string> methods;
  for (const std::string& name : *names) {
    const auto meta = module.method_meta(name);
    if (meta.ok() && meta->num_memory_planned_buffers() > 1) {
      methods.push_back(name);
    }
  }
  for (const Call& call : calls) {
    methods.push_back(call.method);
  }
  for (const std::string& method : methods) {
    if (module.is_method_loaded(method)) {
      continue;
    }
    const Error loaded = module.load_method(method);
    print_report();
    if (loaded != Error::Ok) {
      return loaded;
    }
  }
  return Error::Ok;
}

int run(const Options& options, const std::string& path, std::vector<Call> calls) {
  std::vector<std::string> data_files;
  if (!options.data.empty()) {
    data_files.push_back(options.data);
  }
  constexpr bool kShareState = true;
  Module module(path, data_files, Module::LoadMode::Mmap, nullptr, nullptr, nullptr, kShareState);
  if (const Error loaded = load(module, options.verify); loaded != Error::Ok) {
    return fail("the program does not load", loaded);
  }
  if (const Error loaded = load_methods(module, calls); loaded != Error::Ok) {
    return fail("the method does not load", loaded);
  }
  for (Call& call : calls) {
    if (!nfat_host::read_inputs(module, call.method, call.arguments, call.inputs)) {
      return 2;
    }
  }
  for (size_t repetition = 0; repetition < options.repeat; ++repetition) {
    for (const Call& call : calls) {
      const auto outputs = module.execute(call.method, call.inputs.values);
      if (!outputs.ok()) {
        return fail("the method does not run", outputs.error());
      }
      for (const EValue& output : *outputs) {
        nfat_host::write_output(output);
      }
    }
  }
  return 0;
}

/// What files can be run here: `pteforge export --place` asks for it.
int about() {
  utsname system = {};
  uname(&system);
  std::printf("ExecuTorch %s, %s %s\n", NFAT_EXECUTORCH_VERSION, system.sysname, system.machine);
  for (size_t index = 0; index < executorch::runtime::get_num_registered_backends(); ++index) {
    const auto name = executorch::runtime::get_backend_name(index);
    if (!name.ok()) {
      continue;
    }
    const auto* backend = executorch::runtime::get_backend_class(*name);
    std::printf(backend->is_available() ? "backend: %s\n" : "no device: %s\n", *name);
  }
  return 0;
}

} // namespace

int main(int count, char** values) {
  std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.size() == 1 && arguments[0] == "--about") {
    return about();
  }
  Options options;
  while (!arguments.empty() && arguments[0].rfind("--", 0) == 0) {
    size_t taken = 2;
    if (arguments.size() >= 2 && arguments[0] == "--verify") {
      options.verify = arguments[1];
    } else if (arguments.size() >= 2 && arguments[0] == "--data") {
      options.data = arguments[1];
    } else if (arguments.size() >= 2 && arguments[0] == "--repeat") {
      options.repeat = std::strtoul(arguments[1].c_str(), nullptr, 10);
    } else if (arguments[0] == "--bench" || arguments[0] == "--etdump" || arguments[0] == "--memory") {
      options.measure = arguments[0] == "--bench" ? nfat_host::bench
          : arguments[0] == "--etdump"            ? nfat_host::trace
                                                  : nfat_host::memory;
      taken = 1;
    } else {
      arguments.clear();
      break;
    }
    arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  std::vector<Call> calls;
  if (arguments.size() >= 2) {
    calls = calls_of({arguments.begin() + 1, arguments.end()});
  }
  if (calls.empty() || (options.measure != nullptr && calls.size() > 1)) {
    std::fputs(
        "usage: nfat_run [--verify LEVEL] [--repeat COUNT] [--data WEIGHTS.ptd]\n"
        "                [--bench | --etdump | --memory]\n"
        "                MODEL.pte METHOD [SIZES:INPUT.bin | NUMBER ...] [-- METHOD ...]...\n"
        "       nfat_run --about\n",
        stderr);
    return 2;
  }
  if (nfat_backend_status() != 0) {
    std::fputs("nfat_run: the backend is not registered\n", stderr);
    return 1;
  }
  if (options.measure == nullptr) {
    return run(options, arguments[0], std::move(calls));
  }
  if (!options.verify.empty() && nfat_backend_verify_digests(options.verify.c_str()) != 0) {
    std::fputs("nfat_run: LEVEL is one of none, parsed, all\n", stderr);
    return 2;
  }
  std::vector<std::string> data_files;
  if (!options.data.empty()) {
    data_files.push_back(options.data);
  }
  return options.measure({arguments[0], data_files, calls[0].method, calls[0].arguments, options.repeat});
}
