// Loads and calls all methods of a plain program with certain kernels, and then loads them without each of these:
//
//   load_with_kernels MODEL.pte [WEIGHTS.ptd] < KERNELS
//
// KERNELS has lines `OPERATOR KEY`, without KEY for a call that takes no tensors. They are all kernels that are left:
// those of this process, which serve any key, are taken out of its registry, where the runtime looks for what the list
// of a method does not have (runtime/executor/method.cpp, 1.5.1). Inputs are zeros, and 1 where they are numbers. Says what became of each method: the
// error code, and what the runtime logged; and of each kernel, what loading says without it.

#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelKey;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

namespace {

std::string logged;

void log_message(
    et_timestamp_t /*timestamp*/,
    et_pal_log_level_t /*level*/,
    const char* /*filename*/,
    const char* /*function*/,
    size_t /*line*/,
    const char* message,
    size_t length) {
  logged += " " + std::string(message, length);
}

/// The values of a method's inputs, and the memory that they and outputs point to.
struct Values {
  std::vector<std::vector<char>> bytes;
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> inputs;
};

EValue add_tensor(const TensorInfo& described, Values& values) {
  const auto sizes = described.sizes();
  const auto order = described.dim_order();
  values.bytes.emplace_back(described.nbytes());
  values.tensors.push_back(executorch::extension::make_tensor_ptr(
      {sizes.begin(), sizes.end()},
      values.bytes.back().data(),
      {order.begin(), order.end()},
      {},
      described.scalar_type()));
  return EValue(values.tensors.back());
}

EValue make_number(Tag tag) {
  switch (tag) {
    case Tag::None:
      return {};
    case Tag::Double:
      return EValue(1.0);
    case Tag::Bool:
      return EValue(true);
    default:
      return EValue(static_cast<int64_t>(1));
  }
}

/// Calls a loaded method, with memory for the outputs that it does not plan.
Error call(Module& module, const std::string& name) {
  const auto meta = *module.method_meta(name);
  Values values;
  for (size_t index = 0; index < meta.num_inputs(); ++index) {
    const Tag tag = *meta.input_tag(index);
    values.inputs.push_back(
        tag == Tag::Tensor ? add_tensor(*meta.input_tensor_meta(index), values) : make_number(tag));
  }
  for (size_t index = 0; index < meta.num_outputs(); ++index) {
    if (*meta.output_tag(index) != Tag::Tensor || meta.output_tensor_meta(index)->is_memory_planned()) {
      continue;
    }
    const EValue output = add_tensor(*meta.output_tensor_meta(index), values);
    if (const Error error = module.set_output(name, output, index); error != Error::Ok) {
      return error;
    }
  }
  return module.execute(name, values.inputs).error();
}

/// Loads all methods with these kernels, as far as they load.
Error load(Module& module, const std::vector<Kernel>& registry) {
  const auto names = module.method_names();
  if (!names.ok()) {
    return names.error();
  }
  for (const std::string& name : *names) {
    if (const Error error = module.load_method(name, nullptr, nullptr, nullptr, registry); error != Error::Ok) {
      return error;
    }
  }
  return Error::Ok;
}

void say(const std::string& what, Error error) {
  std::printf("%s: %s%s\n", what.c_str(), executorch::runtime::to_string(error), error == Error::Ok ? "" : logged.c_str());
}

std::vector<std::string> data_files(int count, char** values) {
  return {values + 2, values + count};
}

void forbidden(executorch::runtime::KernelRuntimeContext& /*context*/, executorch::runtime::Span<EValue*> /*values*/) {
  std::abort();
}

} // namespace

int main(int count, char** values) {
  executorch::runtime::runtime_init();
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(log_message, __FILE__));
  std::vector<std::pair<std::string, std::string>> lines;
  for (std::string line; std::getline(std::cin, line);) {
    const size_t space = line.find(' ');
    lines.emplace_back(line.substr(0, space), space == std::string::npos ? "" : line.substr(space + 1));
  }
  const Kernel unused("unused", forbidden);
  std::vector<Kernel> kernels;
  for (const auto& [name, key] : lines) {
    const auto function = executorch::runtime::get_op_function_from_registry(name.c_str());
    if (!function.ok()) {
      say(name, function.error());
      return 1;
    }
    kernels.emplace_back(name.c_str(), KernelKey(key.c_str()), *function);
  }
  for (const Kernel& kernel : executorch::runtime::get_registered_kernels()) {
    const_cast<Kernel&>(kernel) = unused; // nothing unregisters kernels
  }
  Module module(values[1], data_files(count, values));
  if (const Error error = load(module, kernels); error != Error::Ok) {
    say("load", error);
    return 1;
  }
  const auto names = module.method_names();
  for (const std::string& name : *names) {
    say(name, call(module, name));
  }
  for (size_t left_out = 0; left_out < kernels.size(); ++left_out) {
    std::vector<Kernel> registry = kernels;
    registry[left_out] = unused;
    logged.clear();
    Module without(values[1], data_files(count, values));
    say(lines[left_out].first + " " + lines[left_out].second, load(without, registry));
  }
}
