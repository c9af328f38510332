// Calls of code that may throw, from a library that throws nothing.

#pragma once

#include <exception>
#include <string>

#include "registry.h"

namespace nfat {

/// Makes a call that reaches a backend. Returns what it threw, fit for a log; empty if it threw nothing.
///
/// Built with -fno-exceptions, it catches nothing.
template <typename Call>
[[nodiscard]] std::string thrown_by(const Call& call) {
#if defined(__cpp_exceptions)
  try {
    call();
  } catch (const std::exception& error) {
    return "an exception: " + printable(error.what());
  } catch (...) {
    return "something other than a std::exception";
  }
#else
  call();
#endif
  return {};
}

} // namespace nfat
