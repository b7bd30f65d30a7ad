#include "state/state_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace kadence::state {
namespace {

using base::DType;
using base::ErrorCode;

const device::DeviceInfo& cpu() {
  static const device::DeviceInfo info = device::cpu_info(1);
  return info;
}

StateShape small() {
  StateShape s;
  s.layers = 3, s.HV = 2, s.V = 16, s.K = 8, s.conv_channels = 2 * 2 * 8 + 2 * 16;
  return s;
}

template <class F>
std::string refused(ErrorCode code, F f) {
  try {
    f();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

constexpr SlotStamp kGood{128, true, true, Origin::kExtend};

TEST(StatePoolLayout, EveryPartIsAlignedAndNothingOverlaps) {
  for (const DType st : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType ct : {DType::kF32, DType::kBF16}) {
      StateShape s = small();
      s.state_dtype = st, s.conv_dtype = ct, s.K = 10, s.conv_channels = 37;  // parts that need padding
      const StatePool pool(s, 4, cpu());
      EXPECT_EQ(pool.bytes(), 4 * bytes_per_slot(s));
      std::set<std::pair<const char*, const char*>> parts;
      for (int slot = 0; slot < 4; ++slot) {
        for (int l = 0; l < s.layers; ++l) {
          const char* state =
              static_cast<char*>(pool.states()) +
              (slot * pool.state_slot_pitch() + l * pool.state_layer_pitch()) * static_cast<int64_t>(size_of(st));
          const char* window =
              static_cast<char*>(pool.windows()) +
              (slot * pool.window_slot_pitch() + l * pool.window_layer_pitch()) * static_cast<int64_t>(size_of(ct));
          EXPECT_EQ(reinterpret_cast<uintptr_t>(state) % 256, 0u);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(window) % 256, 0u);
          parts.emplace(state, state + static_cast<size_t>(s.HV * s.V * s.K) * size_of(st));
          parts.emplace(window, window + static_cast<size_t>(3 * s.conv_channels) * size_of(ct));
          // One slot is one run of bytes.
          const char* begin = static_cast<char*>(pool.states()) + static_cast<size_t>(slot) * bytes_per_slot(s);
          EXPECT_TRUE(state >= begin && window > state && window + 3 * 37 * size_of(ct) <= begin + bytes_per_slot(s));
        }
      }
      EXPECT_EQ(parts.size(), 4u * 3u * 2u);
      const char* end = nullptr;
      for (const auto& [b, e] : parts) {
        EXPECT_GE(b, end);
        end = e;
      }
      EXPECT_LE(end, static_cast<char*>(pool.states()) + pool.bytes());
    }
  }
}

TEST(StatePoolLayout, BytesPerSlotOfKnownModels) {
  StateShape k3;  // 69 KDA layers of 96 heads: 6 MiB a layer in fp32
  k3.layers = 69, k3.HV = 96, k3.V = k3.K = 128, k3.conv_channels = 3 * 96 * 128, k3.conv_dtype = DType::kBF16;
  EXPECT_EQ(bytes_per_slot(k3), 69u * (6u * 1024 * 1024 + 3u * 36864 * 2));
  StateShape rank = k3;  // an eighth of the heads
  rank.layers = 1, rank.HV = 12, rank.conv_channels = 4608;
  EXPECT_EQ(bytes_per_slot(rank), 786432u + 27648u);
  EXPECT_EQ(bytes_per_slot(small()), 3u * (1024u + 768u));  // 2*16*8 and 3*64 floats
}

TEST(StatePoolLayout, SizesThatCannotBeAreRefusedByName) {
  StateShape s = small();
  s.HV = s.V = s.K = std::numeric_limits<int32_t>::max();
  EXPECT_NE(refused(ErrorCode::kInvalidArgument, [&] { bytes_per_slot(s); }).find("state slot"), std::string::npos);
  s = small(), s.V = 0;
  EXPECT_NE(refused(ErrorCode::kInvalidArgument, [&] { bytes_per_slot(s); }).find("state V"), std::string::npos);
  s = small(), s.state_dtype = DType::kI32;
  EXPECT_NE(refused(ErrorCode::kInvalidArgument, [&] { bytes_per_slot(s); }).find("int32"), std::string::npos);
  refused(ErrorCode::kInvalidArgument, [&] { StatePool(small(), 0, cpu()); });
  s = small(), s.layers = 1 << 20, s.HV = 1 << 10, s.V = s.K = 1 << 10;  // 2^52 bytes a slot
#ifndef __SANITIZE_ADDRESS__                                             // which aborts instead of refusing
  const std::string m = refused(ErrorCode::kDevice, [&] { StatePool(s, 64, cpu()); });
  EXPECT_NE(m.find("64 state slots"), std::string::npos) << m;
  EXPECT_NE(m.find(std::to_string(64 * static_cast<int64_t>(bytes_per_slot(s)))), std::string::npos) << m;
#endif
  s.layers = std::numeric_limits<int32_t>::max(), s.HV = 1 << 11;
  refused(ErrorCode::kInvalidArgument, [&] { StatePool(s, std::numeric_limits<int32_t>::max(), cpu()); });
}

TEST(StatePoolLayout, PoolBeyondTwoGibibytesIsAddressedWhole) {
  StateShape s;
  s.layers = 1, s.HV = 1, s.V = s.K = 1024, s.conv_channels = 16;  // 4 MiB a slot
  StatePool pool(s, 520, cpu());
  auto* end = static_cast<float*>(pool.states()) + 519 * pool.state_slot_pitch();
  EXPECT_EQ(reinterpret_cast<char*>(end) - static_cast<char*>(pool.states()), 519ll * (4194304 + 256));
  end[0] = 1.5f;
  EXPECT_EQ(end[0], 1.5f);  // lazily committed: only touched memory costs
}

TEST(StatePool, GivesEverySlotOnceThenNothing) {
  StatePool pool(small(), 3, cpu());
  std::set<SlotId> got;
  for (int i = 0; i < 3; ++i) got.insert(pool.allocate(SlotUse::kWorking).value());
  EXPECT_EQ(got, (std::set<SlotId>{SlotId(0), SlotId(1), SlotId(2)}));  // slot 0 is as good as any
  EXPECT_FALSE(pool.allocate(SlotUse::kWorking));
  EXPECT_FALSE(pool.allocate(SlotUse::kReserved));
  pool.release(SlotId(1));
  EXPECT_EQ(pool.allocate(SlotUse::kReserved), SlotId(1));
  pool.check_accounting();
}

// Neither the padding slot -1 nor a slot past the end ever lands on a real one.
TEST(B26, SlotThatIsNoneOrFreeIsRefused) {
  StatePool pool(small(), 2, cpu());
  const SlotId a = pool.allocate(SlotUse::kWorking).value(), other(1 - a.value);
  for (const SlotId bad : {SlotId(), SlotId(2), SlotId(1 << 30)}) {
    refused(ErrorCode::kInternal, [&] { pool.release(bad); });
    refused(ErrorCode::kInternal, [&] { pool.use(bad); });
    refused(ErrorCode::kInternal, [&] { pool.stamp(bad); });
  }
  refused(ErrorCode::kInternal, [&] { pool.release(other); });
  refused(ErrorCode::kInternal, [&] { pool.set_use(other, SlotUse::kReserved); });
  refused(ErrorCode::kInternal, [&] { pool.set_stamp(other, kGood); });
  refused(ErrorCode::kInternal, [&] { pool.set_use(a, SlotUse::kFree); });
  refused(ErrorCode::kInternal, [&] { pool.allocate(SlotUse::kFree); });
  refused(ErrorCode::kInternal, [&] { pool.allocate(SlotUse::kCached); });
  pool.release(a);
  refused(ErrorCode::kInternal, [&] { pool.release(a); });
  pool.check_accounting();
  EXPECT_EQ(pool.counts().free, 2);
}

// A state is published and restored under the exact number of tokens that it has seen.
TEST(B35, LabelThatIsNotTheContentIsRefused) {
  StatePool pool(small(), 2, cpu());
  const SlotId s = pool.allocate(SlotUse::kWorking).value();
  pool.set_stamp(s, kGood);
  pool.require_publishable(s, 128, true);
  for (const int64_t depth : {-1, 0, 64, 127, 129, 192}) {
    const std::string m = refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, depth, false); });
    EXPECT_NE(m.find("depth 128"), std::string::npos) << m;
    EXPECT_NE(m.find("at depth " + std::to_string(depth)), std::string::npos) << m;
  }
  pool.set_use(s, SlotUse::kCached);
  refused(ErrorCode::kInternal, [&] { pool.set_stamp(s, {192, true, true, Origin::kExtend}); });  // final
  refused(ErrorCode::kInternal, [&] { pool.set_use(s, SlotUse::kWorking); });  // no one goes on in it
  EXPECT_EQ(pool.stamp(s).depth, 128);
}

