#include "extent_loader.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <executorch/runtime/platform/log.h>

#include "half.h"
#include "sha256.h"

namespace nfat {

using executorch::runtime::Error;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;

namespace {

/// Of copies. Vector instructions and caches like it, and no loader promises more than 16.
constexpr size_t kCopyAlignment = 64;

void let_go(void* mapping, void*, size_t) {
  delete static_cast<Mapping*>(mapping);
}

void free_copy(void*, void* memory, size_t) {
  std::free(memory);
}

Error failed([[maybe_unused]] const std::string& problem) {
  ET_LOG(Error, "NfatBackend: %s", problem.c_str());
  return Error::InvalidExternalData;
}

} // namespace

ExtentLoader::ExtentLoader(
    const Container& container,
    const Payload& payload,
    std::shared_ptr<MappedBlobs> blobs)
    : size_(payload.size),
      extents_(payload.extents),
      transposes_(payload.transposes),
      halves_(payload.halves),
      inline_section_(container.inline_section),
      blobs_(std::move(blobs)) {}

Result<size_t> ExtentLoader::size() const {
  return static_cast<size_t>(size_);
}

Result<FreeableBuffer> ExtentLoader::load(size_t offset, size_t size, const SegmentInfo& segment_info) const {
  if (!has(offset, size)) {
    return Error::InvalidArgument;
  }
  if (size == 0) {
    return FreeableBuffer(nullptr, 0, nullptr);
  }
  if (std::string problem = verify_range(offset, size, segment_info.segment_type); !problem.empty()) {
    return failed(problem);
  }
  if (contiguous(offset, size)) {
    Piece first;
    if (std::string problem = piece(extent_at(offset), offset, offset + size, first); !problem.empty()) {
      return failed(problem);
    }
    if (reinterpret_cast<uintptr_t>(first.memory) % kByteAlignment == offset % kByteAlignment) {
      in_place_ += size;
      if (first.mapping == nullptr) {
        return FreeableBuffer(first.memory, size, nullptr);
      }
      auto* mapping = new (std::nothrow) Mapping(std::move(first.mapping));
      if (mapping == nullptr) {
        return Error::MemoryAllocationFailed;
      }
      return FreeableBuffer(first.memory, size, let_go, mapping);
    }
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, kCopyAlignment, size) != 0) {
    return Error::MemoryAllocationFailed;
  }
  if (std::string problem = copy(offset, size, static_cast<uint8_t*>(memory)); !problem.empty()) {
    std::free(memory);
    return failed(problem);
  }
  return FreeableBuffer(memory, size, free_copy);
}

Error ExtentLoader::load_into(size_t offset, size_t size, const SegmentInfo& segment_info, void* buffer) const {
  if (!has(offset, size) || (buffer == nullptr && size != 0)) {
    return Error::InvalidArgument;
  }
  std::string problem = verify_range(offset, size, segment_info.segment_type);
  if (!problem.empty()) {
    return failed(problem);
  }
  problem = copy(offset, size, static_cast<uint8_t*>(buffer));
  return problem.empty() ? Error::Ok : failed(problem);
}

std::string ExtentLoader::hold() const {
  for (uint64_t index = 0; index < extents_.size(); ++index) {
    const Extent extent = extents_[index];
    if (extent.source == Source::kBlob) {
      if (std::string problem = blobs_->hold(extent.blob); !problem.empty()) {
        return problem;
      }
    }
  }
  return {};
}

void ExtentLoader::release() const {
  blobs_->release();
}

std::string ExtentLoader::map_again() const {
  release();
  return hold();
}

std::string ExtentLoader::hash(std::array<uint8_t, kSha256Size>& digest) const {
  Sha256 sha256;
  size_t position = 0;
  for (uint64_t index = 0; position < size_; ++index) {
    Piece found;
    if (std::string problem = piece(index, position, size_, found); !problem.empty()) {
      return problem;
    }
    position += found.size;
    if (found.memory != nullptr && !found.converted()) {
      sha256.update(found.memory, found.size);
      continue;
    }
    std::array<uint8_t, 4096> part{};
    for (size_t within = 0; within < found.size;) {
      const size_t taken = std::min(found.size - within, part.size());
      copy_piece(found, within, taken, part.data());
      sha256.update(part.data(), taken);
      within += taken;
    }
  }
  digest = sha256.finish();
  return {};
}

std::array<uint8_t, kSha256Size> ExtentLoader::hash_parts(const Payload& payload) const {
  std::array<uint8_t, 8> size;
  for (size_t byte = 0; byte < size.size(); ++byte) {
    size[byte] = static_cast<uint8_t>(payload.size >> (8 * byte));
  }
  Sha256 sha256;
  sha256.update(size.data(), size.size());
  if (payload.sha256 != nullptr) {
    sha256.update(payload.sha256, kSha256Size);
  }
  sha256.update(extents_.table().data, extents_.table().size);
  sha256.update(transposes_.table().data, transposes_.table().size);
  sha256.update(halves_.table().data, halves_.table().size);
  for (uint64_t index = 0; index < extents_.size(); ++index) {
    const Extent extent = extents_[index];
    if (extent.source == Source::kInline) {
      const uint64_t taken = extent_end(index) - extent.position;
      sha256.update(inline_section_.data + extent.offset, halves_.has(index) ? 2 * taken : taken);
    } else if (extent.source == Source::kBlob) {
      sha256.update(blobs_->sha256(extent.blob), kSha256Size);
    }
  }
  return sha256.finish();
}

