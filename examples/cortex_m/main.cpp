// Runs methods of a program on a Cortex-M whose debugger lends it files (semihosting), such as QEMU:
//
//   cortex_m_run OUTPUTS.bin MODEL.pte METHOD [INPUT ...] [-- METHOD [INPUT ...]]...
//
// Inputs are those of runtime/host/nfat_run.cpp: SIZES:INPUT.bin for tensors, numbers otherwise. Makes the calls one
// after another on one loaded program, and writes the elements of all outputs to OUTPUTS.bin.

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <malloc.h>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

using executorch::aten::DimOrderType;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::BufferDataLoader;
using executorch::extension::MallocMemoryAllocator;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

namespace {

constexpr size_t kShared = 1; // the planned buffer with the state that all methods share

std::string first_log; // of ExecuTorch, whose messages start with the cause

/// Ends with a message, which is the last line that the host shows.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::fputs("cortex_m_run: ", stderr);
  std::vfprintf(stderr, format, values);
  va_end(values);
  if (!first_log.empty()) {
    std::fprintf(stderr, " (%s)", first_log.c_str());
  }
  std::fputc('\n', stderr);
  std::exit(1);
}

template <typename Value>
Value check(Result<Value> result, const std::string& what) {
  if (!result.ok()) {
    fail("%s: %s", what.c_str(), executorch::runtime::to_string(result.error()));
  }
  return std::move(*result);
}

void check(Error error, const std::string& what) {
  if (error != Error::Ok) {
    fail("%s: %s", what.c_str(), executorch::runtime::to_string(error));
  }
}

/// Returns memory that is aligned for Helium's vectors. Nothing frees it: the board is gone after the calls.
Span<uint8_t> allocate(size_t size) {
  auto* const memory = static_cast<uint8_t*>(memalign(16, size));
  if (memory == nullptr && size > 0) {
    fail("the board has no %u bytes left", static_cast<unsigned>(size));
  }
  std::memset(memory, 0, size);
  return {memory, size};
}

Span<uint8_t> read_file(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr || std::fseek(file, 0, SEEK_END) != 0) {
    fail("%s cannot be read", path.c_str());
  }
  const Span<uint8_t> content = allocate(static_cast<size_t>(std::ftell(file)));
  std::rewind(file);
  if (std::fread(content.data(), 1, content.size(), file) != content.size()) {
    fail("%s cannot be read", path.c_str());
  }
  std::fclose(file);
  return content;
}

/// A program and the methods that are loaded, with their memory.
class Model {
 public:
  explicit Model(const std::string& path)
      : content_(read_file(path)),
        loader_(content_.data(), content_.size()),
        program_(check(Program::load(&loader_), path)) {}

  /// Loads the methods that share state first: loading sets the initial values.
  void load_methods(const std::vector<std::string>& called) {
    std::vector<std::string> names;
    size_t shared = 0;
    for (size_t index = 0; index < program_.num_methods(); ++index) {
      const char* const name = *program_.get_method_name(index);
      const MethodMeta meta = this->meta(name);
      if (meta.num_memory_planned_buffers() > kShared) {
        names.emplace_back(name);
        shared = std::max(shared, static_cast<size_t>(*meta.memory_planned_buffer_size(kShared)));
      }
    }
    shared_ = allocate(shared);
    names.insert(names.end(), called.begin(), called.end());
    for (const std::string& name : names) {
      if (methods_.find(name) == methods_.end()) {
        methods_.emplace(name, load(name));
      }
    }
  }

  MethodMeta meta(const std::string& method) const {
    return check(program_.method_meta(method.c_str()), method);
  }

  Method& method(const std::string& name) {
    return methods_.at(name);
  }

