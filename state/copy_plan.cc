#include <algorithm>

#include "base/error.h"
#include "state/state_pool.h"

namespace kadence::state {

namespace {

bool contains(const std::vector<int32_t>& v, SlotId slot) {
  return std::find(v.begin(), v.end(), slot.value) != v.end();
}

[[noreturn]] void refuse(const std::string& what) {
  base::throw_error(base::ErrorCode::kInternal, "copy plan: " + what);
}

std::string name(SlotId slot) { return "slot " + std::to_string(slot.value); }

}  // namespace

void CopyPlan::copy(SlotId src, SlotId dst) {
  if (!src.valid() || !dst.valid() || src == dst) refuse("cannot copy " + name(src) + " to " + name(dst));
  if (contains(dst_, dst)) refuse(name(dst) + " is written by two copies");
  if (contains(src_, dst)) refuse(name(dst) + " is both read and written");
  if (contains(dst_, src) || contains(clear_, src)) refuse(name(src) + " is both written and read");
  std::erase(clear_, dst.value);
  src_.push_back(src.value);
  dst_.push_back(dst.value);
}

void CopyPlan::clear(SlotId slot) {
  if (!slot.valid()) refuse("cannot clear " + name(slot));
  if (contains(src_, slot)) refuse(name(slot) + " is both read and cleared");
  if (contains(dst_, slot) || contains(clear_, slot)) return;
  clear_.push_back(slot.value);
}

void CopyPlan::reset() {
  src_.clear();
  dst_.clear();
  clear_.clear();
}

}  // namespace kadence::state
