// Tables of a flatbuffer with every offset checked. Only what a manifest needs: numbers, vectors, strings.

#pragma once

#include <cstdint>
#include <string_view>

#include "bytes.h"

namespace nfat {

/// `count` items from `start` on; none where the field is absent.
struct Vector {
  uint64_t start = 0;
  uint64_t count = 0;
};

/// One table. Each function returns false where bytes are not within the flatbuffer, and leaves the value as it is
/// where the field is absent.
class FlatTable {
 public:
  [[nodiscard]] bool open(Bytes flatbuffer, uint64_t position);

  [[nodiscard]] bool u32(unsigned slot, uint32_t& value) const;
  [[nodiscard]] bool u64(unsigned slot, uint64_t& value) const;
  /// `width` is the size of an item in bytes.
  [[nodiscard]] bool vector(unsigned slot, uint64_t width, Vector& value) const;
  [[nodiscard]] bool text(unsigned slot, std::string_view& value) const;
  /// `there` is whether the field is; `value` is opened if so.
  [[nodiscard]] bool child(unsigned slot, FlatTable& value, bool& there) const;

 private:
  [[nodiscard]] bool field(unsigned slot, uint64_t size, uint64_t& at) const;

  Bytes bytes_;
  uint64_t position_ = 0;
  uint64_t vtable_ = 0;
  uint64_t vtable_size_ = 0;
};

/// The vector that the offset at `place` leads to, whose items have `width` bytes.
[[nodiscard]] bool follow_vector(Bytes flatbuffer, uint64_t place, uint64_t width, Vector& value);

} // namespace nfat
