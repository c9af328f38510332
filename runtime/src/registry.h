// Which backends can run here.

#pragma once

#include <string>
#include <string_view>

namespace nfat {

/// The name that fat programs delegate to.
constexpr char kBackendId[] = "NfatBackend";

/// Why a backend cannot be used; empty if it can.
std::string backend_problem(std::string_view id);

/// Text that came out of a program, fit for a log: other than printable ASCII, and what is too long, is left out.
std::string printable(std::string_view text);

} // namespace nfat
