// A backend for a test: with HOW=relu in the environment it computes what mlx was to compute, and else it fails so.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include <executorch/runtime/backend/interface.h>

namespace {

using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;

std::string how() {
  const char* told = std::getenv("HOW");
  return told == nullptr ? "" : told;
}

class Backend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override {
    return how() != "absent";
  }

  Result<DelegateHandle*> init(
      BackendInitContext&,
      FreeableBuffer*,
      executorch::runtime::ArrayRef<CompileSpec>) const override {
    return nullptr;
  }

  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*> args) const override {
    if (how() == "abort") {
      std::abort();
    }
    if (how() == "hang") {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    if (how() == "throw") {
      throw std::runtime_error("the device is lost");
    }
    const auto input = args[0]->toTensor();
    auto output = args[args.size() - 1]->toTensor();
    for (ssize_t index = 0; index < output.numel(); ++index) {
      output.mutable_data_ptr<float>()[index] =
          how() == "relu" ? std::max(0.0f, input.const_data_ptr<float>()[index]) : 0.0f;
    }
    return Error::Ok;
  }
};

Backend backend;
const Error registered = executorch::runtime::register_backend({"MLXBackend", &backend});

} // namespace
