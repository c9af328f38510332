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

template <typename Number>
void update(Sha256& sha256, Number number) {
  sha256.update(reinterpret_cast<const uint8_t*>(&number), sizeof number);
}

void update(Sha256& sha256, std::string_view text) {
  update(sha256, uint64_t{text.size()});
  sha256.update(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

} // namespace

void Remembered::use(std::string file, std::string device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::move(file);
  device_ = std::move(device);
  unended_.clear();
}

Attempt::Attempt(Remembered* remembered, const Payload& payload, const uint8_t* golden, std::string_view method)
    : remembered_(remembered) {
  if (remembered_ == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> guard(remembered_->mutex_);
  if (remembered_->file_.empty()) {
    remembered_ = nullptr;
    return;
  }
  Sha256 sha256;
  sha256.update(payload.sha256, kSha256Size);
  sha256.update(golden, kSha256Size);
  update(sha256, payload.self_check.tolerance);
  update(sha256, payload.self_check.repeats);
  update(sha256, method);
  update(sha256, std::string_view(remembered_->device_));
  key_ = key_of(sha256.finish().data());
  std::ifstream file(remembered_->file_);
  std::string what;
  for (std::string key; file >> what >> key;) {
    if (key == key_) {
      passed_before_ = passed_before_ || what == "passed";
      unended_ = what == "begun" ? unended_ + 1 : 0;
    }
  }
  unended_ = remembered_->unended_.emplace(key_, unended_).first->second;
  if (!passed_before_ && !ends_the_process()) {
    write("begun");
  }
}

Attempt::~Attempt() {
  if (remembered_ != nullptr && !passed_before_ && !ends_the_process()) {
    const std::lock_guard<std::mutex> guard(remembered_->mutex_);
    remembered_->unended_[key_] = 0;
    write(passed_ ? "passed" : "failed");
  }
}

bool Attempt::ends_the_process() const {
  return unended_ >= kMostUnended;
}

void Attempt::passed() {
  passed_ = true;
}

void Attempt::write(const char* what) const {
  std::ofstream file(remembered_->file_, std::ios::app | std::ios::ate);
  if (file.tellp() > kLargest) {
    file = std::ofstream(remembered_->file_);
  }
  file << (std::string(what) + " " + key_ + "\n") << std::flush;
}

} // namespace nfat
