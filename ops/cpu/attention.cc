#include "ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_rows.h"
#include "ops/cpu/nn_parallel.h"

namespace kadence::ops {
namespace {

constexpr size_t kAlign = 256;
// Positions of a query tile, at absolute multiples, and the heads that share its gathered keys.
constexpr int64_t kQueryTile = 64;
constexpr int32_t kHeadGroup = 4;
// Decode: rows in flight, and parts into which a row's keys are cut. Parts depend on the number of keys alone.
constexpr int32_t kDecodeRows = 8;
constexpr int32_t kDecodeParts = 8;
constexpr int64_t kMinPartKeys = 3 * kKeyBlock;
static_assert(kKeyBlock % kQueryTile == 0, "a query tile must see the start of every key block it touches");

size_t floats(int64_t n) { return base::round_up(static_cast<size_t>(n) * sizeof(float), kAlign); }
// One vector for few queries, else two.
int32_t strip_lanes(device::Isa isa, int64_t queries) {
  const int32_t vector = attention_lanes(isa);
  return queries <= vector ? vector : 2 * vector;
}
int64_t part_keys(int64_t keys) {
  return std::max(kMinPartKeys, base::round_up<int64_t>(base::ceil_div<int64_t>(keys, kDecodeParts), kKeyBlock));
}

// Where things are in a worker's part of the workspace. `lanes`: queries of a task, rounded up to whole strips.
struct Layout {
  int64_t width, lanes;
  size_t q, keys, scores, acc, stats;
  Layout(const AttentionShape& s, GemmPhase phase) {
    width = int64_t{s.latent} + s.shared;
    const int64_t queries = phase == GemmPhase::kPrefill ? kQueryTile * std::min(s.heads, kHeadGroup) : s.heads;
    lanes = base::round_up<int64_t>(queries, kMaxStrip);
    q = floats(lanes * width), keys = floats(kKeyBlock * width), scores = floats(kKeyBlock * kMaxStrip);
    acc = floats(lanes * s.latent), stats = floats(3 * lanes);
  }
  size_t worker() const { return q + keys + scores + acc + stats; }
  // A decode part's result: acc [latent, lanes], top [lanes], sum [lanes].
  int64_t part_floats(const AttentionShape& s) const { return lanes * (s.latent + 2); }
};

struct Worker {
  float *q, *keys, *scores, *acc, *top, *sum, *limits;
  Worker(const Layout& l, std::byte* ws) {
    q = reinterpret_cast<float*>(ws);
    keys = reinterpret_cast<float*>(ws += l.q);
    scores = reinterpret_cast<float*>(ws += l.keys);
    acc = reinterpret_cast<float*>(ws += l.scores);
    top = reinterpret_cast<float*>(ws += l.acc);
    sum = top + l.lanes;
    limits = sum + l.lanes;
  }
};

void check(const AttentionShape& s, const LatentPages& p) {
  const auto require = [](bool ok, const char* what, const char* wanted, int64_t got) {
    if (!ok) base::throw_invalid(what, wanted, std::to_string(got));
  };
  require(s.heads >= 1, "attention heads", "1 or more", s.heads);
  require(s.latent >= 1, "latent width", "1 or more", s.latent);
  require(s.shared >= 0, "shared key width", "0 or more", s.shared);
  require(p.page_size >= 1, "page size", "1 or more", p.page_size);
  require(p.page_pitch >= int64_t{p.page_size} * (s.latent + s.shared), "page pitch", "page_size*(R+P) or more",
          p.page_pitch);
  if (p.dtype != base::DType::kF32 && p.dtype != base::DType::kBF16 && p.dtype != base::DType::kF16)
    base::throw_invalid("dtype of latent pages", "float32, bfloat16 or float16", base::to_string(p.dtype));
}

// Checks what a row asks of its page table, before anything is touched.
void check_rows(const AttentionBatch& b, const LatentPages& p) {
  for (int32_t i = 0; i < b.rows; ++i) {
    const int64_t tokens = b.seq_begin[i + 1] - b.seq_begin[i], end = b.start[i] + tokens;
    const std::string row = " of row " + std::to_string(i);
    if (tokens < 0) base::throw_invalid("length" + row, "0 or more", std::to_string(tokens));
    if (tokens == 0) continue;
    if (b.start[i] < 0) base::throw_invalid("start" + row, "0 or more", std::to_string(b.start[i]));
    const int64_t used = base::ceil_div<int64_t>(end, p.page_size);
    if (used > b.max_pages)
      base::throw_invalid("pages" + row, std::to_string(b.max_pages) + " or fewer", std::to_string(used));
    for (int64_t j = 0; j < used; ++j) {
      const int32_t page = b.page_table[i * b.max_pages + j];
      if (page < 0 || page >= p.pages)
        base::throw_invalid("page " + std::to_string(j) + row, "an id below " + std::to_string(p.pages),
                            std::to_string(page));
    }
  }
}

// Keys [begin, begin + count) of a row, as fp32 [count, width].
void gather(device::Isa isa, const LatentPages& p, const int32_t* table, int64_t width, int64_t begin, int64_t count,
            float* dst) {
  for (int64_t k = 0; k < count;) {
    const int64_t position = begin + k, at = position % p.page_size,
                  run = std::min<int64_t>(p.page_size - at, count - k);
    const int64_t offset = table[position / p.page_size] * p.page_pitch + at * width;
    if (p.dtype == base::DType::kF32)
      std::memcpy(dst + k * width, static_cast<const float*>(p.base) + offset,
                  static_cast<size_t>(run * width) * sizeof(float));
    else
      widen(isa, static_cast<const uint16_t*>(p.base) + offset, p.dtype, dst + k * width, run * width);
    k += run;
  }
}

// One strip's view of the worker's buffers.
StripArgs strip_args(const AttentionShape& s, const Layout& l, const Worker& w, int32_t strip_lanes, int64_t first_lane,
                     float* acc, float* top, float* sum) {
  StripArgs a;
  a.lanes = strip_lanes, a.latent = s.latent, a.width = static_cast<int32_t>(l.width);
  a.q = w.q + first_lane * l.width, a.keys = w.keys, a.scores = w.scores;
  a.limits = w.limits + first_lane;
  a.acc = acc + first_lane * s.latent, a.top = top + first_lane, a.sum = sum + first_lane;
  return a;
}

// Packs lane -> query(lane) (null: zeros), scaled, as [strip][width][strip_lanes].
template <class Query>
void pack_queries(const Layout& l, float scale, int64_t lanes, int32_t strip_lanes, const Query& query, float* dst) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const float* q = query(lane);
    float* column = dst + lane / strip_lanes * strip_lanes * l.width + lane % strip_lanes;
    for (int64_t d = 0; d < l.width; ++d) column[d * strip_lanes] = q ? q[d] * scale : 0.0f;
  }
}

