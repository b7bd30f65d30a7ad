#include "ops/moe.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/cpu/nn_testing.h"

namespace kadence::ops {
namespace {

using testing::kGuard;
using testing::kNaN;
using testing::normals;
using testing::same_bits;

const bool isa_set = [] {
  set_gemm_isa(testing::test_isa());
  return true;
}();

device::Stream stream_of(int threads) { return device::Stream::cpu(threads, testing::test_isa()); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The definition, by sorting, on scores given as numbers.
void naive_route(const RouterShape& s, const float* logits, const float* bias, std::vector<int32_t>& ids,
                 std::vector<double>& weights) {
  std::vector<float> score(s.experts), biased(s.experts);
  for (int32_t e = 0; e < s.experts; ++e) {
    score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    biased[e] = bias ? score[e] + bias[e] : score[e];
  }
  const int32_t width = s.experts / s.groups;
  std::vector<float> group(s.groups);
  for (int32_t g = 0; g < s.groups; ++g) {
    std::vector<float> v(biased.begin() + g * width, biased.begin() + (g + 1) * width);
    std::sort(v.rbegin(), v.rend());
    group[g] = width > 1 ? v[0] + v[1] : v[0];
  }
  const auto best = [](const std::vector<float>& v, int32_t n) {
    std::vector<int32_t> order(v.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return v[a] > v[b]; });
    order.resize(n);
    return order;
  };
  const auto kept = best(group, s.topk_groups);
  for (int32_t e = 0; e < s.experts; ++e)
    if (std::find(kept.begin(), kept.end(), e / width) == kept.end())
      biased[e] = -std::numeric_limits<float>::infinity();
  ids = best(biased, s.top_k);
  weights.clear();
  double sum = 0;
  for (int32_t e : ids) sum += sigmoid(logits[e]);
  for (int32_t e : ids) weights.push_back(sigmoid(logits[e]) / (s.renormalize ? sum + 1e-20 : 1.0) * s.scale);
}

TEST(Route, AgreesWithTheDefinition) {
  auto stream = stream_of(2);
  const RouterShape shapes[] = {{8, 2, 1, 1, true, 1.8f},      {64, 8, 8, 4, true, 2.5f}, {896, 16, 1, 1, true, 1.0f},
                                {1024, 8, 16, 3, false, 1.0f}, {6, 6, 3, 3, true, 1.0f},  {4, 1, 4, 1, false, 0.5f},
                                {12, 3, 4, 1, true, 2.0f}};
  for (const RouterShape& s : shapes)
    for (const bool with_bias : {false, true}) {
      const int64_t tokens = 60, pitch = s.experts + 3;
      auto logits = normals(tokens * pitch, 1, 2);
      for (int64_t t = 0; t < tokens; t += 3)  // ties, many of them
        for (int32_t e = 0; e < s.experts; ++e) logits[t * pitch + e] = std::round(logits[t * pitch + e]);
      const auto bias = normals(s.experts, 2, 0.2);
      std::vector<int32_t> ids(static_cast<size_t>(tokens * s.top_k), -1), want_ids;
      std::vector<float> weights(static_cast<size_t>(tokens * s.top_k), kNaN);
      std::vector<double> want;
      route(s, logits.data(), pitch, with_bias ? bias.data() : nullptr, ids.data(), weights.data(), tokens, stream);
      for (int64_t t = 0; t < tokens; ++t) {
        naive_route(s, &logits[t * pitch], with_bias ? bias.data() : nullptr, want_ids, want);
        for (int32_t j = 0; j < s.top_k; ++j) {
          ASSERT_EQ(ids[t * s.top_k + j], want_ids[j]) << "token " << t << " choice " << j << " of " << s.experts;
          ASSERT_NEAR(weights[t * s.top_k + j], want[j], 2e-6 * want[j]);
        }
      }
    }
}

TEST(Route, TiesGoToTheLowerIndex) {
  auto stream = stream_of(1);
  const RouterShape s{8, 3, 4, 2, true, 1.0f};
  const float logits[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  int32_t ids[3];
  float weights[3];
  route(s, logits, 8, nullptr, ids, weights, 1, stream);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{0, 1, 2}));
}

TEST(Route, BiasChoosesButDoesNotWeigh) {
  auto stream = stream_of(1);
  const RouterShape s{3, 1, 1, 1, false, 1.0f};
  const float logits[3] = {2, 0, -2}, bias[3] = {0, 0, 5};
  int32_t id;
  float weight;
  route(s, logits, 3, bias, &id, &weight, 1, stream);
  EXPECT_EQ(id, 2);
  EXPECT_NEAR(weight, sigmoid(-2), 1e-7);
}

TEST(Route, NotANumberStillGivesExperts) {
  auto stream = stream_of(1);
  const RouterShape s{8, 3, 2, 1, true, 1.0f};
  const std::vector<float> logits(8, kNaN);
  int32_t ids[3];
  float weights[3];
  route(s, logits.data(), 8, nullptr, ids, weights, 1, stream);
  for (int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 8);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_TRUE(std::isnan(weights[0]));
}

TEST(Route, RefusesImpossibleShapes) {
  auto stream = stream_of(1);
  const std::vector<float> logits(16);
  int32_t ids[16];
  float weights[16];
  for (const RouterShape& s : {RouterShape{0, 1}, RouterShape{8, 9}, RouterShape{8, 0}, RouterShape{8, 2, 3, 1},
                               RouterShape{8, 2, 4, 5}, RouterShape{8, 3, 4, 1}})
    EXPECT_THROW(route(s, logits.data(), 16, nullptr, ids, weights, 1, stream), base::Error);
}

struct Layer {
  RouterShape shape;
  int64_t width, inner;
  std::vector<std::vector<float>> gate_up, down;
  Experts experts;
  Layer(RouterShape s, int64_t d, int64_t i, device::Stream& stream) : shape(s), width(d), inner(i) {
    for (int32_t e = 0; e < s.experts; ++e) {
      gate_up.push_back(normals(2 * i * d, 100 + e, 0.3)), down.push_back(normals(d * i, 200 + e, 0.3));
      experts.gate_up.push_back(Linear::create(gate_up[e].data(), base::DType::kF32, 2 * i, d, stream));
      experts.down.push_back(Linear::create(down[e].data(), base::DType::kF32, d, i, stream));
    }
  }
  std::vector<double> want(const float* x, const int32_t* ids, const float* weights) const {
    std::vector<double> out(width), hidden(inner);
    for (int32_t j = 0; j < shape.top_k; ++j) {
      const int32_t e = ids[j];
      for (int64_t i = 0; i < inner; ++i) {
        double gate = 0, up = 0;
        for (int64_t d = 0; d < width; ++d) gate += static_cast<double>(gate_up[e][i * width + d]) * x[d];
        for (int64_t d = 0; d < width; ++d) up += static_cast<double>(gate_up[e][(inner + i) * width + d]) * x[d];
        hidden[i] = gate * sigmoid(gate) * up;
      }
      for (int64_t d = 0; d < width; ++d)
        for (int64_t i = 0; i < inner; ++i)
          out[d] += weights[j] * static_cast<double>(down[e][d * inner + i]) * hidden[i];
    }
    return out;
  }
};

std::vector<float> run(const Layer& l, GemmPhase phase, const std::vector<float>& x, const std::vector<int32_t>& ids,
                       const std::vector<float>& weights, int64_t first, int64_t tokens, device::Stream& stream) {
  const int64_t xp = l.width + 3, op = l.width + 2;
  std::vector<float> px(static_cast<size_t>((tokens + 1) * xp), kNaN),
      out(static_cast<size_t>((tokens + 1) * op), kGuard), dense;
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(&x[(first + t) * l.width], l.width, &px[t * xp]);
    std::fill_n(&out[t * op], l.width, 0.25f);
  }
  const size_t bytes = moe_workspace(l.experts, l.shape, phase, tokens + 5, stream.info().threads);
  device::Buffer ws = device::Buffer::allocate(stream.info(), bytes);
  std::fill_n(ws.as<float>(), bytes / sizeof(float), kNaN);
  run_experts(phase, l.experts, l.shape, px.data(), xp, ids.data() + first * l.shape.top_k,
              weights.data() + first * l.shape.top_k, out.data(), op, tokens, ws.data(), stream);
  for (int64_t t = 0; t <= tokens; ++t)
    for (int64_t c = 0; c < op; ++c) {
      if (t < tokens && c < l.width)
        dense.push_back(out[t * op + c]);
      else
        EXPECT_EQ(out[t * op + c], kGuard) << "written outside";
    }
  return dense;
}

