#include "bench.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>

#include <sys/mman.h>

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>

#include "inputs.h"

#ifdef NFAT_COUNT_HEAP
#include <atomic>
#include <cerrno>
#include <malloc.h>
#endif

namespace {

#ifdef NFAT_COUNT_HEAP
std::atomic<bool> counting{false};
std::atomic<int64_t> in_use{0};
std::atomic<int64_t> most{0};

void note(int64_t change) {
  const int64_t now = counting ? in_use += change : 0;
  for (int64_t before = most; now > before && !most.compare_exchange_weak(before, now);) {
  }
}

int64_t size_of(void* block) {
  return static_cast<int64_t>(malloc_usable_size(block));
}

void* noted(void* block) {
  note(size_of(block));
  return block;
}
#endif

} // namespace

#ifdef NFAT_COUNT_HEAP
// All libraries of the process get these in place of glibc's, which they call.
extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t size) {
  return noted(__libc_malloc(size));
}

void* calloc(size_t count, size_t size) {
  return noted(__libc_calloc(count, size));
}

void* realloc(void* block, size_t size) {
  const int64_t before = size_of(block);
  void* moved = __libc_realloc(block, size);
  if (moved != nullptr || size == 0) {
    note(size_of(moved) - before);
  }
  return moved;
}

void* memalign(size_t alignment, size_t size) {
  return noted(__libc_memalign(alignment, size));
}

void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void** block, size_t alignment, size_t size) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  *block = memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}

void free(void* block) {
  note(-size_of(block));
  __libc_free(block);
}
}
#endif

namespace nfat_host {

using executorch::extension::FlatTensorDataMap;
using executorch::extension::MmapDataLoader;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Span;

namespace {

constexpr size_t kRoom = size_t{1} << (sizeof(void*) > 4 ? 34 : 28); // of addresses, not of memory

/// Zeros that do not come from the heap, and that are memory once they are written to; lasts until the process ends.
uint8_t* reserve(size_t size) {
  void* room = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return room == MAP_FAILED ? nullptr : static_cast<uint8_t*>(room);
}

/// Hands out a buffer from its start, as an allocator of a device does, and counts.
class CountingAllocator final : public MemoryAllocator {
 public:
  CountingAllocator() : MemoryAllocator(0, nullptr), room_(reserve(kRoom)) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (room_ == nullptr || !isPowerOf2(alignment) || start > kRoom || size > kRoom - start) {
      return nullptr;
    }
    ++calls;
    bytes += size;
    used_ = start + size;
    buffer = std::max(buffer, used_);
    return room_ + start;
  }

  void reset() override {
    used_ = 0;
  }

  size_t calls = 0;
  size_t bytes = 0;
  size_t buffer = 0; // the largest that was in use at once, with what alignment leaves out

 private:
  uint8_t* const room_;
  size_t used_ = 0;
};

} // namespace

int memory(const Measured& measured) {
  Module module(measured.path, measured.data_files, Module::LoadMode::Mmap);
  Inputs inputs;
  const auto meta = module.method_meta(measured.method);
  if (!meta.ok()) {
    return fail("load", meta.error());
  }
  if (!read_inputs(module, measured.method, measured.arguments, inputs)) {
    return 2;
  }
  std::vector<size_t> sizes;
  std::vector<Span<uint8_t>> buffers;
  for (size_t id = 0; id < meta->num_memory_planned_buffers(); ++id) {
    sizes.push_back(static_cast<size_t>(*meta->memory_planned_buffer_size(id)));
    buffers.emplace_back(reserve(std::max(sizes.back(), size_t{1})), sizes.back());
  }
  std::unique_ptr<MmapDataLoader> loader;
  std::unique_ptr<FlatTensorDataMap> weights;
  for (const std::string& file : measured.data_files) {
    auto opened = MmapDataLoader::from(file.c_str(), MmapDataLoader::MlockConfig::NoMlock);
    if (!opened.ok()) {
      return fail("load", opened.error());
    }
    loader = std::make_unique<MmapDataLoader>(std::move(*opened));
    auto read = FlatTensorDataMap::load(loader.get());
    if (!read.ok()) {
      return fail("load", read.error());
    }
    weights = std::make_unique<FlatTensorDataMap>(std::move(*read));
  }
  HierarchicalAllocator planned({buffers.data(), buffers.size()});
  CountingAllocator of_method;
  CountingAllocator temporary;
  MemoryManager manager(&of_method, &planned, &temporary);
#ifdef NFAT_COUNT_HEAP
  counting = true;
#endif
  auto method = module.program()->load_method(measured.method.c_str(), &manager, nullptr, weights.get());
  if (!method.ok()) {
    return fail("load", method.error());
  }
#ifdef NFAT_COUNT_HEAP
  const int64_t loaded = in_use;
#endif
  Error error = Error::Ok;
  for (size_t call = 0; call < measured.calls && error == Error::Ok; ++call) {
    error = method->set_inputs({inputs.values.data(), inputs.values.size()});
    error = error == Error::Ok ? method->execute() : error;
  }
  if (error != Error::Ok) {
    return fail("run", error);
  }
#ifdef NFAT_COUNT_HEAP
  const int64_t peak = most;
#endif
  std::printf("{\"planned\": [");
  for (size_t id = 0; id < sizes.size(); ++id) {
    std::printf(id != 0 ? ", %zu" : "%zu", sizes[id]);
  }
  std::printf("], \"asked\": %zu, \"calls\": %zu, ", of_method.bytes, of_method.calls);
  std::printf("\"buffer\": %zu, \"temporary\": %zu, ", of_method.buffer, temporary.buffer);
#ifdef NFAT_COUNT_HEAP
  counting = false;
  std::printf("\"heap_loaded\": %lld, ", static_cast<long long>(loaded));
  std::printf("\"heap\": %lld}\n", static_cast<long long>(peak));
#else
  std::printf("\"heap_loaded\": null, \"heap\": null}\n");
#endif
  return 0;
}

} // namespace nfat_host
