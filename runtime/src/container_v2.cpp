// Version 2: sixteen bytes, a flatbuffer of schema nfat.fbs, the inline section. `methods` and `metadata` are not
// needed to run a payload and are not looked at.

#include "container.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "flat_table.h"

namespace nfat {
namespace {

constexpr uint64_t kStart = 16;
constexpr uint64_t kMaxManifest = uint64_t{1} << 24;
constexpr uint64_t kMaxSize = uint64_t{1} << 48;
constexpr uint64_t kMaxZeros = uint64_t{1} << 24;
constexpr uint64_t kExpansion = 4;
constexpr uint64_t kMaxBackends = 64;
constexpr uint64_t kMaxName = 64;
constexpr uint64_t kMaxWord = 255;
constexpr uint32_t kMaxAlignment = 65536;
constexpr uint32_t kMaxRepeats = 100;
constexpr uint64_t kMinGolden = 4;
constexpr uint64_t kMaxGolden = uint64_t{1} << 24;

namespace manifest_slot {
constexpr unsigned kPayloads = 0;
constexpr unsigned kBlobs = 1;
constexpr unsigned kAlignment = 2;
} // namespace manifest_slot

namespace payload_slot {
constexpr unsigned kName = 0;
constexpr unsigned kSize = 1;
constexpr unsigned kSha256 = 2;
constexpr unsigned kExtents = 3;
constexpr unsigned kBackends = 4;
constexpr unsigned kExecutorchVersion = 6;
constexpr unsigned kFeatures = 7;
constexpr unsigned kPartsSha256 = 9;
constexpr unsigned kTransposes = 10;
constexpr unsigned kHalves = 11;
constexpr unsigned kSelfCheck = 12;
} // namespace payload_slot

namespace self_check_slot {
constexpr unsigned kTolerance = 0;
constexpr unsigned kBlob = 1;
constexpr unsigned kRepeats = 2;
} // namespace self_check_slot

/// Reads the manifest; each function returns what is wrong, or nothing.
class Reader {
 public:
  Reader(Bytes manifest, Container& container)
      : manifest_(manifest), container_(container), extents_left_(manifest.size / Extents::kWidth) {}

  std::string read() {
    FlatTable root;
    Vector blobs;
    Vector payloads;
    uint32_t alignment = kByteAlignment;
    if (!root.open(manifest_, manifest_.u32(0)) || !root.vector(manifest_slot::kBlobs, Blobs::kWidth, blobs) ||
        !root.vector(manifest_slot::kPayloads, 4, payloads) || !root.u32(manifest_slot::kAlignment, alignment)) {
      return "damaged manifest";
    }
    if (alignment < kByteAlignment || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      return "an alignment of " + std::to_string(alignment);
    }
    if (payloads.count == 0 || payloads.count > kMaxPayloads) {
      return std::to_string(payloads.count) + " payloads; 1 to 64 are possible";
    }
    container_.blobs = Blobs(manifest_.part(blobs.start, blobs.count * Blobs::kWidth));
    if (std::string problem = check_blobs(); !problem.empty()) {
      return problem;
    }
    used_by_.assign(container_.blobs.count(), 0);
    for (uint32_t index = 0; index < payloads.count; ++index) {
      const uint64_t place = payloads.start + 4 * uint64_t{index};
      if (std::string problem = read_payload(place + manifest_.u32(place), index); !problem.empty()) {
        return "payload " + std::to_string(index) + ": " + problem;
      }
    }
    container_.count = static_cast<uint32_t>(payloads.count);
    return {};
  }

 private:
  std::string check_blobs() const {
    for (uint64_t index = 0; index < container_.blobs.count(); ++index) {
      const uint64_t size = container_.blobs.size(index);
      if (size == 0 || size > kMaxSize) {
        return "blob " + std::to_string(index) + " has " + std::to_string(size) + " bytes";
      }
    }
    return {};
  }

