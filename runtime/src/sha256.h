// SHA-256 (FIPS 180-4), since neither the runtime nor the C++ library has one.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace nfat {

/// Adds `count` blocks of 64 bytes to a state.
using Sha256Blocks = void (*)(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t count);

/// Runs everywhere.
void sha256_blocks_portable(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t count);

/// Uses the processor's own instructions; null where it has none.
Sha256Blocks sha256_blocks_native();

/// The faster one of those that run here.
Sha256Blocks sha256_blocks();

class Sha256 {
 public:
  explicit Sha256(Sha256Blocks blocks = sha256_blocks()) : add_blocks_(blocks) {}

  void update(const uint8_t* bytes, size_t size);
  /// The digest of all that was given. Nothing may be given afterwards.
  std::array<uint8_t, 32> finish();

 private:
  Sha256Blocks add_blocks_;
  std::array<uint32_t, 8> state_{
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  size_t rest_size_ = 0;
  uint64_t size_ = 0;
};

/// The 64 constants of the rounds.
extern const std::array<uint32_t, 64> kSha256Rounds;

} // namespace nfat
