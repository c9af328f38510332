// What loading and calling a method costs in this process.

#pragma once

#include <string>
#include <vector>

namespace nfat_host {

/// Loads a method, calls it so many times, and prints one JSON object: seconds of loading and of each call, and bytes
/// of resident memory before and after loading, and after the calls. Returns the process's exit code.
int bench(
    const std::string& path,
    const std::string& method,
    const std::vector<std::string>& arguments,
    size_t calls);

} // namespace nfat_host
