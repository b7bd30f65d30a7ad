#include "ops/testing/kda_batch.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "base/rng.h"

namespace kadence::ops::testing {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// The token tensors of a call, poisoned where no row lies.
struct Tensors {
  GuardedTensor q, k, v, decay, beta, out;
  DeviceArray<float> A_log, dt_bias;

  Tensors(device::Stream& s, const KdaProblem& p, const KdaWeights& w, int64_t tokens, const BatchLayout& l) {
    const auto make = [&](int64_t width, DType t) { return GuardedTensor(s, tokens, width, width + l.pitch_pad, t); };
    q = make(int64_t{p.H} * p.K, p.io), k = make(int64_t{p.H} * p.K, p.io), v = make(int64_t{p.HV} * p.V, p.io);
    decay = make(int64_t{p.HV} * p.K, p.decay), out = make(int64_t{p.HV} * p.V, p.io);
    beta = GuardedTensor(s, tokens, p.HV, p.HV + (l.odd_beta ? 1 : 0) + l.pitch_pad, p.beta);
    A_log = DeviceArray<float>(s, w.A_log), dt_bias = DeviceArray<float>(s, w.dt_bias);
  }
  void place(const KdaProblem& p, const KdaRowData& row, int64_t t, int64_t at) {
    q.fill_row(at, &row.q[static_cast<size_t>(t * p.H * p.K)]);
    k.fill_row(at, &row.k[static_cast<size_t>(t * p.H * p.K)]);
    v.fill_row(at, &row.v[static_cast<size_t>(t * p.HV * p.V)]);
    decay.fill_row(at, &row.decay[static_cast<size_t>(t * p.HV * p.K)]);
    beta.fill_row(at, &row.beta[static_cast<size_t>(t * p.HV)]);
  }
  void upload(device::Stream& s) {
    for (GuardedTensor* t : {&q, &k, &v, &decay, &beta, &out}) t->upload(s);
  }
  template <class Args>
  void fill(Args& a, const KdaWeights& w) const {
    a.q = q.const_tokens(), a.k = k.const_tokens(), a.v = v.const_tokens(), a.decay = decay.const_tokens(),
    a.beta = beta.const_tokens();
    a.out = out.tokens();
    a.A_log = w.A_log.empty() ? nullptr : A_log.data();
    a.dt_bias = w.dt_bias.empty() ? nullptr : dt_bias.data();
  }
};

StateView view_of(const GuardedTensor& pool, int32_t layers = 1, int64_t layer_pitch = 0) {
  StateView v;
  v.base = pool.data(), v.dtype = pool.dtype(), v.slots = pool.rows() / layers, v.slot_pitch = pool.pitch();
  v.layers = layers, v.layer_pitch = layer_pitch;
  return v;
}

// Hands out slots of a pool in a shuffled order and remembers which are in use.
struct Slots {
  std::vector<int32_t> order;
  size_t next = 0;
  Slots(int32_t count, uint64_t seed) {
    for (int32_t i = 0; i < count; ++i) order.push_back(i);
    base::Rng rng(seed);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  }
  int32_t take() { return order[next++]; }
};

void check_zero_row(const GuardedTensor& t, int64_t row, const std::string& what, std::vector<std::string>& faults) {
  for (float x : t.row(row))
    if (!(x == 0)) {
      faults.push_back(what + ": token " + std::to_string(row) + " is not zero");
      return;
    }
}
void note(std::vector<std::string>& faults, const std::string& fault) {
  if (!fault.empty()) faults.push_back(fault);
}

}  // namespace

bool RowResult::operator==(const RowResult& o) const {
  if (!same_bits(out, o.out) || !same_bits(state, o.state) || checkpoints.size() != o.checkpoints.size()) return false;
  for (size_t i = 0; i < checkpoints.size(); ++i)
    if (!same_bits(checkpoints[i], o.checkpoints[i])) return false;
  return true;
}

KdaProblem with_bounds(KdaProblem p, const std::vector<const KdaRowData*>& rows, int tail_tokens) {
  p.bounds = {};
  p.bounds.max_rows = static_cast<int32_t>(rows.size());
  p.bounds.max_tokens = tail_tokens;
  for (const KdaRowData* r : rows) {
    p.bounds.max_tokens += r->len;
    p.bounds.max_checkpoints += static_cast<int32_t>(r->checkpoints.size());
  }
  return p;
}

