#include "flat_table.h"

namespace nfat {

bool FlatTable::open(Bytes flatbuffer, uint64_t position) {
  if (!flatbuffer.holds(position, 4)) {
    return false;
  }
  // Signed, and subtracted: vtables may lie on either side of their tables.
  const int64_t vtable = static_cast<int64_t>(position) - static_cast<int32_t>(flatbuffer.u32(position));
  if (vtable < 0 || !flatbuffer.holds(static_cast<uint64_t>(vtable), 4)) {
    return false;
  }
  bytes_ = flatbuffer;
  position_ = position;
  vtable_ = static_cast<uint64_t>(vtable);
  vtable_size_ = flatbuffer.u16(vtable_);
  return vtable_size_ >= 4 && vtable_size_ % 2 == 0 && flatbuffer.holds(vtable_, vtable_size_) &&
      flatbuffer.holds(position_, flatbuffer.u16(vtable_ + 2));
}

bool FlatTable::u32(unsigned slot, uint32_t& value) const {
  uint64_t at = 0;
  if (!field(slot, 4, at)) {
    return false;
  }
  value = at != 0 ? bytes_.u32(at) : value;
  return true;
}

bool FlatTable::u64(unsigned slot, uint64_t& value) const {
  uint64_t at = 0;
  if (!field(slot, 8, at)) {
    return false;
  }
  value = at != 0 ? bytes_.u64(at) : value;
  return true;
}

bool FlatTable::vector(unsigned slot, uint64_t width, Vector& value) const {
  uint64_t at = 0;
  if (!field(slot, 4, at)) {
    return false;
  }
  return at == 0 || follow_vector(bytes_, at, width, value);
}

bool FlatTable::text(unsigned slot, std::string_view& value) const {
  Vector letters;
  if (!vector(slot, 1, letters)) {
    return false;
  }
  if (letters.count != 0) {
    value = {reinterpret_cast<const char*>(bytes_.data + letters.start), letters.count};
  }
  return true;
}

bool FlatTable::child(unsigned slot, FlatTable& value, bool& there) const {
  uint64_t at = 0;
  if (!field(slot, 4, at)) {
    return false;
  }
  there = at != 0;
  return !there || value.open(bytes_, at + bytes_.u32(at));
}

/// `at` is where a field of `size` bytes is; 0, which is no field's place, where the table leaves it out. Some versions of
/// flatbuffers' Python half write too small a size for tables, so that it says nothing of where fields can be.
bool FlatTable::field(unsigned slot, uint64_t size, uint64_t& at) const {
  const uint64_t entry = 4 + 2 * uint64_t{slot};
  const uint64_t offset = entry + 2 <= vtable_size_ ? bytes_.u16(vtable_ + entry) : 0;
  at = offset != 0 ? position_ + offset : 0;
  return offset == 0 || (offset >= 4 && bytes_.holds(at, size));
}

bool follow_vector(Bytes flatbuffer, uint64_t place, uint64_t width, Vector& value) {
  const uint64_t vector = place + flatbuffer.u32(place);
  if (!flatbuffer.holds(vector, 4)) {
    return false;
  }
  value = {vector + 4, flatbuffer.u32(vector)};
  return flatbuffer.holds(value.start, value.count * width);
}

} // namespace nfat
