#include "ops/attention.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/nn_testing.h"

namespace kadence::ops {
namespace {

using testing::kGuard;
using testing::kNaN;
using testing::normals;
using testing::same_bits;

// One sequence's latents and queries, and paged memory with NaN wherever nothing was written.
struct World {
  AttentionShape shape;
  base::DType dtype;
  int32_t page_size;
  int64_t sequences, length, width, max_pages;
  std::vector<std::vector<float>> latents, queries;  // per sequence: [length, width], [length, heads*width]
  std::vector<std::byte> memory;
  std::vector<int32_t> table;  // [sequences, max_pages]
  LatentPages pages;

  World(AttentionShape s, base::DType t, int32_t ps, int64_t n, int64_t len, uint64_t seed)
      : shape(s), dtype(t), page_size(ps), sequences(n), length(len) {
    width = s.latent + s.shared;
    max_pages = (len + ps - 1) / ps + 1;
    for (int64_t i = 0; i < n; ++i) {
      latents.push_back(normals(len * width, seed + 2 * i));
      queries.push_back(normals(len * s.heads * width, seed + 2 * i + 1));
    }
    pages.dtype = t, pages.pages = n * max_pages, pages.page_size = ps, pages.page_pitch = ps * width + 24;
    memory.resize(static_cast<size_t>(pages.pages * pages.page_pitch) * base::size_of(t));
    pages.base = memory.data();
    // Pages of the sequences interleave, backwards.
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < max_pages; ++j) table.push_back(static_cast<int32_t>(pages.pages - 1 - (j * n + i)));
    poison();
  }
  void poison() {
    for (int64_t i = 0; i < pages.pages * pages.page_pitch; ++i) base::store_f32(memory.data(), i, dtype, kNaN);
  }
  // The element as the pages hold it.
  double latent(int64_t seq, int64_t token, int64_t d) const {
    const float v = latents[seq][token * width + d];
    if (dtype == base::DType::kBF16) return base::bf16_to_f32(base::f32_to_bf16(v));
    if (dtype == base::DType::kF16) return base::f16_to_f32(base::f32_to_f16(v));
    return v;
  }
  std::vector<double> want(int64_t seq, int64_t token) const {
    std::vector<double> out;
    for (int32_t h = 0; h < shape.heads; ++h) {
      std::vector<double> score(token + 1);
      double top = -1e300, sum = 0;
      for (int64_t k = 0; k <= token; ++k) {
        for (int64_t d = 0; d < width; ++d)
          score[k] += static_cast<double>(queries[seq][(token * shape.heads + h) * width + d]) * latent(seq, k, d);
        score[k] *= shape.scale;
        top = std::max(top, score[k]);
      }
      for (double& s : score) sum += s = std::exp(s - top);
      for (int32_t r = 0; r < shape.latent; ++r) {
        double v = 0;
        for (int64_t k = 0; k <= token; ++k) v += score[k] * latent(seq, k, r);
        out.push_back(v / sum);
      }
    }
    return out;
  }
};

struct Span {
  int64_t sequence, begin, end;
};

// Runs spans of sequences as the rows of one call; writes their latents first if `write`. Returns [rows' tokens,
// heads*R].
std::vector<float> run(World& w, const std::vector<Span>& spans, GemmPhase phase, device::Stream& stream,
                       bool write = true) {
  std::vector<int64_t> begin = {0}, start;
  std::vector<int32_t> table;
  const int64_t qd = w.shape.heads * w.width, od = w.shape.heads * w.shape.latent, qp = qd + 5, op = od + 3,
                xp = w.width + 1;
  for (const Span& s : spans) {
    begin.push_back(begin.back() + s.end - s.begin), start.push_back(s.begin);
    table.insert(table.end(), w.table.begin() + s.sequence * w.max_pages,
                 w.table.begin() + (s.sequence + 1) * w.max_pages);
  }
  const int64_t tokens = begin.back();
  std::vector<float> q(static_cast<size_t>((tokens + 2) * qp), kNaN), x(static_cast<size_t>((tokens + 2) * xp), kNaN);
  std::vector<float> out(static_cast<size_t>((tokens + 2) * op), kGuard);
  for (size_t i = 0; i < spans.size(); ++i)
    for (int64_t t = spans[i].begin; t < spans[i].end; ++t) {
      const int64_t at = begin[i] + t - spans[i].begin;
      std::copy_n(&w.queries[spans[i].sequence][t * qd], qd, &q[at * qp]);
      std::copy_n(&w.latents[spans[i].sequence][t * w.width], w.width, &x[at * xp]);
    }
  const AttentionBatch batch{static_cast<int32_t>(spans.size()), begin.data(), start.data(), table.data(), w.max_pages};
  if (write) write_latents(w.shape, batch, x.data(), xp, w.pages, stream);
  const size_t bytes = latent_attention_workspace(w.shape, stream.info().threads);
  device::Buffer workspace = device::Buffer::allocate(stream.info(), bytes);
  std::fill_n(workspace.as<float>(), bytes / sizeof(float), kNaN);
  latent_attention(phase, w.shape, batch, q.data(), qp, w.pages, out.data(), op, workspace.data(), stream);
  std::vector<float> dense;
  for (int64_t t = 0; t < tokens + 2; ++t)
    for (int64_t c = 0; c < op; ++c) {
      if (t < tokens && c < od)
        dense.push_back(out[t * op + c]);
      else
        EXPECT_EQ(out[t * op + c], kGuard) << "written outside";
    }
  return dense;
}

// Fills the pages with every sequence's latents.
void write_all(World& w, device::Stream& stream) {
  const int64_t begin[] = {0, w.length}, start[] = {0};
  for (int64_t s = 0; s < w.sequences; ++s)
    write_latents(w.shape, {1, begin, start, w.table.data() + s * w.max_pages, w.max_pages}, w.latents[s].data(),
                  w.width, w.pages, stream);
}

const AttentionShape kShapes[] = {{4, 64, 16, 0.125f}, {1, 5, 3, 0.5f},  {3, 48, 32, 0.125f},
                                  {7, 16, 0, 0.25f},   {6, 40, 0, 0.2f}, {35, 32, 16, 0.15f}};

class Attention : public ::testing::TestWithParam<device::Isa> {};

TEST_P(Attention, AgreesWithDouble) {
  auto stream = device::Stream::cpu(2, GetParam());
  for (const AttentionShape& shape : kShapes)
    for (const base::DType dtype : {base::DType::kF32, base::DType::kBF16, base::DType::kF16})
      for (const int32_t page_size : {16, 64, 100}) {
        if (dtype != base::DType::kF32 && page_size == 64) continue;  // nothing new
        World w(shape, dtype, page_size, 1, 331, 5);
        const auto got = run(w, {{0, 0, 331}}, GemmPhase::kPrefill, stream);
        const int64_t od = shape.heads * shape.latent;
        for (const int64_t t : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{191}, int64_t{192},
                                int64_t{200}, int64_t{330}}) {
          const auto want = w.want(0, t);
          const auto step = run(w, {{0, t, t + 1}}, GemmPhase::kDecode, stream, false);
          for (int64_t i = 0; i < od; ++i) {
            ASSERT_NEAR(got[t * od + i], want[i], 5e-6) << "token " << t << " element " << i;
            ASSERT_NEAR(step[i], want[i], 5e-6) << "decode, token " << t << " element " << i;
          }
        }
      }
}

