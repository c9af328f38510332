// How much of a payload is verified before it runs. runtime/README.md says why there is a choice.

#pragma once

#include <string>
#include <string_view>

#include "extent_loader.h"

namespace nfat {

enum class Verify : int {
  kNothing = 0,
  /// What the container says of the payload, and what is parsed: programs, and what backends compiled. Everything
  /// where that is little.
  kParsed = 1,
  /// All weights, too.
  kAll = 2,
};

/// The level of a name: "none", "parsed" or "all". False for other names.
[[nodiscard]] bool verify_level(std::string_view name, Verify& level);

/// Verifies a payload whose blobs are held, before it is parsed. What can be verified piece by piece is left to the
/// loader, who does it before it hands bytes out. Returns what is wrong, or nothing.
[[nodiscard]] std::string verify(const Payload& payload, ExtentLoader& loader, Verify level);

} // namespace nfat
