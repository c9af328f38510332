#include "golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "method_call.h"

namespace nfat {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::TensorPtr;
using executorch::runtime::elementSize;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::isFloatingType;
using executorch::runtime::Method;
using executorch::runtime::TensorInfo;

namespace {

constexpr uint64_t kMaxCases = 64;
constexpr uint64_t kMaxTensors = 256;
constexpr uint64_t kMaxMethod = 1024;
constexpr uint64_t kMaxRank = 16;
constexpr uint64_t kMaxDtype = 15;
/// A bit for each number of a dtype that tensors may have: all but complex and quantized ones.
constexpr unsigned kDtypes = 0x88FF;

/// How many times the tolerance a single element may be off, as a share of the largest one.
constexpr double kMost = 10;

/// A place in bytes that may be hostile.
struct Cursor {
  Bytes bytes;
  uint64_t at = 0;

  bool take(uint64_t size, Bytes& part) {
    if (!bytes.holds(at, size)) {
      return false;
    }
    part = bytes.part(at, size);
    at += size;
    return true;
  }

  bool number(uint64_t least, uint64_t most, uint64_t& value) {
    Bytes part;
    value = take(4, part) ? part.u32(0) : most + 1;
    return value >= least && value <= most;
  }
};

bool read_tensor(Cursor& cursor, GoldenTensor& tensor) {
  uint64_t dtype = 0;
  uint64_t rank = 0;
  if (!cursor.number(0, kMaxDtype, dtype) || (kDtypes >> dtype) % 2 == 0 || !cursor.number(0, kMaxRank, rank)) {
    return false;
  }
  tensor.dtype = static_cast<ScalarType>(dtype);
  uint64_t bytes = elementSize(tensor.dtype);
  for (uint64_t dimension = 0; dimension < rank; ++dimension) {
    uint64_t size = 0;
    if (!cursor.number(1, INT32_MAX, size)) {
      return false;
    }
    tensor.sizes.push_back(static_cast<SizesType>(size));
    bytes = std::min(bytes * size, cursor.bytes.size + 1); // More is too much as well.
  }
  return cursor.take(bytes, tensor.elements);
}

bool read_case(Cursor& cursor, GoldenCase& golden) {
  uint64_t stateful = 0;
  uint64_t size = 0;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  Bytes name;
  if (!cursor.number(0, 1, stateful) || !cursor.number(1, kMaxMethod, size) || !cursor.take(size, name) ||
      !cursor.number(0, kMaxTensors, inputs) || !cursor.number(0, kMaxTensors, outputs)) {
    return false;
  }
  golden.method = {reinterpret_cast<const char*>(name.data), size};
  golden.stateful = stateful == 1;
  golden.inputs.resize(inputs);
  golden.outputs.resize(outputs);
  const auto read = [&](GoldenTensor& tensor) { return read_tensor(cursor, tensor); };
  return std::all_of(golden.inputs.begin(), golden.inputs.end(), read) &&
      std::all_of(golden.outputs.begin(), golden.outputs.end(), read);
}

/// A tensor of a method with these bytes.
TensorPtr tensor_of(std::vector<SizesType> sizes, std::vector<uint8_t> bytes, ScalarType dtype, const TensorInfo& like) {
  const auto order = like.dim_order();
  return executorch::extension::make_tensor_ptr(
      std::move(sizes), std::move(bytes), {order.begin(), order.end()}, {}, dtype);
}

std::vector<uint8_t> bytes_of(const GoldenTensor& tensor, bool flipped) {
  std::vector<uint8_t> bytes(tensor.elements.data, tensor.elements.data + tensor.elements.size);
  const size_t width = elementSize(tensor.dtype);
  for (size_t at = width - 1; flipped && isFloatingType(tensor.dtype) && at < bytes.size(); at += width) {
    bytes[at] ^= 0x80; // the sign
  }
  return bytes;
}

/// What a call has returned.
struct Returned {
  Error error = Error::InvalidArgument;
  std::vector<TensorPtr> tensors;

