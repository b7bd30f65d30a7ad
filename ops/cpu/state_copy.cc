// Copies and clears of whole slots over all layers.
#include <cstring>

#include "ops/cpu/kda_cpu.h"

namespace kadence::ops::cpu {
namespace {

template <class View>
void copy_slot(const View& v, int64_t layer, int32_t src, int32_t dst, size_t bytes) {
  std::memcpy(slot_address(v, dst, layer), slot_address(v, src, layer), bytes);
}

}  // namespace

void state_copy(const StateCopyArgs& a, device::Stream& stream) {
  const size_t state_bytes = static_cast<size_t>(a.HV) * a.V * a.K * base::size_of(a.states.dtype);
  const size_t window_bytes = static_cast<size_t>(a.conv_channels) * kConvWindow * base::size_of(a.windows.dtype);
  const int64_t layers = a.states.base ? a.states.layers : a.windows.layers;
  const auto usable = [&](int32_t slot) {
    return slot >= 0 && (!a.states.base || slot < a.states.slots) && (!a.windows.base || slot < a.windows.slots);
  };
  const int64_t slot_bytes =
      static_cast<int64_t>((a.states.base ? state_bytes : 0) + (a.windows.base ? window_bytes : 0));
  run_tasks(stream, layers * a.copies, layers * a.copies * slot_bytes * 2, [&](int64_t task, int) {
    const int64_t layer = task / a.copies;
    const int32_t src = a.src[task % a.copies], dst = a.dst[task % a.copies];
    if (!usable(src) || !usable(dst)) return;
    if (a.states.base) copy_slot(a.states, layer, src, dst, state_bytes);
    if (a.windows.base) copy_slot(a.windows, layer, src, dst, window_bytes);
  });
  run_tasks(stream, layers * a.clears, layers * a.clears * slot_bytes, [&](int64_t task, int) {
    const int64_t layer = task / a.clears;
    const int32_t slot = a.clear[task % a.clears];
    if (!usable(slot)) return;
    if (a.states.base) std::memset(slot_address(a.states, slot, layer), 0, state_bytes);
    if (a.windows.base) std::memset(slot_address(a.windows, slot, layer), 0, window_bytes);
  });
}

}  // namespace kadence::ops::cpu
