// Arguments of the extend kernels, by value.
#pragma once

#include <cuda.h>

#include "ops/cuda/sm90/extend_ring/config.h"
#include "ops/kda.h"

namespace kadence::ops::cuda::sm90::extend {

struct StatePool {
  void* base;
  int64_t pitch;  // elements from a slot to the next
  int32_t slots;
  int32_t dtype;  // base::DType
};

struct RowsParams {
  const void* seq_begin;
  const int32_t *state_in, *state_out, *ckpt_begin, *ckpt_depth, *ckpt_slot, *rows_device;
  int32_t* status;
  int32_t rows, max_checkpoints;
  int64_t tokens, in_slots, out_slots, ckpt_slots;
  bool seq_int64;
  Shape shape;
  Schedule* schedule;
  RowInfo* row_info;
  Span* spans;
  uint32_t *ready, *consumed, *handoff_flags;
};

struct RingParams {
  CUtensorMap values, out_map;  // V and the output as [tokens][HV * 128], boxes of 32 tokens x 64 channels
  // Pools as [slots][rows][128], boxes of 64 rows x 128 bytes; of a pool without slots unset.
  CUtensorMap state_out_map, checkpoint_map, handoff_map;
  const void *q, *k, *decay, *beta;
  int64_t q_pitch, k_pitch, decay_pitch, beta_pitch, out_pitch;  // elements
  const float *a_log, *dt_bias;
  void* out;
  float scale, lower_bound;
  int32_t heads, group;  // HV; HV / H
  bool l2norm, beta_fp32, beta_given, beta_doubled;
  StatePool state_in, state_out, checkpoints;
  StatePool handoff;  // states of cut items, one head a slot, slot = number of the scanner that takes over
  const int32_t *ckpt_depth, *ckpt_slot;
  const Schedule* schedule;
  const RowInfo* row_info;
  const Span* spans;
  uint32_t *ready, *consumed;  // [scanner][kReadyPitch], [scanner][kConsumedPitch]
  uint32_t* handoff_flags;     // [scanner][half]
  uint8_t* slots;
};

}  // namespace kadence::ops::cuda::sm90::extend
