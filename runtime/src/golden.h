// Golden cases: calls with known results, by which a payload checks itself. formats/nfat/README.md specifies them.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <executorch/runtime/core/exec_aten/exec_aten.h>

#include "container.h"
#include "loaded_method.h"

namespace nfat {

struct GoldenTensor {
  executorch::aten::ScalarType dtype;
  std::vector<executorch::aten::SizesType> sizes;
  /// As they lie in memory.
  Bytes elements;
};

/// A call of a method, and what it returns; valid as long as the blob is.
struct GoldenCase {
  std::string_view method;
  bool stateful = false;
  std::vector<GoldenTensor> inputs;
  std::vector<GoldenTensor> outputs;
};

/// Reads a blob of golden cases; returns what is wrong, or nothing.
[[nodiscard]] std::string read_golden(Bytes content, std::vector<GoldenCase>& cases);

/// Loads the method to check, in its initial state; returns what is wrong, or nothing.
using Load = std::function<std::string(std::unique_ptr<LoadedMethod>& loaded)>;

/// Runs the cases of a method, on instances that are gone afterwards; returns what is wrong, or nothing.
[[nodiscard]] std::string run_golden(
    const std::vector<GoldenCase>& cases, const SelfCheck& check, const Load& load);

} // namespace nfat
