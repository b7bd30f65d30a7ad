// The recurrence as the paper writes it, one loop nest per operator, in double. Slow on purpose.
// As a backend it differs from the paper in one thing: the carried state is rounded to fp32 at every 64-token boundary
// of the row, so that a run resumed from an fp32 checkpoint continues with exactly what the uncut run carries.
#include <cmath>
#include <limits>

#include "ops/cpu/conv1d_windows.h"
#include "ops/kda_backend.h"
#include "ops/kda_rows.h"

namespace kadence::ops::reference {
namespace {

constexpr int kMaxK = 1024;  // one state row lives on the stack in commit

// One token of one value head, pre-processed.
struct Token {
  double* q;      // [K], normalised and scaled
  double* k;      // [K], normalised
  double* decay;  // [K], exp(g)
  double* v;      // [V]
  double beta;
};

// Everything that pre-processing needs, whichever the phase.
struct Inputs {
  const KdaPlan& plan;
  ConstTokenTensor q, k, v, decay, beta;
  const float *A_log, *dt_bias;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return x >= kSoftplusThreshold ? x : std::log1p(std::exp(x)); }

double log_decay(const KdaProblem& p, double x, const float* A_log, const float* dt_bias, int hv, int c) {
  if (p.gate == KdaGate::kGivenLogDecay) return x;
  const double biased = x + (dt_bias ? dt_bias[int64_t{hv} * p.K + c] : 0.0f);
  const double a = std::exp(static_cast<double>(A_log[hv]));
  return p.gate == KdaGate::kBounded ? p.lower_bound * sigmoid(a * biased) : -a * softplus(biased);
}

void load_vector(const ConstTokenTensor& t, int64_t token, DType dtype, int64_t offset, int n, bool normalise,
                 double scale, double* out) {
  const char* row = token_address(t, token, dtype);
  double squares = 0;
  for (int i = 0; i < n; ++i) {
    out[i] = base::load_f32(row, offset + i, dtype);
    squares += out[i] * out[i];
  }
  const double factor = normalise ? scale / std::sqrt(squares + static_cast<double>(kL2NormEps)) : scale;
  for (int i = 0; i < n; ++i) out[i] *= factor;
}

void load_token(const Inputs& in, int64_t token, int hv, Token& t) {
  const KdaProblem& p = in.plan.problem();
  const int64_t h = hv / (p.HV / p.H);
  load_vector(in.q, token, p.io, h * p.K, p.K, p.l2norm, in.plan.scale(), t.q);
  load_vector(in.k, token, p.io, h * p.K, p.K, p.l2norm, 1.0, t.k);
  load_vector(in.v, token, p.io, int64_t{hv} * p.V, p.V, false, 1.0, t.v);
  const char* x = token_address(in.decay, token, p.decay);
  for (int c = 0; c < p.K; ++c)
    t.decay[c] = std::exp(log_decay(p, base::load_f32(x, int64_t{hv} * p.K + c, p.decay), in.A_log, in.dt_bias, hv, c));
  const double b = base::load_f32(token_address(in.beta, token, p.beta), hv, p.beta);
  t.beta = (p.beta_mode == KdaBeta::kLogits ? sigmoid(b) : b) * (p.beta_doubled ? 2.0 : 1.0);
}

// S <- S diag(decay) + u k^T for one row of S. decay 0 selects zero: the old value may be anything.
void update_row(double* s, const double* decay, const double* k, double u, int K) {
  for (int c = 0; c < K; ++c) s[c] = s[c] * decay[c] + u * k[c];
}

// One token through the state S [V,K]; writes u [V] if given and out [V] of dtype io.
void advance(const KdaProblem& p, double* S, const Token& t, double* u_out, char* out, int hv) {
  for (int r = 0; r < p.V; ++r) {
    double* s = S + int64_t{r} * p.K;
    double predicted = 0;
    for (int c = 0; c < p.K; ++c) predicted += s[c] * t.decay[c] * t.k[c];
    const double u = t.beta * (t.v[r] - predicted);
    update_row(s, t.decay, t.k, u, p.K);
    double o = 0;
    for (int c = 0; c < p.K; ++c) o += s[c] * t.q[c];
    if (u_out) u_out[r] = u;
    if (out) base::store_f32(out, int64_t{hv} * p.V + r, p.io, static_cast<float>(o));
  }
}

void load_state(const StateView& v, int32_t slot, int64_t layer, int64_t offset, int64_t n, double* S) {
  if (slot < 0) {
    std::fill_n(S, n, 0.0);
    return;
  }
  const char* from = slot_address(v, slot, layer);
  for (int64_t i = 0; i < n; ++i) S[i] = base::load_f32(from, offset + i, v.dtype);
}
void store_state(const StateView& v, int32_t slot, int64_t layer, int64_t offset, int64_t n, const double* S) {
  char* to = slot_address(v, slot, layer);
  for (int64_t i = 0; i < n; ++i) base::store_f32(to, offset + i, v.dtype, static_cast<float>(S[i]));
}
// What a store and a load would leave.
void round_state(double* S, int64_t n, DType dtype) {
  for (int64_t i = 0; i < n; ++i) {
    char bytes[4];
    base::store_f32(bytes, 0, dtype, static_cast<float>(S[i]));
    S[i] = base::load_f32(bytes, 0, dtype);
  }
}

void zero_out(const TokenTensor& out, int64_t token, DType io, int64_t offset, int64_t n) {
  char* row = token_address(out, token, io);
  for (int64_t i = 0; i < n; ++i) base::store_f32(row, offset + i, io, 0.0f);
}

// ---- memory of one worker ----

struct Worker {
  double* S;
  Token token;
};
size_t worker_doubles(const KdaProblem& p) {
  return static_cast<size_t>(p.V) * p.K + 3 * static_cast<size_t>(p.K) + p.V;
}
Worker worker_memory(const KdaPlan& plan, void* workspace, int worker) {
  const KdaProblem& p = plan.problem();
  double* at = static_cast<double*>(workspace) + worker_doubles(p) * static_cast<size_t>(worker);
  Worker w;
  w.S = at, at += int64_t{p.V} * p.K;
  w.token.q = at, at += p.K;
  w.token.k = at, at += p.K;
  w.token.decay = at, at += p.K;
  w.token.v = at;
  return w;
}

// Node data in the scratch of verify: decay [K], k [K], u [V], as [N, HV, D].
size_t node_doubles(const KdaProblem& p) { return 2 * static_cast<size_t>(p.K) + p.V; }
double* node_data(const KdaProblem& p, void* scratch, int64_t row, int hv, int node) {
  return static_cast<double*>(scratch) + node_doubles(p) * static_cast<size_t>((row * p.HV + hv) * p.D + node);
}
// The state after the nodes of a path, each rounded as the step sequence would round it.
void replay(const KdaProblem& p, double* S, void* scratch, int64_t row, int hv, const int32_t* path, int32_t count,
            DType dtype) {
  for (int32_t i = 0; i < count; ++i) {
    const double* n = node_data(p, scratch, row, hv, path[i]);
    for (int r = 0; r < p.V; ++r) update_row(S + int64_t{r} * p.K, n, n + p.K, n[2 * p.K + r], p.K);
    round_state(S, int64_t{p.V} * p.K, dtype);
  }
}

std::vector<std::string> misses(const KdaProblem& p, const device::DeviceInfo&) {
  std::vector<std::string> m;
  if (p.K > kMaxK) m.push_back("K=" + std::to_string(p.K) + " (K up to " + std::to_string(kMaxK) + ")");
  if (p.fused_step) m.push_back("the fused step (fused_step = false runs it as convolution, step and norm)");
  return m;
}

void plan(KdaPlan& plan) {
  const KdaProblem& p = plan.problem();
  plan.isa_ = plan.device_.isa;
  plan.workspace_bytes_ = worker_doubles(p) * sizeof(double) * static_cast<size_t>(plan.device_.threads);
  if (p.phase == KdaPhase::kExtend) {
    plan.block_tokens_ = plan.options().extend_block_tokens ? plan.options().extend_block_tokens : kChunkTokens;
    plan.workspace_bytes_ = (plan.workspace_bytes_ + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
    plan.workspace_bytes_ += sizeof(KdaRow) * static_cast<size_t>(p.bounds.max_rows);
  }
  if (p.phase == KdaPhase::kVerify)
    plan.scratch_bytes_ = node_doubles(p) * sizeof(double) * static_cast<size_t>(p.bounds.max_rows) * p.HV * p.D;
}

void extend_head(const KdaPlan& plan, const KdaExtendArgs& a, const KdaRow& row, int hv, Worker w) {
  const KdaProblem& p = plan.problem();
  const int64_t n = int64_t{p.V} * p.K, offset = hv * n;
  const bool same_slot = row.state_in >= 0 && row.state_out >= 0 &&
                         slot_address(a.state_in, row.state_in) == slot_address(a.state_out, row.state_out);
  if (row.len == 0 && (row.state_out < 0 || same_slot)) return;
  load_state(a.state_in, row.state_in, 0, offset, n, w.S);
  const Inputs in{plan, a.q, a.k, a.v, a.decay, a.beta, a.A_log, a.dt_bias};
  int32_t ckpt = row.ckpt_begin;
  for (int64_t t = 0; t < row.len; ++t) {
    load_token(in, row.begin + t, hv, w.token);
    advance(p, w.S, w.token, nullptr, token_address(a.out, row.begin + t, p.io), hv);
    if ((t + 1) % kChunkTokens != 0) continue;
    round_state(w.S, n, DType::kF32);
    if (ckpt < row.ckpt_end && a.metadata.ckpt_depth[ckpt] == t + 1) {
      if (a.metadata.ckpt_slot[ckpt] >= 0) store_state(a.checkpoints, a.metadata.ckpt_slot[ckpt], 0, offset, n, w.S);
      ++ckpt;
    }
  }
  if (row.state_out >= 0) store_state(a.state_out, row.state_out, 0, offset, n, w.S);
}

void extend(const KdaPlan& plan, const KdaExtendArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  size_t rows_at = worker_doubles(p) * sizeof(double) * static_cast<size_t>(plan.device_.threads);
  rows_at = (rows_at + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  KdaRow* rows = reinterpret_cast<KdaRow*>(static_cast<char*>(a.workspace) + rows_at);
  const int64_t width = int64_t{p.HV} * p.V;
  int64_t zeroed = 0, count = 0;
  if (a.metadata.rows > 0) {
    KdaRowCursor cursor(a.metadata, p, a.tokens, a.state_in.slots, a.state_out.slots, a.checkpoints.slots);
    for (; count < cursor.rows(); ++count) {
      const KdaRow row = rows[count] = cursor.next();
      report_row(a.metadata.status, static_cast<int32_t>(count), row.status);
      if (row.status != KdaRowStatus::kOk) continue;
      for (; zeroed < row.begin; ++zeroed) zero_out(a.out, zeroed, p.io, 0, width);
      zeroed = row.begin + row.len;
    }
  }
  for (; zeroed < a.tokens; ++zeroed) zero_out(a.out, zeroed, p.io, 0, width);
  stream.parallel_for(count * p.HV, [&](int64_t task, int worker) {
    const KdaRow& row = rows[task / p.HV];
    if (row.status == KdaRowStatus::kOk)
      extend_head(plan, a, row, static_cast<int>(task % p.HV), worker_memory(plan, a.workspace, worker));
  });
}

void step(const KdaPlan& plan, const KdaStepArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  const int64_t n = int64_t{p.V} * p.K;
  for (int32_t i = 0; i < a.rows; ++i) {
    if (a.slot_in[i] < -1 || a.slot_in[i] >= a.state_in.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateIn);
    else if (a.slot_out[i] < -1 || a.slot_out[i] >= a.state_out.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateOut);
  }
  stream.parallel_for(int64_t{a.rows} * p.HV, [&](int64_t task, int worker) {
    const int64_t row = task / p.HV;
    const int hv = static_cast<int>(task % p.HV);
    const int32_t in_slot = a.slot_in[row], out_slot = a.slot_out[row];
    if (in_slot < 0 || in_slot >= a.state_in.slots || out_slot < -1 || out_slot >= a.state_out.slots)
      return zero_out(a.out, row, p.io, int64_t{hv} * p.V, p.V);
    Worker w = worker_memory(plan, a.workspace, worker);
    load_state(a.state_in, in_slot, 0, hv * n, n, w.S);
    load_token({plan, a.q, a.k, a.v, a.decay, a.beta, a.A_log, a.dt_bias}, row, hv, w.token);
    advance(p, w.S, w.token, nullptr, token_address(a.out, row, p.io), hv);
    if (out_slot >= 0) store_state(a.state_out, out_slot, 0, hv * n, n, w.S);
  });
}

void verify(const KdaPlan& plan, const KdaVerifyArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  const int64_t n = int64_t{p.V} * p.K;
  for (int32_t i = 0; i < a.rows; ++i) {
    if (a.slot_in[i] < -1 || a.slot_in[i] >= a.state_in.slots)
      report_row(a.status, i, KdaRowStatus::kBadStateIn);
    else if (a.slot_in[i] >= 0 && (a.n_draft[i] < 0 || a.n_draft[i] > p.D))
      report_row(a.status, i, KdaRowStatus::kBadNode);
  }
  stream.parallel_for(int64_t{a.rows} * p.HV, [&](int64_t task, int worker) {
    const int64_t row = task / p.HV;
    const int hv = static_cast<int>(task % p.HV);
    const bool live =
        a.slot_in[row] >= 0 && a.slot_in[row] < a.state_in.slots && a.n_draft[row] >= 0 && a.n_draft[row] <= p.D;
    const int32_t drafts = live ? a.n_draft[row] : 0;
    const int32_t* parent = a.parent + row * p.D;
    Worker w = worker_memory(plan, a.workspace, worker);
    for (int d = 0; d < p.D; ++d) {
      const int64_t token = row * p.D + d;
      int32_t path[kMaxDraftTokens];
      const int32_t depth = draft_path(parent, drafts, d, path);
      if (depth == 0) {
        zero_out(a.out, token, p.io, int64_t{hv} * p.V, p.V);
        continue;
      }
      load_state(a.state_in, a.slot_in[row], 0, hv * n, n, w.S);
      replay(p, w.S, a.scratch, row, hv, path, depth - 1, p.state_out);
      load_token({plan, a.q, a.k, a.v, a.decay, a.beta, a.A_log, a.dt_bias}, token, hv, w.token);
      double* node = node_data(p, a.scratch, row, hv, d);
      std::copy_n(w.token.decay, p.K, node);
      std::copy_n(w.token.k, p.K, node + p.K);
      advance(p, w.S, w.token, node + 2 * p.K, token_address(a.out, token, p.io), hv);
    }
  });
}

void commit(const KdaPlan& plan, const KdaCommitArgs& a, device::Stream& stream) {
  const KdaProblem& p = plan.problem();
  for (int32_t i = 0; i < a.rows; ++i) report_row(a.status, i, read_commit_row(p, a, i).status);
  stream.parallel_for(int64_t{a.states.layers} * a.rows, [&](int64_t task, int) {
    const int64_t layer = task / a.rows, row = task % a.rows;
    const KdaCommitRow r = read_commit_row(p, a, row);
    if (r.commit.depth == 0 && r.track.depth == 0) return;
    cpu::commit_windows(p, a, r, row, layer);
    void* scratch =
        static_cast<char*>(const_cast<void*>(a.scratch)) + a.scratch_layer_bytes * static_cast<size_t>(layer);
    for (int hv = 0; hv < p.HV; ++hv) {
      for (int v = 0; v < p.V; ++v) {
        const int64_t offset = (int64_t{hv} * p.V + v) * p.K;
        double committed[kMaxK], s[kMaxK];
        load_state(a.states, a.slot_in[row], layer, offset, p.K, committed);
        for (const KdaCommitRow::Target* target : {&r.track, &r.commit}) {
          if (target->depth == 0) continue;
          std::copy_n(committed, p.K, s);
          for (int32_t i = 0; i < target->depth; ++i) {
            const double* node = node_data(p, scratch, row, hv, target->path[i]);
            update_row(s, node, node + p.K, node[2 * p.K + v], p.K);
            round_state(s, p.K, p.state_out);
          }
          store_state(a.states, target->slot, layer, offset, p.K, s);
        }
      }
    }
  });
}

}  // namespace

const KdaBackend kBackend = {
    {"reference", device::DeviceKind::kCpu, true, true, true, true,
     "the recurrence in double, any sizes, every gate; extend rounds the carried state to fp32 at 64-token boundaries"},
    misses,
    plan,
    extend,
    step,
    verify,
    commit};

}  // namespace kadence::ops::reference
