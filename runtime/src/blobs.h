// The blobs that payloads point into: looked up in named data when they are needed, mapped while in use, hashed once.

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

/// The key in named data of a blob with a SHA-256.
std::string key_of(const uint8_t* sha256);

/// Thread-safe. Named data has to outlive all calls of `find`, not what they returned.
class MappedBlobs {
 public:
  /// `named_data` may be null.
  MappedBlobs(Blobs blobs, const executorch::runtime::NamedDataMap* named_data)
      : blobs_(blobs), named_data_(named_data), slots_(blobs.count()) {}

  /// The SHA-256 that a blob should have, which is its key.
  const uint8_t* sha256(uint32_t index) const {
    return blobs_.sha256(index);
  }

  /// A blob of the size that the container gives; null with the reason in `problem`.
  Mapping find(uint32_t index, std::string& problem);

  /// As `find`, and it stays mapped until `release`. Returns what is wrong, or nothing.
  [[nodiscard]] std::string hold(uint32_t index);

  /// From now on blobs are mapped only as long as somebody uses them.
  void release();

  /// Whether a blob has the bytes that its key says, which is found once. Returns what is wrong, or nothing.
  [[nodiscard]] std::string verify(uint32_t index);

  /// Bytes of the blobs that are held.
  uint64_t held_bytes();

 private:
  enum class Verdict : uint8_t { kUnknown, kIntact, kDamaged };

  struct Slot {
    std::weak_ptr<const executorch::runtime::FreeableBuffer> used;
    Mapping held;
    Verdict verdict = Verdict::kUnknown;
  };

  Mapping find_locked(uint32_t index, std::string& problem);
  Mapping map(uint32_t index, std::string& problem) const;

  Blobs blobs_;
  const executorch::runtime::NamedDataMap* named_data_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

} // namespace nfat
