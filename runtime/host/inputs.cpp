#include "inputs.h"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace nfat_host {

using executorch::aten::DimOrderType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::Module;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::Tag;

namespace {

bool read_tensor(const std::string& argument, const executorch::runtime::TensorInfo& described, Inputs& inputs) {
  const size_t colon = argument.find(':');
  if (colon == std::string::npos) {
    return false;
  }
  std::vector<SizesType> sizes;
  std::istringstream text(argument.substr(0, colon));
  for (std::string size; std::getline(text, size, 'x');) {
    sizes.push_back(static_cast<SizesType>(std::stol(size)));
  }
  const auto of_method = described.dim_order();
  std::vector<DimOrderType> order;
  if (of_method.size() == sizes.size()) { // else the runtime refuses the input
    order.assign(of_method.begin(), of_method.end());
  }
  std::ifstream file(argument.substr(colon + 1), std::ios::binary);
  inputs.bytes.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  std::vector<char>& bytes = inputs.bytes.back();
  inputs.tensors.push_back(executorch::extension::make_tensor_ptr(
      std::move(sizes),
      bytes.data(),
      std::move(order),
      {},
      described.scalar_type()));
  inputs.values.emplace_back(inputs.tensors.back());
  return file && static_cast<size_t>(inputs.tensors.back()->nbytes()) == bytes.size();
}

bool read_input(const MethodMeta& meta, size_t index, const std::string& argument, Inputs& inputs) {
  const auto tag = meta.input_tag(index);
  if (!tag.ok()) {
    return false;
  }
  if (*tag == Tag::Tensor) {
    const auto described = meta.input_tensor_meta(index);
    return described.ok() && read_tensor(argument, *described, inputs);
  }
  if (*tag == Tag::None) {
    inputs.values.emplace_back();
    return true;
  }
  std::istringstream text(argument);
  if (*tag == Tag::Double) {
    double number = 0;
    text >> number;
    inputs.values.emplace_back(number);
  } else {
    int64_t number = 0;
    text >> number;
    inputs.values.push_back(*tag == Tag::Bool ? EValue(number != 0) : EValue(number));
  }
  return !text.fail();
}

template <typename Number>
void write_number(Number number) {
  std::fwrite(&number, sizeof(number), 1, stdout);
}

/// Elements of a dimension and those after it.
void write_elements(const Tensor& tensor, ssize_t dimension, const char* data) {
  if (dimension == tensor.dim()) {
    std::fwrite(data, 1, static_cast<size_t>(tensor.element_size()), stdout);
    return;
  }
  const ssize_t step = tensor.strides()[static_cast<size_t>(dimension)] * tensor.element_size();
  if (dimension + 1 == tensor.dim() && step == tensor.element_size()) {
    std::fwrite(data, static_cast<size_t>(step), static_cast<size_t>(tensor.size(dimension)), stdout);
    return;
  }
  for (ssize_t index = 0; index < tensor.size(dimension); ++index) {
    write_elements(tensor, dimension + 1, data + index * step);
  }
}

} // namespace

bool read_inputs(
    Module& module,
    const std::string& method,
    const std::vector<std::string>& arguments,
    Inputs& inputs) {
  const auto meta = module.method_meta(method);
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!meta.ok() || !read_input(*meta, index, arguments[index], inputs)) {
      std::fprintf(stderr, "nfat_run: %s is not input %zu\n", arguments[index].c_str(), index);
      return false;
    }
  }
  return true;
}

void write_output(const EValue& output) {
  if (output.isTensor()) {
    const Tensor tensor = output.toTensor();
    write_elements(tensor, 0, static_cast<const char*>(tensor.const_data_ptr()));
  } else if (output.isInt()) {
    write_number(output.toInt());
  } else if (output.isDouble()) {
    write_number(output.toDouble());
  } else if (output.isBool()) {
    write_number(output.toBool());
  }
}

} // namespace nfat_host
