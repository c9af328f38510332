// Backends that fail, for programs that programs/make.py makes: each adds its two inputs.
//
// What is compiled for FaultyBackend says how: "init HOW", "execute CALL HOW", or nothing. HOW is what happens at that
// place: "throw", "throw-number", "error", "nothing" (returns at once, as if all went well) or "hang".

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include <executorch/runtime/backend/interface.h>

namespace nfat_tests {

std::atomic<bool> hanging{false};

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

struct Loaded {
  int fails_at = 0; // a number of a call
  int calls = 0;
  std::string how;
};

Error fail(const std::string& how) {
  if (how == "throw") {
    throw std::runtime_error("the device\nis lost");
  }
  if (how == "throw-number") {
    throw 7;
  }
  if (how == "hang") {
    hanging = true;
    while (true) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }
  return how == "error" ? Error::AccessFailed : Error::Ok;
}

class Faulty final : public executorch::runtime::BackendInterface {
 public:
  explicit Faulty(const char* availability) : availability_(availability) {}

  bool is_available() const override {
    return fail(availability_) == Error::Ok;
  }

  Result<DelegateHandle*> init(
      BackendInitContext&,
      FreeableBuffer* processed,
      executorch::runtime::ArrayRef<CompileSpec>) const override {
    const std::string told(static_cast<const char*>(processed->data()), processed->size());
    processed->Free();
    char how[32] = "";
    if (std::sscanf(told.c_str(), "init %31s", how) == 1) {
      const Error error = fail(how);
      return error == Error::Ok ? Result<DelegateHandle*>(nullptr) : error;
    }
    auto* loaded = new Loaded;
    std::sscanf(told.c_str(), "execute %d %31s", &loaded->fails_at, how);
    loaded->how = how;
    return static_cast<DelegateHandle*>(loaded);
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    auto* loaded = static_cast<Loaded*>(handle);
    if (loaded == nullptr || ++loaded->calls == loaded->fails_at) {
      return fail(loaded == nullptr ? "nothing" : loaded->how);
    }
    const auto first = args[0]->toTensor();
    const auto second = args[args.size() - 2]->toTensor(); // the same one, if both inputs are
    auto sum = args[args.size() - 1]->toTensor();
    for (ssize_t index = 0; index < sum.numel(); ++index) {
      sum.mutable_data_ptr<float>()[index] =
          first.const_data_ptr<float>()[index] + second.const_data_ptr<float>()[index];
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override {
    delete static_cast<Loaded*>(handle);
  }

 private:
  const char* availability_;
};

Faulty faulty("nothing");
Faulty unsure("throw");
Faulty idling("error");
const Error registered[] = {
    executorch::runtime::register_backend({"FaultyBackend", &faulty}),
    executorch::runtime::register_backend({"UnsureBackend", &unsure}),
    executorch::runtime::register_backend({"IdlingBackend", &idling}),
};

} // namespace
} // namespace nfat_tests
