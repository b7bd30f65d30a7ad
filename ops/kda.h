// Kimi Delta Attention operators: extend (prefill with checkpoints), step (decode), verify and commit (speculation).
//
// Per token t, value head, with S the state in R^{V x K} (V-major: row = value channel, contiguous in K):
//   g_t = gate(x_t)            natural-log decay per key channel, <= 0
//   S <- S * diag(exp(g_t));   u_t = beta_t * (v_t - S k_t);   S <- S + u_t k_t^T;   o_t = S (scale * q_t)
// with k, q L2-normalised if asked. Source: Kimi Linear (Moonshot AI, 2025); derivation and symbols in docs/kda.md.
//
// Plan, then run. plan_kda() sees host facts only, validates them, picks the backend and the workspace; run_kda() only
// enqueues on the stream: it allocates nothing and never synchronises. A plan holds no address and no metadata value.
// All pointers below are memory of the stream's device, owned by the caller, and must live until the work has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "ops/kda_layout.h"

namespace kadence::ops {

using base::DType;

// ---------------------------------------------------------------------------------------------------------------------
// What is to be computed

enum class KdaPhase { kExtend, kStep, kVerify };

enum class KdaGate {
  kBounded,        // g = lower_bound * sigmoid(exp(A_log) * (x + dt_bias)), lower_bound < 0
  kSoftplus,       // g = -exp(A_log) * softplus(x + dt_bias)
  kGivenLogDecay,  // g = x, natural log, per token (not cumulative), <= 0, -inf allowed
};

enum class KdaBeta {
  kLogits,  // beta = sigmoid(x), in fp32
  kGiven,   // beta = x
};

// Upper bounds of every run of a plan; sizes of metadata buffers and captured graphs come from them.
struct KdaBounds {
  int32_t max_rows = 0;         // N
  int64_t max_tokens = 0;       // T, rows of the token tensors of one call (extend); N for step; N*D for verify
  int32_t max_checkpoints = 0;  // M, extend only
};

struct KdaProblem {
  KdaPhase phase = KdaPhase::kExtend;
  int32_t H = 0;                 // q/k heads
  int32_t HV = 0;                // value heads; HV % H == 0; value head hv reads q/k head hv / (HV/H)
  int32_t K = 0;                 // key channels per head
  int32_t V = 0;                 // value channels per head
  DType io = DType::kF32;        // q, k, v, out: fp32 | bf16 | fp16
  DType decay = DType::kF32;     // the same as io, or fp32
  DType beta = DType::kF32;      // bf16 | fp32
  DType state_in = DType::kF32;  // fp32 | bf16 | fp16; arithmetic is fp32, one rounding per store
  DType state_out = DType::kF32;
  DType checkpoints = DType::kF32;
  KdaGate gate = KdaGate::kBounded;
  float lower_bound = -5.0f;  // natural log; kBounded only; finite and < 0
  KdaBeta beta_mode = KdaBeta::kLogits;
  bool beta_doubled = false;  // beta * 2 after the sigmoid (negative eigenvalues)
  bool l2norm = true;         // x * rsqrt(sum(x^2) + kL2NormEps), fp32
  float scale = 0.0f;         // multiplied into q; 0 = K^-0.5
  bool seq_int64 = false;     // seq_begin is int64 instead of int32 (extend)
  int32_t D = 0;              // draft tokens per row (verify), <= kMaxDraftTokens
  bool fused_step = false;    // step also does conv update before and gated RMSNorm after (KdaStepArgs::fused)
  DType conv = DType::kF32;   // fused_step: dtype of x and of the windows
  KdaBounds bounds;
};

enum class KdaMode {
  kExact,  // a row's bits depend on the row alone: not on batch, split on the grid, block or segmentation
  kFast,   // may segment long sequences; error bounded (CUDA)
};

struct KdaOptions {
  std::string backend = "auto";  // "auto" or a name of kda_backends()
  // Tokens of extend's workspace window: a multiple of 64; 0 = the plan's own, never unbounded.
  int32_t extend_block_tokens = 0;
  KdaMode mode = KdaMode::kExact;
  bool verify_matches_step = true;  // every node's output has the bits of the step sequence along its path
};

// ---------------------------------------------------------------------------------------------------------------------
// Plan

class KdaPlan {
 public:
  const KdaProblem& problem() const { return problem_; }
  const KdaOptions& options() const { return options_; }
  const std::string& backend() const { return backend_; }  // what will run, e.g. "cpu"
  device::Isa isa() const { return isa_; }                 // CPU backends: instruction set of this plan
  // Of one run; 256-byte aligned; not shared by concurrent runs.
  size_t workspace_bytes() const { return workspace_bytes_; }
  int32_t block_tokens() const { return block_tokens_; }     // extend: tokens per window
  size_t metadata_bytes() const { return metadata_bytes_; }  // buffer that upload() fills (extend)
  size_t scratch_bytes() const { return scratch_bytes_; }    // verify: per layer, written by verify, read by commit
  float scale() const { return scale_; }                     // resolved