BatchResult run_extend(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                       const std::vector<const KdaRowData*>& rows, const BatchLayout& l) {
  KdaProblem p = with_bounds(problem, rows, l.tail_tokens);
  p.phase = KdaPhase::kExtend;
  p.seq_int64 = l.seq_int64;
  const KdaPlan plan = plan_kda(p, stream.info(), l.options);
  BatchResult result;
  result.backend = plan.backend(), result.isa = plan.isa(), result.workspace_bytes = plan.workspace_bytes();

  const int64_t tokens = p.bounds.max_tokens, n = int64_t{p.HV} * p.V * p.K;
  Tensors t(stream, p, weights, tokens, l);
  std::vector<int64_t> begin{0};
  for (const KdaRowData* r : rows) {
    for (int64_t i = 0; i < r->len; ++i) t.place(p, *r, i, begin.back() + i);
    begin.push_back(begin.back() + r->len);
  }
  t.upload(stream);

  // Slots: every state that is read or written has one of its own, two stay unused in each pool.
  const int32_t count = static_cast<int32_t>(2 * rows.size()) + p.bounds.max_checkpoints + 2;
  GuardedTensor pool_in(stream, count, n, n + l.slot_pad, p.state_in);
  GuardedTensor pool_out(stream, l.one_pool ? 0 : count, n, n + l.slot_pad, p.state_out);
  GuardedTensor pool_ckpt(stream, l.one_pool ? 0 : count, n, n + l.slot_pad, p.checkpoints);
  GuardedTensor& out_pool = l.one_pool ? pool_in : pool_out;
  GuardedTensor& ckpt_pool = l.one_pool ? pool_in : pool_ckpt;
  Slots in_slots(count, l.slot_seed), out_slots_own(count, l.slot_seed + 1), ckpt_slots_own(count, l.slot_seed + 2);
  Slots& out_slots = l.one_pool ? in_slots : out_slots_own;
  Slots& ckpt_slots = l.one_pool ? in_slots : ckpt_slots_own;

  std::vector<int32_t> state_in, state_out, ckpt_begin{0}, ckpt_depth, ckpt_slot;
  for (size_t i = 0; i < rows.size(); ++i) {
    const KdaRowData& r = *rows[i];
    int32_t in = -1;
    if (!r.state.empty()) {
      for (size_t j = 0; l.share_state_in && !l.in_place && j < i && in < 0; ++j)
        if (state_in[j] >= 0 && same_bits(rows[j]->state, r.state)) in = state_in[j];
      if (in < 0) {
        in = in_slots.take();
        pool_in.fill_row(in, r.state.data());
      }
    }
    state_in.push_back(in);
    state_out.push_back(l.in_place && in >= 0 ? in : out_slots.take());
    for (int32_t depth : r.checkpoints) ckpt_depth.push_back(depth), ckpt_slot.push_back(ckpt_slots.take());
    ckpt_begin.push_back(static_cast<int32_t>(ckpt_depth.size()));
  }
  pool_in.upload(stream);
  const GuardedTensor before = std::move(pool_in);
  pool_in = GuardedTensor(stream, count, n, n + l.slot_pad, p.state_in);
  for (size_t i = 0; i < rows.size(); ++i)
    if (state_in[i] >= 0) pool_in.fill_row(state_in[i], rows[i]->state.data());
  pool_in.upload(stream);

  KdaExtendArgs a;
  t.fill(a, weights);
  a.tokens = tokens;
  a.state_in = view_of(pool_in), a.state_out = view_of(out_pool), a.checkpoints = view_of(ckpt_pool);
  device::Buffer workspace = poisoned_buffer(stream, plan.workspace_bytes()),
                 metadata = poisoned_buffer(stream, plan.metadata_bytes());
  a.workspace = workspace.data();
  DeviceArray<int64_t> begin64;
  DeviceArray<int32_t> begin32, dev_in, dev_out, dev_cb, dev_cd, dev_cs, dev_status(stream, {0, 0});
  if (l.device_metadata) {
    begin64 = DeviceArray<int64_t>(stream, begin);
    begin32 = DeviceArray<int32_t>(stream, std::vector<int32_t>(begin.begin(), begin.end()));
    dev_in = DeviceArray<int32_t>(stream, state_in), dev_out = DeviceArray<int32_t>(stream, state_out);
    dev_cb = DeviceArray<int32_t>(stream, ckpt_begin), dev_cd = DeviceArray<int32_t>(stream, ckpt_depth),
    dev_cs = DeviceArray<int32_t>(stream, ckpt_slot);
    KdaMetadata& m = a.metadata;
    m.seq_begin = p.seq_int64 ? static_cast<const void*>(begin64.data()) : begin32.data();
    m.state_in = dev_in.data(), m.state_out = dev_out.data();
    if (p.bounds.max_checkpoints > 0)
      m.ckpt_begin = dev_cb.data(), m.ckpt_depth = dev_cd.data(), m.ckpt_slot = dev_cs.data();
    m.rows = static_cast<int32_t>(rows.size()), m.status = dev_status.data();
  } else {
    KdaHostMetadata h;
    h.seq_begin = begin, h.state_in = state_in, h.state_out = state_out;
    if (p.bounds.max_checkpoints > 0) h.ckpt_begin = ckpt_begin, h.ckpt_depth = ckpt_depth, h.ckpt_slot = ckpt_slot;
    h.tokens = tokens, h.state_in_slots = h.state_out_slots = h.ckpt_slots = count, h.same_pool = l.one_pool;
    a.metadata = upload(plan, h, metadata.data(), stream);
  }
  run_kda(plan, a, stream);
  stream.synchronize();

  t.out.download(stream);
  for (GuardedTensor* pool : {&pool_in, &pool_out, &pool_ckpt}) pool->download(stream);
  for (size_t i = 0; i < rows.size(); ++i) {
    RowResult r;
    for (int64_t j = begin[i]; j < begin[i + 1]; ++j) {
      const std::vector<float> o = t.out.row(j);
      r.out.insert(r.out.end(), o.begin(), o.end());
    }
    r.state = out_pool.row(state_out[i]);
    for (int32_t c = ckpt_begin[i]; c < ckpt_begin[i + 1]; ++c)
      r.checkpoints.push_back(ckpt_pool.row(ckpt_slot[static_cast<size_t>(c)]));
    result.rows.push_back(std::move(r));
  }
  note(result.faults, t.out.damage("out"));
  note(result.faults, pool_in.damage("state pool"));
  note(result.faults, pool_out.damage("state_out pool"));
  note(result.faults, pool_ckpt.damage("checkpoint pool"));
  for (int64_t i = begin.back(); i < tokens; ++i) check_zero_row(t.out, i, "tail", result.faults);
  // What nobody writes must be as it was: slots not written, in the pool of state_in.
  for (int32_t s = 0; s < count; ++s) {
    bool written = false;
    if (l.one_pool) {
      written =
          std::count(state_out.begin(), state_out.end(), s) + std::count(ckpt_slot.begin(), ckpt_slot.end(), s) > 0;
    } else {
      if (!std::count(state_out.begin(), state_out.end(), s) && !pool_out.untouched(s))
        result.faults.push_back("state_out slot " + std::to_string(s) + " was written");
      if (!std::count(ckpt_slot.begin(), ckpt_slot.end(), s) && !pool_ckpt.untouched(s))
        result.faults.push_back("checkpoint slot " + std::to_string(s) + " was written");
    }
    const bool read = std::count(state_in.begin(), state_in.end(), s) > 0;
    if (!written && (read ? !same_bits(pool_in.row(s), before.row(s)) : !pool_in.untouched(s)))
      result.faults.push_back("slot " + std::to_string(s) + " was changed");
  }
  if (l.device_metadata && dev_status.download(stream)[1] != 0) result.faults.push_back("status reports a bad row");
  return result;
}