 private:
  Method load(const std::string& name) {
    const MethodMeta meta = this->meta(name);
    std::vector<Span<uint8_t>>& buffers = buffers_.emplace_back();
    for (size_t index = 0; index < meta.num_memory_planned_buffers(); ++index) {
      buffers.push_back(
          index == kShared ? shared_ : allocate(static_cast<size_t>(*meta.memory_planned_buffer_size(index))));
    }
    HierarchicalAllocator& planned = planned_.emplace_back(Span<Span<uint8_t>>(buffers.data(), buffers.size()));
    MemoryManager& manager = managers_.emplace_back(&lasting_, &planned, &temporary_);
    return check(program_.load_method(name.c_str(), &manager), name);
  }

  Span<uint8_t> content_;
  BufferDataLoader loader_;
  Program program_;
  Span<uint8_t> shared_;
  MallocMemoryAllocator lasting_; // of methods
  MallocMemoryAllocator temporary_; // of one kernel
  // Methods refer to these, so they must not move.
  std::deque<std::vector<Span<uint8_t>>> buffers_;
  std::deque<HierarchicalAllocator> planned_;
  std::deque<MemoryManager> managers_;
  std::map<std::string, Method> methods_;
};

/// An input, with what a tensor refers to.
struct Input {
  std::vector<SizesType> sizes;
  std::vector<DimOrderType> order;
  std::vector<StridesType> strides;
  std::optional<TensorImpl> tensor;
  EValue value;
};

/// A method and its inputs.
struct Call {
  std::string method;
  std::vector<std::string> arguments;
  std::deque<Input> inputs;
};

/// Splits `METHOD [INPUT ...] [-- METHOD [INPUT ...]]...`; returns no calls if a method is missing.
std::vector<Call> calls_of(const std::vector<std::string>& words) {
  std::vector<Call> calls;
  for (auto start = words.begin(); start < words.end();) {
    const auto end = std::find(start, words.end(), "--");
    if (start == end) {
      return {};
    }
    calls.push_back({*start, {start + 1, end}, {}});
    start = end == words.end() ? end : end + 1;
  }
  return calls;
}

/// Reads SIZES:INPUT.bin, which has the bytes of the tensor as it lies in memory.
void read_tensor(const std::string& argument, const TensorInfo& described, Input& input) {
  const size_t colon = argument.find(':');
  if (colon == std::string::npos) {
    fail("the method takes a tensor, SIZES:INPUT.bin, and not %s", argument.c_str());
  }
  for (size_t start = 0; start < colon;) {
    const size_t end = std::min(argument.find('x', start), colon);
    input.sizes.push_back(static_cast<SizesType>(std::strtol(argument.c_str() + start, nullptr, 10)));
    start = end + 1;
  }
  const auto order = described.dim_order();
  if (order.size() != input.sizes.size()) {
    fail(
        "%s has %u dimensions, the method takes %u",
        argument.c_str(),
        static_cast<unsigned>(input.sizes.size()),
        static_cast<unsigned>(order.size()));
  }
  input.order.assign(order.begin(), order.end());
  input.strides.resize(order.size());
  check(
      executorch::runtime::dim_order_to_stride(
          input.sizes.data(), input.order.data(), input.order.size(), input.strides.data()),
      argument);
  const Span<uint8_t> content = read_file(argument.substr(colon + 1));
  input.tensor.emplace(
      described.scalar_type(),
      static_cast<ssize_t>(input.sizes.size()),
      input.sizes.data(),
      content.data(),
      input.order.data(),
      input.strides.data());
  if (input.tensor->nbytes() != content.size()) {
    fail(
        "%s has %u bytes, a tensor of these sizes has %u",
        argument.c_str(),
        static_cast<unsigned>(content.size()),
        static_cast<unsigned>(input.tensor->nbytes()));
  }
  input.value = EValue(Tensor(&*input.tensor));
}

