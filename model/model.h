// A loaded model and its forward pass. The model owns weights and workspaces; caches (states, windows, latent pages)
// belong to the caller and come in as views with every call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/config.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/kda.h"

namespace kadence::model {

// What a request leaves behind per slot and per token; sizes the pools.
struct CacheShape {
  int32_t kda_layers = 0, HV = 0, V = 0, K = 0, conv_channels = 0;
  int32_t attention_layers = 0, latent_width = 0;
};
CacheShape cache_shape(const ModelConfig& config);

struct CacheViews {
  ops::StateView states;           // all KDA layers (layers, layer_pitch set)
  ops::WindowView windows;         // all KDA layers
  ops::LatentPages latents;        // layer 0
  int64_t latent_layer_pitch = 0;  // elements
};

struct ForwardLimits {
  int32_t max_rows = 64;
  int64_t max_tokens = 16384;  // of one forward
  int32_t max_checkpoints = 256;
  int32_t max_logit_rows = 16384;  // logits are produced in slabs, see forward()
};

struct ForwardOptions {
  std::string prefill_backend = "auto", decode_backend = "auto", verify_backend = "auto";  // ops::kda_backends()
  int32_t extend_block_tokens = 0;
  base::DType state_dtype = base::DType::kF32;
  ForwardLimits limits;
};

// One phase's part of a step. Rows are packed; row i has tokens [seq_begin[i], seq_begin[i+1]) at absolute positions
// from start[i]. kPrefill rows run through extend and start on the 64-grid; kDecode rows have one token each and run
// through step.
struct ForwardBatch {
  ops::GemmPhase phase = ops::GemmPhase::kPrefill;
  std::vector<int32_t> tokens;
  std::vector<int64_t> seq_begin;   // [N+1]
  std::vector<int64_t> start;       // [N]
  std::vector<int32_t> state_in;    // [N] slots, -1 = fresh (prefill only)
  std::vector<int32_t> state_out;   // [N]
  std::vector<int32_t> ckpt_begin;  // [N+1]
  std::vector<int32_t> ckpt_depth;  // [M] tokens since the row's start
  std::vector<int32_t> ckpt_slot;   // [M]
  std::vector<int32_t> page_table;  // [N, max_pages]
  int64_t max_pages = 0;
  std::vector<int64_t> logit_tokens;  // packed token indices, ascending, whose next-token logits are wanted
  int32_t rows() const { return static_cast<int32_t>(start.size()); }
};

// Called in order for slabs of wanted rows: logits [rows, vocab] fp32 dense, row r belongs to logit_tokens[first + r].
// The memory is reused after the call returns.
using LogitsSink = std::function<void(int64_t first, int64_t rows, const float* logits)>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Must be called before forward, and again to change options; makes plans and workspaces. Throws Error{kUnsupported}.
  virtual void prepare(const ForwardOptions& options, device::Stream& stream) = 0;
  // Runs all layers over the batch. Validates sizes against the prepared limits (Error{kInvalidArgument}).
  virtual void forward(const ForwardBatch& batch, const CacheViews& caches, const LogitsSink& sink,
                       device::Stream& stream) = 0;
  virtual size_t weight_bytes() const = 0;
  virtual size_t workspace_bytes() const = 0;  // of the prepared options
  // Names of the backends that run, e.g. {"cpu", "cpu"}; for the start-up log and tests.
  virtual std::string prefill_backend() const = 0;
  virtual std::string decode_backend() const = 0;
  // Observer of hidden states for tests: called with (layer, rows, width, data); layer -1 = embedding, layers = after
  // the final norm.
  using HiddenObserver = std::function<void(int32_t layer, int64_t rows, int64_t width, const float* data)>;
  virtual void set_hidden_observer(HiddenObserver observer) = 0;
};

struct LoadOptions {
  base::DType activation_dtype = base::DType::kF32;           // only float32 on the CPU; anything else is refused
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; may be empty
};
// Loads DIR (config.json, *.safetensors). Throws base::Error with the file and tensor at fault.
std::unique_ptr<Model> load_model(const std::filesystem::path& dir, const LoadOptions& options, device::Stream& stream);

// Bytes that load_model + prepare will take, from the config and the safetensors headers alone (no weights are read).
struct MemoryEstimate {
  size_t weights = 0, workspace = 0;
};
MemoryEstimate estimate_memory(const std::filesystem::path& dir, const ModelConfig& config,
                               const ForwardOptions& options, const device::DeviceInfo& device);

}  // namespace kadence::model