void start(int64_t lanes, int32_t latent, float* acc, float* top, float* sum) {
  std::fill(acc, acc + lanes * latent, 0.0f);
  std::fill(top, top + lanes, -std::numeric_limits<float>::infinity());
  std::fill(sum, sum + lanes, 0.0f);
}

// A query tile of one row for a group of heads.
struct PrefillTask {
  int32_t row = 0, first_head = 0, heads = 0;
  int64_t begin = 0, end = 0;  // absolute positions
};

struct Call {
  const AttentionShape& shape;
  const AttentionBatch& batch;
  const LatentPages& pages;
  const float* q;
  int64_t q_pitch;
  float* out;
  int64_t out_pitch;
  device::Isa isa;
  const Layout& layout;
};

void run_prefill_task(const Call& c, const PrefillTask& t, std::byte* ws) {
  const Layout& l = c.layout;
  const Worker w(l, ws);
  const int64_t queries = (t.end - t.begin) * t.heads, token = c.batch.seq_begin[t.row] - c.batch.start[t.row];
  const int32_t strip = strip_lanes(c.isa, queries);
  const int64_t lanes = base::round_up<int64_t>(queries, strip);
  const auto position = [&](int64_t lane) { return t.begin + std::min(lane, queries - 1) / t.heads; };
  pack_queries(
      l, c.shape.scale, lanes, strip,
      [&](int64_t lane) {
        return lane < queries ? c.q + (token + position(lane)) * c.q_pitch + (t.first_head + lane % t.heads) * l.width
                              : nullptr;
      },
      w.q);
  start(lanes, c.shape.latent, w.acc, w.top, w.sum);
  const int32_t* table = c.batch.page_table + t.row * c.batch.max_pages;
  for (int64_t key = 0; key < t.end; key += kKeyBlock) {
    const int64_t count = std::min<int64_t>(kKeyBlock, t.end - key);
    gather(c.isa, c.pages, table, l.width, key, count, w.keys);
    for (int64_t lane = 0; lane < lanes; lane += strip) {
      StripArgs a = strip_args(c.shape, l, w, strip, lane, w.acc, w.top, w.sum);
      a.full_keys = static_cast<int32_t>(std::min(count, position(lane) + 1 - key));
      a.keys_end = static_cast<int32_t>(std::min(count, position(lane + strip - 1) + 1 - key));
      if (a.full_keys < a.keys_end)
        for (int32_t i = 0; i < strip; ++i) w.limits[lane + i] = static_cast<float>(position(lane + i) + 1 - key);
      attend_strip(c.isa, a);
    }
  }
  for (int64_t lane = 0; lane < lanes; lane += strip)
    finish_strip(c.isa, strip, c.shape.latent, w.acc + lane * c.shape.latent, w.sum + lane);
  for (int64_t lane = 0; lane < queries; ++lane) {
    float* dst = c.out + (token + position(lane)) * c.out_pitch + (t.first_head + lane % t.heads) * c.shape.latent;
    const float* column = w.acc + lane / strip * strip * c.shape.latent + lane % strip;
    for (int32_t r = 0; r < c.shape.latent; ++r) dst[r] = column[r * strip];
  }
}