TEST(Experts, SumAgreesWithDoubleAndBitsAreEachTokensOwn) {
  auto one = stream_of(1), three = stream_of(3);
  for (const auto& [s, d, i] : {std::tuple{RouterShape{8, 2, 1, 1, true, 1.8f}, int64_t{64}, int64_t{24}},
                                std::tuple{RouterShape{20, 16, 1, 1, true, 1.0f}, int64_t{40}, int64_t{300}}}) {
    const Layer l(s, d, i, three);
    const int64_t tokens = 150;
    const auto x = normals(tokens * d, 1), logits = normals(tokens * s.experts, 2);
    std::vector<int32_t> ids(static_cast<size_t>(tokens * s.top_k));
    std::vector<float> weights(ids.size());
    route(s, logits.data(), s.experts, nullptr, ids.data(), weights.data(), tokens, three);
    for (const GemmPhase phase : {GemmPhase::kPrefill, GemmPhase::kDecode}) {
      const auto all = run(l, phase, x, ids, weights, 0, tokens, three);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto alone = run(l, phase, x, ids, weights, t, 1, one);
        ASSERT_TRUE(same_bits(alone.data(), &all[t * d], d)) << "token " << t;
        if (t % 10) continue;
        const auto want = l.want(&x[t * d], &ids[t * s.top_k], &weights[t * s.top_k]);
        for (int64_t c = 0; c < d; ++c)
          ASSERT_NEAR(alone[c], 0.25 + want[c], 2e-4 * (1 + std::abs(want[c]))) << "token " << t;
      }
      const auto some = run(l, phase, x, ids, weights, 17, 71, three);
      ASSERT_TRUE(same_bits(some.data(), &all[17 * d], 71 * d));
    }
  }
}

