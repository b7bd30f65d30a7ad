// Step, verify and commit on the CPU: lanes over K, on the [V,K] layout of the pool, blocks of 16 rows. Every block is
// read once and written once; verify keeps the states of all nodes for one block at a time, so its memory does not
// depend on V. Verify leaves decay, k and u of every node; commit replays the update from them, rounding after each
// node as the pool's dtype would, which gives exactly the states of the step sequence.
#include <algorithm>
#include <cstring>

#include "ops/cpu/conv1d_windows.h"
#include "ops/cpu/kda_cpu.h"

namespace kadence::ops::cpu {
namespace {

constexpr int kBlockRows = kSubChunk;

// Raw inputs of one token, whichever the phase.
struct StepInputs {
  ConstTokenTensor q, k, v, decay, beta;
  const float *A_log, *dt_bias;
};

const char* element(const ConstTokenTensor& t, int64_t token, int64_t at, DType dtype) {
  return token_address(t, token, dtype) + at * static_cast<int64_t>(base::size_of(dtype));
}

void make_token(const KdaPlan& plan, const KdaKernels& kernels, const StepInputs& in, int64_t token, int hv,
                float* scratch, StepToken& t) {
  const KdaProblem& p = plan.problem();
  const int64_t h = hv / (p.HV / p.H);
  kernels.step_token(head_params(plan, hv, in.A_log, in.dt_bias), element(in.q, token, h * p.K, p.io),
                     element(in.k, token, h * p.K, p.io), p.io, element(in.decay, token, int64_t{hv} * p.K, p.decay),
                     p.decay, element(in.beta, token, hv, p.beta), p.beta, scratch, t);
}

// Rounded so that every worker's memory starts on a cache line.
size_t round_floats(size_t n) { return (n + 15) / 16 * 16; }

size_t step_worker_floats(const KdaProblem& p) {
  return round_floats(StepToken::floats(p.K) + static_cast<size_t>(p.K) + 2 * static_cast<size_t>(p.V));
}

size_t node_floats(const KdaProblem& p) { return 2 * static_cast<size_t>(p.K) + p.V; }
// decay [K], k [K], u [V] of a node.
float* node_data(const KdaProblem& p, const void* scratch, int64_t row, int hv, int64_t node) {
  return static_cast<float*>(const_cast<void*>(scratch)) +
         node_floats(p) * static_cast<size_t>((row * p.HV + hv) * p.D + node);
}

size_t verify_worker_floats(const KdaProblem& p) {
  const size_t D = static_cast<size_t>(p.D), K = static_cast<size_t>(p.K), V = static_cast<size_t>(p.V);
  return round_floats(D * (StepToken::floats(p.K) + 2)) + K + round_floats(D * V) * 2 + D * kBlockRows * K;
}

void zero_head(const KdaProblem& p, const TokenTensor& out, int64_t token, int hv) {
  const size_t size = base::size_of(p.io);
  std::memset(token_address(out, token, p.io) + static_cast<size_t>(hv) * p.V * size, 0,
              static_cast<size_t>(p.V) * size);
}
char* head_rows(const KdaProblem& p, const StateView& view, int32_t slot, int64_t layer, int hv, int v) {
  return slot_address(view, slot, layer) +
         (int64_t{hv} * p.V + v) * p.K * static_cast<int64_t>(base::size_of(view.dtype));
}
const float* fetch_v(const KdaPlan& plan, const KdaKernels& kernels, const ConstTokenTensor& v, int64_t token, int hv,
                     float* buffer) {
  const KdaProblem& p = plan.problem();
  const char* at = element(v, token, int64_t{hv} * p.V, p.io);
  if (p.io == DType::kF32) return reinterpret_cast<const float*>(at);
  kernels.to_float(at, p.io, p.V, buffer);
  return buffer;
}
void store_out(const KdaPlan& plan, const KdaKernels& kernels, const TokenTensor& out, int64_t token, int hv,
               const float* values) {
  const KdaProblem& p = plan.problem();
  kernels.from_float(values, p.V,
                     token_address(out, token, p.io) + int64_t{hv} * p.V * static_cast<int64_t>(base::size_of(p.io)),
                     p.io);
}

}  // namespace

void plan_step(KdaPlan& plan) {
  plan.workspace_bytes_ = step_worker_floats(plan.problem()) * 4 * static_cast<size_t>(plan.device_.threads);
}

void step(const KdaPlan& plan, const KdaStepArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  const KdaKernels& kernels = kda_kernels(plan.isa());
  for (int32_t i = 0; i < a.rows; ++i) {
    if (a.slot_in[i] < -1 || a.slot_in[i] >= a.state_in.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateIn);
    else if (a.slot_out[i] < -1 || a.slot_out[i] >= a.state_out.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateOut);
  }
  const StepInputs in{a.q, a.k, a.v, a.decay, a.beta, a.A_log, a.dt_bias};
  const int64_t bytes =
      int64_t{a.rows} * p.HV * p.V * p.K * static_cast<int64_t>(base::size_of(p.state_in) + base::size_of(p.state_out));
  run_tasks(stream, int64_t{a.rows} * p.HV, bytes, [&](int64_t task, int worker) {
    const int64_t row = task / p.HV;
    const int hv = static_cast<int>(task % p.HV);
    const int32_t from = a.slot_in[row], to = a.slot_out[row];
    if (from < 0 || from >= a.state_in.slots || to < -1 || to >= a.state_out.slots) return zero_head(p, a.out, row, hv);
    float* memory = static_cast<float*>(a.workspace) + step_worker_floats(p) * static_cast<size_t>(worker);
    StepToken token(memory, p.K);
    float* scratch = memory + StepToken::floats(p.K);
    float *values = scratch + p.K, *out = values + p.V;
    make_token(plan, kernels, in, row, hv, scratch, token);
    const float* v = fetch_v(plan, kernels, a.v, row, hv, values);
    alignas(64) float u[kBlockRows];
    alignas(64) char dropped[kBlockRows * kMaxHeadDim * 4];
    for (int r = 0; r < p.V; r += kBlockRows) {
      void* dst = to >= 0 ? head_rows(p, a.state_out, to, 0, hv, r) : dropped;
      kernels.step_rows(token, v + r, p.K, head_rows(p, a.state_in, from, 0, hv, r), a.state_in.dtype, dst,
                        a.state_out.dtype, DType::kF32, out + r, u);
    }
    store_out(plan, kernels, a.out, row, hv, out);
  });
}

void plan_verify(KdaPlan& plan) {
  const KdaProblem& p = plan.problem();
  plan.workspace_bytes_ = verify_worker_floats(p) * 4 * static_cast<size_t>(plan.device_.threads);
  plan.scratch_bytes_ = node_floats(p) * 4 * static_cast<size_t>(p.bounds.max_rows) * p.HV * p.D;
}

void verify(const KdaPlan& plan, const KdaVerifyArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  const KdaKernels& kernels = kda_kernels(plan.isa());
  const auto live_nodes = [&](int64_t i) -> int32_t {
    const bool live = a.slot_in[i] >= 0 && a.slot_in[i] < a.state_in.slots && a.n_draft[i] >= 0 && a.n_draft[i] <= p.D;
    return live ? a.n_draft[i] : 0;
  };
  for (int32_t i = 0; i < a.rows; ++i) {
    if (a.slot_in[i] < -1 || a.slot_in[i] >= a.state_in.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateIn);
    else if (a.slot_in[i] >= 0 && (a.n_draft[i] < 0 || a.n_draft[i] > p.D))
      report_row(a.status, i, KdaRowStatus::kBadNode);
    for (int32_t d = 0; d < live_nodes(i); ++d) {
      const int32_t parent = a.parent[int64_t{i} * p.D + d];
      if (parent < -1 || parent >= d) report_row(a.status, i, KdaRowStatus::kBadNode);
    }
  }
  const StepInputs in{a.q, a.k, a.v, a.decay, a.beta, a.A_log, a.dt_bias};
  const int64_t bytes = int64_t{a.rows} * p.HV * p.V * p.K * p.D * 4;
  run_tasks(stream, int64_t{a.rows} * p.HV, bytes, [&](int64_t task, int worker) {
    const int64_t row = task / p.HV;
    const int hv = static_cast<int>(task % p.HV);
    const int32_t drafts = live_nodes(row);
    const int32_t* parent = a.parent + row * p.D;
    float* tokens = static_cast<float*>(a.workspace) + verify_worker_floats(p) * static_cast<size_t>(worker);
    float* scratch = tokens + round_floats((StepToken::floats(p.K) + 2) * static_cast<size_t>(p.D));
    float* values = scratch + p.K;
    float* outs = values + round_floats(static_cast<size_t>(p.D) * p.V);
    float* states = outs + round_floats(static_cast<size_t>(p.D) * p.V);
    bool good[kMaxDraftTokens];
    int32_t path[kMaxDraftTokens];
    const auto token_of = [&](int d) {
      StepToken t(tokens + StepToken::floats(p.K) * static_cast<size_t>(d), p.K);
      const float* tail = tokens + StepToken::floats(p.K) * static_cast<size_t>(p.D) + 2 * d;
      t.beta = tail[0], t.qk = tail[1];
      return t;
    };
    for (int d = 0; d < p.D; ++d) {
      const int64_t at = row * p.D + d;
      good[d] = d < drafts && draft_path(parent, drafts, d, path) > 0;
      if (!good[d]) {
        zero_head(p, a.out, at, hv);
        continue;
      }
      StepToken t = token_of(d);
      make_token(plan, kernels, in, at, hv, scratch, t);
      float* tail = tokens + StepToken::floats(p.K) * static_cast<size_t>(p.D) + 2 * d;
      tail[0] = t.beta, tail[1] = t.qk;
      float* node = node_data(p, a.scratch, row, hv, d);
      std::copy_n(t.decay, p.K, node);
      std::copy_n(t.k, p.K, node + p.K);
      kernels.to_float(element(a.v, at, int64_t{hv} * p.V, p.io), p.io, p.V, values + static_cast<size_t>(d) * p.V);
    }
    for (int r = 0; r < p.V; r += kBlockRows) {
      for (int d = 0; d < drafts; ++d) {
        if (!good[d]) continue;
        float* own = states + static_cast<size_t>(d) * kBlockRows * p.K;
        const bool root = parent[d] < 0;
        const void* src = root ? static_cast<const void*>(head_rows(p, a.state_in, a.slot_in[row], 0, hv, r))
                               : states + static_cast<size_t>(parent[d]) * kBlockRows * p.K;
        kernels.step_rows(token_of(d), values + static_cast<size_t>(d) * p.V + r, p.K, src,
                          root ? a.state_in.dtype : DType::kF32, own, DType::kF32, p.state_out,
                          outs + static_cast<size_t>(d) * p.V + r, node_data(p, a.scratch, row, hv, d) + 2 * p.K + r);
      }
    }
    for (int d = 0; d < drafts; ++d)
      if (good[d]) store_out(plan, kernels, a.out, row * p.D + d, hv, outs + static_cast<size_t>(d) * p.V);
  });
}

void commit(const KdaPlan& plan, const KdaCommitArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  const KdaKernels& kernels = kda_kernels(plan.isa());
  for (int32_t i = 0; i < a.rows; ++i) report_row(a.status, i, read_commit_row(p, a, i).status);
  const int64_t per_layer = int64_t{a.rows} * p.HV;
  const int64_t bytes = a.states.layers * per_layer * p.V * p.K * 8;
  run_tasks(stream, a.states.layers * per_layer, bytes, [&](int64_t task, int) {
    const int64_t layer = task / per_layer, row = task % per_layer / p.HV;
    const int hv = static_cast<int>(task % p.HV);
    const KdaCommitRow r = read_commit_row(p, a, row);
    if (r.commit.depth == 0 && r.track.depth == 0) return;
    if (hv == 0) commit_windows(p, a, r, row, layer);
    const char* scratch = static_cast<const char*>(a.scratch) + a.scratch_layer_bytes * static_cast<size_t>(layer);
    alignas(64) float committed[kBlockRows * kMaxHeadDim], s[kBlockRows * kMaxHeadDim];
    const int64_t n = int64_t{kBlockRows} * p.K;
    for (int v = 0; v < p.V; v += kBlockRows) {
      kernels.to_float(head_rows(p, a.states, a.slot_in[row], layer, hv, v), a.states.dtype, n, committed);
      for (const KdaCommitRow::Target* target : {&r.track, &r.commit}) {
        const float* from = committed;
        for (int32_t i = 0; i < target->depth; ++i) {
          const float* node = node_data(p, scratch, row, hv, target->path[i]);
          kernels.update_rows(node, node + p.K, node + 2 * p.K + v, p.K, from, s, p.state_out);
          from = s;
        }
        if (target->depth > 0)
          kernels.from_float(s, n, head_rows(p, a.states, target->slot, layer, hv, v), a.states.dtype);
      }
    }
  });
}

}  // namespace kadence::ops::cpu