void read_inputs(const MethodMeta& meta, Call& call) {
  if (call.arguments.size() != meta.num_inputs()) {
    fail("%s takes %u inputs", call.method.c_str(), static_cast<unsigned>(meta.num_inputs()));
  }
  for (size_t index = 0; index < call.arguments.size(); ++index) {
    const std::string& argument = call.arguments[index];
    Input& input = call.inputs.emplace_back();
    switch (check(meta.input_tag(index), argument)) {
      case Tag::Tensor:
        read_tensor(argument, check(meta.input_tensor_meta(index), argument), input);
        break;
      case Tag::Int:
        input.value = EValue(static_cast<int64_t>(std::strtoll(argument.c_str(), nullptr, 10)));
        break;
      case Tag::Double:
        input.value = EValue(std::strtod(argument.c_str(), nullptr));
        break;
      case Tag::Bool:
        input.value = EValue(argument != "0");
        break;
      case Tag::None:
        break;
      default:
        fail("input %u of %s is neither a tensor nor a number", static_cast<unsigned>(index), call.method.c_str());
    }
  }
}

void write_bytes(const void* bytes, size_t size, std::FILE* file) {
  if (std::fwrite(bytes, 1, size, file) != size) {
    fail("the outputs cannot be written");
  }
}

/// Writes the elements of a dimension and those after it, whatever their order in memory.
void write_elements(const Tensor& tensor, ssize_t dimension, const char* bytes, std::FILE* file) {
  if (dimension == tensor.dim()) {
    write_bytes(bytes, static_cast<size_t>(tensor.element_size()), file);
    return;
  }
  const ssize_t step = tensor.strides()[static_cast<size_t>(dimension)] * tensor.element_size();
  for (ssize_t index = 0; index < tensor.size(dimension); ++index) {
    write_elements(tensor, dimension + 1, bytes + index * step, file);
  }
}

void write_output(const EValue& output, std::FILE* file) {
  if (output.isTensor()) {
    const Tensor tensor = output.toTensor();
    write_elements(tensor, 0, static_cast<const char*>(tensor.const_data_ptr()), file);
  } else if (output.isInt()) {
    const int64_t number = output.toInt();
    write_bytes(&number, sizeof(number), file);
  } else if (output.isDouble()) {
    const double number = output.toDouble();
    write_bytes(&number, sizeof(number), file);
  } else if (output.isBool()) {
    const bool number = output.toBool();
    write_bytes(&number, sizeof(number), file);
  }
}

void run(Method& method, const Call& call, std::FILE* file) {
  for (size_t index = 0; index < call.inputs.size(); ++index) {
    check(method.set_input(call.inputs[index].value, index), call.arguments[index]);
  }
  check(method.execute(), call.method);
  for (size_t index = 0; index < method.outputs_size(); ++index) {
    write_output(method.get_output(index), file);
  }
}

} // namespace

extern "C" void et_pal_emit_log_message(
    et_timestamp_t,
    et_pal_log_level_t,
    const char* file,
    const char*,
    size_t line,
    const char* message,
    size_t) {
  std::fprintf(stderr, "%s:%u: %s\n", file, static_cast<unsigned>(line), message);
  if (first_log.empty()) {
    first_log = message;
  }
}

int main(int count, char** values) {
  const std::vector<std::string> words(values + std::min(count, 3), values + count);
  std::vector<Call> calls = calls_of(words);
  if (calls.empty() || values[2][0] == '-') {
    std::fputs("usage: MODEL.pte METHOD [SIZES:INPUT.bin | NUMBER ...] [-- METHOD ...]...\n", stderr);
    return 2;
  }
  executorch::runtime::runtime_init();
  Model model(values[2]);
  std::vector<std::string> methods;
  for (Call& call : calls) {
    read_inputs(model.meta(call.method), call);
    methods.push_back(call.method);
  }
  model.load_methods(methods);
  std::FILE* const file = std::fopen(values[1], "wb");
  if (file == nullptr) {
    fail("%s cannot be written", values[1]);
  }
  for (const Call& call : calls) {
    run(model.method(call.method), call, file);
  }
  return std::fclose(file) == 0 ? 0 : 1;
}
