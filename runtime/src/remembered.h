// Which payloads have passed their own checks on this device, in a file of the app's.

#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "container.h"

namespace nfat {

/// A file with a line for each check that begins or ends: what became of it, and its key. Thread-safe.
///
/// A check that begins and does not end has ended the process, with a backend that aborts or a user who does not wait.
class Remembered {
 public:
  enum class Verdict { kUnknown, kPassed, kEndsTheProcess };

  /// `device` names the device and its drivers: checks count for it only. No file: nothing is remembered.
  void use(std::string file, std::string device);

  /// What is known of the check of a payload's method by golden cases with a SHA-256. If nothing is, the check begins:
  /// `key` is for `end`.
  Verdict begin(const Payload& payload, const uint8_t* golden, std::string_view method, std::string& key);
  void end(const std::string& key, bool passed);

 private:
  void write(const char* what, const std::string& key) const;

  std::mutex mutex_;
  std::string file_;
  std::string device_;
  /// By key, checks that had not ended when this process first read of them.
  std::map<std::string, int> unended_;
};

} // namespace nfat
