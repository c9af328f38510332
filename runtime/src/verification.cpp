#include "verification.h"

#include <algorithm>
#include <array>

namespace nfat {
namespace {

using Digest = std::array<uint8_t, kSha256Size>;

/// Payloads whose blobs have no more bytes are always verified whole: it takes half a millisecond where processors help.
constexpr uint64_t kLittle = uint64_t{1} << 20;

bool equal(const Digest& digest, const uint8_t* expected) {
  return std::equal(digest.begin(), digest.end(), expected);
}

std::string verify_whole(const Payload& payload, const ExtentLoader& loader) {
  Digest digest;
  if (std::string problem = loader.hash(digest); !problem.empty()) {
    return problem;
  }
  return equal(digest, payload.sha256) ? "" : "it is damaged: its SHA-256 is another one";
}

} // namespace

bool verify_level(std::string_view name, Verify& level) {
  if (name == "none") {
    level = Verify::kNothing;
  } else if (name == "parsed") {
    level = Verify::kParsed;
  } else if (name == "all") {
    level = Verify::kAll;
  } else {
    return false;
  }
  return true;
}

std::string verify(const Payload& payload, ExtentLoader& loader, Verify level) {
  if (level == Verify::kNothing || payload.sha256 == nullptr) {
    return {};
  }
  if (payload.parts_sha256 == nullptr) {
    std::string problem = verify_whole(payload, loader);
    return problem.empty() ? loader.map_again() : problem;
  }
  if (!equal(loader.hash_parts(payload), payload.parts_sha256)) {
    return "it is damaged: what the container says of it has another SHA-256";
  }
  if (level == Verify::kParsed && loader.held_bytes() > kLittle) {
    loader.verify_what_is_parsed();
    return {};
  }
  std::string problem = loader.verify_blobs();
  return problem.empty() ? loader.map_again() : problem;
}

} // namespace nfat
