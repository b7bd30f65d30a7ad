#include "ops/cuda/sm80/extend_chunked/plan.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "ops/cuda/common/layout.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm80 {
namespace {

constexpr int64_t kWindowSlots = 1024;  // of a window; measured, see ../README.md
constexpr int64_t kCarriedStates = 128;
constexpr int64_t kStateBytes = int64_t{kDim} * kDim * 4;
constexpr int64_t kMostBytes = int64_t{63} << 20;  // of slots and carried states

// Chunks of at most `rows` rows with `tokens` tokens in all.
int64_t most_chunks(int64_t rows, int64_t tokens) { return (tokens + (kChunk - 1) * std::min(rows, tokens)) / kChunk; }

}  // namespace

std::vector<std::string> chunked_misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  std::vector<std::string> lacks;
  if (problem.K != kDim || problem.V != kDim)
    lacks.push_back("K = " + std::to_string(problem.K) + ", V = " + std::to_string(problem.V) +
                    " (extend has K = V = 128)");
  if (problem.io == DType::kF32)
    lacks.push_back(std::string("q, k, v, out in ") + base::to_string(problem.io) +
                    " (extend has bfloat16 and float16)");
  if (problem.bounds.max_tokens > std::numeric_limits<int32_t>::max() / 2)
    lacks.push_back("more than 2^30 tokens in a call");
  if (problem.HV > 2048) lacks.push_back("more than 2048 value heads");
  if (device.shared_bytes_per_block < kSharedBytes)
    lacks.push_back(std::to_string(kSharedBytes) + " bytes of shared memory per block (this device has " +
                    std::to_string(device.shared_bytes_per_block) + ")");
  return lacks;
}

Shape choose_shape(const KdaProblem& problem, int32_t block_tokens) {
  Shape s;
  s.heads = problem.HV;
  const int64_t rows = std::max(problem.bounds.max_rows, 1), heads = problem.HV;
  const int64_t chunks = std::max<int64_t>(most_chunks(rows, problem.bounds.max_tokens), 1);
  const int64_t group = std::clamp<int64_t>(std::min(kCarriedStates / heads, rows), 1, kMaxGroup);
  const int64_t room = kMostBytes - 2 * group * heads * kStateBytes;
  const int64_t most = std::max<int64_t>(room / (2 * heads * Slot::kBytes), 1);
  int64_t columns = block_tokens > 0 ? block_tokens / kChunk : std::max<int64_t>(kWindowSlots / heads, 1);
  columns = std::min({columns, most, chunks});
  s.columns = static_cast<int32_t>(columns);
  // A row that crosses windows must be in each of them: no more rows a group than columns.
  s.group = static_cast<int32_t>(std::min(group, columns));
  s.carries = chunks > columns;
  s.buffers = s.carries ? 2 : 1;
  return s;
}

Workspace layout_workspace(const KdaProblem& problem, const Shape& shape) {
  const size_t rows = static_cast<size_t>(std::max(problem.bounds.max_rows, 1));
  Workspace w;
  WorkspaceLayout layout;
  w.header = layout.place(sizeof(Header));
  w.rows = layout.place(rows * sizeof(RowEntry));
  w.group_begin = layout.place((rows + 1) * sizeof(int32_t));
  w.spans = layout.place((rows + 2) * sizeof(Span));
  w.empty_rows = layout.place(rows * sizeof(EmptyRow));
  w.judged = layout.place(rows * sizeof(int32_t));
  w.slots = layout.place(static_cast<size_t>(shape.buffers) * static_cast<size_t>(shape.columns) *
                         static_cast<size_t>(shape.heads) * Slot::kBytes);
  w.carry = layout.place(shape.carries ? size_t{2} * static_cast<size_t>(shape.group) *
                                             static_cast<size_t>(shape.heads) * static_cast<size_t>(kStateBytes)
                                       : 0);
  w.bytes = layout.bytes();
  return w;
}