  std::string read_payload(uint64_t position, uint32_t index) {
    Payload payload;
    FlatTable table;
    Vector sha256;
    Vector parts_sha256;
    Vector backends;
    std::string_view version;
    if (!table.open(manifest_, position) || !table.text(payload_slot::kName, payload.name) ||
        !table.u64(payload_slot::kSize, payload.size) || !table.vector(payload_slot::kSha256, 1, sha256) ||
        !table.vector(payload_slot::kPartsSha256, 1, parts_sha256) ||
        !table.vector(payload_slot::kBackends, 4, backends) ||
        !table.text(payload_slot::kExecutorchVersion, version) ||
        !table.u64(payload_slot::kFeatures, payload.features)) {
      return "damaged manifest";
    }
    if (payload.name.empty() || payload.name.size() > kMaxName || !is_word(payload.name) ||
        is_taken(payload.name, index)) {
      return "its name is missing, too long, not printable or there twice";
    }
    if (sha256.count != kSha256Size) {
      return "a SHA-256 of " + std::to_string(sha256.count) + " bytes";
    }
    if (parts_sha256.count != kSha256Size && parts_sha256.count != 0) {
      return "a SHA-256 of " + std::to_string(parts_sha256.count) + " bytes";
    }
    if (version.size() > kMaxWord || !is_word(version)) {
      return "its ExecuTorch version is too long or not printable";
    }
    if (payload.size == 0 || payload.size > kMaxSize) {
      return "a size of " + std::to_string(payload.size) + " bytes";
    }
    if (!are_words(backends)) {
      return "its backends are too many, too long, not printable or not ascending";
    }
    payload.sha256 = manifest_.data + sha256.start;
    payload.parts_sha256 = parts_sha256.count != 0 ? manifest_.data + parts_sha256.start : nullptr;
    payload.backends = Texts(manifest_, backends.start, backends.count);
    if (!payload.has_unknown_features()) {
      if (std::string problem = read_extents(table, index, payload); !problem.empty()) {
        return problem;
      }
      if (std::string problem = read_transposes(table, payload); !problem.empty()) {
        return problem;
      }
      if (std::string problem = read_halves(table, payload); !problem.empty()) {
        return problem;
      }
      if (std::string problem = read_self_check(table, payload.self_check); !problem.empty()) {
        return problem;
      }
    }
    container_.payloads[index] = payload;
    return {};
  }

  bool is_taken(std::string_view name, uint32_t before) const {
    const auto begin = container_.payloads.cbegin();
    return std::any_of(begin, begin + before, [&](const Payload& each) { return each.name == name; });
  }

  /// Whether texts are words in ascending order.
  bool are_words(Vector texts) const {
    if (texts.count > kMaxBackends) {
      return false;
    }
    std::string_view before;
    for (uint64_t place = texts.start; place < texts.start + 4 * texts.count; place += 4) {
      Vector letters;
      if (!follow_vector(manifest_, place, 1, letters) || letters.count == 0 || letters.count > kMaxWord) {
        return false;
      }
      const std::string_view word(reinterpret_cast<const char*>(manifest_.data + letters.start), letters.count);
      if (!is_word(word) || word <= before) {
        return false;
      }
      before = word;
    }
    return true;
  }

  std::string read_extents(const FlatTable& table, uint32_t index, Payload& payload) {
    Vector found;
    if (!table.vector(payload_slot::kExtents, Extents::kWidth, found)) {
      return "damaged manifest";
    }
    if (found.count == 0 || found.count > extents_left_) {
      return "no extents, or more than the manifest has room for";
    }
    extents_left_ -= found.count;
    payload.extents = Extents(manifest_.part(found.start, found.count * Extents::kWidth));
    if (payload.extents[0].position != 0) {
      return "it does not start at 0";
    }
    uint64_t zeros = 0;
    uint64_t stored = container_.inline_section.size;
    for (uint64_t each = 0; each < found.count; ++each) {
      const Extent extent = payload.extents[each];
      const uint64_t end = each + 1 < found.count ? payload.extents[each + 1].position : payload.size;
      if (end <= extent.position) {
        return "its extents do not ascend";
      }
      if (!is_sound(extent, end - extent.position)) {
        return "its extent " + std::to_string(each) + " points to what is not there, or is not aligned";
      }
      if (extent.source == Source::kZeros) {
        zeros += end - extent.position;
      } else if (extent.source == Source::kBlob && used_by_[extent.blob] != index + 1) {
        used_by_[extent.blob] = static_cast<uint8_t>(index + 1);
        stored = std::min(stored + container_.blobs.size(extent.blob), kMaxSize); // More makes no difference.
      }
    }
    if (zeros > kMaxZeros || payload.size - zeros > kExpansion * stored) {
      return "it has " + std::to_string(payload.size) + " bytes, " + std::to_string(zeros) + " of them zeros; " +
          std::to_string(stored) + " are stored for it";
    }
    return {};
  }

  std::string read_transposes(const FlatTable& table, Payload& payload) const {
    Transposes& transposes = payload.transposes;
    if (std::string problem = read_entries(table, payload_slot::kTransposes, kTransposedExtents, payload, transposes);
        !problem.empty()) {
      return problem;
    }
    for (uint64_t each = 0; each < transposes.size(); ++each) {
      const Transpose transpose = transposes[each];
      const uint64_t index = transpose.extent;
      if (payload.extents[index].source == Source::kZeros || !fits(transpose, size_of(payload, index))) {
        return "its extent " + std::to_string(index) + " cannot be transposed so";
      }
    }
    return {};
  }

