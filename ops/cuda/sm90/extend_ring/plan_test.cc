// What Hopper extend promises without a GPU: bounded memory, variants, refusals, and how work is dealt to scanners.
#include "ops/cuda/sm90/extend_ring/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "ops/cuda/sm90/extend_ring/stream.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {
namespace {

KdaProblem problem_of(int heads, int64_t tokens, int rows) {
  KdaProblem p;
  p.H = p.HV = heads, p.K = p.V = 128, p.io = p.decay = DType::kBF16;
  p.bounds = {rows, tokens, 0};
  return p;
}

device::DeviceInfo hopper() {
  device::DeviceInfo d;
  d.kind = device::DeviceKind::kCuda, d.name = "cuda:0", d.sm_major = 9, d.sm_count = 132,
  d.shared_bytes_per_block = 232448;
  return d;
}

TEST(ExtendPlan, WorkspaceIsBoundedWhateverTheLength) {
  for (int heads : {1, 4, 12, 32, 64, 96})
    for (int rows : {1, 8, 300, 4096})
      for (int64_t tokens : {1, 64, 8192, 131072, 1048576}) {
        const KdaProblem p = problem_of(heads, tokens, rows);
        const Shape s = choose_shape(p, 132, 0);
        EXPECT_LE(layout_workspace(p, s).bytes, size_t{64} << 20) << heads << " heads, " << rows << " rows";
        EXPECT_EQ(
            layout_workspace(p, s).bytes,
            layout_workspace(problem_of(heads, 64, rows), choose_shape(problem_of(heads, 64, rows), 132, 0)).bytes);
      }
}

TEST(ExtendPlan, EveryScannerHasARingAndSomeCtasPrepare) {
  for (int sms : {4, 78, 114, 132})
    for (int heads : {1, 12, 96, 128})
      for (int block : {0, 64, 192, 512, 1 << 20}) {
        const KdaProblem p = problem_of(heads, 4096, 40);
        const Shape s = choose_shape(p, sms, block);
        EXPECT_GE(s.max_scanners, 1);
        EXPECT_LE(s.max_scanners, kMaxScanners);
        EXPECT_LT(s.max_scanners, s.ctas);
        EXPECT_GE(s.ring_slots / s.max_scanners, 6) << "stages hold slots while the next are written";
        EXPECT_LE(s.ring_slots, std::max(kMaxRingSlots, 6 * s.max_scanners));
        EXPECT_LE(s.max_depth, kMaxDepth);
      }
}

TEST(ExtendPlan, PartsOfTheWorkspaceDoNotOverlap) {
  const KdaProblem p = problem_of(12, 100000, 77);
  const Shape s = choose_shape(p, 132, 0);
  const Workspace w = layout_workspace(p, s);
  EXPECT_EQ(w.slots, 0u);
  EXPECT_GE(w.handoff, static_cast<size_t>(s.ring_slots) * Slot::kBytes);
  EXPECT_GE(w.schedule, w.handoff + (static_cast<size_t>(s.max_scanners) + 1) * kDim * kDim * 4);
  EXPECT_GE(w.rows, w.schedule + sizeof(Schedule));
  EXPECT_GE(w.spans, w.rows + 77 * sizeof(RowInfo));
  EXPECT_GE(w.ready, w.spans + 78 * sizeof(Span));
  EXPECT_GE(w.consumed, w.ready + static_cast<size_t>(s.max_scanners) * kReadyPitch * 4);
  EXPECT_GE(w.flags, w.consumed + static_cast<size_t>(s.max_scanners) * kConsumedPitch * 4);
  EXPECT_GE(w.bytes, w.flags + (static_cast<size_t>(s.max_scanners) + 1) * 2 * 4);
  for (size_t at : {w.handoff, w.schedule, w.rows, w.spans, w.ready, w.consumed, w.flags})
    EXPECT_EQ(at % kWorkspaceAlign, 0u);
}

TEST(ExtendPlan, GatesThatNeedItTakeTheExactPath) {
  KdaProblem p = problem_of(2, 64, 1);
  p.lower_bound = -5.0f;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kBounded);
  p.lower_bound = -5.5f;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kBoundedExact);
  p.gate = KdaGate::kSoftplus;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kSoftplus);
  p.gate = KdaGate::kGivenLogDecay, p.decay = DType::kF32;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kGiven);
  EXPECT_TRUE(choose_variant(p).decay_fp32);
  for (Flavor f : {Flavor::kBounded, Flavor::kBoundedExact, Flavor::kSoftplus, Flavor::kGiven})
    for (bool fp32 : {false, true}) {
      const Variant v = decode(encode({f, fp32}));
      EXPECT_EQ(v.flavor, f);
      EXPECT_EQ(v.decay_fp32, fp32);
    }
}