  // For backends (kda_plan.cc fills these in; `variant` is private to the chosen backend).
  KdaProblem problem_;
  KdaOptions options_;
  std::string backend_;
  device::DeviceInfo device_;
  device::Isa isa_ = device::Isa::kBaseline;
  size_t workspace_bytes_ = 0, metadata_bytes_ = 0, scratch_bytes_ = 0;
  int32_t block_tokens_ = 0;
  float scale_ = 0;
  int32_t variant_ = 0;
};

// Chooses and validates. Throws Error{kInvalidArgument} naming the field, what was wanted and what was got;
// Error{kUnsupported} listing what was asked, what each backend of this device lacks for it, and the option that
// decides.
KdaPlan plan_kda(const KdaProblem& problem, const device::DeviceInfo& device, const KdaOptions& options = {});

// The table of backends, one line a backend, for people: name, phases, dtypes, sizes, gates, limits.
struct KdaBackendInfo {
  const char* name;
  device::DeviceKind kind;
  bool extend, step, verify, checkpoints;
  const char* summary;
};
std::span<const KdaBackendInfo> kda_backends();
// Empty if `backend` can run `problem` on `device`; else the list of features that it lacks.
std::vector<std::string> kda_backend_misses(const std::string& backend, const KdaProblem& problem,
                                            const device::DeviceInfo& device);

// ---------------------------------------------------------------------------------------------------------------------
// Tensors

// [tokens, heads, channels] (or [tokens, heads] for beta): heads and channels dense, the token pitch free.
struct TokenTensor {
  void* data = nullptr;
  int64_t pitch = 0;  // elements from a token to the next
};
struct ConstTokenTensor {
  const void* data = nullptr;
  int64_t pitch = 0;
  ConstTokenTensor() = default;
  ConstTokenTensor(const void* d, int64_t p) : data(d), pitch(p) {}
  ConstTokenTensor(TokenTensor t) : data(t.data), pitch(t.pitch) {}  // NOLINT: implicit on purpose
};

// Slots of states, [HV, V, K] dense inside a slot. All-layer calls (commit, copy) use layers and layer_pitch.
// All slots 0..slots-1 are usable; none is reserved.
struct StateView {
  void* base = nullptr;
  DType dtype = DType::kF32;
  int64_t slots = 0;
  int64_t slot_pitch = 0;  // elements
  int32_t layers = 1;
  int64_t layer_pitch = 0;  // elements
};

// Slots of convolution windows, [3, C] dense inside a slot: raw inputs, oldest first.
struct WindowView {
  void* base = nullptr;
  DType dtype = DType::kF32;
  int64_t slots = 0;
  int64_t slot_pitch = 0;  // elements
  int32_t layers = 1;
  int64_t layer_pitch = 0;  // elements
};

// ---------------------------------------------------------------------------------------------------------------------
// Metadata of extend (shared by conv1d)

// Why a row of device metadata was skipped (KdaMetadata::status).
enum class KdaRowStatus : int32_t {
  kOk = 0,
  kBadOffsets = 1,  // seq_begin decreases, passes the tensors' tokens, or starts inside an earlier good row
  kBadStateIn = 2,  // slot >= slots (below -1 too)
  kBadStateOut = 3,
  kBadCheckpoint = 4,  // off the grid, past the end, not ascending, or slot out of range
  kBadNode = 5,        // commit: node >= n_draft
};

// As the kernels read it: arrays in device memory, values unseen by the host.
// Row i has tokens [seq_begin[i], seq_begin[i+1]) and checkpoints [ckpt_begin[i], ckpt_begin[i+1]).
// A row whose entries are out of bounds is skipped: its outputs are zeros, nothing is stored, and (row, reason) is left
// in status. Tokens at or after seq_begin[rows] get zeros.
struct KdaMetadata {
  const void* seq_begin = nullptr;      // [N+1], int32 or int64 (KdaProblem::seq_int64)
  const int32_t* state_in = nullptr;    // [N], -1 = zeros
  const int32_t* state_out = nullptr;   // [N], -1 = no store
  const int32_t* ckpt_begin = nullptr;  // [N+1], null = no checkpoints
  // [M], tokens since the row's start, positive multiples of 64, ascending, <= len
  const int32_t* ckpt_depth = nullptr;
  const int32_t* ckpt_slot = nullptr;    // [M], -1 = skip
  int32_t rows = 0;                      // N (a launch bound when rows_device is given)
  const int32_t* rows_device = nullptr;  // [1], the actual N <= rows, or null
  int32_t* status = nullptr;             // [2] = {row, KdaRowStatus} of one bad row, or null; the caller zeroes it
};

// As the host states it. Everything is validated by upload().
struct KdaHostMetadata {
  std::span<const int64_t> seq_begin;                               // [N+1]
  std::span<const int32_t> state_in;                                // [N]
  std::span<const int32_t> state_out;                               // [N]
  std::span<const int32_t> ckpt_begin;                              // [N+1] or empty
  std::span<const int32_t> ckpt_depth;                              // [M]
  std::span<const int32_t> ckpt_slot;                               // [M]
  int64_t tokens = 0;                                               // T, rows of the token tensors
  int64_t state_in_slots = 0, state_out_slots = 0, ckpt_slots = 0;  // pool sizes
  bool same_pool = true;  // the three views are the same memory: a slot that is written may be read
                          // only as the same row's state_in
};

// Validates; throws Error{kInvalidArgument} naming row and field. Host work only.
void validate(const KdaPlan& plan, const KdaHostMetadata& metadata);
// Validates, then enqueues a copy into `buffer` (plan.metadata_bytes() of the stream's device) and returns the view of
// it. The view depends on the buffer's address and the plan's bounds only, so a captured graph replays after a new
// upload into the same buffer.
KdaMetadata upload(const KdaPlan& plan, const KdaHostMetadata& metadata, void* buffer, device::Stream& stream);

// ---------------------------------------------------------------------------------------------------------------------
// Extend

struct KdaExtendArgs {
  ConstTokenTensor q, k, v;        // [T,H,K], [T,H,K], [T,HV,V]
  ConstTokenTensor decay;          // [T,HV,K]: gate input or given log decay
  ConstTokenTensor beta;           // [T,HV]
  const float* A_log = nullptr;    // [HV]; null with kGivenLogDecay
  const float* dt_bias = nullptr;  // [HV,K] or null
  TokenTensor out;                 // [T,HV,V]; may not alias an input
  int64_t tokens = 0;              // T
  KdaMetadata metadata;
  StateView state_in, state_out, checkpoints;
  void* workspace = nullptr;  // plan.workspace_bytes()
};
// A row of zero length: out == in slot leaves it untouched bit for bit; another out gets in's value (zeros for -1).
void run_kda(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);

// ---------------------------------------------------------------------------------------------------------------------
// Step: one token per row

// Convolution before and gated RMSNorm after the recurrence, in one call (KdaProblem::fused_step).
struct KdaFusedStep {
  ConstTokenTensor x;                  // [N, C] raw q|k|v, C = 2*H*K + HV*V; q, k, v of KdaStepArgs are unused
  const float* conv_weight = nullptr;  // [C,4]
  const float* conv_bias = nullptr;    // [C] or null
  WindowView windows;                  // read and updated at slot_out (from slot_in)
  ConstTokenTensor z;                  // [N,HV,V] output gate logits, dtype io
  const float* norm_weight = nullptr;  // [V]
  float eps = 1e-5f;
};

struct KdaStepArgs {
  ConstTokenTensor q, k, v, decay, beta;  // T = N
  const float* A_log = nullptr;
  const float* dt_bias = nullptr;
  TokenTensor out;                    // [N,HV,V]; rows of slot_in -1 get zeros
  int32_t rows = 0;                   // N
  const int32_t* slot_in = nullptr;   // [N] device; -1 = padded row: zeros out, nothing read or stored
  const int32_t* slot_out = nullptr;  // [N] device; usually == slot_in (in place)
  StateView state_in, state_out;
  KdaFusedStep fused;
  int32_t* status = nullptr;  // as KdaMetadata::status
  void* workspace = nullptr;
};
void run_kda(const KdaPlan& plan, const KdaStepArgs& args, device::Stream& stream);

// ---------------------------------------------------------------------------------------------------------------------
// Verify and commit

struct KdaVerifyArgs {
  ConstTokenTensor q, k, v, decay, beta;  // token n*D + d is draft node d of row n
  const float* A_log = nullptr;
  const float* dt_bias = nullptr;
  TokenTensor out;                   // [N*D,HV,V]; nodes >= n_draft and padded rows get zeros
  int32_t rows = 0;                  // N
  const int32_t* n_draft = nullptr;  // [N] device, <= D
  const int32_t* parent = nullptr;   // [N,D] device, < own index; -1 = the committed state
  const int32_t* slot_in = nullptr;  // [N] device; committed slots, read only; -1 = padded row
  StateView state_in;
  void* scratch = nullptr;  // plan.scratch_bytes(), for commit; layout private to the backend
  int32_t* status = nullptr;
  void* workspace = nullptr;
};
void run_kda(const KdaPlan& plan, const KdaVerifyArgs& args, device::Stream& stream);

// After sampling: state and conv window after node[n] for all layers, one launch. Values are read on the device;
// a node out of range counts as none and is reported in status.
struct KdaCommitArgs {
  int32_t rows = 0;                     // N
  const int32_t* n_draft = nullptr;     // [N]
  const int32_t* parent = nullptr;      // [N,D]
  const int32_t* slot_in = nullptr;     // [N], as given to verify
  const int32_t* node = nullptr;        // [N], -1 = keep the committed state: nothing is stored
  const int32_t* slot_out = nullptr;    // [N], usually == slot_in
  const int32_t* track_node = nullptr;  // [N] or null, -1 none: a snapshot of another node ...
  const int32_t* track_slot = nullptr;  // [N] ... into this slot, -1 none
  const void* scratch = nullptr;        // of layer l at scratch + l * scratch_layer_bytes
  size_t scratch_layer_bytes = 0;
  StateView states;                // all layers
  ConstTokenTensor conv_x;         // raw conv inputs of the drafts, [N*D, C]; null = no windows
  int64_t conv_x_layer_pitch = 0;  // elements
  int32_t conv_channels = 0;       // C
  WindowView windows;              // all layers
  int32_t* status = nullptr;
};
void run_kda_commit(const KdaPlan& verify_plan, const KdaCommitArgs& args, device::Stream& stream);

// ---------------------------------------------------------------------------------------------------------------------
// Slots of all layers: copies, then clears, one launch each

// dst[i] <- src[i] for i < copies, then slots clear[i] <- zeros. Lists are device memory; a pair with an index of -1 is
// skipped; destinations are distinct and not sources. Sizes are launch bounds.
struct StateCopyArgs {
  StateView states;
  WindowView windows;  // base null = none
  int32_t HV = 0, V = 0, K = 0, conv_channels = 0;
  const int32_t* src = nullptr;
  const int32_t* dst = nullptr;
  int32_t copies = 0;
  const int32_t* clear = nullptr;
  int32_t clears = 0;
};
void run_state_copy(const StateCopyArgs& args, device::Stream& stream);

}  // namespace kadence::ops
