#include "method_call.h"

#include <algorithm>
#include <cstring>

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>

#include "guarded.h"

namespace nfat {

using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Span;

namespace {

Span<EValue*> part(Span<EValue*> args, size_t start, size_t count) {
  return {args.data() + start, count};
}

template <typename Left, typename Right>
bool same(const Left& left, const Right& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

} // namespace

Error MethodCall::operator()(Span<EValue*> args) {
  ET_CHECK_OR_RETURN_ERROR(
      !threw_, InvalidState, "NfatBackend: a backend threw in an earlier call, so the method has to be loaded again");
  executorch::runtime::Method& method = loaded_->method();
  const size_t inputs = method.inputs_size();
  const size_t outputs = method.outputs_size();
  ET_CHECK_OR_RETURN_ERROR(
      args.size() == inputs + outputs,
      InvalidProgram,
      "NfatBackend: the program passes %zu values, the payload takes %zu and returns %zu",
      args.size(),
      inputs,
      outputs);
  for (size_t index = 0; index < inputs; ++index) {
    ET_CHECK_OK_OR_RETURN_ERROR(
        method.set_input(*args[index], index), "NfatBackend: input %zu does not fit the payload", index);
  }
  ET_CHECK_OK_OR_RETURN_ERROR(check(args));
  for (size_t index = 0; index < outputs; ++index) {
    const Output& output = outputs_[index];
    if (output.bound) {
      void* memory = args[inputs + index]->toTensor().mutable_data_ptr();
      ET_CHECK_OK_OR_RETURN_ERROR(method.set_output_data_ptr(memory, output.capacity, index));
    }
  }
  Error error = Error::Ok;
  const std::string thrown = thrown_by([&] { error = method.execute(); });
  threw_ = !thrown.empty();
  ET_CHECK_OR_RETURN_ERROR(!threw_, Internal, "NfatBackend: a backend threw %s", thrown.c_str());
  ET_CHECK_OK_OR_RETURN_ERROR(error);
  for (size_t index = 0; index < outputs; ++index) {
    ET_CHECK_OK_OR_RETURN_ERROR(publish(*args[inputs + index], index));
  }
  return Error::Ok;
}

/// Compares the signatures, once: tensors of a program stay what they are, and only their sizes change.
///
/// The first call is the time to do so: outputs still have the most bytes that they may have.
Error MethodCall::check(Span<EValue*> args) {
  const size_t inputs = loaded_->method().inputs_size();
  if (outputs_.empty()) {
    ET_CHECK_OK_OR_RETURN_ERROR(check_inputs(part(args, 0, inputs)));
    outputs_.resize(args.size() - inputs);
  }
  for (size_t index = 0; index < outputs_.size(); ++index) {
    const EValue& outer = *args[inputs + index];
    const void* tensor = outer.isTensor() ? outer.toTensor().unsafeGetTensorImpl() : nullptr;
    if (outputs_[index].checked == nullptr || outputs_[index].checked != tensor) {
      ET_CHECK_OK_OR_RETURN_ERROR(check_output(outer, index));
      outputs_[index].checked = tensor;
    }
  }
  return Error::Ok;
}

/// `Method::set_input` compares kinds, dtypes and sizes; not the order of dimensions in memory.
Error MethodCall::check_inputs(Span<EValue*> inputs) const {
  const auto meta = loaded_->method().method_meta();
  for (size_t index = 0; index < inputs.size(); ++index) {
    if (!inputs[index]->isTensor()) {
      continue;
    }
    const auto inner = meta.input_tensor_meta(index);
    ET_CHECK_OR_RETURN_ERROR(
        inner.ok() && same(inner->dim_order(), inputs[index]->toTensor().dim_order()),
        InvalidProgram,
        "NfatBackend: input %zu has another order of dimensions in the payload",
        index);
  }
  return Error::Ok;
}

Error MethodCall::check_output(const EValue& outer, size_t index) {
  const EValue& inner = loaded_->method().get_output(index);
  ET_CHECK_OR_RETURN_ERROR(
      inner.tag == outer.tag, InvalidProgram, "NfatBackend: output %zu is of another kind in the payload", index);
  if (!outer.isTensor()) {
    ET_CHECK_OR_RETURN_ERROR(
        outer.isNone() || outer.isInt() || outer.isBool() || outer.isDouble(),
        NotSupported,
        "NfatBackend: output %zu is neither a tensor nor a number",
        index);
    return Error::Ok;
  }
  const auto described = loaded_->method().method_meta().output_tensor_meta(index);
  const Tensor& tensor = outer.toTensor();
  ET_CHECK_OR_RETURN_ERROR(
      described.ok() && described->scalar_type() == tensor.scalar_type() &&
          same(described->dim_order(), tensor.dim_order()) && described->sizes().size() == tensor.sizes().size(),
      InvalidProgram,
      "NfatBackend: output %zu has another dtype, rank or order of dimensions in the payload",
      index);
  ET_CHECK_OR_RETURN_ERROR(
      described->nbytes() <= tensor.nbytes(),
      InvalidProgram,
      "NfatBackend: output %zu has up to %zu bytes in the payload; there is place for %zu",
      index,
      described->nbytes(),
      tensor.nbytes());
  Output& output = outputs_[index];
  if (output.checked == nullptr) {
    output.capacity = described->nbytes();
    // An output that has memory by now, although none is planned for it, is one of the inputs.
    const bool unbound = inner.toTensor().const_data_ptr() == nullptr;
    output.bound = !described->is_memory_planned() && unbound && output.capacity != 0;
  }
  return Error::Ok;
}

Error MethodCall::publish(EValue& outer, size_t index) {
  const EValue& inner = loaded_->method().get_output(index);
  if (!outer.isTensor()) {
    outer = inner;
    return Error::Ok;
  }
  const Tensor& from = inner.toTensor();
  Tensor& to = outer.toTensor();
  ET_CHECK_OK_OR_RETURN_ERROR(
      executorch::runtime::resize_tensor(to, from.sizes()),
      "NfatBackend: output %zu has sizes in the payload that the program does not expect",
      index);
  if (from.const_data_ptr() != to.const_data_ptr() && from.nbytes() != 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  }
  return Error::Ok;
}

} // namespace nfat
