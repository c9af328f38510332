// Bytes that may be hostile: a place and a size, and little-endian numbers in them.

#pragma once

#include <cstdint>

namespace nfat {

/// A range of memory that somebody else owns. Whoever reads a number has to have asked `holds` before.
struct Bytes {
  const uint8_t* data = nullptr;
  uint64_t size = 0;

  /// Whether `count` bytes at `at` are there; true for no number that wraps around.
  bool holds(uint64_t at, uint64_t count) const {
    return at <= size && count <= size - at;
  }

  /// The part from `at` on of `count` bytes, which have to be there.
  Bytes part(uint64_t at, uint64_t count) const {
    return {data + at, count};
  }

  uint16_t u16(uint64_t at) const {
    return static_cast<uint16_t>(number(at, 2));
  }

  uint32_t u32(uint64_t at) const {
    return static_cast<uint32_t>(number(at, 4));
  }

  uint64_t u64(uint64_t at) const {
    return number(at, 8);
  }

  /// Whether every byte is zero.
  bool zero() const {
    for (uint64_t at = 0; at < size; ++at) {
      if (data[at] != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  uint64_t number(uint64_t at, int width) const {
    uint64_t value = 0;
    for (int byte = 0; byte < width; ++byte) {
      value |= static_cast<uint64_t>(data[at + static_cast<uint64_t>(byte)]) << (8 * byte);
    }
    return value;
  }
};

} // namespace nfat
