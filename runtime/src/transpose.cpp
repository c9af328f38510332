#include "transpose.h"

#include <algorithm>
#include <cstring>

namespace nfat {
namespace {

/// Items along either side of a tile. What one tile reads and writes stays in the processor's first cache.
constexpr uint64_t kTile = 32;

/// Copies `count` items from `row` on of `lines` columns of a stored matrix, one column after the other.
template <uint64_t Item>
void copy_tiles(
    const uint8_t* matrix,
    uint64_t columns,
    uint64_t column,
    uint64_t lines,
    uint64_t row,
    uint64_t count,
    uint8_t* to) {
  for (uint64_t top = 0; top < count; top += kTile) {
    const uint64_t bottom = std::min(top + kTile, count);
    for (uint64_t left = 0; left < lines; left += kTile) {
      const uint64_t right = std::min(left + kTile, lines);
      for (uint64_t line = left; line < right; ++line) {
        const uint8_t* from = matrix + ((row + top) * columns + column + line) * Item;
        uint8_t* item = to + (line * count + top) * Item;
        for (uint64_t each = top; each < bottom; ++each) {
          std::memcpy(item, from, Item); // One instruction, and right for any alignment.
          item += Item;
          from += columns * Item;
        }
      }
    }
  }
}

/// Items `start` to `end` of the transpose. It consists of lines of `rows` items, `columns` of them for each matrix.
template <uint64_t Item>
void copy_items(const uint8_t* stored, const Transpose& transpose, uint64_t start, uint64_t end, uint8_t* to) {
  const uint64_t rows = transpose.rows;
  const uint64_t columns = transpose.columns;
  while (start < end) {
    const uint64_t line = start / rows;
    const uint64_t row = start % rows;
    const uint64_t column = line % columns;
    const bool whole = row == 0 && end - start >= rows;
    const uint64_t lines = whole ? std::min((end - start) / rows, columns - column) : 1;
    const uint64_t count = whole ? rows : std::min(end - start, rows - row);
    copy_tiles<Item>(stored + line / columns * rows * columns * Item, columns, column, lines, row, count, to);
    start += lines * count;
    to += lines * count * Item;
  }
}

void copy_whole_items(const uint8_t* stored, const Transpose& transpose, uint64_t start, uint64_t end, uint8_t* to) {
  switch (transpose.item) {
    case 1:
      return copy_items<1>(stored, transpose, start, end, to);
    case 2:
      return copy_items<2>(stored, transpose, start, end, to);
    case 4:
      return copy_items<4>(stored, transpose, start, end, to);
    case 8:
      return copy_items<8>(stored, transpose, start, end, to);
    default:
      return copy_items<16>(stored, transpose, start, end, to);
  }
}

} // namespace

bool fits(const Transpose& transpose, uint64_t size) {
  const uint64_t item = transpose.item;
  if ((item != 1 && item != 2 && item != 4 && item != 8 && item != 16) || transpose.rows < 2 || transpose.columns < 2) {
    return false;
  }
  // By division, since products may not fit.
  return size % item == 0 && size / item % transpose.rows == 0 && size / item / transpose.rows % transpose.columns == 0;
}

void copy_transposed(const uint8_t* stored, const Transpose& transpose, uint64_t start, uint64_t count, uint8_t* to) {
  const uint64_t item = transpose.item;
  const uint64_t end = start + count;
  while (start < end) {
    const uint64_t index = start / item;
    if (start % item == 0 && end - start >= item) {
      copy_whole_items(stored, transpose, index, end / item, to);
      to += end / item * item - start;
      start = end / item * item;
      continue;
    }
    uint8_t part[16];
    copy_whole_items(stored, transpose, index, index + 1, part);
    const uint64_t stop = std::min(end, (index + 1) * item);
    std::memcpy(to, part + start % item, stop - start);
    to += stop - start;
    start = stop;
  }
}

} // namespace nfat
