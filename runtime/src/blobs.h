// The blobs that a payload points into: looked up in named data when they are needed, and mapped once while in use.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <executorch/runtime/core/freeable_buffer.h>
#include <executorch/runtime/core/named_data_map.h>

#include "container.h"

namespace nfat {

using Mapping = std::shared_ptr<const executorch::runtime::FreeableBuffer>;

/// Thread-safe. Named data has to outlive all calls of `find`, not what they returned.
class MappedBlobs {
 public:
  /// `named_data` may be null.
  MappedBlobs(Blobs blobs, const executorch::runtime::NamedDataMap* named_data)
      : blobs_(blobs), named_data_(named_data), slots_(blobs.count()) {}

  /// A blob of the size that the container gives; null with the reason in `problem`.
  Mapping find(uint32_t index, std::string& problem);

  /// As `find`, and it stays mapped until `release`. Returns what is wrong, or nothing.
  [[nodiscard]] std::string hold(uint32_t index);

  /// From now on blobs are mapped only as long as somebody uses them.
  void release();

 private:
  struct Slot {
    std::weak_ptr<const executorch::runtime::FreeableBuffer> used;
    Mapping held;
  };

  Mapping map(uint32_t index, std::string& problem) const;

  Blobs blobs_;
  const executorch::runtime::NamedDataMap* named_data_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

} // namespace nfat
