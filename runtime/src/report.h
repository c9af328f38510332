// What became of each payload of the container that was opened last.

#pragma once

#include <string>
#include <string_view>

namespace nfat {

/// Lines of text, one for each payload that was looked at.
class Report {
 public:
  void passed_over(std::string_view payload, const std::string& why);
  void chosen(std::string_view payload, const std::string& how);
  void refused(const std::string& why);

  const std::string& text() const {
    return text_;
  }

  /// Logs each line as an error.
  void log() const;

 private:
  std::string text_;
};

/// The report of this thread's last load; programs are loaded on several threads at once.
Report& last_report();

} // namespace nfat