uint64_t ExtentLoader::held_bytes() const {
  return blobs_->held_bytes();
}

std::string ExtentLoader::verify_blobs() const {
  for (uint64_t index = 0; index < extents_.size(); ++index) {
    const Extent extent = extents_[index];
    if (extent.source == Source::kBlob) {
      if (std::string problem = blobs_->verify(extent.blob); !problem.empty()) {
        return problem;
      }
    }
  }
  return {};
}

std::string ExtentLoader::damage() const {
  const std::lock_guard<std::mutex> guard(damage_mutex_);
  return damage_;
}

/// Verifies the blobs that a range lies in, if it will be parsed.
std::string ExtentLoader::verify_range(size_t offset, size_t size, SegmentInfo::Type type) const {
  if (!verify_parsed_ || (type != SegmentInfo::Type::Program && type != SegmentInfo::Type::Backend)) {
    return {};
  }
  for (uint64_t index = extent_at(offset); index < extents_.size(); ++index) {
    const Extent extent = extents_[index];
    if (extent.position >= offset + size) {
      break;
    }
    if (extent.source != Source::kBlob) {
      continue;
    }
    if (std::string problem = blobs_->verify(extent.blob); !problem.empty()) {
      const std::lock_guard<std::mutex> guard(damage_mutex_);
      damage_ = problem;
      return problem;
    }
  }
  return {};
}

bool ExtentLoader::has(size_t offset, size_t size) const {
  return offset <= size_ && size <= size_ - offset;
}

uint64_t ExtentLoader::extent_end(uint64_t index) const {
  return index + 1 < extents_.size() ? extents_[index + 1].position : size_;
}

/// The extent that holds a position; there is one for each position that the payload has.
uint64_t ExtentLoader::extent_at(uint64_t position) const {
  uint64_t low = 0;
  uint64_t high = extents_.size();
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (extents_[middle].position <= position ? low : high) = middle;
  }
  return low;
}

/// Whether a range's bytes follow each other where they are stored.
bool ExtentLoader::contiguous(size_t offset, size_t size) const {
  uint64_t index = extent_at(offset);
  Extent extent = extents_[index];
  Transpose transpose;
  if (transposes_.find(index, transpose) || halves_.has(index)) {
    return false;
  }
  while (++index < extents_.size()) {
    const Extent next = extents_[index];
    if (next.position >= offset + size) {
      break;
    }
    if (transposes_.find(index, transpose) || halves_.has(index) || next.source != extent.source ||
        next.blob != extent.blob || next.offset - extent.offset != next.position - extent.position) {
      return false;
    }
    extent = next;
  }
  return extent.source != Source::kZeros;
}

/// The stretch of an extent from `offset` on and before `end`. Its memory goes on as long as extents are contiguous. That
/// of an extent that is stored in another form is the whole extent's.
std::string ExtentLoader::piece(uint64_t index, size_t offset, size_t end, Piece& found) const {
  const Extent extent = extents_[index];
  found.transposed = transposes_.find(index, found.transpose);
  found.half = halves_.has(index);
  const uint64_t start = found.converted() ? extent.offset : extent.offset + (offset - extent.position);
  found.size = std::min<uint64_t>(end, extent_end(index)) - offset;
  found.memory = nullptr;
  std::string problem;
  if (extent.source == Source::kInline) {
    found.memory = inline_section_.data + start;
  } else if (extent.source == Source::kBlob) {
    found.mapping = blobs_->find(extent.blob, problem);
    if (found.mapping != nullptr) {
      found.memory = static_cast<const uint8_t*>(found.mapping->data()) + start;
    }
  }
  return problem;
}

/// Copies `size` bytes from `within` on: of an extent that is stored in another form, or of what is left of another one.
void ExtentLoader::copy_piece(const Piece& piece, uint64_t within, size_t size, uint8_t* to) {
  if (piece.memory == nullptr) {
    std::memset(to, 0, size);
  } else if (piece.transposed) {
    copy_transposed(piece.memory, piece.transpose, within, size, to);
  } else if (piece.half) {
    copy_halves(piece.memory, within, size, to);
  } else {
    std::memcpy(to, piece.memory + within, size);
  }
}

std::string ExtentLoader::copy(size_t offset, size_t size, uint8_t* to) const {
  copied_ += size;
  const size_t end = offset + size;
  for (uint64_t index = extent_at(offset); offset < end; ++index) {
    Piece found;
    if (std::string problem = piece(index, offset, end, found); !problem.empty()) {
      return problem;
    }
    copy_piece(found, found.converted() ? offset - extents_[index].position : 0, found.size, to);
    to += found.size;
    offset += found.size;
  }
  return {};
}

} // namespace nfat
