#include "inputs.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace nfat_host {

using executorch::extension::Module;

namespace {

bool read_input(const std::string& argument, executorch::aten::ScalarType dtype, Inputs& inputs) {
  const size_t colon = argument.find(':');
  if (colon == std::string::npos) {
    return false;
  }
  std::vector<executorch::aten::SizesType> sizes;
  std::istringstream text(argument.substr(0, colon));
  for (std::string size; std::getline(text, size, 'x');) {
    sizes.push_back(static_cast<executorch::aten::SizesType>(std::stol(size)));
  }
  std::ifstream file(argument.substr(colon + 1), std::ios::binary);
  inputs.bytes.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  std::vector<char>& bytes = inputs.bytes.back();
  inputs.tensors.push_back(executorch::extension::from_blob(bytes.data(), sizes, dtype));
  inputs.values.emplace_back(inputs.tensors.back());
  return file && static_cast<size_t>(inputs.tensors.back()->nbytes()) == bytes.size();
}

} // namespace

bool read_inputs(
    Module& module,
    const std::string& method,
    const std::vector<std::string>& arguments,
    Inputs& inputs) {
  const auto meta = module.method_meta(method);
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto described = meta.ok() ? meta->input_tensor_meta(index) : meta.error();
    if (!described.ok() || !read_input(arguments[index], described->scalar_type(), inputs)) {
      std::fprintf(stderr, "nfat_run: %s is not input %zu\n", arguments[index].c_str(), index);
      return false;
    }
  }
  return true;
}

} // namespace nfat_host
