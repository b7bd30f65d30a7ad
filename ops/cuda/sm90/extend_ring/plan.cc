#include "ops/cuda/sm90/extend_ring/plan.h"

#include <algorithm>
#include <limits>

#include "base/math.h"
#include "ops/cuda/common/device_scope.h"
#include "ops/cuda/common/layout.h"
#include "ops/cuda/common/tensor_map.h"
#include "ops/cuda/sm90/extend_ring/launch.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {
namespace {

// |log2| of the decay of 16 tokens that an anchored product may reach; kAnchorLimit of the kernel.
constexpr float kAnchorRange = 116.0f;
constexpr float kLog2E = 1.4426950408889634f;
constexpr int kMinDepth = 6;

}  // namespace

Variant choose_variant(const KdaProblem& problem) {
  Variant v{};
  v.decay_fp32 = problem.decay == DType::kF32;
  switch (problem.gate) {
    case KdaGate::kBounded:
      v.flavor = -problem.lower_bound * kLog2E * 16 <= kAnchorRange ? Flavor::kBounded : Flavor::kBoundedExact;
      return v;
    case KdaGate::kSoftplus:
      v.flavor = Flavor::kSoftplus;
      return v;
    case KdaGate::kGivenLogDecay:
      v.flavor = Flavor::kGiven;
      return v;
  }
  base::throw_invalid("KdaProblem::gate", "one of KdaGate", std::to_string(static_cast<int>(problem.gate)));
}

std::vector<std::string> misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  std::vector<std::string> lacks;
  if (device.sm_major != 9)
    lacks.push_back("compute capability 9.0 (this device has " + std::to_string(device.sm_major) + "." +
                    std::to_string(device.sm_minor) + ")");
  if (problem.K != kDim || problem.V != kDim)
    lacks.push_back("K = " + std::to_string(problem.K) + ", V = " + std::to_string(problem.V) +
                    " (extend has K = V = 128)");
  if (problem.io != DType::kBF16)
    lacks.push_back(std::string("q, k, v, out in ") + base::to_string(problem.io) + " (extend has bfloat16)");
  if (problem.bounds.max_tokens > std::numeric_limits<int32_t>::max())
    lacks.push_back("more than 2^31 - 1 tokens in a call");
  if (device.sm_major == 9 && device.shared_bytes_per_block < kSharedBytes)
    lacks.push_back(std::to_string(kSharedBytes) + " bytes of shared memory per block");
  return lacks;
}

Shape choose_shape(const KdaProblem& problem, int sm_count, int32_t block_tokens) {
  Shape s;
  s.heads = problem.HV;
  s.ctas = std::clamp(sm_count, 4, 256);
  // Some CTAs must prepare, and every scanner needs a preparing warpgroup.
  const int64_t items = std::max<int64_t>(int64_t{problem.HV} * problem.bounds.max_rows, 1);
  s.max_scanners = static_cast<int32_t>(std::min<int64_t>({items, int64_t{s.ctas} * 3 / 4, kMaxScanners}));
  const int depth = std::clamp(kMaxRingSlots / s.max_scanners, kMinDepth, kMaxDepth);
  s.max_depth = block_tokens > 0 ? std::clamp(block_tokens / kChunk, kMinDepth, depth) : kMaxDepth;
  s.ring_slots = block_tokens > 0 ? s.max_scanners * s.max_depth : std::min(kMaxRingSlots, s.max_scanners * kMaxDepth);
  return s;
}

Workspace layout_workspace(const KdaProblem& problem, const Shape& shape) {
  const size_t rows = static_cast<size_t>(std::max(problem.bounds.max_rows, 1));
  Workspace w;
  WorkspaceLayout layout;
  w.slots = layout.place(static_cast<size_t>(shape.ring_slots) * Slot::kBytes);
  w.handoff = layout.place((static_cast<size_t>(shape.max_scanners) + 1) * kDim * kDim * sizeof(float));
  w.schedule = layout.place(sizeof(Schedule));
  w.rows = layout.place(rows * sizeof(RowInfo));
  w.spans = layout.place((rows + 1) * sizeof(Span));
  w.ready = layout.place(static_cast<size_t>(shape.max_scanners) * kReadyPitch * sizeof(uint32_t));
  w.consumed = layout.place(static_cast<size_t>(shape.max_scanners) * kConsumedPitch * sizeof(uint32_t));
  w.flags = layout.place((static_cast<size_t>(shape.max_scanners) + 1) * 2 * sizeof(uint32_t));
  w.bytes = layout.bytes();
  return w;
}

void plan_extend(KdaPlan& plan) {
  const Shape shape = choose_shape(plan.problem_, plan.device_.sm_count, plan.options_.extend_block_tokens);
  plan.variant_ = encode(choose_variant(plan.problem_));
  plan.workspace_bytes_ = layout_workspace(plan.problem_, shape).bytes;
  plan.block_tokens_ = shape.ring_slots / shape.max_scanners * kChunk;
}

