#include "report.h"

#include <executorch/runtime/platform/log.h>

namespace nfat {

void Report::passed_over(std::string_view payload, const std::string& why) {
  text_.append(payload).append(": passed over: ").append(why).append("\n");
}

void Report::chosen(std::string_view payload, const std::string& how) {
  text_.append(payload).append(": chosen: ").append(how).append("\n");
}

void Report::refused(const std::string& why) {
  text_.append("container refused: ").append(why).append("\n");
}

void Report::log() const {
  // Line by line: the runtime cuts long messages.
  for (size_t start = 0; start < text_.size();) {
    const size_t end = text_.find('\n', start);
    ET_LOG(Error, "NfatBackend: %s", text_.substr(start, end - start).c_str());
    start = end + 1;
  }
}

Report& last_report() {
  thread_local Report report;
  return report;
}

} // namespace nfat
