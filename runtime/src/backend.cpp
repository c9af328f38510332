// The delegate: opens a container, loads the payload to run, passes calls on to it.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/log.h>

#include "container.h"
#include "method_call.h"
#include "nfat_backend.h"
#include "registry.h"
#include "report.h"
#include "selection.h"

namespace nfat {
namespace {

using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;

/// Load-time option of the backend: the name of a level.
constexpr char kVerifyOption[] = "verify_digests";

/// The level of loads that do not give it.
std::atomic<Verify> default_verify{Verify::kParsed};

Remembered remembered;

class NfatBackend final : public BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(
      BackendInitContext& context,
      FreeableBuffer* processed,
      ArrayRef<CompileSpec>) const override {
    Report& report = last_report();
    report = Report();
    Container container;
    const Bytes content{static_cast<const uint8_t*>(processed->data()), processed->size()};
    if (const std::string problem = read_container(content, container); !problem.empty()) {
      report.refused(problem);
      report.log();
      return Error::InvalidProgram;
    }
    Request request{context.get_method_name(), context.get_named_data_map(), default_verify, &remembered};
    const auto level = context.get_runtime_spec<const char*>(kVerifyOption);
    if (level.ok() ? !verify_level(*level, request.verify) : level.error() != Error::NotFound) {
      ET_LOG(Error, "NfatBackend: the option %s is one of none, parsed, all", kVerifyOption);
      return Error::InvalidArgument;
    }
    if (request.method == nullptr) {
      return Error::InvalidState;
    }
    auto loaded = select(container, request, report);
    if (loaded == nullptr) {
      ET_LOG(Error, "NfatBackend: none of the %u payloads can run here:", container.count);
      report.log();
      return Error::DelegateInvalidCompatibility;
    }
    return new MethodCall(std::move(loaded));
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    return (*static_cast<MethodCall*>(handle))(args);
  }

  void destroy(DelegateHandle* handle) const override {
    delete static_cast<MethodCall*>(handle);
  }
};

NfatBackend backend;
const Error status = executorch::runtime::register_backend({kBackendId, &backend});

} // namespace
} // namespace nfat

const char* nfat_backend_executorch_version() {
  return NFAT_EXECUTORCH_VERSION;
}

int nfat_backend_status() {
  return static_cast<int>(nfat::status);
}

int nfat_backend_verify_digests(const char* level) {
  nfat::Verify chosen = nfat::Verify::kParsed;
  if (!nfat::verify_level(level, chosen)) {
    return static_cast<int>(executorch::runtime::Error::InvalidArgument);
  }
  nfat::default_verify = chosen;
  return 0;
}

void nfat_backend_remember_checks(const char* file, const char* device) {
  const std::string version = NFAT_EXECUTORCH_VERSION " ";
  nfat::remembered.use(file != nullptr ? file : "", version + (device != nullptr ? device : ""));
}

size_t nfat_backend_report(char* text, size_t size) {
  const std::string& report = nfat::last_report().text();
  if (size != 0) {
    const size_t written = std::min(size - 1, report.size());
    std::memcpy(text, report.data(), written);
    text[written] = '\0';
  }
  return report.size();
}
