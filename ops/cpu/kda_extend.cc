// Extend on the CPU. A task is one row, one value head and a range of its value channels; it walks the row in windows
// of block_tokens: factors of the whole window first, then the chunks. No arithmetic crosses a chunk except the state,
// so neither the window nor the range nor the worker can change a bit.
#include <algorithm>
#include <cstring>

#include "ops/cpu/kda_cpu.h"

namespace kadence::ops::cpu {
namespace {

constexpr int kDefaultBlock = 64;
constexpr int kMinRange = 32;  // value channels

struct WorkerMemory {
  float *state, *factors, *prepare, *advance;
};
size_t worker_bytes(const KdaProblem& p, int block) {
  const size_t chunks = static_cast<size_t>(block) / kSubChunk;
  return Arena::round(static_cast<size_t>(p.K) * p.V * 4) + Arena::round(chunks * ChunkFactors::floats(p.K) * 4) +
         Arena::round(prepare_floats(p.K) * 4) + Arena::round(advance_floats(p.V) * 4);
}
WorkerMemory worker_memory(const KdaPlan& plan, void* base, int worker) {
  const KdaProblem& p = plan.problem();
  Arena arena(static_cast<char*>(base) + worker_bytes(p, plan.block_tokens()) * static_cast<size_t>(worker));
  WorkerMemory m;
  m.state = arena.take<float>(static_cast<size_t>(p.K) * p.V);
  m.factors = arena.take<float>(static_cast<size_t>(plan.block_tokens()) / kSubChunk * ChunkFactors::floats(p.K));
  m.prepare = arena.take<float>(prepare_floats(p.K));
  m.advance = arena.take<float>(advance_floats(p.V));
  return m;
}

TokenSpan span_of(const ConstTokenTensor& t, int64_t token, int64_t element, DType dtype) {
  const int64_t size = static_cast<int64_t>(base::size_of(dtype));
  return {token_address(t, token, dtype) + element * size, t.pitch * size, dtype};
}

// One row, head and range [v0, v1) of value channels.
struct Task {
  const KdaPlan& plan;
  const KdaExtendArgs& a;
  const KdaKernels& kernels;
  const KdaRow& row;
  int hv, v0, v1;
  WorkerMemory memory;

  char* rows_of(const StateView& view, int32_t slot) const {
    const KdaProblem& p = plan.problem();
    return slot_address(view, slot) + (int64_t{hv} * p.V + v0) * p.K * static_cast<int64_t>(base::size_of(view.dtype));
  }

  void prepare(const HeadParams& head, int64_t first, int64_t end) const {
    const KdaProblem& p = plan.problem();
    const int64_t h = hv / (p.HV / p.H);
    for (int64_t t = first; t < end; t += kSubChunk) {
      const int64_t token = row.begin + t;
      kernels.prepare({head, span_of(a.q, token, h * p.K, p.io), span_of(a.k, token, h * p.K, p.io),
                       span_of(a.decay, token, int64_t{hv} * p.K, p.decay), span_of(a.beta, token, hv, p.beta),
                       static_cast<int>(std::min<int64_t>(kSubChunk, row.len - t)), memory.prepare,
                       factors(t - first)});
    }
  }
  ChunkFactors factors(int64_t offset) const {
    return ChunkFactors(
        memory.factors + static_cast<size_t>(offset / kSubChunk) * ChunkFactors::floats(plan.problem().K),
        plan.problem().K);
  }

  // What follows the chunk at `t`: values and outputs of the next one, preparation's inputs of the window after this.
  Ahead ahead_of(int64_t t, int64_t later) const {
    const KdaProblem& p = plan.problem();
    const auto tokens = [&](int64_t from) {
      return static_cast<int>(std::clamp<int64_t>(row.len - from, 0, kSubChunk));
    };
    const int64_t h = hv / (p.HV / p.H), io = static_cast<int64_t>(base::size_of(p.io)),
                  element = int64_t{hv} * p.V + v0;
    const int64_t decay = static_cast<int64_t>(base::size_of(p.decay));
    Ahead ahead;
    const int64_t next = t + kSubChunk;
    if (const int n = tokens(next)) {
      ahead.add(token_address(a.v, row.begin + next, p.io) + element * io, a.v.pitch * io, n, (v1 - v0) * io, false);
      ahead.add(token_address(a.out, row.begin + next, p.io) + element * io, a.out.pitch * io, n, (v1 - v0) * io, true);
    }
    if (const int n = tokens(later)) {
      for (const ConstTokenTensor& x : {a.q, a.k})
        ahead.add(token_address(x, row.begin + later, p.io) + h * p.K * io, x.pitch * io, n, p.K * io, false);
      ahead.add(token_address(a.decay, row.begin + later, p.decay) + int64_t{hv} * p.K * decay, a.decay.pitch * decay,
                n, p.K * decay, false);
    }
    return ahead;
  }

