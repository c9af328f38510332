// Which payloads have passed their own checks on this device, in a file of the app's.

#pragma once

#include <map>
#include <mutex>
#include <string>

#include "container.h"

namespace nfat {

/// A file with a line for each check that begins or ends: what became of it, and its key. Thread-safe.
///
/// A check that begins and does not end has ended the process, with a backend that aborts or a user who does not wait.
class Remembered {
 public:
  /// `device` names the device and its drivers: checks count for it only. No file: nothing is remembered.
  void use(std::string file, std::string device);

 private:
  friend class Attempt;

  std::mutex mutex_;
  std::string file_;
  std::string device_;
  /// By key, checks that had not ended when this process first read of them.
  std::map<std::string, int> unended_;
};

/// One check of a payload's method.
class Attempt {
 public:
  /// `remembered` may be null. `golden` is the SHA-256 of the golden cases.
  Attempt(Remembered* remembered, const Payload& payload, const uint8_t* golden, std::string_view method);
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  /// Writes how the check has ended, if it has begun.
  ~Attempt();

  bool passed_before() const {
    return passed_before_;
  }
  bool ends_the_process() const;
  void passed();

 private:
  void write(const char* what) const;

  Remembered* remembered_;
  std::string key_;
  int unended_ = 0;
  bool passed_before_ = false;
  bool passed_ = false;
};

} // namespace nfat
