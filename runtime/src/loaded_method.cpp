#include "loaded_method.h"

#include <utility>

#include "guarded.h"
#include "registry.h"

namespace nfat {

using executorch::runtime::Error;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::MethodMeta;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Program;
using executorch::runtime::Span;

namespace {

constexpr uintptr_t kFirstPage = 4096;

std::string with_error(const char* what, Error error) {
  return std::string(what) + " (" + executorch::runtime::to_string(error) + ")";
}

/// The container's list of backends is a hint; this is what the method really needs.
std::string missing_backend(const MethodMeta& meta) {
  for (size_t index = 0; index < meta.num_backends(); ++index) {
    const auto id = meta.get_backend_name(index);
    if (!id.ok()) {
      return with_error("its list of backends is damaged", id.error());
    }
    // Where a program leaves an id out, the runtime looks for it at an offset from the null pointer.
    if (reinterpret_cast<uintptr_t>(*id) < kFirstPage) {
      return "its list of backends is damaged";
    }
    if (std::string problem = backend_problem(*id); !problem.empty()) {
      return problem;
    }
  }
  return {};
}

} // namespace

std::string LoadedMethod::load(const char* name, const NamedDataMap* named_data) {
  // Whatever was verified of the outer program: its delegates' data was not.
  auto program = Program::load(loader_.get(), Program::Verification::InternalConsistency);
  if (!program.ok()) {
    return with_error("it is not a program that this runtime can load", program.error());
  }
  program_.emplace(std::move(*program));
  const auto meta = program_->method_meta(name);
  if (!meta.ok()) {
    return with_error(("it has no method " + printable(name)).c_str(), meta.error());
  }
  if (std::string problem = missing_backend(*meta); !problem.empty()) {
    return problem;
  }
  if (std::string problem = plan_memory(*meta); !problem.empty()) {
    return problem;
  }
  Error error = Error::Ok;
  const std::string thrown = thrown_by([&] {
    auto method = program_->load_method(name, &*memory_manager_, nullptr, named_data);
    error = method.error();
    if (method.ok()) {
      method_.emplace(std::move(*method));
    }
  });
  if (!thrown.empty()) {
    return "its method does not load (a backend threw " + thrown + ")";
  }
  return error == Error::Ok ? "" : with_error("its method does not load", error);
}

std::string LoadedMethod::plan_memory(const MethodMeta& meta) {
  for (size_t index = 0; index < meta.num_memory_planned_buffers(); ++index) {
    const auto size = meta.memory_planned_buffer_size(index);
    const auto device = meta.memory_planned_buffer_device(index);
    if (!size.ok() || *size < 0 || !device.ok()) {
      return "its memory plan is damaged";
    }
    if (!device->is_cpu()) {
      return "it plans memory on another device, which is not supported inside of a fat program";
    }
    const auto bytes = static_cast<size_t>(*size);
    // Zeroed, and yet not resident before it is used.
    auto* memory = static_cast<uint8_t*>(std::calloc(bytes != 0 ? bytes : 1, 1));
    if (memory == nullptr) {
      return "there is no memory for the " + std::to_string(bytes) + " bytes that it plans";
    }
    planned_memory_.emplace_back(memory);
    planned_spans_.emplace_back(memory, bytes);
  }
  planned_allocator_.emplace(Span<Span<uint8_t>>(planned_spans_.data(), planned_spans_.size()));
  memory_manager_.emplace(&method_allocator_, &*planned_allocator_, &temp_allocator_);
  return {};
}

} // namespace nfat