void prefill(const Call& c, void* workspace, device::Stream& stream) {
  const auto tiles_of = [&](int32_t i) {
    const int64_t tokens = c.batch.seq_begin[i + 1] - c.batch.seq_begin[i];
    return tokens > 0 ? base::ceil_div(c.batch.start[i] + tokens, kQueryTile) - c.batch.start[i] / kQueryTile : 0;
  };
  int64_t tiles = 0, work = 0;
  for (int32_t i = 0; i < c.batch.rows; ++i) {
    tiles += tiles_of(i);
    work += (c.batch.seq_begin[i + 1] - c.batch.seq_begin[i]) *
            (c.batch.seq_begin[i + 1] - c.batch.seq_begin[i] + c.batch.start[i]);
  }
  // Fewer heads a task when tasks are scarce; a lane's bits do not depend on its group.
  int32_t group = std::min(kHeadGroup, c.shape.heads);
  while (group > 1 && tiles * base::ceil_div(c.shape.heads, group) < 2 * stream.info().threads) group /= 2;
  const int64_t groups = base::ceil_div(c.shape.heads, group);
  const auto run = [&](int64_t index, int worker) {
    // Backwards: a row's late tiles see the most keys and should not be left for the end.
    int64_t tile = (tiles * groups - 1 - index) / groups;
    PrefillTask t;
    while (tile >= tiles_of(t.row)) tile -= tiles_of(t.row++);
    const int64_t start = c.batch.start[t.row], end = start + c.batch.seq_begin[t.row + 1] - c.batch.seq_begin[t.row];
    const int64_t grid = (start / kQueryTile + tile) * kQueryTile;
    t.begin = std::max(start, grid), t.end = std::min(end, grid + kQueryTile);
    t.first_head = static_cast<int32_t>(index % groups) * group;
    t.heads = std::min(group, c.shape.heads - t.first_head);
    run_prefill_task(c, t, static_cast<std::byte*>(workspace) + static_cast<size_t>(worker) * c.layout.worker());
  };
  if (stream.info().threads == 1 || work * c.shape.heads * c.layout.width < 1'000'000)
    for (int64_t i = 0; i < tiles * groups; ++i) run(i, 0);
  else
    stream.parallel_for(tiles * groups, run);
}

// Decode has two forms. Which one runs depends on the shape and the instruction set alone.
bool decodes_by_rows(const AttentionShape& s, device::Isa isa) {
  return attention_lanes(isa) >= kRowHeadGroup && s.heads <= kMaxRowHeads && s.latent % kRowWidthMultiple == 0 &&
         s.shared % kRowWidthMultiple == 0;
}

// Where one part of a row's keys leaves its result.
struct Part {
  float *acc, *top, *sum;
};

