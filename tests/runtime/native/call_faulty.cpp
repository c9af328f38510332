// Loads method forward of programs whose payloads may fail, and calls each four times; call N has four numbers N as its
// input:
//
//   call_faulty [--while HANGING.pte] MODEL.pte...
//
// Prints what became of each payload, and the first number of each output or the error. With --while, another thread
// loads and calls that program first, and hangs in it.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include "nfat_backend.h"

namespace nfat_tests {
extern std::atomic<bool> hanging;
} // namespace nfat_tests

namespace {

using executorch::extension::Module;
using executorch::runtime::Error;

void call(const std::string& path) {
  Module module(path, Module::LoadMode::Mmap);
  const Error loaded = module.load_method("forward");
  std::string report(nfat_backend_report(nullptr, 0), '\0');
  nfat_backend_report(report.data(), report.size() + 1);
  std::fputs(report.c_str(), stdout);
  if (loaded != Error::Ok) {
    std::puts(executorch::runtime::to_string(loaded));
    return;
  }
  for (const float number : {1.0F, 2.0F, 3.0F, 4.0F}) {
    std::vector<float> values(4, number);
    const auto input = executorch::extension::from_blob(values.data(), {4});
    const auto outputs = module.execute("forward", *input);
    if (outputs.ok()) {
      std::printf("%g\n", static_cast<double>((*outputs)[0].toTensor().const_data_ptr<float>()[0]));
    } else {
      std::puts(executorch::runtime::to_string(outputs.error()));
    }
  }
}

} // namespace

int main(int count, char** values) {
  std::vector<std::string> paths(values + 1, values + count);
  const bool beside = paths[0] == "--while";
  if (beside) {
    std::thread(call, paths[1]).detach();
    while (!nfat_tests::hanging) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    paths.erase(paths.begin(), paths.begin() + 2);
  }
  for (const std::string& path : paths) {
    call(path);
  }
  if (beside) {
    std::fflush(stdout);
    std::_Exit(0); // the other thread never ends
  }
}
