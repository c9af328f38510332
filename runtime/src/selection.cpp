#include "selection.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "golden.h"
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

/// Runs a payload's golden cases of the method, unless it is known to pass: `how` says what was done. Returns what is
/// wrong, or nothing.
std::string check_itself(const Container& container, const Payload& payload, const Request& request,
                         const std::shared_ptr<MappedBlobs>& blobs, std::string& how) {
  const SelfCheck& check = payload.self_check;
  if (check.repeats == 0) {
    return {};
  }
  std::string problem = request.verify == Verify::kNothing ? "" : blobs->verify(check.blob);
  const Mapping mapping = problem.empty() ? blobs->find(check.blob, problem) : nullptr;
  if (mapping == nullptr) {
    return problem;
  }
  std::vector<GoldenCase> cases;
  const Bytes content{static_cast<const uint8_t*>(mapping->data()), mapping->size()};
  if (problem = read_golden(content, cases); !problem.empty()) {
    return problem;
  }
  const auto others = [&](const GoldenCase& golden) { return golden.method != request.method; };
  cases.erase(std::remove_if(cases.begin(), cases.end(), others), cases.end());
  if (cases.empty()) {
    return {};
  }
  Remembered nowhere;
  Remembered& remembered = request.remembered != nullptr ? *request.remembered : nowhere;
  std::string key;
  switch (remembered.begin(payload, blobs->sha256(check.blob), request.method, key)) {
    case Remembered::Verdict::kPassed:
      how = "; it passed its own check before";
      return {};
    case Remembered::Verdict::kEndsTheProcess:
      return "its own check has ended the process more than once";
    case Remembered::Verdict::kUnknown:
      break;
  }
  std::string unloadable;
  const auto load = [&](std::unique_ptr<LoadedMethod>& loaded) {
    unloadable = open(container, payload, request, blobs, loaded);
    blobs->release();
    return unloadable;
  };
  problem = run_golden(cases, check, load);
  remembered.end(key, problem.empty());
  how = "; it passed its own check";
  return problem.empty() || !unloadable.empty() ? problem : "it fails its own check: " + problem;
}

} // namespace

std::unique_ptr<LoadedMethod> select(const Container& container, const Request& request, Report& report) {
  const auto blobs = std::make_shared<MappedBlobs>(container.blobs, request.named_data);
  for (uint32_t index = 0; index < container.count; ++index) {
    const Payload& payload = container.payloads[index];
    std::unique_ptr<LoadedMethod> opened;
    std::string checked;
    std::string problem = known_problem(payload);
    problem = problem.empty() ? check_itself(container, payload, request, blobs, checked) : problem;
    problem = problem.empty() ? open(container, payload, request, blobs, opened) : problem;
    blobs->release();
    if (!problem.empty()) {
      report.passed_over(payload.name, problem);
      continue;
    }
    const ExtentLoader& loader = opened->loader();
    report.chosen(
        payload.name,
        std::to_string(loader.in_place()) + " bytes in place, " + std::to_string(loader.copied()) + " copied" +
            checked);
    return opened;
  }
  return nullptr;
}

} // namespace nfat