// More tokens than the workspace holds outputs of: passes do not show.
TEST(Experts, PassesOverManyTokensDoNotShow) {
  auto two = stream_of(2);
  const RouterShape s{2, 2, 1, 1, true, 1.0f};
  const Layer l(s, 4096, 3, two);
  const int64_t tokens = 2100;  // 2100 * 2 * 4096 * 4 bytes are more than 64 MiB
  const auto x = normals(tokens * l.width, 3), logits = normals(tokens * 2, 4);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * 2));
  std::vector<float> weights(ids.size());
  route(s, logits.data(), 2, nullptr, ids.data(), weights.data(), tokens, two);
  EXPECT_LT(moe_workspace(l.experts, s, GemmPhase::kPrefill, tokens, 2), size_t{90} << 20);
  EXPECT_EQ(moe_workspace(l.experts, s, GemmPhase::kPrefill, tokens, 2),
            moe_workspace(l.experts, s, GemmPhase::kPrefill, 100 * tokens, 2));
  const auto all = run(l, GemmPhase::kPrefill, x, ids, weights, 0, tokens, two);
  for (const int64_t t : {int64_t{0}, int64_t{2047}, int64_t{2048}, int64_t{2099}}) {
    const auto alone = run(l, GemmPhase::kPrefill, x, ids, weights, t, 1, two);
    ASSERT_TRUE(same_bits(alone.data(), &all[t * l.width], l.width)) << "token " << t;
  }
}

TEST(Experts, RefusesIdsThatDoNotExist) {
  auto stream = stream_of(1);
  const Layer l({2, 1, 1, 1, true, 1.0f}, 8, 4, stream);
  const auto x = normals(8, 1);
  EXPECT_THROW(run(l, GemmPhase::kDecode, x, {2}, {1.0f}, 0, 1, stream), base::Error);
  EXPECT_THROW(run(l, GemmPhase::kDecode, x, {-1}, {1.0f}, 0, 1, stream), base::Error);
}

}  // namespace
}  // namespace kadence::ops
