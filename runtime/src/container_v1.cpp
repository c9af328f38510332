// Version 1, the layout of upstream's proposal: a table of 48-byte entries and the payloads behind it.

#include "container.h"

namespace nfat {
namespace {

constexpr uint64_t kTable = 12;
constexpr uint64_t kEntry = 48;
constexpr uint64_t kIdSize = 32;
constexpr uint64_t kMaxGap = 4095;
constexpr std::string_view kNoBackend = "portable";

/// The id without the NULs behind it; empty if it is not one.
std::string_view read_id(Bytes padded) {
  uint64_t used = 0;
  while (used < kIdSize && padded.data[used] != 0) {
    ++used;
  }
  const std::string_view id(reinterpret_cast<const char*>(padded.data), used);
  return is_word(id) && padded.part(used, kIdSize - used).zero() ? id : std::string_view();
}

bool padding(Bytes section, uint64_t start, uint64_t end) {
  return end - start <= kMaxGap && section.part(start, end - start).zero();
}

} // namespace

std::string read_v1(Bytes content, Container& container) {
  if (!content.holds(0, kTable)) {
    return "the container is cut short";
  }
  const uint32_t count = content.u32(8);
  if (count > kMaxPayloads) {
    return "more than 64 payloads";
  }
  if (!content.holds(kTable, count * kEntry)) {
    return "the table of payloads is cut short";
  }
  const uint64_t table_end = kTable + count * kEntry;
  const Bytes section = content.part(table_end, content.size - table_end);
  uint64_t end = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const Bytes entry = content.part(kTable + index * kEntry, kEntry);
    const uint64_t offset = entry.u64(kIdSize);
    const uint64_t size = entry.u64(kIdSize + 8);
    Payload& payload = container.payloads[index];
    payload = Payload();
    payload.name = read_id(entry.part(0, kIdSize));
    if (payload.name.empty()) {
      return "entry " + std::to_string(index) + " has no backend id padded with NULs";
    }
    if (offset < end || !section.holds(offset, size) || !padding(section, end, offset)) {
      return "payload " + std::string(payload.name) + " overlaps another, leaves a gap or is cut short";
    }
    payload.size = size;
    payload.extents = size != 0 ? Extents(offset) : Extents();
    payload.backends = payload.name == kNoBackend ? Texts() : Texts(payload.name);
    end = offset + size;
  }
  if (!padding(section, end, section.size)) {
    return "there are bytes behind the last payload";
  }
  container.count = count;
  container.blobs = Blobs();
  container.inline_section = section;
  return {};
}

} // namespace nfat