  bool operator==(const Returned& other) const {
    const auto same = [](const TensorPtr& one, const TensorPtr& another) {
      return one->sizes() == another->sizes() &&
          std::memcmp(one->const_data_ptr(), another->const_data_ptr(), one->nbytes()) == 0;
    };
    return error == other.error &&
        std::equal(tensors.begin(), tensors.end(), other.tensors.begin(), other.tensors.end(), same);
  }
};

/// Calls a method with the inputs of a case, or with the signs of their floating-point numbers changed.
Returned call(MethodCall& method_call, const Method& method, const GoldenCase& golden, bool flipped) {
  constexpr uint8_t kUnwritten = 0xA5;
  const auto meta = method.method_meta();
  Returned returned;
  if (golden.inputs.size() != meta.num_inputs() || golden.outputs.size() != meta.num_outputs()) {
    return returned;
  }
  std::vector<TensorPtr> inputs;
  for (size_t index = 0; index < golden.inputs.size(); ++index) {
    const GoldenTensor& input = golden.inputs[index];
    const auto described = meta.input_tensor_meta(index);
    if (!described.ok() || described->dim_order().size() != input.sizes.size()) {
      return returned;
    }
    inputs.push_back(tensor_of(input.sizes, bytes_of(input, flipped), input.dtype, *described));
  }
  for (size_t index = 0; index < golden.outputs.size(); ++index) {
    const auto described = meta.output_tensor_meta(index);
    if (!described.ok()) {
      return returned;
    }
    const auto sizes = described->sizes();
    std::vector<uint8_t> memory(described->nbytes(), kUnwritten);
    returned.tensors.push_back(
        tensor_of({sizes.begin(), sizes.end()}, std::move(memory), described->scalar_type(), *described));
  }
  std::vector<EValue> values(inputs.begin(), inputs.end());
  values.insert(values.end(), returned.tensors.begin(), returned.tensors.end());
  std::vector<EValue*> pointers;
  for (EValue& value : values) {
    pointers.push_back(&value);
  }
  returned.error = method_call({pointers.data(), pointers.size()});
  return returned;
}

template <typename Number>
double read_as(const uint8_t* element) {
  Number number;
  std::memcpy(&number, element, sizeof number);
  return static_cast<double>(number);
}

double number_at(ScalarType dtype, const void* elements, uint64_t index) {
  const uint8_t* element = static_cast<const uint8_t*>(elements) + index * elementSize(dtype);
  switch (dtype) {
    case ScalarType::Half:
      return read_as<executorch::aten::Half>(element);
    case ScalarType::BFloat16:
      return read_as<executorch::aten::BFloat16>(element);
    case ScalarType::Double:
      return read_as<double>(element);
    default:
      return read_as<float>(element);
  }
}

/// How an output of floating-point numbers differs from the golden one by more than is allowed.
std::string number_problem(const Tensor& found, const GoldenTensor& golden, double tolerance) {
  double peak = 0;
  double signal = 0;
  double noise = 0;
  double worst = 0;
  const auto count = static_cast<uint64_t>(found.numel());
  const auto each = [&](const auto& take) {
    for (uint64_t index = 0; index < count; ++index) {
      take(
          number_at(golden.dtype, found.const_data_ptr(), index),
          number_at(golden.dtype, golden.elements.data, index));
    }
  };
  bool same_places = true;
  each([&](double ours, double right) {
    const bool finite = std::isfinite(ours) && std::isfinite(right);
    same_places = same_places && (finite || ours == right || (std::isnan(ours) && std::isnan(right)));
    peak = finite ? std::max(peak, std::abs(right)) : peak;
  });
  if (!same_places) {
    return "has NaN or infinity where the golden one has none, or lacks one";
  }
  // Where all is zero, differences count as they are, and any is too large.
  const double unit = peak != 0 ? peak : 1;
  each([&](double ours, double right) {
    if (std::isfinite(right)) {
      const double off = std::abs(ours - right) / unit;
      signal += (right / unit) * (right / unit);
      noise += off * off;
      worst = std::max(worst, off);
    }
  });
  const double ratio = noise != 0 ? std::sqrt(noise / signal) : 0;
  if (ratio <= tolerance && worst <= kMost * tolerance) {
    return {};
  }
  char text[160];
  const char* form = "is off by %.3g of its size, an element by %.3g of the largest one; %.3g is allowed";
  std::snprintf(text, sizeof text, form, ratio, worst, tolerance);
  return text;
}

/// How an output differs from the golden one by more than is allowed; empty if it does not.
std::string tensor_problem(const Tensor& found, const GoldenTensor& golden, double tolerance) {
  const auto sizes = found.sizes();
  if (found.scalar_type() != golden.dtype ||
      !std::equal(sizes.begin(), sizes.end(), golden.sizes.begin(), golden.sizes.end())) {
    return "has another dtype or size than the golden one";
  }
  if (isFloatingType(golden.dtype)) {
    return number_problem(found, golden, tolerance);
  }
  const size_t width = elementSize(golden.dtype);
  const auto* elements = static_cast<const uint8_t*>(found.const_data_ptr());
  uint64_t wrong = 0;
  for (uint64_t at = 0; at < golden.elements.size; at += width) {
    wrong += std::memcmp(elements + at, golden.elements.data + at, width) != 0;
  }
  const auto count = static_cast<double>(found.numel());
  return static_cast<double>(wrong) <= tolerance * count ? "" : "has " + std::to_string(wrong) + " wrong elements";
}

std::string output_problem(const Returned& returned, const GoldenCase& golden, double tolerance) {
  if (returned.error != Error::Ok) {
    return std::string("it fails (") + executorch::runtime::to_string(returned.error) + ")";
  }
  for (size_t index = 0; index < golden.outputs.size(); ++index) {
    std::string problem = tensor_problem(*returned.tensors[index], golden.outputs[index], tolerance);
    if (!problem.empty()) {
      return "output " + std::to_string(index) + " " + problem;
    }
  }
  return {};
}

} // namespace

std::string read_golden(Bytes content, std::vector<GoldenCase>& cases) {
  Cursor cursor{content};
  uint64_t count = 0;
  bool sound = cursor.number(1, kMaxCases, count);
  for (uint64_t index = 0; sound && index < count; ++index) {
    sound = read_case(cursor, cases.emplace_back());
  }
  return sound && cursor.at == content.size ? "" : "its golden cases are damaged";
}

std::string run_golden(const std::vector<GoldenCase>& cases, const SelfCheck& check, const Load& load) {
  std::optional<MethodCall> method_call;
  Method* method = nullptr;
  std::vector<Returned> first(cases.size());
  std::vector<Returned> other(cases.size());
  for (uint32_t repeat = 0; repeat < check.repeats; ++repeat) {
    for (size_t index = 0; index < cases.size(); ++index) {
      const GoldenCase& golden = cases[index];
      if (method == nullptr || golden.stateful) {
        method_call.reset(); // before the next one takes memory
        std::unique_ptr<LoadedMethod> loaded;
        if (std::string problem = load(loaded); !problem.empty()) {
          return problem;
        }
        method = &loaded->method();
        method_call.emplace(std::move(loaded));
      }
      Returned returned = call(*method_call, *method, golden, false);
      if (std::string problem = output_problem(returned, golden, check.tolerance); !problem.empty()) {
        return problem + " in run " + std::to_string(repeat + 1) + " of " + std::to_string(check.repeats);
      }
      if (repeat != 0 && !(returned == first[index])) {
        return "run " + std::to_string(repeat + 1) + " differs from the first one";
      }
      first[index] = std::move(returned);
      // Other inputs, for results that are left over from earlier calls. An error is possible, the same each time.
      if (check.repeats > 1 && repeat % 2 == 0 && !golden.stateful) {
        returned = call(*method_call, *method, golden, true);
        if (repeat != 0 && !(returned == other[index])) {
          return "it returns other outputs for equal inputs";
        }
        other[index] = std::move(returned);
      }
    }
  }
  return {};
}

} // namespace nfat