TEST_P(Attention, LargeScoresStayFinite) {
  auto stream = device::Stream::cpu(1, GetParam());
  World w({4, 64, 16, 60.0f}, base::DType::kF32, 64, 1, 200, 6);
  const auto got = run(w, {{0, 0, 200}}, GemmPhase::kPrefill, stream);
  for (const int64_t t : {int64_t{5}, int64_t{199}}) {
    const auto want = w.want(0, t);
    for (int64_t i = 0; i < 256; ++i) ASSERT_NEAR(got[t * 256 + i], want[i], 5e-3);
  }
}

// Where a prompt is cut, what runs beside it and how many threads there are: no bit changes.
TEST_P(Attention, PrefillBitsDependOnThePositionAlone) {
  for (const AttentionShape& shape : kShapes) {
    auto one = device::Stream::cpu(1, GetParam()), three = device::Stream::cpu(3, GetParam());
    World w(shape, base::DType::kF32, 64, 3, 450, 7);
    const int64_t od = shape.heads * shape.latent;
    std::vector<std::vector<float>> whole;
    for (int64_t s = 0; s < 3; ++s) whole.push_back(run(w, {{s, 0, 450}}, GemmPhase::kPrefill, one));
    w.poison();
    // Sequence 0 in three cuts beside parts of the others; every cut sees NaN after its own end.
    const std::vector<std::vector<Span>> calls = {{{0, 0, 128}, {1, 0, 64}, {2, 0, 1}},
                                                  {{1, 64, 70}, {0, 128, 192}, {2, 0, 450}},
                                                  {{0, 192, 192}, {1, 64, 450}},
                                                  {{0, 192, 397}},
                                                  {{0, 384, 450}, {2, 64, 65}}};
    int call = 0;
    for (const auto& spans : calls) {
      const auto got = run(w, spans, GemmPhase::kPrefill, call++ % 2 ? one : three);
      int64_t at = 0;
      for (const Span& s : spans) {
        ASSERT_TRUE(same_bits(&got[at * od], &whole[s.sequence][s.begin * od], (s.end - s.begin) * od))
            << "call " << call << " sequence " << s.sequence;
        at += s.end - s.begin;
      }
    }
  }
}

