#include "remembered.h"

#include <fstream>
#include <utility>

#include "blobs.h"
#include "sha256.h"

namespace nfat {
namespace {

constexpr int kMostUnended = 2;
/// A file of more bytes starts again: a payload that fails adds two lines at each load.
constexpr std::streamoff kLargest = 1 << 20;

} // namespace

void Remembered::use(std::string file, std::string device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::move(file);
  device_ = std::move(device);
  unended_.clear();
}

Remembered::Verdict Remembered::begin(
    const Payload& payload, const uint8_t* golden, std::string_view method, std::string& key) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (file_.empty()) {
    return Verdict::kUnknown;
  }
  std::string described(reinterpret_cast<const char*>(payload.sha256), kSha256Size);
  described.append(reinterpret_cast<const char*>(golden), kSha256Size);
  described.append(reinterpret_cast<const char*>(&payload.self_check.tolerance), sizeof payload.self_check.tolerance);
  described.append(std::to_string(payload.self_check.repeats)).append(" ").append(method).append("\n").append(device_);
  Sha256 sha256;
  sha256.update(reinterpret_cast<const uint8_t*>(described.data()), described.size());
  key = key_of(sha256.finish().data());
  int unended = 0;
  std::ifstream file(file_);
  std::string what;
  for (std::string other; file >> what >> other;) {
    if (other != key) {
      continue;
    }
    if (what == "passed") {
      return Verdict::kPassed;
    }
    unended = what == "begun" ? unended + 1 : 0;
  }
  if (unended_.emplace(key, unended).first->second >= kMostUnended) {
    return Verdict::kEndsTheProcess;
  }
  write("begun", key);
  return Verdict::kUnknown;
}

void Remembered::end(const std::string& key, bool passed) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!key.empty() && !file_.empty()) {
    unended_[key] = 0;
    write(passed ? "passed" : "failed", key);
  }
}

void Remembered::write(const char* what, const std::string& key) const {
  std::ofstream file(file_, std::ios::app | std::ios::ate);
  if (file.tellp() > kLargest) {
    file = std::ofstream(file_);
  }
  file << (what + (" " + key + "\n")) << std::flush;
}

} // namespace nfat