void plan_chunked(KdaPlan& plan) {
  const Shape shape = choose_shape(plan.problem_, plan.options_.extend_block_tokens);
  plan.workspace_bytes_ = layout_workspace(plan.problem_, shape).bytes;
  plan.block_tokens_ = shape.columns * kChunk;
}

Call make_call(const KdaPlan& plan, const KdaExtendArgs& a) {
  const KdaProblem& problem = plan.problem();
  const Shape shape = choose_shape(problem, plan.options().extend_block_tokens);
  const Workspace w = layout_workspace(problem, shape);
  char* const base = static_cast<char*>(a.workspace);
  Tables t;
  t.header = reinterpret_cast<Header*>(base + w.header);
  t.rows = reinterpret_cast<RowEntry*>(base + w.rows);
  t.group_begin = reinterpret_cast<int32_t*>(base + w.group_begin);
  t.spans = reinterpret_cast<Span*>(base + w.spans);
  t.empty_rows = reinterpret_cast<EmptyRow*>(base + w.empty_rows);
  t.judged = reinterpret_cast<int32_t*>(base + w.judged);

  Call call{};
  RowsParams& r = call.rows;
  r.meta = a.metadata, r.tokens = a.tokens, r.seq_int64 = problem.seq_int64;
  r.in_slots = a.state_in.slots, r.out_slots = a.state_out.slots, r.ckpt_slots = a.checkpoints.slots;
  r.max_checkpoints = problem.bounds.max_checkpoints, r.group = shape.group, r.tables = t;

  WindowParams& p = call.window;
  p.q = a.q.data, p.k = a.k.data, p.v = a.v.data, p.decay = a.decay.data, p.beta = a.beta.data;
  p.q_pitch = a.q.pitch, p.k_pitch = a.k.pitch, p.v_pitch = a.v.pitch, p.decay_pitch = a.decay.pitch,
  p.beta_pitch = a.beta.pitch;
  p.out = a.out.data, p.out_pitch = a.out.pitch;
  p.a_log = a.A_log, p.dt_bias = a.dt_bias;
  p.scale = plan.scale(), p.lower_bound = problem.lower_bound, p.gate = problem.gate;
  p.heads = problem.HV, p.heads_per_key = problem.HV / problem.H;
  p.l2norm = problem.l2norm, p.beta_fp32 = problem.beta == DType::kF32;
  p.beta_given = problem.beta_mode == KdaBeta::kGiven, p.beta_doubled = problem.beta_doubled;
  p.state_in = {a.state_in.base, a.state_in.slot_pitch, problem.state_in};
  p.state_out = {a.state_out.base, a.state_out.slot_pitch, problem.state_out};
  p.checkpoints = {a.checkpoints.base, a.checkpoints.slot_pitch, problem.checkpoints};
  p.ckpt_depth = a.metadata.ckpt_depth, p.ckpt_slot = a.metadata.ckpt_slot;
  p.tables = t, p.group = shape.group, p.columns = shape.columns;
  p.slots = reinterpret_cast<uint8_t*>(base + w.slots), p.carry = reinterpret_cast<float*>(base + w.carry);
  // Rows of a window: those of the groups that it touches.
  p.candidates = static_cast<int32_t>(std::min<int64_t>(a.metadata.rows, int64_t{shape.columns} + 2 * shape.group));
  const int64_t chunks = most_chunks(a.metadata.rows, a.tokens);
  call.windows = static_cast<int32_t>(base::ceil_div<int64_t>(chunks, shape.columns));
  return call;
}

WindowParams Call::launch(int32_t i) const {
  WindowParams p = window;
  p.window = i;
  p.scan_ctas = i > 0 ? 2 * p.heads * p.candidates : 0;
  p.prep_ctas = i < windows || i == 0 ? p.heads * p.columns : 0;
  return p;
}

}  // namespace kadence::ops::cuda::sm80
