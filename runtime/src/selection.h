// Which payload of a container to run.

#pragma once

#include <memory>

#include <executorch/runtime/core/named_data_map.h>

#include "container.h"
#include "loaded_method.h"
#include "remembered.h"
#include "report.h"
#include "verification.h"

namespace nfat {

/// What a fat program asks for.
struct Request {
  const char* method;
  /// Named data of the outer program; may be null.
  const executorch::runtime::NamedDataMap* named_data;
  Verify verify;
  /// Where the payloads that have passed their own checks are remembered.
  Remembered* remembered = nullptr;
};

/// The first payload that can run here, has the bytes it should have, and passes its own check; null if there is none. The report gets a line
/// for each payload that was looked at.
std::unique_ptr<LoadedMethod> select(const Container& container, const Request& request, Report& report);

} // namespace nfat
