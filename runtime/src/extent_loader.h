// A payload as ExecuTorch reads a file: a data loader over extents.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <executorch/runtime/core/data_loader.h>

#include "blobs.h"
#include "container.h"

namespace nfat {

/// Hands out memory of a blob or the inline section where a range is contiguous there and aligned as in the payload;
/// copies it otherwise, and where it is stored in another form. Who got a copy frees it. The container's bytes have to
/// outlive the loader and what it handed out of the inline section.
class ExtentLoader final : public executorch::runtime::DataLoader {
 public:
  /// `blobs` are those of the container; payloads share them.
  ExtentLoader(const Container& container, const Payload& payload, std::shared_ptr<MappedBlobs> blobs);

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

  /// Gives pages back that only hashing has read: maps what is held once more. Returns what is wrong, or nothing.
  [[nodiscard]] std::string map_again() const;

  /// The SHA-256 of the payload, whose blobs should be held. Returns what is wrong, or nothing.
  [[nodiscard]] std::string hash(std::array<uint8_t, kSha256Size>& digest) const;

  /// The SHA-256 of what `payload`, which is this loader's, is put together from.
  std::array<uint8_t, kSha256Size> hash_parts(const Payload& payload) const;

  /// Bytes of the blobs that are held.
  uint64_t held_bytes() const;

  /// Whether the payload's blobs have the bytes that their keys say. Returns what is wrong, or nothing.
  [[nodiscard]] std::string verify_blobs() const;

  /// From now on blobs are verified before bytes of them are handed out that somebody will parse, which is all but
  /// constants and initial states.
  void verify_what_is_parsed() {
    verify_parsed_ = true;
  }

  /// What was found damaged since; empty if nothing was.
  std::string damage() const;

  /// Bytes that were handed out where they are, and bytes that were copied.
  uint64_t in_place() const {
    return in_place_;
  }
  uint64_t copied() const {
    return copied_;
  }

 private:
  /// A stretch of one extent. `memory` is null for zeros, and where an extent starts that is stored in another form.
  struct Piece {
    const uint8_t* memory;
    size_t size;
    Mapping mapping;
    bool transposed;
    Transpose transpose;
    bool half;

    bool converted() const {
      return transposed || half;
    }
  };

  std::string verify_range(size_t offset, size_t size, SegmentInfo::Type type) const;
  bool has(size_t offset, size_t size) const;
  uint64_t extent_end(uint64_t index) const;
  uint64_t extent_at(uint64_t position) const;
  bool contiguous(size_t offset, size_t size) const;
  std::string piece(uint64_t extent, size_t offset, size_t end, Piece& found) const;
  static void copy_piece(const Piece& piece, uint64_t within, size_t size, uint8_t* to);
  std::string copy(size_t offset, size_t size, uint8_t* to) const;

  uint64_t size_;
  Extents extents_;
  Transposes transposes_;
  Halves halves_;
  Bytes inline_section_;
  std::shared_ptr<MappedBlobs> blobs_;
  bool verify_parsed_ = false;
  mutable std::mutex damage_mutex_;
  mutable std::string damage_;
  mutable std::atomic<uint64_t> in_place_{0};
  mutable std::atomic<uint64_t> copied_{0};
};

} // namespace nfat
