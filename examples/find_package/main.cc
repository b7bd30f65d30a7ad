// The KDA operators from an installed Kadence: extend over a prompt with a checkpoint, then resume from it.
#include <ops/kda.h>

#include <cstdio>
#include <cstring>
#include <vector>

using namespace kadence;

int main() {
  constexpr int kTokens = 100, kHeads = 2, kDim = 64, kSlots = 3;
  constexpr int kState = kHeads * kDim * kDim;

  ops::KdaProblem problem;
  problem.phase = ops::KdaPhase::kExtend;
  problem.H = problem.HV = kHeads;
  problem.K = problem.V = kDim;
  problem.gate = ops::KdaGate::kBounded;
  problem.lower_bound = -5.0f;
  problem.bounds = {.max_rows = 1, .max_tokens = kTokens, .max_checkpoints = 1};

  device::Stream stream = device::Stream::cpu(1);
  const ops::KdaPlan plan = ops::plan_kda(problem, stream.info());
  device::Buffer workspace = device::Buffer::allocate(stream.info(), plan.workspace_bytes());
  device::Buffer metadata = device::Buffer::allocate(stream.info(), plan.metadata_bytes());

  std::vector<float> q(kTokens * kHeads * kDim), k(q.size()), v(q.size()), gate(q.size()), beta(kTokens * kHeads),
      out(q.size()), tail(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i * 7 % 13) - 6, k[i] = static_cast<float>(i * 5 % 11) - 5;
    v[i] = static_cast<float>(i * 3 % 17) / 17, gate[i] = static_cast<float>(i % 5) - 4;
  }
  std::vector<float> A_log(kHeads, 0.0f), pool(kSlots * kState);
  const ops::StateView states{pool.data(), base::DType::kF32, kSlots, kState};

  // Rows, slots and checkpoints go through upload(), which checks them.
  auto extend = [&](int64_t first, std::vector<int64_t> seq, std::vector<int32_t> in, std::vector<int32_t> to,
                    std::vector<int32_t> begin, std::vector<int32_t> depth, std::vector<int32_t> slot,
                    std::vector<float>& result) {
    ops::KdaHostMetadata host;
    host.seq_begin = seq, host.state_in = in, host.state_out = to;
    host.ckpt_begin = begin, host.ckpt_depth = depth, host.ckpt_slot = slot;
    host.tokens = seq.back();
    host.state_in_slots = host.state_out_slots = host.ckpt_slots = kSlots;
    ops::KdaExtendArgs args;
    constexpr int64_t kPitch = kHeads * kDim;
    args.q = {q.data() + first * kPitch, kPitch}, args.k = {k.data() + first * kPitch, kPitch},
    args.v = {v.data() + first * kPitch, kPitch};
    args.decay = {gate.data() + first * kPitch, kPitch}, args.beta = {beta.data() + first * kHeads, kHeads};
    args.A_log = A_log.data();
    args.out = {result.data(), kPitch};
    args.tokens = host.tokens;
    args.metadata = ops::upload(plan, host, metadata.data(), stream);
    args.state_in = args.state_out = args.checkpoints = states;
    args.workspace = workspace.data();
    ops::run_kda(plan, args, stream);
    stream.synchronize();
  };
  extend(0, {0, kTokens}, {-1}, {0}, {0, 1}, {64}, {1}, out);  // whole prompt; the state after 64 tokens goes to slot 1
  extend(64, {0, kTokens - 64}, {1}, {2}, {0, 0}, {}, {}, tail);  // the rest again, from slot 1 into slot 2

  const bool same =
      std::memcmp(tail.data(), out.data() + 64 * kHeads * kDim, (kTokens - 64) * kHeads * kDim * sizeof(float)) == 0 &&
      std::memcmp(pool.data(), pool.data() + 2 * kState, kState * sizeof(float)) == 0;
  std::printf("backend %s: resumed outputs and state are %s\n", plan.backend().c_str(),
              same ? "equal to the last bit" : "DIFFERENT");
  return same ? 0 : 1;
}
