// A libFuzzer target: any bytes as the delegate's data. Reads them, asks for ranges of all payloads, and loads method
// `forward` as the delegate does; and reads them as golden cases.
//
// There is one blob in named data, the one of tests/formats/nfat/corpus, so that those containers are whole.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include "container.h"
#include "extent_loader.h"
#include "golden.h"
#include "sha256.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t size, size_t most);

namespace {

using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;
using executorch::runtime::TensorLayout;

/// Payloads of more bytes are not put together: that takes longer than it finds.
constexpr uint64_t kLarge = uint64_t{1} << 16;

/// 256 x 32 bytes: 0, 1, ..., 255 again and again.
class OneBlob final : public NamedDataMap {
 public:
  OneBlob() : bytes_(8192) {
    constexpr char kDigits[] = "0123456789abcdef";
    for (size_t at = 0; at < bytes_.size(); ++at) {
      bytes_[at] = static_cast<uint8_t>(at);
    }
    nfat::Sha256 sha256;
    sha256.update(bytes_.data(), bytes_.size());
    for (const uint8_t byte : sha256.finish()) {
      key_ += kDigits[byte >> 4];
      key_ += kDigits[byte & 15];
    }
  }

  Result<const TensorLayout> get_tensor_layout(std::string_view) const override {
    return Error::NotImplemented;
  }
  Result<FreeableBuffer> get_data(std::string_view key) const override {
    if (key != key_) {
      return Error::NotFound;
    }
    return FreeableBuffer(bytes_.data(), bytes_.size(), nullptr);
  }
  Error load_data_into(std::string_view, void*, size_t) const override {
    return Error::NotImplemented;
  }
  Result<uint32_t> get_num_keys() const override {
    return 1;
  }
  Result<const char*> get_key(uint32_t) const override {
    return key_.c_str();
  }

 private:
  std::vector<uint8_t> bytes_;
  std::string key_;
};

const OneBlob& named_data() {
  static const OneBlob blob;
  return blob;
}

void say_nothing(et_timestamp_t, et_pal_log_level_t, const char*, const char*, size_t, const char*, size_t) {}

void check(bool holds) {
  if (!holds) {
    __builtin_trap();
  }
}

/// Ranges that are handed out hold what copying the whole payload gives, and nothing is handed out beyond it.
void check_ranges(const nfat::ExtentLoader& loader, size_t size) {
  const DataLoader::SegmentInfo segment(DataLoader::SegmentInfo::Type::Program);
  std::vector<uint8_t> whole(size);
  if (loader.load_into(0, size, segment, whole.data()) != Error::Ok) {
    return; // A blob is missing.
  }
  for (size_t step = 1; step <= size; step = 16 * step + 1) {
    for (size_t start = 0; start + step <= size; start += std::max(step, size / 32)) {
      const auto range = loader.load(start, step, segment);
      check(range.ok() && range->size() == step && std::memcmp(range->data(), whole.data() + start, step) == 0);
    }
  }
  check(!loader.load(size, 1, segment).ok() && !loader.load(1, SIZE_MAX, segment).ok());
}

void check_payloads(nfat::Bytes content) {
  const auto container = std::make_unique<nfat::Container>();
  if (!nfat::read_container(content, *container).empty()) {
    return;
  }
  check(container->count <= nfat::kMaxPayloads);
  const auto blobs = std::make_shared<nfat::MappedBlobs>(container->blobs, &named_data());
  for (uint32_t index = 0; index < container->count; ++index) {
    const nfat::Payload& payload = container->payloads[index];
    check(!payload.name.empty() && nfat::is_word(payload.name));
    for (uint64_t backend = 0; backend < payload.backends.size(); ++backend) {
      check(nfat::is_word(payload.backends[backend]));
    }
    if (payload.has_unknown_features() || payload.size > kLarge) {
      continue;
    }
    nfat::ExtentLoader loader(*container, payload, blobs);
    std::array<uint8_t, nfat::kSha256Size> digest;
    if (loader.hold().empty()) {
      check(loader.hash(digest).empty());
    }
    loader.hash_parts(payload);
    loader.verify_what_is_parsed();
    check_ranges(loader, payload.size);
    blobs->release();
  }
}

void check_delegate(nfat::Bytes content) {
  const BackendInterface* backend = executorch::runtime::get_backend_class("NfatBackend");
  check(backend != nullptr);
  BackendInitContext context(nullptr, nullptr, "forward", &named_data());
  FreeableBuffer processed(content.data, content.size, nullptr);
  const auto handle = backend->init(context, &processed, {});
  if (handle.ok()) {
    backend->destroy(*handle);
  } else {
    check(handle.error() == Error::InvalidProgram || handle.error() == Error::DelegateInvalidCompatibility);
  }
}

} // namespace

/// Golden cases that are read lie within their blob.
void check_golden(nfat::Bytes content) {
  std::vector<nfat::GoldenCase> cases;
  if (!nfat::read_golden(content, cases).empty()) {
    return;
  }
  for (const nfat::GoldenCase& golden : cases) {
    for (const auto& tensors : {golden.inputs, golden.outputs}) {
      for (const nfat::GoldenTensor& tensor : tensors) {
        check(tensor.elements.data >= content.data && tensor.elements.size != 0);
        check(tensor.elements.data + tensor.elements.size <= content.data + content.size);
      }
    }
  }
}

/// Memory that cannot be had is an error that everybody has to deal with.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=1024";
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Both are slow: the log is most of the time otherwise.
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(say_nothing, __FILE__));
  executorch::runtime::runtime_init();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  check_payloads({bytes, size});
  check_delegate({bytes, size});
  check_golden({bytes, size});
  return 0;
}

/// Makes the sizes at the start of version 2 right in every second mutation, so that what is behind them is reached.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t size, size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(bytes, size, most);
  const nfat::Bytes content{bytes, size};
  if (seed % 2 == 0 || size < 24 || content.u32(0) != 0x5441464e || content.u32(4) != 2) {
    return size;
  }
  const uint64_t manifest = std::min<uint64_t>(content.u32(8), size - 16);
  const uint64_t inline_start = std::min<uint64_t>((16 + manifest + 15) / 16 * 16, size);
  const uint64_t fields[] = {manifest, size - inline_start};
  for (size_t byte = 0; byte < 8; ++byte) {
    bytes[8 + byte] = static_cast<uint8_t>(fields[byte / 4] >> (8 * (byte % 4)));
  }
  for (size_t at = 16 + manifest; at < inline_start; ++at) {
    bytes[at] = 0;
  }
  std::memcpy(bytes + 20, "NFM2", 4);
  return size;
}
