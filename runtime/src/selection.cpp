#include "selection.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "registry.h"

namespace nfat {
namespace {

/// Why a payload cannot run, as far as its container tells.
std::string known_problem(const Payload& payload) {
  if (payload.features != 0) {
    return "it needs a newer runtime, for extensions of the container that this one does not know";
  }
  if (payload.size == 0) {
    return "it is empty";
  }
  if (payload.size > SIZE_MAX) {
    return "it is too large for this processor";
  }
  for (uint64_t index = 0; index < payload.backends.size(); ++index) {
    if (std::string problem = backend_problem(payload.backends[index]); !problem.empty()) {
      return problem;
    }
  }
  return {};
}

std::string verify(const Payload& payload, const ExtentLoader& loader) {
  std::array<uint8_t, kSha256Size> digest;
  if (std::string problem = loader.hash(digest); !problem.empty()) {
    return problem;
  }
  return std::equal(digest.begin(), digest.end(), payload.sha256) ? "" : "it is damaged: its SHA-256 is another one";
}

std::string open(const Container& container, const Payload& payload, const Request& request,
                 std::unique_ptr<LoadedMethod>& opened) {
  if (std::string problem = known_problem(payload); !problem.empty()) {
    return problem;
  }
  auto loader = std::make_unique<ExtentLoader>(container, payload, request.named_data);
  // Held from here to the end: what was verified is what is loaded, and each blob is mapped once.
  if (std::string problem = loader->hold(); !problem.empty()) {
    return problem;
  }
  if (request.verify && payload.sha256 != nullptr) {
    if (std::string problem = verify(payload, *loader); !problem.empty()) {
      return problem;
    }
  }
  opened = std::make_unique<LoadedMethod>(std::move(loader));
  // Payloads of version 2 are complete. Those of version 1 may share named data through the outer program.
  std::string problem = opened->load(request.method, container.version == 1 ? request.named_data : nullptr);
  opened->loader().release();
  return problem;
}

} // namespace

std::unique_ptr<LoadedMethod> select(const Container& container, const Request& request, Report& report) {
  for (uint32_t index = 0; index < container.count; ++index) {
    const Payload& payload = container.payloads[index];
    std::unique_ptr<LoadedMethod> opened;
    if (std::string problem = open(container, payload, request, opened); !problem.empty()) {
      report.passed_over(payload.name, problem);
      continue;
    }
    const ExtentLoader& loader = opened->loader();
    report.chosen(
        payload.name,
        std::to_string(loader.in_place()) + " bytes in place, " + std::to_string(loader.copied()) + " copied");
    return opened;
  }
  return nullptr;
}

} // namespace nfat
