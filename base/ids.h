// Integer ids that do not mix. Id<Tag> compares, hashes and prints; -1 means none.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace kadence::base {

template <class Tag, class Rep = int32_t>
struct Id {
  Rep value = -1;
  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using SlotId = Id<struct SlotTag>;                 // a state slot of a StatePool
using PageId = Id<struct PageTag>;                 // a KV page of a KvPool
using RequestId = Id<struct RequestTag, int64_t>;  // a request of an engine

}  // namespace kadence::base

template <class Tag, class Rep>
struct std::hash<kadence::base::Id<Tag, Rep>> {
  size_t operator()(kadence::base::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>()(id.value); }
};
