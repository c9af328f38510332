// What loading and calling a method costs in this process: time, and memory.

#pragma once

#include <string>
#include <vector>

#include <executorch/runtime/core/error.h>

namespace nfat_host {

/// A call of a method of a program, and how often to make it.
struct Measured {
  std::string path;
  std::vector<std::string> data_files;
  std::string method;
  std::vector<std::string> arguments;
  size_t calls;
};

/// Says what the method does not do, such as ``load``, and why; returns the process's exit code.
int fail(const char* what, executorch::runtime::Error error);

/// Loads the method, calls it, and prints one JSON object: seconds of loading and of each call, and bytes of resident
/// memory before and after loading, after the calls, and at most. Returns the process's exit code, as the others do.
int bench(const Measured& measured);

/// The same with a tracer: writes an ETDump of all calls to the standard output.
int trace(const Measured& measured);

/// Loads and calls the method with counting allocators, and prints one JSON object of bytes: planned memory by id; what
/// the method allocator was asked for, in how many calls, and how large a buffer that takes; the same buffer for the
/// temporary allocator; and what was taken from the heap besides, by backends and kernels, after loading and at most.
/// The heap is null where its functions cannot be replaced: without glibc, and with sanitizers.
int memory(const Measured& measured);

} // namespace nfat_host
