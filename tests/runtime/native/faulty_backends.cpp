// Backends that fail, for programs that programs/make.py makes: each adds its two inputs.
//
// What is compiled for FaultyBackend says how: "init HOW", "execute CALL HOW", "answer WHAT" or nothing. HOW is what
// happens at that place: "throw", "throw-number", "error", "nothing" (returns at once, as if all went well), "hang" or
// "abort". WHAT is what is wrong with its answers, see `spoil`.

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

namespace nfat_tests {

std::atomic<bool> hanging{false};
std::atomic<int> live{0}; // delegates that are not destroyed

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
  Loaded() {
    ++live;
  }
  ~Loaded() {
    --live;
  }

  int fails_at = 0; // a number of a call
  int calls = 0;
  std::string how;
  std::string what;
  std::vector<float> before; // the answer of the previous call
};

/// Makes an answer wrong. `taken` is the first input.
void spoil(Loaded& loaded, std::vector<float>& sum, const std::vector<float>& taken) {
  const std::string& what = loaded.what;
  const std::vector<float> right = sum;
  if (what == "slow") {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::minstd_rand random(static_cast<unsigned>(loaded.calls));
  for (size_t index = 0; index < sum.size(); ++index) {
    float& number = sum[index];
    if (what == "zeros") {
      number = 0;
    } else if (what == "nan") {
      number = std::numeric_limits<float>::quiet_NaN();
    } else if (what == "infinity") {
      number = std::numeric_limits<float>::infinity();
    } else if (what == "shifted") {
      number = right[(index + 1) % sum.size()];
    } else if (what == "last" && index + 1 == sum.size()) {
      number += 1;
    } else if (what == "sign") {
      number = -number;
    } else if (what == "noise") {
      number += static_cast<float>(random() % 1000) * 1e-3F;
    } else if (what == "echo") {
      number = taken[index];
    } else if (what == "half") {
      number = static_cast<float>(executorch::aten::Half(number));
    } else if (
        what == "slow" || (what == "later" && loaded.calls > 2) || (what == "first" && loaded.calls == 1) ||
        (what == "alternating" && loaded.calls % 2 == 0) || (what == "second" && loaded.calls == 2)) {
      number += 1;
    }
  }
  if (what == "stale" && !loaded.before.empty()) {
    sum = loaded.before;
  }
  if (what == "cached" && !loaded.before.empty()) { // the answer of its first call
    return void(sum = loaded.before);
  }
  loaded.before = right;
}

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
  if (how == "abort") {
    std::abort();
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
    if (std::sscanf(told.c_str(), "answer %31s", how) == 1) {
      loaded->what = how;
    }
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
    const std::vector<float> taken(first.const_data_ptr<float>(), first.const_data_ptr<float>() + first.numel());
    std::vector<float> answer = taken;
    for (size_t index = 0; index < answer.size(); ++index) {
      answer[index] += second.const_data_ptr<float>()[index];
    }
    spoil(*loaded, answer, taken);
    if (loaded->what == "resized") {
      answer.pop_back();
    }
    const executorch::aten::SizesType sizes[] = {static_cast<executorch::aten::SizesType>(answer.size())};
    const Error resized = executorch::runtime::resize_tensor(sum, {sizes, 1});
    const size_t written = loaded->what == "part" ? answer.size() / 2 : answer.size();
    std::copy(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(written), sum.mutable_data_ptr<float>());
    return resized;
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