// Keys [begin, end) of a row, queries as lanes.
void decode_lanes(const Call& c, int32_t row, int64_t begin, int64_t end, const Worker& w, const Part& out) {
  const Layout& l = c.layout;
  const int32_t strip = strip_lanes(c.isa, c.shape.heads);
  const int64_t lanes = base::round_up<int64_t>(c.shape.heads, strip);
  const float* q = c.q + c.batch.seq_begin[row] * c.q_pitch;
  pack_queries(
      l, c.shape.scale, lanes, strip, [&](int64_t lane) { return lane < c.shape.heads ? q + lane * l.width : nullptr; },
      w.q);
  start(lanes, c.shape.latent, out.acc, out.top, out.sum);
  for (int64_t key = begin; key < end; key += kKeyBlock) {
    const int64_t count = std::min<int64_t>(kKeyBlock, end - key);
    gather(c.isa, c.pages, c.batch.page_table + row * c.batch.max_pages, l.width, key, count, w.keys);
    for (int64_t lane = 0; lane < lanes; lane += strip) {
      StripArgs a = strip_args(c.shape, l, w, strip, lane, out.acc, out.top, out.sum);
      a.full_keys = a.keys_end = static_cast<int32_t>(count);
      attend_strip(c.isa, a);
    }
  }
}

// The same for few heads, vectors along the latent.
void decode_rows(const Call& c, int32_t row, int64_t begin, int64_t end, const Worker& w, const Part& out) {
  const Layout& l = c.layout;
  const int32_t heads = base::round_up(c.shape.heads, kRowHeadGroup);
  const float* q = c.q + c.batch.seq_begin[row] * c.q_pitch;
  for (int64_t i = 0; i < heads * l.width; ++i) w.q[i] = i < c.shape.heads * l.width ? q[i] * c.shape.scale : 0.0f;
  start(heads, c.shape.latent, out.acc, out.top, out.sum);
  const int32_t* table = c.batch.page_table + row * c.batch.max_pages;
  const float* rows[kKeyBlock + kRowKeyPadding];
  for (int64_t key = begin; key < end; key += kKeyBlock) {
    const int64_t count = std::min<int64_t>(kKeyBlock, end - key);
    if (c.pages.dtype == base::DType::kF32) {
      for (int64_t k = 0; k < count; ++k) {
        const int64_t position = key + k;
        rows[k] = static_cast<const float*>(c.pages.base) + table[position / c.pages.page_size] * c.pages.page_pitch +
                  position % c.pages.page_size * l.width;
      }
    } else {
      gather(c.isa, c.pages, table, l.width, key, count, w.keys);
      for (int64_t k = 0; k < count; ++k) rows[k] = w.keys + k * l.width;
    }
    std::fill(rows + count, rows + count + kRowKeyPadding, rows[count - 1]);
    RowsArgs a;
    a.heads = heads, a.latent = c.shape.latent, a.width = static_cast<int32_t>(l.width), a.q = w.q;
    a.rows = rows, a.keys = static_cast<int32_t>(count), a.scores = w.scores;
    a.acc = out.acc, a.top = out.top, a.sum = out.sum;
    attend_rows(c.isa, a);
  }
}

void finish_decode_lanes(const Call& c, const Part& first, int64_t part_floats, int32_t parts, float* out) {
  const int32_t strip = strip_lanes(c.isa, c.shape.heads), latent = c.shape.latent;
  for (int64_t lane = 0; lane < c.shape.heads; lane += strip) {
    float* acc = first.acc + lane * latent;
    if (parts > 1)
      merge_strips(c.isa, strip, latent, parts, acc, part_floats, first.top + lane, first.sum + lane, part_floats);
    finish_strip(c.isa, strip, latent, acc, first.sum + lane);
    for (int64_t h = lane; h < std::min<int64_t>(lane + strip, c.shape.heads); ++h)
      for (int32_t r = 0; r < latent; ++r) out[h * latent + r] = acc[r * strip + h - lane];
  }
}

