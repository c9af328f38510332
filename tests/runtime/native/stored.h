// What tests store containers and named data in.

#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <executorch/runtime/core/named_data_map.h>

namespace nfat_tests {

/// Named data in memory, each of its own so that AddressSanitizer knows where it ends.
class Stored final : public executorch::runtime::NamedDataMap {
 public:
  std::map<std::string, std::vector<uint8_t>, std::less<>> content;

  executorch::runtime::Result<const executorch::runtime::TensorLayout> get_tensor_layout(
      std::string_view) const override {
    return executorch::runtime::Error::NotImplemented;
  }
  executorch::runtime::Result<executorch::runtime::FreeableBuffer> get_data(std::string_view key) const override {
    const auto found = content.find(key);
    if (found == content.end()) {
      return executorch::runtime::Error::NotFound;
    }
    return executorch::runtime::FreeableBuffer(found->second.data(), found->second.size(), nullptr);
  }
  executorch::runtime::Error load_data_into(std::string_view, void*, size_t) const override {
    return executorch::runtime::Error::NotImplemented;
  }
  executorch::runtime::Result<uint32_t> get_num_keys() const override {
    return static_cast<uint32_t>(content.size());
  }
  executorch::runtime::Result<const char*> get_key(uint32_t) const override {
    return executorch::runtime::Error::NotImplemented;
  }
};

inline std::vector<uint8_t> read_all(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Reads named data: for each its size (8 bytes), its key (64 bytes) and its bytes.
inline Stored read_stored(const char* path) {
  const std::vector<uint8_t> blobs = read_all(path);
  Stored stored;
  for (const uint8_t* at = blobs.data(); at != blobs.data() + blobs.size();) {
    uint64_t size = 0;
    std::memcpy(&size, at, sizeof size);
    const std::string key(reinterpret_cast<const char*>(at + 8), 64);
    stored.content[key].assign(at + 72, at + 72 + size);
    at += 72 + size;
  }
  return stored;
}

} // namespace nfat_tests
