// A payload as ExecuTorch reads a file: a data loader over extents.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <executorch/runtime/core/data_loader.h>

#include "blobs.h"
#include "container.h"

namespace nfat {

/// Hands out memory of a blob or the inline section where a range is contiguous there and aligned as in the payload;
/// copies it otherwise. The container's bytes have to outlive the loader and what it handed out of the inline section.
class ExtentLoader final : public executorch::runtime::DataLoader {
 public:
  ExtentLoader(
      const Container& container,
      const Payload& payload,
      const executorch::runtime::NamedDataMap* named_data);

  executorch::runtime::Result<executorch::runtime::FreeableBuffer> load(
      size_t offset,
      size_t size,
      const SegmentInfo& segment_info) const override;

  executorch::runtime::Error load_into(
      size_t offset,
      size_t size,
      const SegmentInfo& segment_info,
      void* buffer) const override;

  executorch::runtime::Result<size_t> size() const override;

  /// Maps all blobs of the payload until `release`. Returns what is wrong, or nothing.
  [[nodiscard]] std::string hold() const;

  void release() const;

  /// The SHA-256 of the payload, whose blobs should be held. Returns what is wrong, or nothing.
  [[nodiscard]] std::string hash(std::array<uint8_t, kSha256Size>& digest) const;

  /// Bytes that were handed out where they are, and bytes that were copied.
  uint64_t in_place() const {
    return in_place_;
  }
  uint64_t copied() const {
    return copied_;
  }

 private:
  /// A stretch of one extent; `memory` is null for zeros.
  struct Piece {
    const uint8_t* memory;
    size_t size;
    Mapping mapping;
  };

  bool has(size_t offset, size_t size) const;
  uint64_t extent_at(uint64_t position) const;
  bool contiguous(size_t offset, size_t size) const;
  std::string piece(uint64_t extent, size_t offset, size_t end, Piece& found) const;
  std::string copy(size_t offset, size_t size, uint8_t* to) const;

  uint64_t size_;
  Extents extents_;
  Bytes inline_section_;
  mutable MappedBlobs blobs_;
  mutable std::atomic<uint64_t> in_place_{0};
  mutable std::atomic<uint64_t> copied_{0};
};

} // namespace nfat