BatchResult run_steps(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                      const std::vector<const KdaRowData*>& rows, const BatchLayout& l) {
  KdaProblem p = problem;
  p.phase = KdaPhase::kStep;
  p.bounds = {static_cast<int32_t>(rows.size()), static_cast<int64_t>(rows.size()), 0};
  const KdaPlan plan = plan_kda(p, stream.info(), l.options);
  BatchResult result;
  result.backend = plan.backend(), result.isa = plan.isa(), result.workspace_bytes = plan.workspace_bytes();
  const int32_t N = static_cast<int32_t>(rows.size());
  const int64_t n = int64_t{p.HV} * p.V * p.K;
  GuardedTensor pool(stream, N + 2, n, n + l.slot_pad, p.state_in);
  Slots slots(N + 2, l.slot_seed);
  std::vector<int32_t> slot;
  int64_t longest = 0;
  const std::vector<float> zeros(static_cast<size_t>(n), 0.0f);
  for (const KdaRowData* r : rows) {
    slot.push_back(slots.take());
    pool.fill_row(slot.back(), r->state.empty() ? zeros.data() : r->state.data());
    longest = std::max(longest, r->len);
  }
  pool.upload(stream);
  result.rows.resize(rows.size());
  device::Buffer workspace = poisoned_buffer(stream, plan.workspace_bytes());
  for (int64_t at = 0; at < longest; ++at) {
    Tensors t(stream, p, weights, N, l);
    std::vector<int32_t> now = slot;
    for (int32_t i = 0; i < N; ++i) {
      const KdaRowData& r = *rows[static_cast<size_t>(i)];
      if (at < r.len)
        t.place(p, r, at, i);
      else
        now[static_cast<size_t>(i)] = -1;
    }
    t.upload(stream);
    const DeviceArray<int32_t> dev_slot(stream, now), status(stream, {0, 0});
    KdaStepArgs a;
    t.fill(a, weights);
    a.rows = N, a.slot_in = a.slot_out = dev_slot.data();
    a.state_in = a.state_out = view_of(pool);
    a.state_out.dtype = p.state_out;
    a.status = status.data(), a.workspace = workspace.data();
    run_kda(plan, a, stream);
    t.out.download(stream);
    note(result.faults, t.out.damage("out"));
    if (status.download(stream)[1] != 0) result.faults.push_back("status reports a bad row");
    for (int32_t i = 0; i < N; ++i) {
      if (now[static_cast<size_t>(i)] < 0) {
        check_zero_row(t.out, i, "padded row", result.faults);
        continue;
      }
      const std::vector<float> o = t.out.row(i);
      result.rows[static_cast<size_t>(i)].out.insert(result.rows[static_cast<size_t>(i)].out.end(), o.begin(), o.end());
    }
  }
  pool.download(stream);
  note(result.faults, pool.damage("state pool"));
  for (size_t i = 0; i < rows.size(); ++i) result.rows[i].state = pool.row(slot[i]);
  for (; slots.next < slots.order.size(); ++slots.next)
    if (!pool.untouched(slots.order[slots.next])) result.faults.push_back("an unused slot was written");
  return result;
}