void run_extend(const KdaPlan& plan, const KdaExtendArgs& a, device::Stream& stream) {
  const KdaProblem& problem = plan.problem();
  if (a.tokens == 0 && a.metadata.rows == 0) return;
  if (reinterpret_cast<uintptr_t>(a.dt_bias) % kTensorAlign != 0)
    base::throw_invalid("dt_bias", "an address aligned to 16 bytes", "a misaligned one");
  const Shape shape = choose_shape(problem, plan.device_.sm_count, plan.options().extend_block_tokens);
  const Workspace w = layout_workspace(problem, shape);
  char* base = static_cast<char*>(a.workspace);
  const DeviceScope scope(stream);

  RowsParams rows{};
  rows.seq_begin = a.metadata.seq_begin;
  rows.state_in = a.metadata.state_in, rows.state_out = a.metadata.state_out;
  rows.ckpt_begin = a.metadata.ckpt_begin, rows.ckpt_depth = a.metadata.ckpt_depth,
  rows.ckpt_slot = a.metadata.ckpt_slot;
  rows.rows_device = a.metadata.rows_device, rows.status = a.metadata.status;
  rows.rows = a.metadata.rows, rows.max_checkpoints = problem.bounds.max_checkpoints;
  rows.tokens = a.tokens;
  rows.in_slots = a.state_in.slots, rows.out_slots = a.state_out.slots, rows.ckpt_slots = a.checkpoints.slots;
  rows.seq_int64 = problem.seq_int64;
  rows.shape = shape;
  rows.schedule = reinterpret_cast<Schedule*>(base + w.schedule);
  rows.row_info = reinterpret_cast<RowInfo*>(base + w.rows);
  rows.spans = reinterpret_cast<Span*>(base + w.spans);
  rows.ready = reinterpret_cast<uint32_t*>(base + w.ready);
  rows.consumed = reinterpret_cast<uint32_t*>(base + w.consumed);
  rows.handoff_flags = reinterpret_cast<uint32_t*>(base + w.flags);
  launch_rows(rows, stream);

  RingParams ring{};
  const int64_t width = int64_t{problem.HV} * kDim;
  if (a.tokens > 0) {
    ring.values = encode_bf16_map(a.v.data, a.tokens, width, a.v.pitch, kChunk);
    ring.out_map = encode_bf16_map(a.out.data, a.tokens, width, a.out.pitch, kChunk);
  }
  ring.q = a.q.data, ring.k = a.k.data, ring.decay = a.decay.data, ring.beta = a.beta.data;
  ring.q_pitch = a.q.pitch, ring.k_pitch = a.k.pitch, ring.decay_pitch = a.decay.pitch, ring.beta_pitch = a.beta.pitch;
  ring.out = a.out.data, ring.out_pitch = a.out.pitch;
  ring.a_log = a.A_log, ring.dt_bias = a.dt_bias;
  ring.scale = plan.scale(), ring.lower_bound = problem.lower_bound;
  ring.heads = problem.HV, ring.group = problem.HV / problem.H;
  ring.l2norm = problem.l2norm, ring.beta_fp32 = problem.beta == DType::kF32;
  ring.beta_given = problem.beta_mode == KdaBeta::kGiven, ring.beta_doubled = problem.beta_doubled;
  const auto pool = [](const StateView& v) {
    return StatePool{v.base, v.slot_pitch,
                     static_cast<int32_t>(std::min<int64_t>(v.slots, std::numeric_limits<int32_t>::max())),
                     static_cast<int32_t>(v.dtype)};
  };
  ring.state_in = pool(a.state_in), ring.state_out = pool(a.state_out), ring.checkpoints = pool(a.checkpoints);
  const auto map = [&](const StatePool& p) {
    return p.slots > 0 && p.base
               ? encode_state_map(p.base, p.dtype != static_cast<int>(DType::kF32), p.slots, width, p.pitch)
               : CUtensorMap{};
  };
  ring.state_out_map = map(ring.state_out), ring.checkpoint_map = map(ring.checkpoints);
  ring.handoff = {base + w.handoff, kDim * kDim, shape.max_scanners + 1, static_cast<int32_t>(DType::kF32)};
  ring.handoff_map = encode_state_map(ring.handoff.base, false, ring.handoff.slots, kDim, kDim * kDim);
  ring.handoff_flags = rows.handoff_flags;
  ring.ckpt_depth = a.metadata.ckpt_depth, ring.ckpt_slot = a.metadata.ckpt_slot;
  ring.schedule = rows.schedule, ring.row_info = rows.row_info, ring.spans = rows.spans;
  ring.ready = rows.ready, ring.consumed = rows.consumed;
  ring.slots = reinterpret_cast<uint8_t*>(base + w.slots);
  launch_ring(decode(plan.variant_), ring, shape.ctas, stream);
}

}  // namespace kadence::ops::cuda::sm90::extend
