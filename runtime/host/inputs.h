// Inputs of a method, read from arguments, and outputs, written as bytes.

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

/// Reads arguments: for a tensor like `2x8:INPUT.bin` (`:INPUT.bin` for a scalar), whose dtype and dimension order are
/// the method's; for other inputs a number, 0 and 1 for a bool, anything for None. Says what is wrong on the error
/// stream and returns false if one is not what the method takes, or has a size that the file's metadata leaves out.
bool read_inputs(
    executorch::extension::Module& module,
    const std::string& method,
    const std::vector<std::string>& arguments,
    Inputs& inputs);

/// Writes a tensor's elements in the order of its dimensions, whatever its order in memory; an int or double in 8
/// bytes, a bool in one; nothing for other values.
void write_output(const executorch::runtime::EValue& output);

} // namespace nfat_host