  std::string read_halves(const FlatTable& table, Payload& payload) const {
    if (std::string problem = read_entries(table, payload_slot::kHalves, kHalfExtents, payload, payload.halves);
        !problem.empty()) {
      return problem;
    }
    for (uint64_t each = 0; each < payload.halves.size(); ++each) {
      const uint64_t index = payload.halves.extent(each);
      const uint64_t size = size_of(payload, index);
      const Extent extent = payload.extents[index];
      Transpose transpose;
      if (extent.source == Source::kZeros || size % 2 != 0 || payload.transposes.find(index, transpose) ||
          !is_sound(extent, 2 * size)) {
        return "its extent " + std::to_string(index) + " cannot be of half as many bytes as its source";
      }
    }
    return {};
  }

  /// Reads a table of extents that `feature` stands for.
  template <typename Entries>
  std::string read_entries(
      const FlatTable& table,
      unsigned slot,
      uint64_t feature,
      const Payload& payload,
      Entries& entries) const {
    Vector found;
    if (!table.vector(slot, Entries::kWidth, found)) {
      return "damaged manifest";
    }
    if ((found.count != 0) != ((payload.features & feature) != 0)) {
      return "it has transposed or half extents that its features do not say, or none where they say so";
    }
    entries = Entries(manifest_.part(found.start, found.count * Entries::kWidth));
    for (uint64_t each = 0; each < found.count; ++each) {
      const uint64_t index = entries.extent(each);
      if (index >= payload.extents.size() || (each != 0 && index <= entries.extent(each - 1))) {
        return "its transposed or half extents are not of its extents, or do not ascend";
      }
    }
    return {};
  }

  std::string read_self_check(const FlatTable& table, SelfCheck& check) const {
    FlatTable found;
    bool there = false;
    uint64_t tolerance = 0;
    if (!table.child(payload_slot::kSelfCheck, found, there) ||
        (there &&
         (!found.u64(self_check_slot::kTolerance, tolerance) || !found.u32(self_check_slot::kBlob, check.blob) ||
          !found.u32(self_check_slot::kRepeats, check.repeats)))) {
      return "damaged manifest";
    }
    if (!there) {
      return {};
    }
    std::memcpy(&check.tolerance, &tolerance, sizeof tolerance);
    const Blobs& blobs = container_.blobs;
    const bool sound = check.tolerance > 0 && check.tolerance <= 1 && check.repeats >= 1 &&
        check.repeats <= kMaxRepeats && check.blob < blobs.count() && blobs.size(check.blob) >= kMinGolden &&
        blobs.size(check.blob) <= kMaxGolden;
    return sound ? "" : "it checks itself with a tolerance, a blob or repeats that are not possible";
  }

  static uint64_t size_of(const Payload& payload, uint64_t index) {
    const uint64_t end = index + 1 < payload.extents.size() ? payload.extents[index + 1].position : payload.size;
    return end - payload.extents[index].position;
  }

  /// Whether an extent's source has `size` bytes for it.
  bool is_sound(const Extent& extent, uint64_t size) const {
    uint64_t held = 0;
    switch (extent.source) {
      case Source::kZeros:
        return extent.offset == 0 && extent.blob == 0;
      case Source::kInline:
        if (extent.blob != 0) {
          return false;
        }
        held = container_.inline_section.size;
        break;
      case Source::kBlob:
        if (extent.blob >= container_.blobs.count()) {
          return false;
        }
        held = container_.blobs.size(extent.blob);
        break;
      default:
        return false;
    }
    return extent.offset <= held && size <= held - extent.offset &&
        extent.offset % kByteAlignment == extent.position % kByteAlignment;
  }

  Bytes manifest_;
  Container& container_;
  uint64_t extents_left_;
  /// For each blob the payload that pointed into it last, counted from 1.
  std::vector<uint8_t> used_by_;
};

} // namespace

std::string read_v2(Bytes content, Container& container) {
  if (!content.holds(0, kStart)) {
    return "the container is cut short";
  }
  const uint64_t manifest_size = content.u32(8);
  const uint64_t inline_size = content.u32(12);
  const uint64_t manifest_end = kStart + manifest_size;
  const uint64_t inline_start = (manifest_end + kByteAlignment - 1) / kByteAlignment * kByteAlignment;
  if (content.size != inline_start + inline_size) {
    return "the container has " + std::to_string(content.size) + " bytes and says " +
        std::to_string(inline_start + inline_size);
  }
  if (!content.part(manifest_end, inline_start - manifest_end).zero()) {
    return "the bytes between the manifest and the inline section are not zero";
  }
  if (manifest_size < 8 || manifest_size > kMaxManifest || std::memcmp(content.data + kStart + 4, "NFM2", 4) != 0) {
    return "its manifest is not one";
  }
  container.inline_section = content.part(inline_start, inline_size);
  return Reader(content.part(kStart, manifest_size), container).read();
}

} // namespace nfat
