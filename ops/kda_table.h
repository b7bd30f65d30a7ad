// Private to ops: the table of KDA backends and the size of the metadata buffer.
#pragma once

#include <span>
#include <string_view>

#include "ops/kda_backend.h"

namespace kadence::ops {

// In order of preference for "auto".
std::span<const KdaBackend* const> kda_table();
// Null if there is no such backend in this build.
const KdaBackend* find_kda_backend(std::string_view name);
// Bytes of the buffer that upload() fills; a function of the problem's bounds and offset type alone.
size_t kda_metadata_bytes(const KdaProblem& problem);

}  // namespace kadence::ops
