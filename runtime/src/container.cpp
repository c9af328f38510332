#include "container.h"

#include <cstring>

namespace nfat {

std::string read_container(Bytes content, Container& container) {
  if (!content.holds(0, 8) || std::memcmp(content.data, "NFAT", 4) != 0) {
    return "not an NFAT container";
  }
  container.version = content.u32(4);
  switch (container.version) {
    case 1:
      return read_v1(content, container);
    case 2:
      return read_v2(content, container);
    default:
      return "an NFAT container of version " + std::to_string(container.version) + "; 1 and 2 are known";
  }
}

bool is_word(std::string_view text) {
  for (const char letter : text) {
    if (letter <= ' ' || letter > '~') {
      return false;
    }
  }
  return true;
}

} // namespace nfat