TEST(ExtendPlan, SaysWhatItLacks) {
  KdaProblem p = problem_of(2, 64, 1);
  EXPECT_THAT(misses(p, hopper()), ::testing::IsEmpty());
  device::DeviceInfo ampere = hopper();
  ampere.sm_major = 8;
  EXPECT_THAT(misses(p, ampere), ::testing::ElementsAre(::testing::HasSubstr("compute capability 9.0")));
  p.K = p.V = 64, p.io = p.decay = DType::kF32;
  EXPECT_THAT(misses(p, hopper()),
              ::testing::ElementsAre(::testing::HasSubstr("K = 64"), ::testing::HasSubstr("float32")));
}

// A table of rows as extend_rows makes it, and what it deals from it to n scanners.
struct Dealt {
  std::vector<RowInfo> info;
  std::vector<int32_t> depth, slot;
  RowTable table{};
  int64_t load = 0;
  int scanners = 0;
  Schedule schedule{};
  RingParams params{};

  Dealt(const std::vector<int>& lengths, int heads, base::Rng* checkpoints = nullptr) {
    for (int len : lengths) {
      RowInfo r{};
      r.len = len, r.chunk = table.chunks, r.weight = table.weight, r.state_in = -1;
      r.state_out = static_cast<int32_t>(info.size()) % 5 == 3 ? -1 : static_cast<int32_t>(info.size());
      r.ckpt_begin = static_cast<int32_t>(depth.size());
      for (int at = 64; checkpoints && at <= len; at += 64)
        if (checkpoints->uniform() < 0.5) depth.push_back(at), slot.push_back(static_cast<int32_t>(slot.size()) - 1);
      r.ckpt_end = static_cast<int32_t>(depth.size());
      const int chunks = (len + kChunk - 1) / kChunk;
      table.chunks += chunks, table.weight += chunks + kRowWeight;
      table.heaviest = std::max(table.heaviest, chunks + kRowWeight);
      info.push_back(r);
    }
    table.info = info.data(), table.rows = static_cast<int32_t>(info.size()), table.heads = heads;
    params.heads = heads, params.row_info = info.data(), params.ckpt_depth = depth.data(),
    params.ckpt_slot = slot.data();
  }
  void deal_to(int n) {
    load = table.load_of(n), scanners = static_cast<int>((table.all() + load - 1) / load);
    for (int s = 0; s <= scanners; ++s) deal(schedule, table, s, scanners, load);
    std::vector<int> drops;
    for (int s = 1; s < scanners; ++s)
      if (!cut_fits(schedule, s)) drops.push_back(s);
    for (int s : drops) drop_cut(schedule, table, s);
  }
  int chunks() const { return table.chunks * table.heads; }
  int stream_chunks(int s) const { return schedule.chunk[s + 1] - schedule.chunk[s]; }
  std::vector<Piece> pieces(int s) const {
    std::vector<Piece> all;
    Pieces walk(params, schedule, s);
    for (Piece piece; walk.next(piece);) all.push_back(piece);
    return all;
  }
  int number(const Piece& piece, int i) const {
    return piece.row.chunk * table.heads + piece.head * ((piece.row.len + kChunk - 1) / kChunk) + piece.begin + i;
  }
};

std::vector<int> random_lengths(base::Rng& rng, int rows) {
  std::vector<int> lengths;
  for (int i = 0; i < rows; ++i) {
    const double kind = rng.uniform();
    lengths.push_back(static_cast<int>(kind < 0.1   ? 0
                                       : kind < 0.3 ? 1 + rng.uniform() * 40
                                       : kind < 0.8 ? 1 + rng.uniform() * 3000
                                                    : 1 + rng.uniform() * 20000));
  }
  return lengths;
}