// Tokens after a query, even of its own tile and even not a number, leave it alone.
TEST_P(Attention, LaterTokensAreNotSeen) {
  auto stream = device::Stream::cpu(1, GetParam());
  for (const AttentionShape& shape : kShapes) {
    World w(shape, base::DType::kF32, 64, 1, 150, 8);
    const int64_t od = shape.heads * shape.latent;
    const auto clean = run(w, {{0, 0, 150}}, GemmPhase::kPrefill, stream);
    for (const int64_t bad : {int64_t{3}, int64_t{70}, int64_t{149}}) {
      World dirty(shape, base::DType::kF32, 64, 1, 150, 8);
      std::fill_n(&dirty.latents[0][bad * w.width], w.width, kNaN);
      const auto got = run(dirty, {{0, 0, 150}}, GemmPhase::kPrefill, stream);
      EXPECT_TRUE(same_bits(got.data(), clean.data(), bad * od)) << "token " << bad;
      EXPECT_TRUE(std::isnan(got[bad * od]));
    }
  }
}

TEST_P(Attention, DecodeBitsDependOnTheRowAlone) {
  for (const AttentionShape& shape : kShapes) {
    auto one = device::Stream::cpu(1, GetParam()), three = device::Stream::cpu(3, GetParam());
    const int64_t length = 1400, od = shape.heads * shape.latent;
    World w(shape, base::DType::kBF16, 64, 2, length, 9);
    write_all(w, three);
    std::vector<Span> spans;
    for (int64_t i = 0; i < 11; ++i) spans.push_back({i % 2, i * 139 % length, i * 139 % length + 1});
    spans.push_back({0, 700, 700});  // an idle row
    spans.push_back({1, length - 1, length});
    const auto got = run(w, spans, GemmPhase::kDecode, three, false);
    int64_t at = 0;
    for (const Span& s : spans) {
      if (s.begin == s.end) continue;
      const auto alone = run(w, {s}, GemmPhase::kDecode, one, false);
      ASSERT_TRUE(same_bits(alone.data(), &got[at * od], od)) << "position " << s.begin;
      const auto want = w.want(s.sequence, s.begin);
      for (int64_t i = 0; i < od; ++i) ASSERT_NEAR(alone[i], want[i], 5e-6);
      ++at;
    }
  }
}

TEST_P(Attention, LatentsGoToTheirTokensPlaces) {
  auto stream = device::Stream::cpu(3, GetParam());
  for (const base::DType dtype : {base::DType::kF32, base::DType::kBF16, base::DType::kF16})
    for (const int32_t page_size : {16, 100}) {
      World w({4, 64, 16, 0.125f}, dtype, page_size, 2, 500, 13);
      const std::vector<Span> spans = {{1, 64, 437}, {0, 0, 5}, {0, 128, 128}};
      auto want = w.memory;
      for (const Span& s : spans)
        for (int64_t t = s.begin; t < s.end; ++t)
          for (int64_t d = 0; d < w.width; ++d) {
            const int64_t page = w.table[s.sequence * w.max_pages + t / page_size];
            base::store_f32(want.data(), page * w.pages.page_pitch + t % page_size * w.width + d, dtype,
                            w.latents[s.sequence][t * w.width + d]);
          }
      const int64_t begin[] = {0, 373, 378, 378}, start[] = {64, 0, 128}, pitch = w.width + 1;
      std::vector<int32_t> table;
      std::vector<float> x;
      for (const Span& s : spans) {
        table.insert(table.end(), w.table.begin() + s.sequence * w.max_pages,
                     w.table.begin() + (s.sequence + 1) * w.max_pages);
        for (int64_t t = s.begin; t < s.end; ++t) {
          x.insert(x.end(), &w.latents[s.sequence][t * w.width], &w.latents[s.sequence][t * w.width] + w.width);
          x.push_back(kGuard);
        }
      }
      write_latents(w.shape, {3, begin, start, table.data(), w.max_pages}, x.data(), pitch, w.pages, stream);
      EXPECT_TRUE(w.memory == want) << "page size " << page_size;
    }
}

