// Inputs of a method, read from files.

#pragma once

#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

namespace nfat_host {

/// The values of a method's inputs, and the memory that they point to.
struct Inputs {
  std::vector<std::vector<char>> bytes;
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<executorch::runtime::EValue> values;
};

/// Reads arguments like `2x8:INPUT.bin` (`:INPUT.bin` for a scalar), whose dtypes are the method's. Says what is wrong
/// on the error stream and returns false if one is not what the method takes.
bool read_inputs(
    executorch::extension::Module& module,
    const std::string& method,
    const std::vector<std::string>& arguments,
    Inputs& inputs);

} // namespace nfat_host