TEST(ExtendDeal, EveryChunkIsInOneStreamAndStreamsAreWalkedAsTheyAreNumbered) {
  base::Rng rng(3);
  int cuts = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Dealt d(random_lengths(rng, 1 + static_cast<int>(rng.uniform() * 12)), 1 + static_cast<int>(rng.uniform() * 20));
    const int items = d.table.rows * d.table.heads;
    d.deal_to(1 + static_cast<int>(rng.uniform() * std::min(items, 99)));
    ASSERT_LE(d.scanners, kMaxScanners);
    std::vector<int> seen(static_cast<size_t>(d.chunks()));
    for (int s = 0; s < d.scanners; ++s) {
      ASSERT_GE(d.stream_chunks(s), 0);
      int at = 0;
      for (const Piece& piece : d.pieces(s)) {
        ASSERT_LE(piece.end, (piece.row.len + kChunk - 1) / kChunk);
        for (int i = 0; i < piece.count(); ++i, ++at) {
          ASSERT_EQ(d.number(piece, i), chunk_number(d.schedule, s, at)) << "scanner " << s << " position " << at;
          ++seen[static_cast<size_t>(d.number(piece, i))];
        }
      }
      ASSERT_EQ(at, d.stream_chunks(s));
      cuts += d.schedule.cut[s] > 0;
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
  EXPECT_GT(cuts, 300) << "the cases must have cut items";
}

TEST(ExtendDeal, TheFirstPartOfACutItemComesBeforeTheRest) {
  base::Rng rng(4);
  for (int trial = 0; trial < 300; ++trial) {
    Dealt d(random_lengths(rng, 1 + static_cast<int>(rng.uniform() * 12)), 1 + static_cast<int>(rng.uniform() * 20));
    d.deal_to(1 + static_cast<int>(rng.uniform() * std::min(d.table.rows * d.table.heads, 99)));
    for (int s = 1; s < d.scanners; ++s) {
      if (d.schedule.cut[s] == 0) continue;
      const Piece opening = d.pieces(s - 1).front(), closing = d.pieces(s).back();
      EXPECT_EQ(opening.end, closing.begin);
      EXPECT_EQ(opening.boundary, s);
      EXPECT_EQ(closing.boundary, s);
      EXPECT_FALSE(opening.ends);
      EXPECT_TRUE(closing.ends);
      // Positions at which the state is left and wanted.
      EXPECT_LE(opening.count(), d.stream_chunks(s) - closing.count());
    }
  }
}

TEST(ExtendDeal, StreamsAreAboutEqual) {
  for (const auto& [lengths, heads] :
       std::vector<std::pair<std::vector<int>, int>>{{std::vector<int>(8, 4096), 32},
                                                     {{8192}, 64},
                                                     {{8192}, 96},
                                                     {std::vector<int>(8, 1024), 96},
                                                     {{1300, 547, 2048, 963, 271, 3063}, 64}})
    for (int n : {30, 37, 44, 51}) {
      Dealt d(lengths, heads);
      d.deal_to(n);
      EXPECT_EQ(d.scanners, n);
      for (int s = 0; s < n; ++s) {
        int weight = 0;
        for (const Piece& piece : d.pieces(s)) weight += piece.count() + kRowWeight;
        EXPECT_LE(weight, d.load + kMinPiece + 2 * kRowWeight);
      }
    }
}

TEST(ExtendDeal, FewChainsTakeHalvesOfAStateAndManyTakeWholeOnes) {
  const auto best = [](const std::vector<int>& lengths, int heads) {
    const Dealt d(lengths, heads);
    int choice = 2;
    for (int c = 2; c < 2 * 99 + 2; ++c)
      if (cost_of(d.table, 132, c) < cost_of(d.table, 132, choice)) choice = c;
    return choice;
  };
  EXPECT_EQ(best({131072}, 12), 2 * 12);
  EXPECT_EQ(best({8192}, 4), 2 * 4);
  for (int heads : {64, 96}) {
    const int choice = best({8192}, heads);
    EXPECT_EQ(choice & 1, 1);
    EXPECT_GE(choice >> 1, 30);
    EXPECT_LE(choice >> 1, 60);
  }
}

// What leaves the registers after how many chunks, against a plain walk over pieces and checkpoints.
TEST(ExtendDeal, EventsAreTheCheckpointsAndEndsOfAStream) {
  base::Rng rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    Dealt d(random_lengths(rng, 1 + static_cast<int>(rng.uniform() * 8)), 1 + static_cast<int>(rng.uniform() * 6),
            &rng);
    d.params.checkpoints.dtype = static_cast<int32_t>(trial % 3 ? DType::kF32 : DType::kBF16);
    d.params.state_out.dtype = static_cast<int32_t>(trial % 2 ? DType::kF32 : DType::kF16);
    d.deal_to(1 + static_cast<int>(rng.uniform() * std::min(d.table.rows * d.table.heads, 20)));
    for (int s = 0; s < d.scanners; ++s) {
      Events events(d.params, d.schedule, s);
      int done = 0;
      for (const Piece& piece : d.pieces(s)) {
        const int n = piece.count();
        for (int t = 1; t <= n; ++t) {
          int checkpoint = -1, end = -1, copies = 0;
          for (int i = piece.row.ckpt_begin; i < piece.row.ckpt_end; ++i)
            if (d.depth[static_cast<size_t>(i)] == (piece.begin + t) * kChunk)
              checkpoint = d.slot[static_cast<size_t>(i)], copies = d.params.checkpoints.dtype + 1;
          if (t == n && (!piece.ends || piece.row.state_out >= 0)) {
            end = piece.ends ? piece.row.state_out : piece.boundary;
            const int format = piece.ends ? d.params.state_out.dtype + 1 : 1;
            if (copies != format) copies = copies ? copies | format << 4 : format;
          }
          if (copies == 0) continue;
          const EventNote note = events.next(0);
          ASSERT_EQ(note.after, done + t);
          ASSERT_EQ(note.copies, copies);
          ASSERT_EQ(note.checkpoint, checkpoint);
          ASSERT_EQ(note.end, end);
          ASSERT_EQ(note.head, piece.head);
          ASSERT_TRUE(end < 0 || note.cut == !piece.ends);
        }
        done += n;
      }
      ASSERT_EQ(events.next(0).after, EventNote::kNever);
    }
  }
}

}  // namespace
}  // namespace kadence::ops::cuda::sm90::extend
