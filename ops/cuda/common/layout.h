// Where the parts of a workspace begin.
#pragma once

#include <cstddef>

#include "base/math.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda {

class WorkspaceLayout {
 public:
  // Offset of the next part, which has `bytes` bytes; a multiple of kWorkspaceAlign.
  size_t place(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += base::round_up(bytes, kWorkspaceAlign);
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace kadence::ops::cuda
