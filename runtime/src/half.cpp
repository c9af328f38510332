#include "half.h"

#include <cstring>

namespace nfat {
namespace {

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;
/// The least binary32 that becomes infinite: halfway from the largest binary16 to the next power of two.
constexpr uint32_t kTooLarge = 0x477ff000;
/// The least binary32 that becomes a normal binary16, 2^-14.
constexpr uint32_t kNormal = 0x38800000;
/// Difference of the exponents' biases, 127 and 15, in a binary32.
constexpr uint32_t kBias = uint32_t{112} << 23;

/// `value` without its last `count` bits, 1 to 24 of them, rounded to the nearest, to the even one of two.
uint32_t round_off(uint32_t value, uint32_t count) {
  const uint32_t odd = value >> count & 1;
  return (value + (uint32_t{1} << (count - 1)) - 1 + odd) >> count;
}

uint32_t number(const uint8_t* stored, uint64_t index) {
  const uint8_t* bytes = stored + 4 * index;
  return bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24;
}

} // namespace

uint16_t to_half(uint32_t bits) {
  const auto sign = static_cast<uint16_t>((bits & kSign) >> 16);
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) {
    return sign | 0x7e00;
  }
  if (magnitude >= kTooLarge) {
    return sign | 0x7c00;
  }
  if (magnitude >= kNormal) {
    return static_cast<uint16_t>(sign | round_off(magnitude - kBias, 13)); // A carry goes on to the exponent.
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) { // Less than half of the least binary16, 2^-24.
    return sign;
  }
  const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  return static_cast<uint16_t>(sign | round_off(significand, 126 - exponent));
}

void copy_halves(const uint8_t* stored, uint64_t start, uint64_t count, uint8_t* to) {
  const uint64_t end = start + count;
  if (start < end && start % 2 != 0) {
    *to++ = static_cast<uint8_t>(to_half(number(stored, start / 2)) >> 8);
    ++start;
  }
  for (; start + 2 <= end; start += 2, to += 2) {
    const uint16_t half = to_half(number(stored, start / 2));
    to[0] = static_cast<uint8_t>(half);
    to[1] = static_cast<uint8_t>(half >> 8);
  }
  if (start < end) {
    *to = static_cast<uint8_t>(to_half(number(stored, start / 2)));
  }
}

} // namespace nfat
