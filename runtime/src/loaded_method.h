// A method of a payload, loaded and ready to run.

#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/program.h>

#include "extent_loader.h"

namespace nfat {

/// A payload's program and one of its methods.
class LoadedMethod {
 public:
  explicit LoadedMethod(std::unique_ptr<ExtentLoader> loader) : loader_(std::move(loader)) {}

  /// Loads a method; to be called once. Returns what is wrong, or nothing.
  ///
  /// `named_data` is what the payload may look up beside its own; it may be null.
  [[nodiscard]] std::string load(const char* name, const executorch::runtime::NamedDataMap* named_data);

  executorch::runtime::Method& method() {
    return *method_;
  }

  const ExtentLoader& loader() const {
    return *loader_;
  }

 private:
  struct Free {
    void operator()(uint8_t* memory) const {
      std::free(memory);
    }
  };

  std::string plan_memory(const executorch::runtime::MethodMeta& meta);

  // What is destroyed last stands first: the method uses all that is above it.
  std::unique_ptr<ExtentLoader> loader_;
  std::optional<executorch::runtime::Program> program_;
  executorch::extension::MallocMemoryAllocator method_allocator_;
  executorch::extension::MallocMemoryAllocator temp_allocator_;
  std::vector<std::unique_ptr<uint8_t, Free>> planned_memory_;
  std::vector<executorch::runtime::Span<uint8_t>> planned_spans_;
  std::optional<executorch::runtime::HierarchicalAllocator> planned_allocator_;
  std::optional<executorch::runtime::MemoryManager> memory_manager_;
  std::optional<executorch::runtime::Method> method_;
};

} // namespace nfat
