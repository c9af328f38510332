// The delegate: opens a container, loads the payload to run, passes calls on to it.

#include <algorithm>
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

/// Load-time option of the backend, a bool; true where it is not given.
constexpr char kVerifyOption[] = "verify_digests";

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
    const auto verify = context.get_runtime_spec<bool>(kVerifyOption);
    const Request request{
        context.get_method_name(), context.get_named_data_map(), verify.ok() ? *verify : true};
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

size_t nfat_backend_report(char* text, size_t size) {
  const std::string& report = nfat::last_report().text();
  if (size != 0) {
    const size_t written = std::min(size - 1, report.size());
    std::memcpy(text, report.data(), written);
    text[written] = '\0';
  }
  return report.size();
}
