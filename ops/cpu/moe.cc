#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "ops/cpu/nn_kernels.h"
#include "ops/cpu/nn_parallel.h"

namespace kadence::ops {
namespace {

constexpr size_t kAlign = 256;
constexpr int32_t kMaxTopK = 64;
constexpr int32_t kMaxGroups = 64;
// Expert outputs wait for their sum in the workspace: this many bytes of them at a time.
constexpr int64_t kOutputBytes = int64_t{64} << 20;
// Multiply-adds below which waking workers costs more than they save.
constexpr int64_t kParallelWork = 4'000'000;

size_t aligned(size_t bytes) { return base::round_up(bytes, kAlign); }
size_t floats(int64_t n) { return aligned(static_cast<size_t>(n) * sizeof(float)); }

void check(const RouterShape& s) {
  const auto require = [](bool ok, const char* what, const char* wanted, int64_t got) {
    if (!ok) base::throw_invalid(what, wanted, std::to_string(got));
  };
  require(s.experts >= 1, "experts", "1 or more", s.experts);
  require(s.top_k >= 1 && s.top_k <= std::min(s.experts, kMaxTopK), "top_k", "1 to min(experts, 64)", s.top_k);
  require(s.groups >= 1 && s.groups <= kMaxGroups && s.experts % s.groups == 0, "groups",
          "1 to 64, a divisor of experts", s.groups);
  require(s.topk_groups >= 1 && s.topk_groups <= s.groups, "topk_groups", "1 to groups", s.topk_groups);
  require(int64_t{s.topk_groups} * (s.experts / s.groups) >= s.top_k, "topk_groups",
          "enough groups to hold top_k experts", s.topk_groups);
}

float comparable(float v) { return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v; }

// The best of a sequence offered in ascending order of id: best first, ties to the id offered first.
struct TopList {
  float values[kMaxTopK];
  int32_t ids[kMaxTopK];
  int32_t size = 0, capacity;
  explicit TopList(int32_t n) : capacity(n) {}
  void offer(float value, int32_t id) {
    if (size == capacity && !(value > values[size - 1])) return;
    int32_t at = size < capacity ? size++ : size - 1;
    for (; at > 0 && value > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value, ids[at] = id;
  }
};

void route_token(const RouterShape& s, const float* logits, const float* bias, int32_t* ids, float* weights) {
  const auto score = [&](int32_t e) { return 1.0f / (1.0f + std::exp(-logits[e])); };
  const auto biased = [&](int32_t e) { return comparable(bias ? score(e) + bias[e] : score(e)); };
  const int32_t width = s.experts / s.groups;
  bool kept[kMaxGroups];
  std::fill(kept, kept + s.groups, s.groups == 1);
  if (s.groups > 1) {
    TopList best(s.topk_groups);
    for (int32_t g = 0; g < s.groups; ++g) {
      TopList two(std::min(2, width));
      for (int32_t e = g * width; e < (g + 1) * width; ++e) two.offer(biased(e), e);
      best.offer(two.size == 2 ? two.values[0] + two.values[1] : two.values[0], g);
    }
    for (int32_t i = 0; i < best.size; ++i) kept[best.ids[i]] = true;
  }
  TopList chosen(s.top_k);
  for (int32_t g = 0; g < s.groups; ++g)
    if (kept[g])
      for (int32_t e = g * width; e < (g + 1) * width; ++e) chosen.offer(biased(e), e);
  float sum = 0;
  for (int32_t j = 0; j < s.top_k; ++j) {
    ids[j] = chosen.ids[j];
    weights[j] = score(ids[j]);
    sum += weights[j];
  }
  for (int32_t j = 0; j < s.top_k; ++j) {
    if (s.renormalize) weights[j] /= sum + 1e-20f;
    weights[j] *= s.scale;
  }
}

// Sizes of one layer's experts and the layout of the workspace.
struct Layout {
  int64_t width, inner, rows, block;                  // D, I, tile height, tokens a pass
  size_t outputs, order, begin;                       // shared: [block*top_k, D], [block*top_k], [experts+1]
  size_t gathered, gate_up, hidden, result, product;  // per worker
  Layout(const Experts& e, const RouterShape& s, GemmPhase phase, int64_t tokens) {
    KADENCE_CHECK(static_cast<int32_t>(e.gate_up.size()) == s.experts &&
                  static_cast<int32_t>(e.down.size()) == s.experts);
    width = e.down[0].out(), inner = e.down[0].in(), rows = gemm_rows(phase);
    const int64_t token_bytes = width * s.top_k * static_cast<int64_t>(sizeof(float));
    block = std::max<int64_t>(1, std::min(tokens, std::max<int64_t>(64, kOutputBytes / token_bytes)));
    outputs = floats(block * s.top_k * width), order = floats(block * s.top_k), begin = floats(s.experts + 1);
    gathered = floats(rows * width), gate_up = floats(rows * 2 * inner), hidden = floats(rows * inner),
    result = floats(rows * width);
    product = std::max(e.gate_up[0].tile_workspace_bytes(), e.down[0].tile_workspace_bytes());
  }
  size_t shared() const { return outputs + order + begin; }
  size_t worker() const { return gathered + gate_up + hidden + result + product; }
};

}  // namespace

void route(const RouterShape& shape, const float* logits, int64_t logits_pitch, const float* bias, int32_t* ids,
           float* weights, int64_t tokens, device::Stream& stream) {
  check(shape);
  for_rows(stream, tokens, int64_t{30} * shape.experts, [&](int64_t t) {
    route_token(shape, logits + t * logits_pitch, bias, ids + t * shape.top_k, weights + t * shape.top_k);
  });
}

size_t moe_workspace(const Experts& experts, const RouterShape& shape, GemmPhase phase, int64_t max_tokens,
                     int threads) {
  check(shape);
  const Layout l(experts, shape, phase, max_tokens);
  return l.shared() + static_cast<size_t>(threads) * l.worker();
}

void run_experts(GemmPhase phase, const Experts& experts, const RouterShape& shape, const float* x, int64_t x_pitch,
                 const int32_t* ids, const float* weights, float* out, int64_t out_pitch, int64_t tokens,
                 void* workspace, device::Stream& stream) {
  if (tokens <= 0) return;
  check(shape);
  const Layout l(experts, shape, phase, tokens);
  const device::Isa isa = stream.info().isa;
  auto* ws = static_cast<std::byte*>(workspace);
  auto* outputs = reinterpret_cast<float*>(ws);
  auto* order = reinterpret_cast<int32_t*>(ws + l.outputs);
  auto* begin = reinterpret_cast<int32_t*>(ws + l.outputs + l.order);
  for (int64_t i = 0; i < tokens * shape.top_k; ++i)
    if (ids[i] < 0 || ids[i] >= shape.experts)
      base::throw_invalid("expert of token " + std::to_string(i / shape.top_k),
                          "an id below " + std::to_string(shape.experts), std::to_string(ids[i]));

  for (int64_t first = 0; first < tokens; first += l.block) {
    const int64_t count = std::min(l.block, tokens - first), slots = count * shape.top_k;
    // Counting sort of the slots (token, j) by expert; begin[e] ends up as the start of e's run.
    const int32_t* slot_ids = ids + first * shape.top_k;
    std::fill(begin, begin + shape.experts + 1, 0);
    for (int64_t i = 0; i < slots; ++i) ++begin[slot_ids[i] + 1];
    int64_t tiles = 0;
    for (int32_t e = 0; e < shape.experts; ++e) {
      tiles += base::ceil_div<int64_t>(begin[e + 1], l.rows);
      begin[e + 1] += begin[e];
    }
    for (int64_t i = 0; i < slots; ++i) order[begin[slot_ids[i]]++] = static_cast<int32_t>(i);
    for (int32_t e = shape.experts; e > 0; --e) begin[e] = begin[e - 1];
    begin[0] = 0;

    const auto run_tile = [&](int32_t e, int64_t at, int64_t rows, int worker) {
      std::byte* w = ws + l.shared() + static_cast<size_t>(worker) * l.worker();
      auto* gathered = reinterpret_cast<float*>(w);
      auto* gate_up = reinterpret_cast<float*>(w += l.gathered);
      auto* hidden = reinterpret_cast<float*>(w += l.gate_up);
      auto* result = reinterpret_cast<float*>(w += l.hidden);
      std::byte* product = w + l.result;
      const int64_t in = experts.gate_up[e].in();
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(gathered + r * in, x + (first + order[at + r] / shape.top_k) * x_pitch,
                    static_cast<size_t>(in) * sizeof(float));
      // Zeros below, so that the products take the tiles as they are.
      std::fill(gathered + rows * in, gathered + l.rows * in, 0.0f);
      experts.gate_up[e].run_tile(phase, gathered, in, gate_up, 2 * l.inner, l.rows, product);
      for (int64_t r = 0; r < rows; ++r)
        gated_activation_row(isa, experts.activation, gate_up + r * 2 * l.inner, hidden + r * l.inner, l.inner);
      std::fill(hidden + rows * l.inner, hidden + l.rows * l.inner, 0.0f);
      experts.down[e].run_tile(phase, hidden, l.inner, result, l.width, l.rows, product);
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(outputs + order[at + r] * l.width, result + r * l.width,
                    static_cast<size_t>(l.width) * sizeof(float));
    };
    const auto run_nth = [&](int64_t task, int worker) {
      int64_t tile = task;
      for (int32_t e = 0; e < shape.experts; ++e) {
        const int64_t rows = begin[e + 1] - begin[e], expert_tiles = base::ceil_div(rows, l.rows);
        if (tile < expert_tiles)
          return run_tile(e, begin[e] + tile * l.rows, std::min(l.rows, rows - tile * l.rows), worker);
        tile -= expert_tiles;
      }
    };
    if (stream.info().threads == 1 || tiles * l.rows * 3 * l.inner * l.width < kParallelWork) {
      for (int64_t i = 0; i < tiles; ++i) run_nth(i, 0);
    } else {
      stream.parallel_for(tiles, run_nth);
    }
    for_rows(stream, count, l.width * (shape.top_k + 2), [&](int64_t t) {
      add_weighted_rows(isa, out + (first + t) * out_pitch, outputs + t * shape.top_k * l.width, l.width,
                        weights + (first + t) * shape.top_k, shape.top_k, l.width);
    });
  }
}

}  // namespace kadence::ops
