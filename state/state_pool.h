// Slots of recurrent state: for every KDA layer the [HV,V,K] state and the [3,C] convolution window, in one envelope a
// slot. A slot carries a stamp (depth, written, accepted, origin): what it holds, checked when it is published and when
// it is restored. The pool owns memory and bookkeeping; it never touches state bytes except to poison and to copy.
// Not thread-safe: one engine thread owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "device/device.h"

namespace kadence::state {

using base::SlotId;

struct StateShape {
  int32_t layers = 0;  // KDA layers
  int32_t HV = 0, V = 0, K = 0;
  base::DType state_dtype = base::DType::kF32;
  int32_t conv_channels = 0;  // C = 2*H*K + HV*V
  base::DType conv_dtype = base::DType::kF32;
};
// Bytes of one slot, all layers, state and window, alignment included. What `kadence plan` prints.
size_t bytes_per_slot(const StateShape& shape);

enum class SlotUse : uint8_t { kFree, kWorking, kReserved, kCached };
const char* to_string(SlotUse use);

// Who wrote the state's bits: extend (prefill arithmetic) or step (decode arithmetic).
enum class Origin : uint8_t { kExtend, kStep };

struct SlotStamp {
  int64_t depth = -1;     // tokens that the state has seen; -1 = unknown
  bool written = false;   // something wrote state and window at that depth
  bool accepted = false;  // every token of it is accepted (no draft)
  Origin origin = Origin::kExtend;
};

struct SlotCounts {
  int32_t capacity = 0, free = 0, working = 0, reserved = 0, cached = 0;
};

class StatePool {
 public:
  // Allocates `slots` >= 1 slots. Throws Error{kDevice} when the memory is not to be had, naming bytes and slots.
  StatePool(const StateShape& shape, int32_t slots, const device::DeviceInfo& device);

  // A free slot for `use` (working or reserved) with an empty stamp, or nothing when none is free. With
  // KADENCE_DEBUG_CHECKS its bytes are NaN (CPU).
  std::optional<SlotId> allocate(SlotUse use);
  // Back to the free list; the stamp is cleared. With KADENCE_DEBUG_CHECKS the bytes are filled with NaN (CPU).
  void release(SlotId slot);
  // Moves a slot between uses, e.g. working -> cached on publication. Throws Error{kInternal} if it is free, if it
  // would be cached without a stamp that says written, accepted and a depth, or if it is cached (release() ends that).
  void set_use(SlotId slot, SlotUse use);
  SlotUse use(SlotId slot) const;

  // Throws Error{kInternal} for a free slot and for a cached one, whose stamp is final.
  void set_stamp(SlotId slot, const SlotStamp& stamp);
  const SlotStamp& stamp(SlotId slot) const;
  // Throws Error{kInternal} unless the stamp says: written, accepted, exactly this depth (and this origin, if exact).
  void require_publishable(SlotId slot, int64_t depth, bool extend_only) const;

  SlotCounts counts() const;
  // free + working + reserved + cached = capacity, the free list has no slot twice, cached slots are stamped and free
  // ones are not. Throws Error{kInternal}.
  void check_accounting() const;

  const StateShape& shape() const { return shape_; }
  int32_t slots() const { return static_cast<int32_t>(use_.size()); }
  size_t bytes() const { return buffer_.size(); }
  // State of layer l in slot s at states() + s*state_slot_pitch() + l*state_layer_pitch(), elements of state_dtype.
  void* states() const { return states_; }
  int64_t state_slot_pitch() const { return state_slot_pitch_; }
  int64_t state_layer_pitch() const { return state_layer_pitch_; }
  // Window likewise, elements of conv_dtype.
  void* windows() const { return windows_; }
  int64_t window_slot_pitch() const { return window_slot_pitch_; }
  int64_t window_layer_pitch() const { return window_layer_pitch_; }

 private:
  size_t index(SlotId slot) const;
  size_t taken(SlotId slot, const char* verb) const;  // index of a slot that is not free
  void poison(SlotId slot);

  StateShape shape_;
  device::Buffer buffer_;
  void *states_ = nullptr, *windows_ = nullptr;
  int64_t state_slot_pitch_ = 0, state_layer_pitch_ = 0, window_slot_pitch_ = 0, window_layer_pitch_ = 0;
  bool poison_ = false;
  SlotCounts counts_;
  std::vector<SlotUse> use_;
  std::vector<SlotStamp> stamps_;
  std::vector<int32_t> free_;  // the last one is given next
};

// Copies and clears that the executor runs on the device before the first layer of a step (deferred: the scheduler
// thread never touches state memory). A copy supersedes a clear of the same destination. All of it may run in any
// order: a slot that is written has one writer and is not read. Throws Error{kInternal} otherwise.
class CopyPlan {
 public:
  void copy(SlotId src, SlotId dst);
  void clear(SlotId slot);
  bool empty() const { return src_.empty() && clear_.empty(); }
  const std::vector<int32_t>& src() const { return src_; }
  const std::vector<int32_t>& dst() const { return dst_; }
  const std::vector<int32_t>& cleared() const { return clear_; }
  void reset();

 private:
  std::vector<int32_t> src_, dst_, clear_;
};

// The grids of architecture.md section 4. All in tokens.
struct Grids {
  int64_t tree_page = 64;   // lcm(page, every side-buffer group)
  int64_t checkpoint = 64;  // lcm(64, tree_page)
  int64_t track = 256;      // lcm(checkpoint, track_interval)
};
// index_group: rows of a pooled index page in tokens (64 * index_kpool), 0 = none. Throws Error{kInvalidArgument}.
Grids make_grids(int64_t page_size, int64_t track_interval, int64_t index_group = 0);

// Depths at which the grant [begin, end) of a prompt of n tokens writes checkpoints, absolute, ascending, without
// duplicates: floor((n-1)/G)*G and floor(n/G)*G if inside, the grant's end when it ends on the grid before n (chunk
// end), and `branch` (a discovered branch point, 0 = none; ignored off the grid). Only depths > begin and <= end.
// Pure function; begin is on the grid.
std::vector<int64_t> checkpoint_depths(int64_t begin, int64_t end, int64_t n, int64_t branch, int64_t grid);

}  // namespace kadence::state
