#include "blobs.h"

#include <algorithm>
#include <utility>

#include "sha256.h"

namespace nfat {

using executorch::runtime::FreeableBuffer;

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

Mapping MappedBlobs::find(uint32_t index, std::string& problem) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return find_locked(index, problem);
}

std::string MappedBlobs::hold(uint32_t index) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::string problem;
  slots_[index].held = find_locked(index, problem);
  return problem;
}

void MappedBlobs::release() {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (Slot& slot : slots_) {
    slot.held.reset();
  }
}

std::string MappedBlobs::verify(uint32_t index) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Verdict& verdict = slots_[index].verdict;
  if (verdict == Verdict::kUnknown) {
    std::string problem;
    const Mapping mapping = find_locked(index, problem);
    if (mapping == nullptr) {
      return problem;
    }
    Sha256 sha256;
    sha256.update(static_cast<const uint8_t*>(mapping->data()), mapping->size());
    const auto digest = sha256.finish();
    const bool intact = std::equal(digest.begin(), digest.end(), blobs_.sha256(index));
    verdict = intact ? Verdict::kIntact : Verdict::kDamaged;
  }
  return verdict == Verdict::kIntact ? "" : "it is damaged: its blob " + key_of(blobs_.sha256(index)) +
          " has another SHA-256";
}

uint64_t MappedBlobs::held_bytes() {
  const std::lock_guard<std::mutex> guard(mutex_);
  uint64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.held != nullptr ? slot.held->size() : 0;
  }
  return bytes;
}

Mapping MappedBlobs::find_locked(uint32_t index, std::string& problem) {
  if (Mapping used = slots_[index].used.lock()) {
    return used;
  }
  Mapping mapping = map(index, problem);
  slots_[index].used = mapping;
  return mapping;
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
