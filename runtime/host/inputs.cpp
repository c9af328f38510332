#include "inputs.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
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

/// What the file's metadata has for the sizes of a method's inputs (formats/pte/contents.py): five numbers for each.
std::vector<int64_t> sizes_of(const Module& module, const std::string& method) {
  constexpr size_t kHeader = 1 + sizeof(uint32_t);
  const auto named = module.program()->get_named_data_map();
  if (!named.ok()) {
    return {};
  }
  const auto found = (*named)->get_data("metadata.sizes." + method);
  if (!found.ok() || found->size() < kHeader) {
    return {};
  }
  std::vector<int64_t> numbers((found->size() - kHeader) / sizeof(int64_t));
  std::memcpy(numbers.data(), static_cast<const char*>(found->data()) + kHeader, numbers.size() * sizeof(int64_t));
  return numbers;
}

/// Says so and returns false if an input has a size that the program was not made for; the runtime would take it.
bool check_sizes(const Module& module, const std::string& method, const Inputs& inputs) {
  const std::vector<int64_t> numbers = sizes_of(module, method);
  for (size_t row = 0; row + 5 <= numbers.size(); row += 5) {
    const auto position = static_cast<size_t>(numbers[row]);
    const int64_t dimension = numbers[row + 1];
    const int64_t least = numbers[row + 2];
    const int64_t most = numbers[row + 3];
    const int64_t step = numbers[row + 4];
    if (position >= inputs.values.size() || !inputs.values[position].isTensor() || step < 1) {
      continue;
    }
    const Tensor tensor = inputs.values[position].toTensor();
    if (dimension < 0 || dimension >= tensor.dim()) {
      continue; // the runtime refuses the input
    }
    const int64_t size = tensor.size(static_cast<ssize_t>(dimension));
    if (size < least || size > most || (size - least) % step != 0) {
      std::fprintf(
          stderr,
          "nfat_run: input %zu has size %lld in dimension %lld, the method takes %lld to %lld in steps of %lld\n",
          position,
          static_cast<long long>(size),
          static_cast<long long>(dimension),
          static_cast<long long>(least),
          static_cast<long long>(most),
          static_cast<long long>(step));
      return false;
    }
  }
  return true;
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
  return check_sizes(module, method, inputs);
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
