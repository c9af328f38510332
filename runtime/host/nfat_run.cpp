// Runs one method of a program, fat or plain, without Python:
//
//   nfat_run MODEL.pte METHOD [SIZES:INPUT.bin ...] [> OUTPUTS.bin]
//
// SIZES are like 2x8 (empty for a scalar), INPUT.bin has the bytes of the tensor, whose dtype is the method's. Writes
// the bytes of all output tensors one after another, and on the error stream what became of each payload.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include "nfat_backend.h"

using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

namespace {

struct Input {
  std::vector<char> bytes;
  TensorPtr tensor;
};

bool read_input(const std::string& argument, executorch::aten::ScalarType dtype, Input& input) {
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
  input.bytes.assign(std::istreambuf_iterator<char>(file), {});
  input.tensor = from_blob(input.bytes.data(), sizes, dtype);
  return file && static_cast<size_t>(input.tensor->nbytes()) == input.bytes.size();
}

void print_report() {
  std::string report(nfat_backend_report(nullptr, 0), '\0');
  nfat_backend_report(report.data(), report.size() + 1);
  std::fputs(report.c_str(), stderr);
}

int fail(const char* what, Error error) {
  std::fprintf(stderr, "nfat_run: %s: %s\n", what, executorch::runtime::to_string(error));
  return 1;
}

int run(Module& module, const std::string& method, const std::vector<std::string>& arguments) {
  const Error loaded = module.load_method(method);
  print_report();
  if (loaded != Error::Ok) {
    return fail("the method does not load", loaded);
  }
  const auto meta = module.method_meta(method);
  if (!meta.ok()) {
    return fail("the method has no description", meta.error());
  }
  std::vector<Input> inputs(arguments.size());
  std::vector<EValue> values;
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto described = meta->input_tensor_meta(index);
    if (!described.ok() || !read_input(arguments[index], described->scalar_type(), inputs[index])) {
      std::fprintf(stderr, "nfat_run: %s is not input %zu\n", arguments[index].c_str(), index);
      return 2;
    }
    values.emplace_back(inputs[index].tensor);
  }
  const auto outputs = module.execute(method, values);
  if (!outputs.ok()) {
    return fail("the method does not run", outputs.error());
  }
  for (const EValue& output : *outputs) {
    if (output.isTensor()) {
      const auto tensor = output.toTensor();
      std::fwrite(tensor.const_data_ptr(), 1, tensor.nbytes(), stdout);
    }
  }
  return 0;
}

} // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.size() < 2) {
    std::fputs("usage: nfat_run MODEL.pte METHOD [SIZES:INPUT.bin ...]\n", stderr);
    return 2;
  }
  if (nfat_backend_status() != 0) {
    std::fputs("nfat_run: the backend is not registered\n", stderr);
    return 1;
  }
  Module module(arguments[0], Module::LoadMode::Mmap);
  return run(module, arguments[1], {arguments.begin() + 2, arguments.end()});
}
