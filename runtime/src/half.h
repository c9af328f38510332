// Extents whose source has 32-bit floating-point numbers, of which the payload has the nearest 16-bit ones.

#pragma once

#include <cstdint>

namespace nfat {

/// The nearest binary16 of a binary32, the even one of two, as bits. What is not a number becomes 0x7e00 with its sign.
uint16_t to_half(uint32_t bits);

/// Copies `count` bytes from `start` on of the 16-bit numbers of `stored`, which has twice as many bytes as they.
void copy_halves(const uint8_t* stored, uint64_t start, uint64_t count, uint8_t* to);

} // namespace nfat
