// Calls method forward of the first payload of a container that can run, as the delegate does, with one input of 4 x 64
// of ones and one output of 4 x 8 numbers:
//
//   call_method CONTAINER BLOBS
//
// BLOBS is as open_containers has it. Says whether the payload wrote its output "in place" or it was "copied", and the
// numbers of the output.

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>

#include "container.h"
#include "method_call.h"
#include "selection.h"
#include "stored.h"

int main(int, char** values) {
  executorch::runtime::runtime_init();
  const std::vector<uint8_t> content = nfat_tests::read_all(values[1]);
  const nfat_tests::Stored stored = nfat_tests::read_stored(values[2]);
  nfat::Container container;
  if (!nfat::read_container({content.data(), content.size()}, container).empty()) {
    return 1;
  }
  nfat::Report report;
  auto loaded = nfat::select(container, {"forward", &stored, nfat::Verify::kAll}, report);
  if (loaded == nullptr) {
    std::fputs(report.text().c_str(), stderr);
    return 1;
  }
  executorch::runtime::Method& method = loaded->method();
  std::vector<float> read(4 * 64, 1.0F);
  std::vector<float> written(4 * 8, 0.0F);
  const auto input = executorch::extension::from_blob(read.data(), {4, 64});
  const auto output = executorch::extension::from_blob(written.data(), {4, 8});
  executorch::runtime::EValue first(*input);
  executorch::runtime::EValue second(*output);
  std::vector<executorch::runtime::EValue*> args{&first, &second};
  nfat::MethodCall call(std::move(loaded));
  for (int times = 0; times < 2; ++times) {
    if (call({args.data(), args.size()}) != executorch::runtime::Error::Ok) {
      return 1;
    }
  }
  const bool in_place = method.get_output(0).toTensor().const_data_ptr() == written.data();
  std::puts(in_place ? "in place" : "copied");
  for (const float number : written) {
    std::printf("%.9g\n", static_cast<double>(number));
  }
}
