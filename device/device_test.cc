#include "device/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/error.h"

namespace kadence::device {
namespace {

TEST(Stream, RunsEveryTaskOnceOnItsWorkers) {
  for (int threads : {1, 2, 5}) {
    Stream s = Stream::cpu(threads);
    for (int n : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      std::atomic<int> bad{0};
      s.parallel_for(n, [&](int64_t i, int w) {
        hits[static_cast<size_t>(i)]++;
        if (w < 0 || w >= threads) bad++;
      });
      for (auto& h : hits) EXPECT_EQ(h.load(), 1);
      EXPECT_EQ(bad.load(), 0);
    }
  }
}

TEST(Stream, RethrowsTheTasksException) {
  Stream s = Stream::cpu(2);
  EXPECT_THROW(s.parallel_for(10,
                              [](int64_t i, int) {
                                if (i == 3) throw std::runtime_error("x");
                              }),
               std::runtime_error);
  std::atomic<int> n{0};
  s.parallel_for(10, [&](int64_t, int) { n++; });  // usable afterwards
  EXPECT_EQ(n.load(), 10);
}

TEST(Buffer, IsAlignedMovesAndRefusesTheImpossible) {
  const DeviceInfo cpu = cpu_info(1);
  Buffer a = Buffer::allocate(cpu, 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
  void* p = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), p);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(Buffer::allocate(cpu, 0).data(), nullptr);
  EXPECT_THROW(Buffer::allocate(cpu, SIZE_MAX - 5), base::Error);
}

TEST(Copy, MovesBytes) {
  Stream s = Stream::cpu(1);
  std::vector<int> x{1, 2, 3}, y(3);
  copy_async(y.data(), x.data(), 12, s);
  EXPECT_EQ(x, y);
  fill_async(y.data(), 0, 12, s);
  EXPECT_EQ(y, (std::vector<int>{0, 0, 0}));
}

TEST(Isa, NamesRoundTripAndUnknownIsRefused) {
  for (Isa isa : {Isa::kAuto, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(parse_isa(to_string(isa)), isa);
  EXPECT_THROW(parse_isa("sse9"), base::Error);
  EXPECT_NE(resolve_isa(Isa::kAuto), Isa::kAuto);
  EXPECT_THROW(cpu_info(0), base::Error);
}

}  // namespace
}  // namespace kadence::device
