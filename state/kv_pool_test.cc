#include "state/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace kadence::state {
namespace {

using base::DType;

const device::DeviceInfo& cpu() {
  static const device::DeviceInfo info = device::cpu_info(1);
  return info;
}

KvShape small(DType t = DType::kF32) {
  KvShape s;
  s.layers = 2, s.width = 6, s.page_size = 4, s.dtype = t;
  return s;
}

TEST(KvPoolLayout, PagesAndLayersDoNotOverlap) {
  for (const DType t : {DType::kF32, DType::kBF16}) {
    const KvPool pool(small(t), 5, cpu());
    EXPECT_EQ(pool.bytes(), 5 * bytes_per_page(small(t)));
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (int64_t p = 0; p < 5; ++p) {
      for (int64_t l = 0; l < 2; ++l) {
        const int64_t at = l * pool.layer_pitch() + p * pool.page_pitch();
        EXPECT_EQ(at * static_cast<int64_t>(size_of(t)) % 256, 0);
        parts.emplace_back(at, at + 4 * 6);
      }
    }
    std::sort(parts.begin(), parts.end());
    for (size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i].first, parts[i - 1].second);
    EXPECT_LE(parts.back().second * static_cast<int64_t>(size_of(t)), static_cast<int64_t>(pool.bytes()));
  }
  EXPECT_EQ(bytes_per_page(small()), 2u * 256u);
  KvShape mla;
  mla.layers = 7, mla.width = 512 + 64, mla.dtype = DType::kBF16;
  EXPECT_EQ(bytes_per_page(mla), 7u * 64u * 576u * 2u);
}

TEST(KvPoolLayout, ModelsWithoutAttentionHaveBookkeepingOnly) {
  KvShape s;
  KvPool pool(s, 3, cpu());
  EXPECT_EQ(pool.bytes(), 0u);
  EXPECT_EQ(pool.allocate(3)->size(), 3u);
  pool.check_accounting();
}

TEST(KvPoolLayout, SizesThatCannotBeAreRefused) {
  KvShape s = small();
  EXPECT_THROW(KvPool(s, 0, cpu()), base::Error);
  s.width = s.page_size = s.layers = std::numeric_limits<int32_t>::max();
  EXPECT_THROW(bytes_per_page(s), base::Error);
  s = small(), s.width = 0;
  EXPECT_THROW(bytes_per_page(s), base::Error);
  s = small(), s.dtype = DType::kU8;
  EXPECT_THROW(bytes_per_page(s), base::Error);
}

TEST(KvPool, MisuseIsRefused) {
  KvPool pool(small(), 3, cpu());
  const auto got = pool.allocate(2).value();
  EXPECT_THROW(pool.release(PageId(2)), base::Error);
  EXPECT_THROW(pool.release(PageId()), base::Error);
  EXPECT_THROW(pool.release(PageId(3)), base::Error);
  EXPECT_THROW(pool.set_use(PageId(2), PageUse::kCached), base::Error);
  EXPECT_THROW(pool.set_use(got[0], PageUse::kFree), base::Error);
  EXPECT_THROW(pool.allocate(-1), base::Error);
  pool.set_use(got[0], PageUse::kCached);
  EXPECT_THROW(pool.set_use(got[0], PageUse::kWorking), base::Error);  // others read it
  pool.release(got);
  EXPECT_THROW(pool.release(got[0]), base::Error);
  pool.check_accounting();
  EXPECT_EQ(pool.counts().free, 3);
}

// A request gets all its pages or none; the pool running out is an answer, not an error.
TEST(B58, AllocationIsAllOrNothing) {
  KvPool pool(small(), 4, cpu());
  const auto three = pool.allocate(3).value();
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(pool.allocate(2).has_value());
    EXPECT_EQ(pool.counts().free, 1);
    EXPECT_EQ(pool.counts().working, 3);
    pool.check_accounting();
  }
  EXPECT_EQ(pool.allocate(0)->size(), 0u);
  EXPECT_EQ(pool.allocate(1)->size(), 1u);
  pool.release(three);
  EXPECT_EQ(pool.allocate(3)->size(), 3u);
}

#ifdef KADENCE_DEBUG_CHECKS
TEST(B31, FreedAndFreshPagesAreNaN) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    KvPool pool(small(t), 2, cpu());
    const auto nans = [&](PageId p) {
      int n = 0;
      for (int64_t l = 0; l < 2; ++l) {
        for (int64_t i = 0; i < 24; ++i)
          n += std::isnan(base::load_f32(pool.data(), l * pool.layer_pitch() + p.value * pool.page_pitch() + i, t));
      }
      return n;
    };
    const auto got = pool.allocate(2).value();
    EXPECT_EQ(nans(got[0]), 48);
    for (const PageId p : got) {
      for (int64_t i = 0; i < pool.page_pitch(); ++i)
        base::store_f32(pool.data(), p.value * pool.page_pitch() + i, t, 2);
    }
    pool.release(got[0]);
    EXPECT_EQ(nans(got[0]), 48);
    EXPECT_EQ(nans(got[1]), 0);
  }
}
#endif

TEST(V15, PageAccountingHoldsUnderRandomUse) {
  constexpr int kPages = 20;
  KvPool pool(small(), kPages, cpu());
  std::vector<PageUse> model(kPages, PageUse::kFree);
  base::Rng rng(16);
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto i = static_cast<size_t>(rng.below(kPages));
    const PageId p(static_cast<int32_t>(i));
    const auto free = std::count(model.begin(), model.end(), PageUse::kFree);
    if (const uint64_t what = rng.below(4); what == 0) {
      const auto n = static_cast<int32_t>(rng.below(7));
      const auto got = pool.allocate(n);
      ASSERT_EQ(got.has_value(), n <= free);
      if (!got) ++refused;
      for (const PageId g : got.value_or(std::vector<PageId>())) {
        ASSERT_EQ(model[static_cast<size_t>(g.value)], PageUse::kFree);
        model[static_cast<size_t>(g.value)] = PageUse::kWorking;
      }
    } else if (what == 1 && model[i] != PageUse::kFree) {
      pool.set_use(p, PageUse::kCached);
      model[i] = PageUse::kCached;
    } else if (model[i] != PageUse::kFree) {
      pool.release(p);
      model[i] = PageUse::kFree;
    } else {
      ASSERT_THROW(pool.release(p), base::Error);
    }
    pool.check_accounting();
    const PageCounts c = pool.counts();
    ASSERT_EQ(c.free, std::count(model.begin(), model.end(), PageUse::kFree));
    ASSERT_EQ(c.working, std::count(model.begin(), model.end(), PageUse::kWorking));
    ASSERT_EQ(c.cached, std::count(model.begin(), model.end(), PageUse::kCached));
    ASSERT_EQ(c.free + c.working + c.cached, kPages);
    ASSERT_EQ(pool.use(p), model[i]);
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace kadence::state
