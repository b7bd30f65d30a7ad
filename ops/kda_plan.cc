// Validation of problems and choice of the backend.
#include <cmath>

#include "base/error.h"
#include "ops/kda.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

void want(bool ok, const char* field, const char* wanted, const std::string& got) {
  if (!ok) base::throw_invalid(std::string("KdaProblem::") + field, wanted, got);
}

void validate_problem(const KdaProblem& p) {
  const auto num = [](auto x) { return std::to_string(x); };
  want(p.H > 0, "H", "1 or more", num(p.H));
  want(p.HV > 0 && p.HV % p.H == 0, "HV", ("a positive multiple of H = " + num(p.H)).c_str(), num(p.HV));
  want(p.K > 0, "K", "1 or more", num(p.K));
  want(p.V > 0, "V", "1 or more", num(p.V));
  want(is_float(p.io), "io", "float32, bfloat16 or float16", base::to_string(p.io));
  want(p.decay == p.io || p.decay == DType::kF32, "decay", "the same as io, or float32", base::to_string(p.decay));
  want(p.beta == DType::kF32 || p.beta == DType::kBF16, "beta", "float32 or bfloat16", base::to_string(p.beta));
  want(is_float(p.state_in), "state_in", "float32, bfloat16 or float16", base::to_string(p.state_in));
  want(is_float(p.state_out), "state_out", "float32, bfloat16 or float16", base::to_string(p.state_out));
  want(is_float(p.checkpoints), "checkpoints", "float32, bfloat16 or float16", base::to_string(p.checkpoints));
  if (p.gate == KdaGate::kBounded)
    want(std::isfinite(p.lower_bound) && p.lower_bound < 0, "lower_bound", "finite and below 0 (natural log per token)",
         num(p.lower_bound));
  want(std::isfinite(p.scale), "scale", "finite (0 = K^-0.5)", num(p.scale));
  want(p.bounds.max_rows >= 0, "bounds.max_rows", "0 or more", num(p.bounds.max_rows));
  want(p.bounds.max_tokens >= 0, "bounds.max_tokens", "0 or more", num(p.bounds.max_tokens));
  want(p.bounds.max_checkpoints >= 0, "bounds.max_checkpoints", "0 or more", num(p.bounds.max_checkpoints));
  if (p.phase != KdaPhase::kExtend)
    want(p.bounds.max_checkpoints == 0, "bounds.max_checkpoints", "0 outside extend", num(p.bounds.max_checkpoints));
  if (p.phase == KdaPhase::kVerify) {
    want(p.D > 0 && p.D <= kMaxDraftTokens, "D", ("1 to " + num(kMaxDraftTokens)).c_str(), num(p.D));
    want(p.state_in == p.state_out, "state_out", "the dtype of state_in (verify and commit work on one pool)",
         base::to_string(p.state_out));
  }
  if (p.phase != KdaPhase::kStep) want(!p.fused_step, "fused_step", "false outside step", "true");
  if (p.fused_step) want(is_float(p.conv), "conv", "float32, bfloat16 or float16", base::to_string(p.conv));
}

std::string join(const std::vector<std::string>& parts) {
  std::string s;
  for (const std::string& part : parts) s += (s.empty() ? "" : "; ") + part;
  return s;
}

const char* phase_option(KdaPhase phase) {
  switch (phase) {
    case KdaPhase::kExtend:
      return "--linear-attn-prefill-backend";
    case KdaPhase::kStep:
      return "--linear-attn-decode-backend";
    case KdaPhase::kVerify:
      return "--linear-attn-verify-backend";
  }
  return "";
}

std::string describe(const KdaProblem& p) {
  const char* gates[] = {"bounded gate", "softplus gate", "given log decay"};
  const char* phases[] = {"extend", "step", "verify"};
  std::string s = phases[static_cast<int>(p.phase)];
  s += " with H=" + std::to_string(p.H) + " HV=" + std::to_string(p.HV) + " K=" + std::to_string(p.K) +
       " V=" + std::to_string(p.V);
  s += std::string(", io ") + base::to_string(p.io) + ", states " + base::to_string(p.state_in) + " -> " +
       base::to_string(p.state_out);
  s += std::string(", ") + gates[static_cast<int>(p.gate)];
  if (p.gate == KdaGate::kBounded) s += " " + std::to_string(p.lower_bound);
  if (p.bounds.max_checkpoints > 0) s += ", checkpoints in " + std::string(base::to_string(p.checkpoints));
  if (p.fused_step) s += ", fused convolution and norm";
  return s;
}

}  // namespace

KdaPlan plan_kda(const KdaProblem& problem, const device::DeviceInfo& device, const KdaOptions& options) {
  validate_problem(problem);
  if (options.extend_block_tokens < 0 || options.extend_block_tokens % kChunkTokens != 0)
    base::throw_invalid("KdaOptions::extend_block_tokens (--kda-extend-block-tokens)", "0 or a multiple of 64",
                        std::to_string(options.extend_block_tokens));

  KdaPlan plan;
  plan.problem_ = problem;
  plan.options_ = options;
  plan.device_ = device;
  plan.scale_ =
      problem.scale != 0 ? problem.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.K)));
  plan.metadata_bytes_ = problem.phase == KdaPhase::kExtend ? kda_metadata_bytes(problem) : 0;

  const bool automatic = options.backend == "auto";
  const KdaBackend* chosen = nullptr;
  std::string refusals, names;
  for (const KdaBackend* backend : kda_table()) {
    const KdaBackendInfo& info = backend->info;
    names += std::string(names.empty() ? "" : ", ") + info.name;
    if (!automatic && options.backend != info.name) continue;
    const std::vector<std::string> misses = kda_backend_misses(info.name, problem, device);
    // The reference is slow on purpose: it runs only when it is named.
    if (automatic && backend == &reference::kBackend) {
      if (misses.empty()) refusals += "\n  reference: could run it, but only when named";
      continue;
    }
    if (misses.empty()) {
      if (!chosen) chosen = backend;
    } else {
      refusals += std::string("\n  ") + info.name + ": lacks " + join(misses);
    }
  }
  if (!automatic && !find_kda_backend(options.backend))
    base::throw_invalid(std::string("KdaOptions::backend (") + phase_option(problem.phase) + ")", "auto, " + names,
                        options.backend);
  if (!chosen)
    base::throw_error(base::ErrorCode::kUnsupported, "no KDA backend for " + describe(problem) + " on " + device.name +
                                                         " (backend " + options.backend + ", chosen by " +
                                                         phase_option(problem.phase) + "):" + refusals);
  plan.backend_ = chosen->info.name;
  chosen->plan(plan);
  const auto align = [](size_t n) { return (n + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign; };
  plan.workspace_bytes_ = align(plan.workspace_bytes_);
  plan.scratch_bytes_ = align(plan.scratch_bytes_);
  return plan;
}

}  // namespace kadence::ops
