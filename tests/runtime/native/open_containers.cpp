// Opens containers and says what it found, one line for each:
//
//   open_containers CONTAINERS BLOBS
//
// CONTAINERS holds containers, BLOBS named data; each is preceded by its size (8 bytes), and named data also by its key
// (64 bytes). A line is "refused: WHY", or "accepted" and for each payload its name and "intact", "damaged" or
// "missing" (a blob). Payloads of more than 4 MiB are not read and are "large". If there are none, method forward of the
// first payload that can run is loaded, as the backend does it; " -> NAME" says which one that was. Exits with 1 if the
// ranges that the loader gives do not agree with each other.

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/platform/runtime.h>

#include "container.h"
#include "extent_loader.h"
#include "selection.h"
#include "stored.h"

namespace {

using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using nfat_tests::Stored;

constexpr uint64_t kLarge = uint64_t{4} << 20;

/// Whether ranges that are handed out hold what copying the whole payload gives.
bool agrees(const nfat::ExtentLoader& loader, size_t size) {
  const DataLoader::SegmentInfo segment(DataLoader::SegmentInfo::Type::Constant);
  std::vector<uint8_t> whole(size);
  if (loader.load_into(0, size, segment, whole.data()) != Error::Ok) {
    return false;
  }
  for (size_t step = 1; step <= size; step = 3 * step + 1) {
    for (size_t start = 0; start + step <= size; start += step) {
      const auto range = loader.load(start, step, segment);
      if (!range.ok() || range->size() != step || std::memcmp(range->data(), whole.data() + start, step) != 0) {
        return false;
      }
    }
  }
  return !loader.load(size, 1, segment).ok() && !loader.load(1, SIZE_MAX, segment).ok();
}

/// What there is to say about a payload; empty if its ranges do not agree.
std::string describe(const nfat::Container& container, const nfat::Payload& payload, const Stored& stored) {
  for (uint64_t index = 0; index < payload.backends.size(); ++index) {
    if (!nfat::is_word(payload.backends[index])) {
      return "";
    }
  }
  if (payload.has_unknown_features()) {
    return "unknown";
  }
  if (payload.size > kLarge) {
    return "large";
  }
  const auto blobs = std::make_shared<nfat::MappedBlobs>(container.blobs, &stored);
  const nfat::ExtentLoader loader(container, payload, blobs);
  if (payload.parts_sha256 != nullptr) {
    const auto parts = loader.hash_parts(payload);
    if (std::memcmp(parts.data(), payload.parts_sha256, parts.size()) != 0) {
      return "damaged";
    }
  }
  if (!loader.hold().empty()) {
    return "missing";
  }
  std::array<uint8_t, nfat::kSha256Size> digest;
  if (!loader.hash(digest).empty() || !agrees(loader, payload.size)) {
    return "";
  }
  loader.release();
  const bool intact =
      payload.sha256 == nullptr || std::memcmp(digest.data(), payload.sha256, digest.size()) == 0;
  return intact ? "intact" : "damaged";
}

} // namespace

int main(int, char** values) {
  executorch::runtime::runtime_init();
  const std::vector<uint8_t> containers = nfat_tests::read_all(values[1]);
  const Stored stored = nfat_tests::read_stored(values[2]);
  for (const uint8_t* at = containers.data(); at != containers.data() + containers.size();) {
    uint64_t size = 0;
    std::memcpy(&size, at, sizeof size);
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[size]);
    std::memcpy(exact.get(), at + 8, size);
    at += 8 + size;
    const auto container = std::make_unique<nfat::Container>();
    if (const std::string problem = nfat::read_container({exact.get(), size}, *container); !problem.empty()) {
      std::printf("refused: %s\n", problem.c_str());
      continue;
    }
    std::printf("accepted");
    bool small = true;
    for (uint32_t index = 0; index < container->count; ++index) {
      const nfat::Payload& payload = container->payloads[index];
      const std::string found = describe(*container, payload, stored);
      if (found.empty()) {
        return 1;
      }
      std::printf(" %s %s", std::string(payload.name).c_str(), found.c_str());
      small = small && payload.size <= kLarge;
    }
    if (small) {
      nfat::Report report;
      if (nfat::select(*container, {"forward", &stored, nfat::Verify::kAll}, report) != nullptr) {
        const size_t line = report.text().rfind('\n', report.text().size() - 2) + 1;
        std::printf(" -> %s", report.text().substr(line, report.text().find(':', line) - line).c_str());
      }
    }
    std::putchar('\n');
  }
}
