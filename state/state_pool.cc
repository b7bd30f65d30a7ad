#include "state/state_pool.h"

#include <cstring>

#include "base/error.h"
#include "state/sizes.h"

namespace kadence::state {

using base::ErrorCode;
using base::throw_error;

namespace {

// One slot: states of all layers, then windows of all layers; every part aligned, so a slot is one run of bytes that a
// host tier can move with one copy.
struct Envelope {
  int64_t state_layer = 0, window_layer = 0, windows_at = 0, total = 0;  // bytes
};

Envelope envelope(const StateShape& s) {
  require_at_least(s.layers, 0, "state layers");
  require_at_least(s.HV, s.layers ? 1 : 0, "state HV");
  require_at_least(s.V, s.layers ? 1 : 0, "state V");
  require_at_least(s.K, s.layers ? 1 : 0, "state K");
  require_at_least(s.conv_channels, 0, "conv channels");
  require_float(s.state_dtype, "state dtype");
  require_float(s.conv_dtype, "conv window dtype");
  constexpr int64_t kWindow = 3;  // a width-4 convolution looks back three inputs
  const char* what = "bytes of a state slot";
  Envelope e;
  const int64_t state = checked_mul(checked_mul(s.HV, s.V, what), s.K, what);
  e.state_layer = aligned_part(checked_mul(state, static_cast<int64_t>(size_of(s.state_dtype)), what), what);
  e.window_layer = aligned_part(kWindow * s.conv_channels * static_cast<int64_t>(size_of(s.conv_dtype)), what);
  e.windows_at = checked_mul(e.state_layer, s.layers, what);
  e.total = checked_add(e.windows_at, checked_mul(e.window_layer, s.layers, what), what);
  return e;
}

std::string name(SlotId slot) { return "state slot " + std::to_string(slot.value); }

int32_t& counter(SlotCounts& counts, SlotUse use) {
  switch (use) {
    case SlotUse::kFree:
      return counts.free;
    case SlotUse::kWorking:
      return counts.working;
    case SlotUse::kReserved:
      return counts.reserved;
    case SlotUse::kCached:
      return counts.cached;
  }
  throw_error(ErrorCode::kInternal, "state slot use " + std::to_string(static_cast<int>(use)) + " does not exist");
}

std::string describe(const SlotStamp& s) {
  return std::string("depth ") + std::to_string(s.depth) + (s.written ? ", written" : ", not written") +
         (s.accepted ? ", accepted" : ", not accepted") + (s.origin == Origin::kExtend ? ", by extend" : ", by step");
}

}  // namespace

size_t bytes_per_slot(const StateShape& shape) { return static_cast<size_t>(envelope(shape).total); }

const char* to_string(SlotUse use) {
  switch (use) {
    case SlotUse::kFree:
      return "free";
    case SlotUse::kWorking:
      return "working";
    case SlotUse::kReserved:
      return "reserved";
    case SlotUse::kCached:
      return "cached";
  }
  return "unknown";
}

StatePool::StatePool(const StateShape& shape, int32_t slots, const device::DeviceInfo& device) : shape_(shape) {
  require_at_least(slots, 1, "state slots");
  const Envelope e = envelope(shape);
  const int64_t bytes = checked_mul(e.total, slots, "bytes of the state pool");
  try {
    buffer_ = device::Buffer::allocate(device, static_cast<size_t>(bytes));
  } catch (const base::Error& error) {
    throw_error(ErrorCode::kDevice, "no memory for " + std::to_string(slots) + " state slots of " +
                                        std::to_string(e.total) + " bytes, " + std::to_string(bytes) +
                                        " in all: " + error.what());
  }
  if (bytes > 0) {
    states_ = buffer_.data();
    windows_ = buffer_.as<char>() + e.windows_at;
  }
  const auto state_size = static_cast<int64_t>(size_of(shape.state_dtype));
  const auto conv_size = static_cast<int64_t>(size_of(shape.conv_dtype));
  state_slot_pitch_ = e.total / state_size, state_layer_pitch_ = e.state_layer / state_size;
  window_slot_pitch_ = e.total / conv_size, window_layer_pitch_ = e.window_layer / conv_size;
  poison_ = kPoison && device.kind == device::DeviceKind::kCpu && bytes > 0;
  use_.assign(static_cast<size_t>(slots), SlotUse::kFree);
  stamps_.assign(static_cast<size_t>(slots), SlotStamp{});
  free_.reserve(static_cast<size_t>(slots));
  for (int32_t s = slots; s-- > 0;) free_.push_back(s);  // slot 0 is given first
  counts_.capacity = counts_.free = slots;
}

size_t StatePool::index(SlotId slot) const {
  if (!slot.valid() || slot.value >= slots()) {
    throw_error(ErrorCode::kInternal, name(slot) + " is not one of the pool's " + std::to_string(slots()));
  }
  return static_cast<size_t>(slot.value);
}

size_t StatePool::taken(SlotId slot, const char* verb) const {
  const size_t i = index(slot);
  if (use_[i] == SlotUse::kFree)
    throw_error(ErrorCode::kInternal, std::string("cannot ") + verb + " " + name(slot) + ": it is free");
  return i;
}

void StatePool::poison(SlotId slot) {
  if (!poison_) return;
  const size_t bytes = buffer_.size() / use_.size();
  std::memset(buffer_.as<char>() + static_cast<size_t>(slot.value) * bytes, kPoisonByte, bytes);
}

std::optional<SlotId> StatePool::allocate(SlotUse use) {
  if (use == SlotUse::kFree || use == SlotUse::kCached) {
    throw_error(ErrorCode::kInternal,
                std::string("a state slot is allocated as working or reserved, not as ") + to_string(use));
  }
  if (free_.empty()) return std::nullopt;
  const SlotId slot(free_.back());
  free_.pop_back();
  use_[index(slot)] = use;
  stamps_[index(slot)] = SlotStamp{};
  --counts_.free, ++counter(counts_, use);
  poison(slot);  // also the first time: what no one wrote reads as NaN
  return slot;
}

void StatePool::release(SlotId slot) {
  const size_t i = taken(slot, "release");
  --counter(counts_, use_[i]), ++counts_.free;
  use_[i] = SlotUse::kFree;
  stamps_[i] = SlotStamp{};
  free_.push_back(slot.value);
  poison(slot);
}

void StatePool::set_use(SlotId slot, SlotUse use) {
  const size_t i = taken(slot, "change the use of");
  if (use == SlotUse::kFree) throw_error(ErrorCode::kInternal, name(slot) + " becomes free by release() only");
  if (use_[i] == SlotUse::kCached && use != SlotUse::kCached) {
    throw_error(ErrorCode::kInternal, name(slot) + " is cached and leaves the cache by release() only");
  }
  const SlotStamp& s = stamps_[i];
  if (use == SlotUse::kCached && !(s.written && s.accepted && s.depth > 0)) {
    throw_error(ErrorCode::kInternal, name(slot) + " cannot be cached: " + describe(s));
  }
  --counter(counts_, use_[i]), ++counter(counts_, use);
  use_[i] = use;
}

SlotUse StatePool::use(SlotId slot) const { return use_[index(slot)]; }

void StatePool::set_stamp(SlotId slot, const SlotStamp& stamp) {
  const size_t i = taken(slot, "stamp");
  if (use_[i] == SlotUse::kCached) throw_error(ErrorCode::kInternal, name(slot) + " is cached; its stamp is final");
  stamps_[i] = stamp;
}

const SlotStamp& StatePool::stamp(SlotId slot) const { return stamps_[index(slot)]; }

void StatePool::require_publishable(SlotId slot, int64_t depth, bool extend_only) const {
  const size_t i = taken(slot, "publish");
  const SlotStamp& s = stamps_[i];
  if (depth > 0 && s.written && s.accepted && s.depth == depth && (!extend_only || s.origin == Origin::kExtend)) return;
  throw_error(ErrorCode::kInternal, name(slot) + " cannot be published or restored at depth " + std::to_string(depth) +
                                        (extend_only ? " (extend only)" : "") + ": its stamp says " + describe(s));
}

SlotCounts StatePool::counts() const { return counts_; }

void StatePool::check_accounting() const {
  SlotCounts seen;
  seen.capacity = slots();
  for (size_t i = 0; i < use_.size(); ++i) {
    ++counter(seen, use_[i]);
    const SlotStamp& s = stamps_[i];
    if (use_[i] == SlotUse::kCached && !(s.written && s.accepted && s.depth > 0)) {
      throw_error(ErrorCode::kInternal,
                  "state slot " + std::to_string(i) + " is cached, but its stamp says " + describe(s));
    }
    if (use_[i] == SlotUse::kFree && (s.written || s.accepted || s.depth != -1)) {
      throw_error(ErrorCode::kInternal,
                  "state slot " + std::to_string(i) + " is free, but its stamp says " + describe(s));
    }
  }
  if (seen.free != counts_.free || seen.working != counts_.working || seen.reserved != counts_.reserved ||
      seen.cached != counts_.cached || counts_.capacity != seen.capacity ||
      counts_.free + counts_.working + counts_.reserved + counts_.cached != counts_.capacity) {
    throw_error(ErrorCode::kInternal, "state slot counters are wrong: free " + std::to_string(counts_.free) + " of " +
                                          std::to_string(seen.free) + ", capacity " + std::to_string(counts_.capacity));
  }
  std::vector<bool> listed(use_.size());
  for (int32_t s : free_) {
    const size_t i = index(SlotId(s));
    if (listed[i]) throw_error(ErrorCode::kInternal, name(SlotId(s)) + " is twice in the free list");
    if (use_[i] != SlotUse::kFree)
      throw_error(ErrorCode::kInternal, name(SlotId(s)) + " is in the free list, but " + to_string(use_[i]));
    listed[i] = true;
  }
  if (static_cast<int32_t>(free_.size()) != seen.free) {
    throw_error(ErrorCode::kInternal, "the free list has " + std::to_string(free_.size()) + " state slots, " +
                                          std::to_string(seen.free) + " are free");
  }
}

}  // namespace kadence::state