TEST(B35, StepWrittenStateIsNotExtendWritten) {
  StatePool pool(small(), 1, cpu());
  const SlotId s = pool.allocate(SlotUse::kWorking).value();
  pool.set_stamp(s, {128, true, true, Origin::kStep});
  pool.require_publishable(s, 128, false);
  EXPECT_NE(refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, 128, true); }).find("by step"),
            std::string::npos);
}

// A slot that nobody wrote is never handed on, whatever it was before.
TEST(B42, StateThatNobodyWroteIsRefused) {
  StatePool pool(small(), 1, cpu());
  SlotId s = pool.allocate(SlotUse::kWorking).value();
  refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, 128, false); });
  refused(ErrorCode::kInternal, [&] { pool.set_use(s, SlotUse::kCached); });
  pool.set_stamp(s, {128, false, true, Origin::kExtend});
  EXPECT_NE(refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, 128, false); }).find("not written"),
            std::string::npos);
  refused(ErrorCode::kInternal, [&] { pool.set_use(s, SlotUse::kCached); });

  pool.set_stamp(s, kGood);
  pool.set_use(s, SlotUse::kCached);
  pool.release(s);  // the next tenant does not inherit the stamp
  s = pool.allocate(SlotUse::kWorking).value();
  EXPECT_EQ(pool.stamp(s).depth, -1);
  EXPECT_FALSE(pool.stamp(s).written);
  refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, 128, false); });
  refused(ErrorCode::kInternal, [&] { pool.set_use(s, SlotUse::kCached); });
}

