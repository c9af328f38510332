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
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/platform/runtime.h>

#include "container.h"
#include "extent_loader.h"
#include "selection.h"

namespace {

using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;
using executorch::runtime::TensorLayout;

constexpr uint64_t kLarge = uint64_t{4} << 20;

/// Named data in memory, each of its own so that AddressSanitizer knows where it ends.
class Stored final : public NamedDataMap {
 public:
  std::map<std::string, std::vector<uint8_t>, std::less<>> content;

  Result<const TensorLayout> get_tensor_layout(std::string_view) const override {
    return Error::NotImplemented;
  }
  Result<FreeableBuffer> get_data(std::string_view key) const override {
    const auto found = content.find(key);
    if (found == content.end()) {
      return Error::NotFound;
    }
    return FreeableBuffer(found->second.data(), found->second.size(), nullptr);
  }
  Error load_data_into(std::string_view, void*, size_t) const override {
    return Error::NotImplemented;
  }
  Result<uint32_t> get_num_keys() const override {
    return static_cast<uint32_t>(content.size());
  }
  Result<const char*> get_key(uint32_t) const override {
    return Error::NotImplemented;
  }
};

std::vector<uint8_t> read_all(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
  if (payload.features != 0) {
    return "unknown";
  }
  if (payload.size > kLarge) {
    return "large";
  }
  const nfat::ExtentLoader loader(container, payload, &stored);
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
  const std::vector<uint8_t> containers = read_all(values[1]);
  const std::vector<uint8_t> blobs = read_all(values[2]);
  Stored stored;
  for (const uint8_t* at = blobs.data(); at != blobs.data() + blobs.size();) {
    uint64_t size = 0;
    std::memcpy(&size, at, sizeof size);
    const std::string key(reinterpret_cast<const char*>(at + 8), 64);
    stored.content[key].assign(at + 72, at + 72 + size);
    at += 72 + size;
  }
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
      if (nfat::select(*container, {"forward", &stored, true}, report) != nullptr) {
        const size_t line = report.text().rfind('\n', report.text().size() - 2) + 1;
        std::printf(" -> %s", report.text().substr(line, report.text().find(':', line) - line).c_str());
      }
    }
    std::putchar('\n');
  }
}
