// Loads method forward of programs whose payloads may fail, and calls each four times; call N has the numbers N, N + 0.1,
// N + 0.2 and N + 0.3 as its input:
//
//   call_faulty [--remember FILE DEVICE] [--while HANGING.pte] MODEL.pte...
//
// Prints what became of each payload, how many delegates of faulty backends are loaded, if any, and of each call the
// error, or the first number of the output and what else is wrong with it. With --remember, checks are remembered. With
// --while, another thread loads and calls that program first, and hangs in it.

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
extern std::atomic<int> live;
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
  if (nfat_tests::live != 0) {
    std::printf("%d delegates\n", nfat_tests::live.load());
  }
  for (const float number : {1.0F, 2.0F, 3.0F, 4.0F}) {
    std::vector<float> values{number, number + 0.1F, number + 0.2F, number + 0.3F};
    const auto input = executorch::extension::from_blob(values.data(), {4});
    const auto outputs = module.execute("forward", *input);
    if (outputs.ok()) {
      const auto output = (*outputs)[0].toTensor();
      bool right = output.numel() == 4;
      for (ssize_t index = 0; right && index < 4; ++index) {
        const float wanted = values[static_cast<size_t>(index)];
        right = output.const_data_ptr<float>()[index] == (wanted + wanted) + wanted;
      }
      std::printf("%g%s\n", static_cast<double>(output.const_data_ptr<float>()[0]), right ? "" : " is wrong");
    } else {
      std::puts(executorch::runtime::to_string(outputs.error()));
    }
  }
}

} // namespace

int main(int count, char** values) {
  std::vector<std::string> paths(values + 1, values + count);
  if (paths[0] == "--remember") {
    nfat_backend_remember_checks(paths[1].c_str(), paths[2].c_str());
    paths.erase(paths.begin(), paths.begin() + 3);
  }
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
