// Spreads independent rows over a stream's workers, but only when there is enough to do to pay for waking them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "device/device.h"

namespace kadence::ops {

// Calls f(row) for rows [0, rows); `row_cost` in elements touched (about a third of a nanosecond each).
template <class F>
void for_rows(device::Stream& stream, int64_t rows, int64_t row_cost, const F& f) {
  constexpr int64_t kSerial = 1 << 16, kTask = 1 << 14;
  if (stream.info().threads == 1 || rows * row_cost < kSerial) {
    for (int64_t r = 0; r < rows; ++r) f(r);
    return;
  }
  const int64_t per_task = std::max<int64_t>(1, kTask / std::max<int64_t>(1, row_cost));
  stream.parallel_for(base::ceil_div(rows, per_task), [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * per_task);
    for (int64_t r = task * per_task; r < end; ++r) f(r);
  });
}

}  // namespace kadence::ops
