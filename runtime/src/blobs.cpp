#include "blobs.h"

#include <utility>

namespace nfat {

using executorch::runtime::FreeableBuffer;

namespace {

/// The key of a blob in named data.
std::string key_of(const uint8_t* sha256) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string key;
  key.reserve(2 * kSha256Size);
  for (uint64_t byte = 0; byte < kSha256Size; ++byte) {
    key += kDigits[sha256[byte] >> 4];
    key += kDigits[sha256[byte] & 15];
  }
  return key;
}

} // namespace

Mapping MappedBlobs::find(uint32_t index, std::string& problem) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (Mapping used = slots_[index].used.lock()) {
    return used;
  }
  Mapping mapping = map(index, problem);
  slots_[index].used = mapping;
  return mapping;
}

std::string MappedBlobs::hold(uint32_t index) {
  std::string problem;
  Mapping mapping = find(index, problem);
  const std::lock_guard<std::mutex> guard(mutex_);
  slots_[index].held = std::move(mapping);
  return problem;
}

void MappedBlobs::release() {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (Slot& slot : slots_) {
    slot.held.reset();
  }
}

Mapping MappedBlobs::map(uint32_t index, std::string& problem) const {
  const std::string key = key_of(blobs_.sha256(index));
  if (named_data_ == nullptr) {
    problem = "its blob " + key + " is missing: the program has no named data";
    return nullptr;
  }
  auto found = named_data_->get_data(key);
  if (!found.ok()) {
    problem = "its blob " + key + " is not in the program's named data or a .ptd file";
    return nullptr;
  }
  auto mapping = std::make_shared<FreeableBuffer>(std::move(found.get()));
  if (mapping->size() != blobs_.size(index)) {
    problem = "its blob " + key + " has " + std::to_string(mapping->size()) + " bytes instead of " +
        std::to_string(blobs_.size(index));
    return nullptr;
  }
  const auto address = mapping->data_safe();
  if (!address.ok() || *address == nullptr) {
    problem = "its blob " + key + " is not in this processor's memory";
    return nullptr;
  }
  return mapping;
}

} // namespace nfat