VerifyBatch run_verify(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                       const std::vector<VerifyRow>& rows, int channels, const std::vector<std::vector<float>>& conv_x,
                       const std::vector<std::vector<float>>& windows, const BatchLayout& l) {
  KdaProblem p = problem;
  p.phase = KdaPhase::kVerify;
  const int32_t N = static_cast<int32_t>(rows.size());
  const int64_t n = int64_t{p.HV} * p.V * p.K;
  p.bounds = {N, int64_t{N} * p.D, 0};
  const KdaPlan plan = plan_kda(p, stream.info(), l.options);
  const int32_t slots_total = 2 * N + 2;
  GuardedTensor pool(stream, slots_total, n, n + l.slot_pad, p.state_in);
  GuardedTensor window_pool(stream, channels ? slots_total : 0, int64_t{3} * channels,
                            int64_t{3} * channels + l.slot_pad, DType::kF32);
  GuardedTensor x(stream, channels ? int64_t{N} * p.D : 0, channels, channels + l.pitch_pad, DType::kF32);
  Slots slots(slots_total, l.slot_seed);
  Tensors t(stream, p, weights, int64_t{N} * p.D, l);
  std::vector<int32_t> n_draft, parent(static_cast<size_t>(N * p.D), 99), slot, node, track_node, track_slot;
  const std::vector<float> zeros(static_cast<size_t>(n), 0.0f);
  for (int32_t i = 0; i < N; ++i) {
    const VerifyRow& r = rows[static_cast<size_t>(i)];
    const int32_t s = slots.take();
    slot.push_back(r.padded ? -1 : s);
    n_draft.push_back(static_cast<int32_t>(r.data->len));
    node.push_back(r.node), track_node.push_back(r.track_node),
        track_slot.push_back(r.track_node >= 0 ? slots.take() : -1);
    for (int64_t d = 0; d < r.data->len; ++d) {
      t.place(p, *r.data, d, i * p.D + d);
      parent[static_cast<size_t>(i * p.D + d)] = r.parent[static_cast<size_t>(d)];
      if (channels) x.fill_row(i * p.D + d, &conv_x[static_cast<size_t>(i)][static_cast<size_t>(d * channels)]);
    }
    pool.fill_row(s, r.data->state.empty() ? zeros.data() : r.data->state.data());
    if (channels) window_pool.fill_row(s, windows[static_cast<size_t>(i)].data());
  }
  t.upload(stream), pool.upload(stream), window_pool.upload(stream), x.upload(stream);
  const DeviceArray<int32_t> d_n(stream, n_draft), d_parent(stream, parent), d_slot(stream, slot), d_node(stream, node),
      d_tn(stream, track_node), d_ts(stream, track_slot), status(stream, {0, 0});
  device::Buffer workspace = poisoned_buffer(stream, plan.workspace_bytes()),
                 scratch = poisoned_buffer(stream, plan.scratch_bytes());
  KdaVerifyArgs v;
  t.fill(v, weights);
  v.rows = N, v.n_draft = d_n.data(), v.parent = d_parent.data(), v.slot_in = d_slot.data(), v.state_in = view_of(pool);
  v.scratch = scratch.data(), v.workspace = workspace.data(), v.status = status.data();
  run_kda(plan, v, stream);
  t.out.download(stream);
  VerifyBatch result;
  note(result.faults, t.out.damage("out"));
  std::vector<std::vector<float>> old;
  for (int32_t i = 0; i < slots_total; ++i) old.push_back(pool.row(i));
  pool.download(stream);
  for (int32_t i = 0; i < slots_total; ++i)
    if (!same_bits(old[static_cast<size_t>(i)], pool.row(i)))
      result.faults.push_back("verify wrote slot " + std::to_string(i));

  KdaCommitArgs c;
  c.rows = N, c.n_draft = d_n.data(), c.parent = d_parent.data(), c.slot_in = c.slot_out = d_slot.data(),
  c.node = d_node.data();
  c.track_node = d_tn.data(), c.track_slot = d_ts.data(), c.scratch = scratch.data(),
  c.scratch_layer_bytes = plan.scratch_bytes();
  c.states = view_of(pool), c.status = status.data();
  if (channels) {
    c.conv_x = x.const_tokens(), c.conv_channels = channels;
    c.windows.base = window_pool.data(), c.windows.slots = slots_total, c.windows.slot_pitch = window_pool.pitch();
  }
  run_kda_commit(plan, c, stream);
  stream.synchronize();
  pool.download(stream), window_pool.download(stream);
  note(result.faults, pool.damage("state pool"));
  note(result.faults, window_pool.damage("window pool"));
  result.status = status.download(stream);
  for (int32_t i = 0; i < N; ++i) {
    const VerifyRow& r = rows[static_cast<size_t>(i)];
    VerifyResult o;
    for (int64_t d = 0; d < p.D; ++d) {
      if (r.padded || d >= r.data->len) {
        check_zero_row(t.out, i * p.D + d, "node beyond the draft", result.faults);
        continue;
      }
      const std::vector<float> values = t.out.row(i * p.D + d);
      o.out.insert(o.out.end(), values.begin(), values.end());
    }
    if (!r.padded) {
      o.committed = pool.row(slot[static_cast<size_t>(i)]);
      if (channels) o.window = window_pool.row(slot[static_cast<size_t>(i)]);
    }
    if (r.track_node >= 0) {
      o.tracked = pool.row(track_slot[static_cast<size_t>(i)]);
      if (channels) o.tracked_window = window_pool.row(track_slot[static_cast<size_t>(i)]);
    }
    result.rows.push_back(std::move(o));
  }
  for (; slots.next < slots.order.size(); ++slots.next)
    if (!pool.untouched(slots.order[slots.next])) result.faults.push_back("commit wrote an unused slot");
  return result;
}

}  // namespace kadence::ops::testing
