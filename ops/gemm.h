// Matrix products y = x W^T through oneDNN, made row-invariant: every call runs primitives of one fixed M per phase
// (rows are padded), so a row's bits depend on the row, the weight and the phase alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "device/device.h"

namespace kadence::ops {

// Prompt tokens and sampled tokens run in tiles of different, fixed height.
enum class GemmPhase { kPrefill, kDecode };
inline constexpr int kGemmRowsPrefill = 64;
inline constexpr int kGemmRowsDecode = 16;
constexpr int gemm_rows(GemmPhase p) { return p == GemmPhase::kPrefill ? kGemmRowsPrefill : kGemmRowsDecode; }

// Caps the instruction set of all later products of the process (oneDNN's own dispatcher). Must be called before the
// first product; throws Error{kInvalidArgument} when that is too late and the cap would change.
void set_gemm_isa(device::Isa isa);

// A weight [out, in], fp32 or bf16 or fp16 in the file, kept as fp32 in the layout that the primitives like.
class Linear {
 public:
  Linear();
  // Stacks `parts` (each row-major [out_i, in]) along the outputs. Copies; the sources may go away.
  struct Part {
    const void* data;
    base::DType dtype;
    int64_t out;
  };
  static Linear create(std::span<const Part> parts, int64_t in, device::Stream& stream);
  static Linear create(const void* weight, base::DType dtype, int64_t out, int64_t in, device::Stream& stream);
  // A weight of that shape without memory, for planning: sizes are those of the real one, running it is an error.
  static Linear planned(int64_t out, int64_t in);
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  int64_t in() const;
  int64_t out() const;
  size_t weight_bytes() const;
  explicit operator bool() const { return impl_ != nullptr; }

  // y[r,:] = W x[r,:] for r < rows; fp32; pitches in elements. x and y must not overlap. `workspace`:
  // workspace_bytes(stream.info().threads), content irrelevant. Rows beyond `rows` are neither read nor written.
  void run(GemmPhase phase, const float* x, int64_t x_pitch, float* y, int64_t y_pitch, int64_t rows, void* workspace,
           device::Stream& stream) const;
  size_t workspace_bytes(int threads) const;
  // One tile on the calling thread: `rows` <= gemm_rows(phase). For callers that spread work over workers themselves.
  void run_tile(GemmPhase phase, const float* x, int64_t x_pitch, float* y, int64_t y_pitch, int64_t rows,
                void* tile_workspace) const;
  size_t tile_workspace_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kadence::ops