  void run() const {
    const KdaProblem& p = plan.problem();
    const int V = v1 - v0;
    const int64_t io = static_cast<int64_t>(base::size_of(p.io));
    const bool same_slot = row.state_in >= 0 && row.state_out >= 0 &&
                           slot_address(a.state_in, row.state_in) == slot_address(a.state_out, row.state_out);
    if (row.len == 0 && (row.state_out < 0 || same_slot)) return;
    if (row.state_in >= 0)
      kernels.load_panels(rows_of(a.state_in, row.state_in), a.state_in.dtype, p.K, V, memory.state);
    else
      std::memset(memory.state, 0, static_cast<size_t>(p.K) * V * sizeof(float));

    const HeadParams head = head_params(plan, hv, a.A_log, a.dt_bias);
    int32_t ckpt = row.ckpt_begin;
    for (int64_t first = 0; first < row.len; first += plan.block_tokens()) {
      const int64_t end = std::min<int64_t>(row.len, first + plan.block_tokens());
      prepare(head, first, end);
      for (int64_t t = first; t < end; t += kSubChunk) {
        const int64_t token = row.begin + t, element = int64_t{hv} * p.V + v0;
        const int n = static_cast<int>(std::min<int64_t>(kSubChunk, row.len - t));
        Ahead ahead = ahead_of(t, end + (t - first));
        kernels.advance({p.K, V, n, factors(t - first), memory.state, span_of(a.v, token, element, p.io),
                         token_address(a.out, token, p.io) + element * io, a.out.pitch * io, p.io, memory.advance,
                         &ahead});
        if (ckpt < row.ckpt_end && a.metadata.ckpt_depth[ckpt] == t + n) {
          if (a.metadata.ckpt_slot[ckpt] >= 0)
            kernels.store_panels(memory.state, p.K, V, rows_of(a.checkpoints, a.metadata.ckpt_slot[ckpt]),
                                 a.checkpoints.dtype);
          ++ckpt;
        }
      }
    }
    if (row.state_out >= 0)
      kernels.store_panels(memory.state, p.K, V, rows_of(a.state_out, row.state_out), a.state_out.dtype);
  }
};

}  // namespace

void plan_extend(KdaPlan& plan) {
  const KdaProblem& p = plan.problem();
  plan.block_tokens_ = plan.options().extend_block_tokens ? plan.options().extend_block_tokens : kDefaultBlock;
  plan.workspace_bytes_ = worker_bytes(p, plan.block_tokens()) * static_cast<size_t>(plan.device_.threads) +
                          sizeof(KdaRow) * static_cast<size_t>(p.bounds.max_rows);
}

void extend(const KdaPlan& plan, const KdaExtendArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  KdaRow* rows =
      reinterpret_cast<KdaRow*>(static_cast<char*>(a.workspace) +
                                worker_bytes(p, plan.block_tokens()) * static_cast<size_t>(plan.device_.threads));
  const size_t token_bytes = static_cast<size_t>(p.HV) * p.V * base::size_of(p.io);
  const auto zero = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) std::memset(token_address(a.out, t, p.io), 0, token_bytes);
  };
  int64_t count = 0, zeroed = 0;
  if (a.metadata.rows > 0) {
    KdaRowCursor cursor(a.metadata, p, a.tokens, a.state_in.slots, a.state_out.slots, a.checkpoints.slots);
    for (; count < cursor.rows(); ++count) {
      const KdaRow row = rows[count] = cursor.next();
      report_row(a.metadata.status, static_cast<int32_t>(count), row.status);
      if (row.status != KdaRowStatus::kOk) continue;
      zero(zeroed, row.begin);
      zeroed = row.begin + row.len;
    }
  }
  zero(zeroed, a.tokens);

  // Too few heads for the workers: cut the value channels, which costs preparing the factors once per range.
  const int64_t heads = count * p.HV;
  int ranges = 1;
  while (heads * ranges < stream.info().threads && p.V % (2 * ranges * kMinRange) == 0) ranges *= 2;
  const int width = p.V / ranges;
  const KdaKernels& kernels = kda_kernels(plan.isa());
  const int64_t state_bytes = int64_t{p.K} * p.V * 8;
  run_tasks(
      stream, heads * ranges, heads * state_bytes + a.tokens * p.HV * (p.K + p.V) * 64, [&](int64_t index, int worker) {
        const KdaRow& row = rows[index / ranges / p.HV];
        if (row.status != KdaRowStatus::kOk) return;
        const int hv = static_cast<int>(index / ranges % p.HV), range = static_cast<int>(index % ranges);
        Task{plan, a, kernels, row, hv, range * width, (range + 1) * width, worker_memory(plan, a.workspace, worker)}
            .run();
      });
}

}  // namespace kadence::ops::cpu
