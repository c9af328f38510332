#include "sha256.h"

#include <algorithm>
#include <cstring>

namespace nfat {

const std::array<uint32_t, 64> kSha256Rounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

namespace {

constexpr size_t kBlock = 64;

void store_big_endian(uint32_t value, uint8_t* to) {
  for (int byte = 0; byte < 4; ++byte) {
    to[byte] = static_cast<uint8_t>(value >> (24 - 8 * byte));
  }
}

uint32_t load_big_endian(const uint8_t* from) {
  uint32_t value = 0;
  for (int byte = 0; byte < 4; ++byte) {
    value = value << 8 | from[byte];
  }
  return value;
}

uint32_t rotate(uint32_t value, int bits) {
  return value >> bits | value << (32 - bits);
}

} // namespace

Sha256Blocks sha256_blocks() {
  static const Sha256Blocks native = sha256_blocks_native();
  return native != nullptr ? native : sha256_blocks_portable;
}

void Sha256::update(const uint8_t* bytes, size_t size) {
  if (size == 0) {
    return; // `bytes` may then be null, which memcpy does not take.
  }
  size_ += size;
  if (rest_size_ != 0) {
    const size_t taken = std::min(size, kBlock - rest_size_);
    std::memcpy(rest_.data() + rest_size_, bytes, taken);
    rest_size_ += taken;
    bytes += taken;
    size -= taken;
    if (rest_size_ < kBlock) {
      return;
    }
    add_blocks_(state_, rest_.data(), 1);
    rest_size_ = 0;
  }
  add_blocks_(state_, bytes, size / kBlock);
  rest_size_ = size % kBlock;
  if (rest_size_ != 0) {
    std::memcpy(rest_.data(), bytes + size - rest_size_, rest_size_);
  }
}

std::array<uint8_t, 32> Sha256::finish() {
  const uint64_t bits = size_ * 8;
  const size_t padding = (rest_size_ < 56 ? 56 : 120) - rest_size_;
  std::array<uint8_t, 72> tail{0x80};
  store_big_endian(static_cast<uint32_t>(bits >> 32), tail.data() + padding);
  store_big_endian(static_cast<uint32_t>(bits), tail.data() + padding + 4);
  update(tail.data(), padding + 8);
  std::array<uint8_t, 32> digest;
  for (size_t word = 0; word < state_.size(); ++word) {
    store_big_endian(state_[word], digest.data() + 4 * word);
  }
  return digest;
}

void sha256_blocks_portable(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t count) {
  for (; count != 0; --count, blocks += kBlock) {
    std::array<uint32_t, 64> words;
    for (size_t word = 0; word < 16; ++word) {
      words[word] = load_big_endian(blocks + 4 * word);
    }
    for (size_t word = 16; word < 64; ++word) {
      const uint32_t far = words[word - 15];
      const uint32_t near = words[word - 2];
      words[word] = words[word - 16] + (rotate(far, 7) ^ rotate(far, 18) ^ far >> 3) + words[word - 7] +
          (rotate(near, 17) ^ rotate(near, 19) ^ near >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t round = 0; round < 64; ++round) {
      const uint32_t first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
          kSha256Rounds[round] + words[round];
      const uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + first;
      d = c;
      c = b;
      b = a;
      a = first + second;
    }
    const std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
    for (size_t word = 0; word < state.size(); ++word) {
      state[word] += mixed[word];
    }
  }
}

} // namespace nfat
