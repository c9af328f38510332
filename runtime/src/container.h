// What an NFAT container says, as views into its bytes. formats/nfat/README.md specifies the format.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bytes.h"
#include "transpose.h"

namespace nfat {

constexpr uint32_t kMaxPayloads = 64;
constexpr uint64_t kSha256Size = 32;
/// Addresses in memory and positions in a payload are equal modulo this, or bytes are copied.
constexpr uint64_t kByteAlignment = 16;

/// Bits of a payload's features: what a reader has to know to use it.
constexpr uint64_t kTransposedExtents = 1;
constexpr uint64_t kHalfExtents = 2;
constexpr uint64_t kKnownFeatures = kTransposedExtents | kHalfExtents;

enum class Source : uint32_t { kZeros = 0, kInline = 1, kBlob = 2 };

/// The payload's bytes from `position` up to the next extent's position, or up to the payload's end.
struct Extent {
  uint64_t position;
  uint64_t offset;
  Source source;
  uint32_t blob;
};

/// A payload's extents: a checked table of them, or a single one.
class Extents {
 public:
  static constexpr uint64_t kWidth = 24;

  Extents() = default;
  /// A table as it lies in a manifest.
  explicit Extents(Bytes table) : table_(table), count_(table.size / kWidth) {}
  /// The whole payload in one piece, inline.
  explicit Extents(uint64_t inline_offset) : inline_offset_(inline_offset), count_(1) {}

  uint64_t size() const {
    return count_;
  }

  /// The table as it lies in the manifest; no bytes if there is none.
  Bytes table() const {
    return table_;
  }

  Extent operator[](uint64_t index) const {
    if (table_.data == nullptr) {
      return {0, inline_offset_, Source::kInline, 0};
    }
    const uint64_t at = index * kWidth;
    return {table_.u64(at), table_.u64(at + 8), static_cast<Source>(table_.u32(at + 16)), table_.u32(at + 20)};
  }

 private:
  Bytes table_;
  uint64_t inline_offset_ = 0;
  uint64_t count_ = 0;
};

/// A checked table of a payload, each entry of which begins with the `u32` index of an extent, ascending.
class OfExtents {
 public:
  OfExtents() = default;
  OfExtents(Bytes table, uint64_t width) : table_(table), width_(width) {}

  uint64_t size() const {
    return table_.size / width_;
  }

  /// The table as it lies in the manifest; no bytes if there is none.
  Bytes table() const {
    return table_;
  }

  /// Where an entry begins.
  uint64_t at(uint64_t index) const {
    return index * width_;
  }

  uint32_t extent(uint64_t index) const {
    return table_.u32(at(index));
  }

  /// The index of an extent's entry. False if it has none.
  bool find(uint64_t extent, uint64_t& index) const {
    index = 0;
    for (uint64_t high = size(); index < high;) {
      const uint64_t middle = index + (high - index) / 2;
      if (this->extent(middle) < extent) {
        index = middle + 1;
      } else {
        high = middle;
      }
    }
    return index < size() && this->extent(index) == extent;
  }

 private:
  Bytes table_;
  uint64_t width_ = 1;
};

/// A payload's transposed extents.
class Transposes : public OfExtents {
 public:
  static constexpr uint64_t kWidth = 16;

  Transposes() = default;
  explicit Transposes(Bytes table) : OfExtents(table, kWidth) {}

  Transpose operator[](uint64_t index) const {
    const Bytes entry = table().part(at(index), kWidth);
    return {entry.u32(0), entry.u32(4), entry.u32(8), entry.u32(12)};
  }

  /// How an extent is transposed. False if it is not.
  bool find(uint64_t extent, Transpose& found) const {
    uint64_t index = 0;
    if (!OfExtents::find(extent, index)) {
      return false;
    }
    found = (*this)[index];
    return true;
  }
};

/// A payload's extents that are stored as 32-bit numbers.
class Halves : public OfExtents {
 public:
  static constexpr uint64_t kWidth = 4;

  Halves() = default;
  explicit Halves(Bytes table) : OfExtents(table, kWidth) {}

  bool has(uint64_t extent) const {
    uint64_t index = 0;
    return find(extent, index);
  }
};

/// Checked strings: a vector of a manifest, or a single one.
class Texts {
 public:
  Texts() = default;
  /// `count` offsets at `start` of a manifest, each of which leads to a string.
  Texts(Bytes manifest, uint64_t start, uint64_t count) : manifest_(manifest), start_(start), count_(count) {}
  explicit Texts(std::string_view only) : only_(only), count_(1) {}

  uint64_t size() const {
    return count_;
  }

  std::string_view operator[](uint64_t index) const {
    if (manifest_.data == nullptr) {
      return only_;
    }
    const uint64_t place = start_ + 4 * index;
    const uint64_t text = place + manifest_.u32(place);
    return {reinterpret_cast<const char*>(manifest_.data + text + 4), manifest_.u32(text)};
  }

 private:
  Bytes manifest_;
  std::string_view only_;
  uint64_t start_ = 0;
  uint64_t count_ = 0;
};

/// What named data a container points into.
class Blobs {
 public:
  static constexpr uint64_t kWidth = 40;

  Blobs() = default;
  explicit Blobs(Bytes table) : table_(table) {}

  uint64_t count() const {
    return table_.size / kWidth;
  }

  uint64_t size(uint64_t index) const {
    return table_.u64(index * kWidth);
  }

  const uint8_t* sha256(uint64_t index) const {
    return table_.data + index * kWidth + 8;
  }

 private:
  Bytes table_;
};

/// How a payload checks itself, by the golden cases in a blob.
struct SelfCheck {
  double tolerance = 0;
  uint32_t blob = 0;
  /// 0 where a payload does not.
  uint32_t repeats = 0;
};

struct Payload {
  std::string_view name;
  uint64_t size = 0;
  /// 32 bytes; null in version 1, which does not say.
  const uint8_t* sha256 = nullptr;
  /// 32 bytes, of what the payload is put together from; null where the container does not say.
  const uint8_t* parts_sha256 = nullptr;
  /// Empty where `has_unknown_features`: their meaning is then not known.
  Extents extents;
  Transposes transposes;
  Halves halves;
  Texts backends;
  uint64_t features = 0;
  SelfCheck self_check;

  bool has_unknown_features() const {
    return (features & ~kKnownFeatures) != 0;
  }
};

struct Container {
  uint32_t version = 0;
  uint32_t count = 0;
  std::array<Payload, kMaxPayloads> payloads;
  Blobs blobs;
  /// In version 1 the data section.
  Bytes inline_section;
};

/// Reads a container of either version; everything it says is checked. It is valid as long as `content` is.
///
/// Returns what is wrong, or nothing. Needs a byte of memory for each blob that is listed, and time in proportion to
/// the size of `content`.
[[nodiscard]] std::string read_container(Bytes content, Container& container);

/// Bytes 8 and behind of a version 1 container.
[[nodiscard]] std::string read_v1(Bytes content, Container& container);

/// Bytes 8 and behind of a version 2 container.
[[nodiscard]] std::string read_v2(Bytes content, Container& container);

/// Whether text has only printable ASCII characters without blanks.
bool is_word(std::string_view text);

} // namespace nfat