// Enough keys for every part of a row; both forms of decode.
TEST_P(Attention, LongDecodeMergesItsPartsInOrder) {
  for (const AttentionShape& shape : {AttentionShape{4, 32, 16, 0.15f}, AttentionShape{9, 20, 4, 0.2f}}) {
    auto one = device::Stream::cpu(1, GetParam()), three = device::Stream::cpu(3, GetParam());
    const int64_t length = 6001, od = shape.heads * shape.latent;
    World w(shape, base::DType::kF32, 64, 1, length, 12);
    write_all(w, three);
    const auto got =
        run(w, {{0, 4607, 4608}, {0, 4608, 4609}, {0, length - 1, length}}, GemmPhase::kDecode, three, false);
    int64_t at = 0;
    for (const int64_t t : {int64_t{4607}, int64_t{4608}, length - 1}) {
      const auto alone = run(w, {{0, t, t + 1}}, GemmPhase::kDecode, one, false);
      ASSERT_TRUE(same_bits(alone.data(), &got[at * od], od)) << "position " << t;
      const auto want = w.want(0, t);
      for (int64_t i = 0; i < od; ++i) ASSERT_NEAR(alone[i], want[i], 5e-6) << "position " << t;
      ++at;
    }
  }
}

TEST_P(Attention, RefusesWhatItCannotDo) {
  auto stream = device::Stream::cpu(1, GetParam());
  World w(kShapes[0], base::DType::kF32, 64, 1, 100, 10);
  EXPECT_THROW(run(w, {{0, 0, 2}}, GemmPhase::kDecode, stream), base::Error);
  w.table[1] = static_cast<int32_t>(w.pages.pages);
  EXPECT_THROW(run(w, {{0, 0, 100}}, GemmPhase::kPrefill, stream), base::Error);
  w.table[1] = -1;
  EXPECT_THROW(run(w, {{0, 0, 100}}, GemmPhase::kPrefill, stream), base::Error);
}

INSTANTIATE_TEST_SUITE_P(Isas, Attention, ::testing::ValuesIn(testing::all_isas()),
                         [](const auto& tested) { return std::string(device::to_string(tested.param)); });

TEST(Dispatch, FollowsTheStreamNotTheMachine) {
  const int32_t want[] = {0, 4, 8, 16};  // floats a vector: auto (never asked), baseline, avx2, avx512
  for (const device::Isa isa : testing::all_isas())
    EXPECT_EQ(attention_lanes(isa), want[static_cast<int>(isa)]) << device::to_string(isa);
}

TEST(Rope, RotatesPairsByPosition) {
  auto stream = device::Stream::cpu(2);
  const int32_t heads = 3, width = 8;
  const int64_t tokens = 40, pitch = heads * width + 2;
  const auto x = normals(tokens * pitch, 11);
  std::vector<int64_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = t * 1801;
  for (const bool interleaved : {false, true}) {
    auto y = x;
    rope(y.data(), pitch, heads, width, positions.data(), tokens, 10000.0, interleaved, stream);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t h = 0; h < heads; ++h)
        for (int32_t i = 0; i < width / 2; ++i) {
          const double angle = static_cast<double>(positions[t]) / std::pow(10000.0, 2.0 * i / width);
          const int64_t a = t * pitch + h * width + (interleaved ? 2 * i : i), b = interleaved ? a + 1 : a + width / 2;
          EXPECT_NEAR(y[a], x[a] * std::cos(angle) - x[b] * std::sin(angle), 1e-6);
          EXPECT_NEAR(y[b], x[b] * std::cos(angle) + x[a] * std::sin(angle), 1e-6);
        }
      for (int64_t c = heads * width; c < pitch; ++c) EXPECT_EQ(y[t * pitch + c], x[t * pitch + c]);
    }
  }
  // Heads apart: the same as dense ones, and what lies between stays.
  std::vector<float> dense(static_cast<size_t>(tokens * heads * width)),
      apart(static_cast<size_t>(tokens * heads * 20), kGuard);
  for (int64_t i = 0; i < tokens * heads; ++i)
    for (int32_t d = 0; d < width; ++d) apart[i * 20 + d] = dense[i * width + d] = x[i * width + d];
  rope(dense.data(), heads * width, heads, width, positions.data(), tokens, 10000.0, false, stream);
  rope(apart.data(), heads * 20, heads, width, positions.data(), tokens, 10000.0, false, stream, 20);
  for (int64_t i = 0; i < tokens * heads; ++i)
    for (int32_t d = 0; d < 20; ++d) ASSERT_EQ(apart[i * 20 + d], d < width ? dense[i * width + d] : kGuard);
  EXPECT_THROW(rope(nullptr, 0, 1, 7, nullptr, 0, 10000.0, false, stream), base::Error);
}

}  // namespace
}  // namespace kadence::ops
