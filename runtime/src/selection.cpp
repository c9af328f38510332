#include "selection.h"

#include <string>
#include <utility>

#include "registry.h"

namespace nfat {
namespace {

/// Why a payload cannot run, as far as its container tells.
std::string known_problem(const Payload& payload) {
  if (payload.has_unknown_features()) {
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

std::string open(const Container& container, const Payload& payload, const Request& request,
                 const std::shared_ptr<MappedBlobs>& blobs, std::unique_ptr<LoadedMethod>& opened) {
  if (std::string problem = known_problem(payload); !problem.empty()) {
    return problem;
  }
  auto loader = std::make_unique<ExtentLoader>(container, payload, blobs);
  // Held until the method is loaded: each blob is mapped once for it.
  if (std::string problem = loader->hold(); !problem.empty()) {
    return problem;
  }
  if (std::string problem = verify(payload, *loader, request.verify); !problem.empty()) {
    return problem;
  }
  opened = std::make_unique<LoadedMethod>(std::move(loader));
  // Payloads of version 2 are complete. Those of version 1 may share named data through the outer program.
  std::string problem = opened->load(request.method, container.version == 1 ? request.named_data : nullptr);
  const std::string damage = opened->loader().damage();
  return damage.empty() ? problem : damage;
}

} // namespace

std::unique_ptr<LoadedMethod> select(const Container& container, const Request& request, Report& report) {
  const auto blobs = std::make_shared<MappedBlobs>(container.blobs, request.named_data);
  for (uint32_t index = 0; index < container.count; ++index) {
    const Payload& payload = container.payloads[index];
    std::unique_ptr<LoadedMethod> opened;
    const std::string problem = open(container, payload, request, blobs, opened);
    blobs->release();
    if (!problem.empty()) {
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
