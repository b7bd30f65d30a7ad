// Causal attention over paged latents (multi-head latent attention, MLA, in its absorbed form): every head reads the
// same cached row [latent R | shared key P] per token; scores are q_latent . latent + q_shared . shared key.
// Source: DeepSeek-V2 (2024), section 2.1; NoPE use as in Kimi Linear.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/device.h"
#include "ops/gemm.h"

namespace kadence::ops {

// Pages of one layer: row r of page p at base + p*page_pitch + r*(R+P), elements of `dtype`.
struct LatentPages {
  void* base = nullptr;
  base::DType dtype = base::DType::kF32;
  int64_t pages = 0;
  int64_t page_pitch = 0;  // elements
  int32_t page_size = 0;   // tokens a page
};

struct AttentionShape {
  int32_t heads = 0;
  int32_t latent = 0;  // R
  int32_t shared = 0;  // P
  float scale = 1;     // of the scores
};

// Rows as in extend: row i has queries [seq_begin[i], seq_begin[i+1]) of the packed tensors, whose first has absolute
// position start[i]; it sees keys 0..its own position, read from the pages only (the current chunk's were written
// before). page_table[i*max_pages + j] is the page of positions [j*page_size, (j+1)*page_size). Host memory on the CPU.
struct AttentionBatch {
  int32_t rows = 0;
  const int64_t* seq_begin = nullptr;   // [rows+1]
  const int64_t* start = nullptr;       // [rows]
  const int32_t* page_table = nullptr;  // [rows, max_pages]
  int64_t max_pages = 0;
};

// Writes the latent rows of the batch's tokens into their pages, rounded once to the pages' dtype. x [T, R+P].
void write_latents(const AttentionShape& shape, const AttentionBatch& batch, const float* x, int64_t x_pitch,
                   const LatentPages& pages, device::Stream& stream);

// out[t,h,:] (R wide) = sum over keys of softmax * latent. q [T, heads, R+P], heads dense. Query tiles and key blocks
// sit at absolute positions, so a token's bits do not depend on how its prompt was cut. kDecode: one query per row.
void latent_attention(GemmPhase phase, const AttentionShape& shape, const AttentionBatch& batch, const float* q,
                      int64_t q_pitch, const LatentPages& pages, float* out, int64_t out_pitch, void* workspace,
                      device::Stream& stream);
size_t latent_attention_workspace(const AttentionShape& shape, int threads);

// Rotary position embedding in place on x [T, heads, width] (pitches free), the position of token t being
// positions[t]. interleaved: pairs (2i, 2i+1), else (i, i+width/2). head_pitch: elements between heads, 0 = dense. One
// call for all heads computes each angle once.
void rope(float* x, int64_t x_pitch, int32_t heads, int32_t width, const int64_t* positions, int64_t tokens,
          double theta, bool interleaved, device::Stream& stream, int64_t head_pitch = 0);

}  // namespace kadence::ops
