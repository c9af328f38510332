#include "registry.h"

#include <executorch/runtime/backend/interface.h>

#include "guarded.h"

namespace nfat {

std::string backend_problem(std::string_view id) {
  if (id == kBackendId) {
    return "it is a fat program itself, and those do not nest";
  }
  const std::string name(id);
  const executorch::runtime::BackendInterface* backend = executorch::runtime::get_backend_class(name.c_str());
  if (backend == nullptr) {
    return "it needs " + printable(id) + ", which is not registered in this runtime";
  }
  bool available = false;
  if (const std::string thrown = thrown_by([&] { available = backend->is_available(); }); !thrown.empty()) {
    return "it needs " + printable(id) + ", whose is_available threw " + thrown;
  }
  if (!available) {
    return "it needs " + printable(id) + ", which is not available on this device";
  }
  return {};
}

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 255;
  std::string safe;
  for (const char letter : text.substr(0, kLongest)) {
    safe += letter >= ' ' && letter <= '~' ? letter : '?';
  }
  return safe;
}

} // namespace nfat
