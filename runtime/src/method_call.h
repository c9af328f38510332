// Calls of a payload's method with the arguments of the outer program's delegate.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/span.h>

#include "loaded_method.h"

namespace nfat {

/// A loaded method, and how its inputs and outputs go with those of the outer program.
class MethodCall {
 public:
  explicit MethodCall(std::unique_ptr<LoadedMethod> loaded) : loaded_(std::move(loaded)) {}

  /// `args` are the inputs and then the outputs. Outputs that the payload does not plan are written where they belong.
  executorch::runtime::Error operator()(executorch::runtime::Span<executorch::runtime::EValue*> args);

 private:
  /// An output of the outer program.
  struct Output {
    /// The most bytes that the payload writes, which is no more than there is place for.
    size_t capacity = 0;
    /// Whether the payload writes into the outer program's memory; copied otherwise.
    bool bound = false;
    /// Which tensor was checked.
    const void* checked = nullptr;
  };

  executorch::runtime::Error check_inputs(executorch::runtime::Span<executorch::runtime::EValue*> inputs) const;
  executorch::runtime::Error check_output(const executorch::runtime::EValue& outer, size_t index);
  executorch::runtime::Error check(executorch::runtime::Span<executorch::runtime::EValue*> args);
  executorch::runtime::Error publish(executorch::runtime::EValue& outer, size_t index);

  std::unique_ptr<LoadedMethod> loaded_;
  std::vector<Output> outputs_;
  /// Whether a call did not end, which leaves ExecuTorch's method in the middle of it, and its state unknown.
  bool threw_ = false;
};

} // namespace nfat
