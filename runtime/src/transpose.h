// Batches of transposed matrices: ranges of their bytes, made of stored ones.

#pragma once

#include <cstdint>

namespace nfat {

/// Which extent is transposed, and the shape of its stored bytes: [batch][rows][columns] items of `item` bytes. The
/// payload has [batch][columns][rows].
struct Transpose {
  uint32_t extent;
  uint32_t item;
  uint32_t rows;
  uint32_t columns;
};

/// Whether an extent of `size` bytes can have the shape.
bool fits(const Transpose& transpose, uint64_t size);

/// Writes `count` bytes from `start` on of the transpose of `stored`, the bytes of a sound extent.
void copy_transposed(const uint8_t* stored, const Transpose& transpose, uint64_t start, uint64_t count, uint8_t* to);

} // namespace nfat
