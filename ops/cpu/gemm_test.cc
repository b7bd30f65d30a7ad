#include "ops/gemm.h"

#include <thread>

#include "base/error.h"
#include "ops/cpu/nn_testing.h"

namespace kadence::ops {
namespace {

using testing::kGuard;
using testing::kNaN;
using testing::normals;
using testing::same_bits;

// Before any product of this process.
const bool isa_set = [] {
  set_gemm_isa(testing::test_isa());
  return true;
}();

device::Stream stream_of(int threads) { return device::Stream::cpu(threads, testing::test_isa()); }

struct Case {
  int64_t in, out;
};
const Case kCases[] = {{256, 256}, {256, 1024}, {256, 192}, {96, 256}, {37, 5}, {64, 1}, {1, 70}, {300, 515}};
constexpr GemmPhase kPhases[] = {GemmPhase::kPrefill, GemmPhase::kDecode};

struct Product {
  const Linear& linear;
  device::Stream& stream;
  int64_t pad_x = 3, pad_y = 2;
  // Runs rows [first, first + rows) of x (dense) with NaN between and behind them; returns the dense result and checks
  // that nothing else was written.
  std::vector<float> operator()(GemmPhase phase, const std::vector<float>& x, int64_t first, int64_t rows) const {
    const int64_t in = linear.in(), out = linear.out(), xp = in + pad_x, yp = out + pad_y;
    // x ends with its last row, where AddressSanitizer watches; y goes on.
    std::vector<float> padded(static_cast<size_t>((rows - 1) * xp + in), kNaN),
        y(static_cast<size_t>((rows + 70) * yp), kGuard);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(&padded[r * xp], &x[(first + r) * in], static_cast<size_t>(in) * sizeof(float));
    std::vector<float> workspace(linear.workspace_bytes(stream.info().threads) / sizeof(float) + 64, kNaN);
    auto* ws = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
    linear.run(phase, padded.data(), xp, y.data(), yp, rows, ws, stream);
    std::vector<float> dense(static_cast<size_t>(rows * out));
    for (int64_t r = 0; r < rows + 70; ++r)
      for (int64_t c = 0; c < yp; ++c) {
        if (r < rows && c < out)
          dense[r * out + c] = y[r * yp + c];
        else
          EXPECT_EQ(y[r * yp + c], kGuard) << "written outside: row " << r << " column " << c;
      }
    return dense;
  }
};

TEST(Linear, AgreesWithDoubleSums) {
  auto stream = stream_of(2);
  for (const Case& c : kCases) {
    const auto w = normals(c.in * c.out, 1), x = normals(100 * c.in, 2);
    const Linear linear = Linear::create(w.data(), base::DType::kF32, c.out, c.in, stream);
    EXPECT_EQ(linear.in(), c.in);
    EXPECT_EQ(linear.out(), c.out);
    EXPECT_GE(linear.weight_bytes(), static_cast<size_t>(c.in * c.out) * sizeof(float));
    for (const GemmPhase phase : kPhases) {
      const auto y = Product{linear, stream}(phase, x, 0, 100);
      for (int64_t r = 0; r < 100; ++r)
        for (int64_t o = 0; o < c.out; ++o) {
          double want = 0, size = 0;
          for (int64_t i = 0; i < c.in; ++i) {
            const double p = static_cast<double>(w[o * c.in + i]) * x[r * c.in + i];
            want += p, size += std::abs(p);
          }
          ASSERT_NEAR(y[r * c.out + o], want, 4e-7 * size + 1e-12)
              << c.in << " x " << c.out << " row " << r << " output " << o;
        }
    }
  }
}

TEST(Linear, StacksPartsOfEveryDtype) {
  auto stream = stream_of(1);
  const int64_t in = 40;
  const auto a = normals(300 * in, 3), b = normals(7 * in, 4), c = normals(21 * in, 5);
  std::vector<uint16_t> b16, c16;
  for (float v : b) b16.push_back(base::f32_to_bf16(v));
  for (float v : c) c16.push_back(base::f32_to_f16(v));
  std::vector<float> all = a;
  for (uint16_t v : b16) all.push_back(base::bf16_to_f32(v));
  for (uint16_t v : c16) all.push_back(base::f16_to_f32(v));
  const Linear::Part parts[] = {
      {a.data(), base::DType::kF32, 300}, {b16.data(), base::DType::kBF16, 7}, {c16.data(), base::DType::kF16, 21}};
  const Linear stacked = Linear::create(parts, in, stream),
               plain = Linear::create(all.data(), base::DType::kF32, 328, in, stream);
  const auto x = normals(9 * in, 6);
  for (const GemmPhase phase : kPhases)
    EXPECT_EQ((Product{stacked, stream}(phase, x, 0, 9)), (Product{plain, stream}(phase, x, 0, 9)));
}

// The property that exact caching stands on: a row's bits do not depend on how many rows there are, where it is among
// them, how many threads work, or how rows are laid out in memory.
TEST(Linear, RowsDoNotDependOnTheirCompany) {
  constexpr int64_t kRows = 200;
  for (const Case& c : kCases) {
    const auto w = normals(c.in * c.out, 7), x = normals(kRows * c.in, 8);
    auto one = stream_of(1), two = stream_of(2), three = stream_of(3);
    const Linear linear = Linear::create(w.data(), base::DType::kF32, c.out, c.in, two);
    for (const GemmPhase phase : kPhases) {
      std::vector<float> alone;
      for (int64_t r = 0; r < kRows; ++r) {
        const auto y = Product{linear, one}(phase, x, r, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      device::Stream* streams[] = {&one, &two, &three};
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        const int64_t first = (rows * 37) % (kRows - rows + 1);
        const int64_t dense = rows % 2;
        const auto y = Product{linear, *streams[rows % 3], dense ? 0 : 3, dense ? 0 : 2}(phase, x, first, rows);
        ASSERT_TRUE(same_bits(y.data(), alone.data() + first * c.out, rows * c.out))
            << c.in << " x " << c.out << ", " << rows << " rows from " << first << ", phase "
            << static_cast<int>(phase);
      }
      std::vector<float> ws(linear.tile_workspace_bytes() / sizeof(float) + 1, kNaN), y(static_cast<size_t>(5 * c.out));
      linear.run_tile(phase, x.data() + 11 * c.in, c.in, y.data(), c.out, 5, ws.data());
      EXPECT_TRUE(same_bits(y.data(), alone.data() + 11 * c.out, 5 * c.out));
    }
  }
}

// Every row of a tile, at every place, with garbage as large as floats go beside it.
TEST(Linear, NeighboursOfAnySizeChangeNothing) {
  auto stream = stream_of(1);
  const int64_t in = 128, out = 160;
  const auto w = normals(in * out, 9), row = normals(in, 10);
  const Linear linear = Linear::create(w.data(), base::DType::kF32, out, in, stream);
  for (const GemmPhase phase : kPhases) {
    const auto alone = Product{linear, stream}(phase, row, 0, 1);
    for (int64_t at = 0; at < gemm_rows(phase); ++at) {
      std::vector<float> x(static_cast<size_t>(gemm_rows(phase) * in));
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? kNaN : 1e38f;
      std::copy(row.begin(), row.end(), x.begin() + at * in);
      const auto y = Product{linear, stream}(phase, x, 0, gemm_rows(phase));
      ASSERT_TRUE(same_bits(y.data() + at * out, alone.data(), out)) << "place " << at;
    }
  }
}

TEST(Linear, RunsOnSeveralThreadsAtOnce) {
  auto stream = stream_of(1);
  const int64_t in = 96, out = 300;
  const auto w = normals(in * out, 11), x = normals(64 * in, 12);
  const Linear linear = Linear::create(w.data(), base::DType::kF32, out, in, stream);
  const auto want = Product{linear, stream}(GemmPhase::kPrefill, x, 0, 64);
  std::vector<std::thread> threads;
  std::vector<int> good(3, 0);
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      auto own = stream_of(1);
      for (int i = 0; i < 50; ++i) good[t] += Product{linear, own}(GemmPhase::kPrefill, x, 0, 64) == want;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, std::vector<int>(3, 50));
}

TEST(Linear, RefusesBadWeights) {
  auto stream = stream_of(1);
  const float w[4] = {};
  EXPECT_THROW(Linear::create(w, base::DType::kF32, 0, 4, stream), base::Error);
  EXPECT_THROW(Linear::create(w, base::DType::kF32, 1, 0, stream), base::Error);
  EXPECT_THROW(Linear::create(w, base::DType::kI32, 1, 4, stream), base::Error);
  EXPECT_THROW(Linear::create(nullptr, base::DType::kF32, 1, 4, stream), base::Error);
}

TEST(GemmIsa, CannotChangeAfterTheFirstProduct) {
  auto stream = stream_of(1);
  const float w[4] = {};
  Linear::create(w, base::DType::kF32, 1, 4, stream);
  EXPECT_NO_THROW(set_gemm_isa(testing::test_isa()));
  for (const device::Isa other : testing::all_isas())
    if (other != testing::test_isa()) {
      EXPECT_THROW(set_gemm_isa(other), base::Error) << device::to_string(other);
    }
}

}  // namespace
}  // namespace kadence::ops