TEST(B42, FreeSlotIsRefused) {
  const StatePool pool(small(), 1, cpu());
  EXPECT_NE(refused(ErrorCode::kInternal, [&] { pool.require_publishable(SlotId(0), 128, false); }).find("free"),
            std::string::npos);
}

// A state that has seen a draft token is not cacheable.
TEST(B45, StateWithDraftTokensIsRefused) {
  StatePool pool(small(), 1, cpu());
  const SlotId s = pool.allocate(SlotUse::kWorking).value();
  pool.set_stamp(s, {128, true, false, Origin::kStep});
  EXPECT_NE(refused(ErrorCode::kInternal, [&] { pool.require_publishable(s, 128, false); }).find("not accepted"),
            std::string::npos);
  refused(ErrorCode::kInternal, [&] { pool.set_use(s, SlotUse::kCached); });
}

#ifdef KADENCE_DEBUG_CHECKS
// What no one wrote, and what somebody wrote before the last release, reads as NaN in the pool's own dtype.
TEST(B31, FreedAndFreshSlotsAreNaN) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    StateShape s = small();
    s.state_dtype = t, s.conv_dtype = t;
    StatePool pool(s, 3, cpu());
    const auto count_nan = [&](SlotId slot) {
      int64_t n = 0;
      for (int64_t i = 0; i < pool.state_slot_pitch(); ++i)
        n += std::isnan(base::load_f32(pool.states(), slot.value * pool.state_slot_pitch() + i, t));
      return n;
    };
    const SlotId a = pool.allocate(SlotUse::kWorking).value(), b = pool.allocate(SlotUse::kWorking).value();
    EXPECT_EQ(count_nan(a), pool.state_slot_pitch());
    for (const SlotId slot : {a, b}) {
      for (int64_t i = 0; i < pool.state_slot_pitch(); ++i)
        base::store_f32(pool.states(), slot.value * pool.state_slot_pitch() + i, t, 1);
    }
    pool.release(a);
    EXPECT_EQ(count_nan(a), pool.state_slot_pitch());
    EXPECT_EQ(count_nan(b), 0);  // its neighbour is left alone
    EXPECT_EQ(pool.allocate(SlotUse::kWorking), a);
    EXPECT_EQ(count_nan(a), pool.state_slot_pitch());
  }
}
#endif