void decode(const Call& c, void* workspace, device::Stream& stream) {
  const Layout& l = c.layout;
  const int threads = stream.info().threads;
  const bool by_rows = decodes_by_rows(c.shape, c.isa);
  auto* shared =
      reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + static_cast<size_t>(threads) * l.worker());
  const int64_t part_floats = l.part_floats(c.shape);
  const auto part_at = [&](int64_t index) {
    float *acc = shared + index * part_floats, *top = acc + l.lanes * c.shape.latent;
    return Part{acc, top, top + l.lanes};
  };
  const auto keys_of = [&](int32_t row) {
    return c.batch.seq_begin[row + 1] > c.batch.seq_begin[row] ? c.batch.start[row] + 1 : 0;
  };
  for (int32_t first = 0; first < c.batch.rows; first += kDecodeRows) {
    const int32_t rows = std::min(kDecodeRows, c.batch.rows - first);
    int64_t work = 0;
    for (int32_t i = 0; i < rows; ++i) work += keys_of(first + i);
    const auto run = [&](int64_t index, int worker) {
      const int32_t row = first + static_cast<int32_t>(index / kDecodeParts);
      const int64_t keys = keys_of(row), span = part_keys(keys), begin = index % kDecodeParts * span,
                    end = std::min(keys, begin + span);
      if (begin >= end) return;
      const Worker w(l, static_cast<std::byte*>(workspace) + static_cast<size_t>(worker) * l.worker());
      (by_rows ? decode_rows : decode_lanes)(c, row, begin, end, w, part_at(index));
    };
    const auto finish = [&](int64_t i) {
      const int32_t row = first + static_cast<int32_t>(i);
      const int64_t keys = keys_of(row);
      if (keys == 0) return;
      const auto parts = static_cast<int32_t>(base::ceil_div(keys, part_keys(keys)));
      const Part p = part_at(i * kDecodeParts);
      float* out = c.out + c.batch.seq_begin[row] * c.out_pitch;
      if (by_rows)
        finish_rows(c.isa, c.shape.heads, c.shape.latent, parts, p.acc, part_floats, p.top, p.sum, part_floats, out);
      else
        finish_decode_lanes(c, p, part_floats, parts, out);
    };
    if (threads == 1 || work * c.shape.heads * l.width < 2'000'000)
      for (int64_t i = 0; i < int64_t{rows} * kDecodeParts; ++i) run(i, 0);
    else
      stream.parallel_for(int64_t{rows} * kDecodeParts, run);
    for_rows(stream, rows, 2 * kDecodeParts * int64_t{c.shape.heads} * c.shape.latent, finish);
  }
}

}  // namespace

void write_latents(const AttentionShape& shape, const AttentionBatch& batch, const float* x, int64_t x_pitch,
                   const LatentPages& pages, device::Stream& stream) {
  check(shape, pages);
  check_rows(batch, pages);
  const int64_t width = int64_t{shape.latent} + shape.shared;
  for (int32_t i = 0; i < batch.rows; ++i) {
    const int64_t first = batch.seq_begin[i];
    for_rows(stream, batch.seq_begin[i + 1] - first, pages.dtype == base::DType::kF32 ? width : 8 * width,
             [&](int64_t t) {
               const int64_t position = batch.start[i] + t;
               const int64_t page = batch.page_table[i * batch.max_pages + position / pages.page_size];
               const int64_t offset = page * pages.page_pitch + position % pages.page_size * width;
               const float* src = x + (first + t) * x_pitch;
               if (pages.dtype == base::DType::kF32) {
                 std::memcpy(static_cast<float*>(pages.base) + offset, src, static_cast<size_t>(width) * sizeof(float));
               } else {
                 uint16_t* dst = static_cast<uint16_t*>(pages.base) + offset;
                 const bool bf16 = pages.dtype == base::DType::kBF16;
                 for (int64_t d = 0; d < width; ++d)
                   dst[d] = bf16 ? base::f32_to_bf16(src[d]) : base::f32_to_f16(src[d]);
               }
             });
  }
}

void latent_attention(GemmPhase phase, const AttentionShape& shape, const AttentionBatch& batch, const float* q,
                      int64_t q_pitch, const LatentPages& pages, float* out, int64_t out_pitch, void* workspace,
                      device::Stream& stream) {
  check(shape, pages);
  check_rows(batch, pages);
  const Layout layout(shape, phase);
  const Call call{shape, batch, pages, q, q_pitch, out, out_pitch, stream.info().isa, layout};
  if (phase == GemmPhase::kPrefill) return prefill(call, workspace, stream);
  for (int32_t i = 0; i < batch.rows; ++i) {
    const int64_t tokens = batch.seq_begin[i + 1] - batch.seq_begin[i];
    if (tokens > 1)
      base::throw_invalid("queries of row " + std::to_string(i) + " in decode", "at most 1", std::to_string(tokens));
  }
  decode(call, workspace, stream);
}

size_t latent_attention_workspace(const AttentionShape& shape, int threads) {
  const Layout prefill_layout(shape, GemmPhase::kPrefill), decode_layout(shape, GemmPhase::kDecode);
  const size_t parts = floats(decode_layout.part_floats(shape) * kDecodeRows * kDecodeParts);
  return std::max(static_cast<size_t>(threads) * prefill_layout.worker(),
                  static_cast<size_t>(threads) * decode_layout.worker() + parts);
}

}  // namespace kadence::ops