TEST(V15, SlotAccountingHoldsUnderRandomUse) {
  constexpr int kSlots = 12;
  StatePool pool(small(), kSlots, cpu());
  std::vector<SlotUse> model(kSlots, SlotUse::kFree);
  std::vector<bool> stamped(kSlots);
  base::Rng rng(15);
  int full = 0, refusals = 0;
  for (int step = 0; step < 30000; ++step) {
    const auto i = static_cast<size_t>(rng.below(kSlots));
    const SlotId s(static_cast<int32_t>(i));
    const auto use = static_cast<SlotUse>(rng.below(4));
    const auto attempt = [&](bool legal, auto f) {
      if (legal) {
        f();
      } else {
        EXPECT_THROW(f(), base::Error);
        ++refusals;
      }
    };
    switch (rng.below(6)) {
      case 0:
      case 1: {
        if (use == SlotUse::kFree || use == SlotUse::kCached) break;
        const auto got = pool.allocate(use);
        const bool any = std::find(model.begin(), model.end(), SlotUse::kFree) != model.end();
        ASSERT_EQ(got.has_value(), any);
        if (!got && ++full) break;
        ASSERT_EQ(model[static_cast<size_t>(got->value)], SlotUse::kFree);
        model[static_cast<size_t>(got->value)] = use, stamped[static_cast<size_t>(got->value)] = false;
        break;
      }
      case 2:
        attempt(model[i] != SlotUse::kFree, [&] { pool.release(s), model[i] = SlotUse::kFree, stamped[i] = false; });
        break;
      case 3:
        attempt(model[i] == SlotUse::kWorking || model[i] == SlotUse::kReserved,
                [&] { pool.set_stamp(s, kGood), stamped[i] = true; });
        break;
      default: {
        const bool leaves_cache = model[i] == SlotUse::kCached && use != SlotUse::kCached;
        const bool bare = use == SlotUse::kCached && !stamped[i];
        attempt(model[i] != SlotUse::kFree && use != SlotUse::kFree && !leaves_cache && !bare,
                [&] { pool.set_use(s, use), model[i] = use; });
      }
    }
    pool.check_accounting();
    const SlotCounts c = pool.counts();
    const auto count = [&](SlotUse u) { return std::count(model.begin(), model.end(), u); };
    ASSERT_EQ(c.free, count(SlotUse::kFree));
    ASSERT_EQ(c.working, count(SlotUse::kWorking));
    ASSERT_EQ(c.reserved, count(SlotUse::kReserved));
    ASSERT_EQ(c.cached, count(SlotUse::kCached));
    ASSERT_EQ(c.free + c.working + c.reserved + c.cached, kSlots);
    for (size_t j = 0; j < model.size(); ++j) ASSERT_EQ(pool.use(SlotId(static_cast<int32_t>(j))), model[j]);
  }
  EXPECT_GT(full, 100);
  EXPECT_GT(refusals, 1000);
}

TEST(CopyPlan, CopySupersedesClearInEitherOrder) {
  CopyPlan p;
  EXPECT_TRUE(p.empty());
  p.clear(SlotId(4));
  p.clear(SlotId(5));
  p.clear(SlotId(5));
  p.copy(SlotId(1), SlotId(4));
  p.copy(SlotId(1), SlotId(6));  // several may read one slot
  p.clear(SlotId(6));
  EXPECT_EQ(p.src(), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(p.dst(), (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(p.cleared(), (std::vector<int32_t>{5}));
  p.reset();
  EXPECT_TRUE(p.empty());
  EXPECT_TRUE(p.dst().empty());
}

TEST(CopyPlan, WhatDependsOnOrderIsRefused) {
  CopyPlan p;
  p.copy(SlotId(1), SlotId(2));
  p.clear(SlotId(7));
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(3), SlotId(2)); });  // two writers
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(2), SlotId(3)); });  // reads what is written
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(3), SlotId(1)); });  // writes what is read
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(7), SlotId(3)); });
  refused(ErrorCode::kInternal, [&] { p.clear(SlotId(1)); });
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(3), SlotId(3)); });
  refused(ErrorCode::kInternal, [&] { p.copy(SlotId(), SlotId(3)); });
  refused(ErrorCode::kInternal, [&] { p.clear(SlotId()); });
  EXPECT_EQ(p.dst().size(), 1u);
  EXPECT_EQ(p.cleared().size(), 1u);
}

}  // namespace
}  // namespace kadence::state
