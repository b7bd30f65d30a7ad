// The convolution kernels on CPU threads (ops/cuda/emulated), with the checks that step_check makes on a device.
#include <gtest/gtest.h>

#include "bench/cuda/step_check_util.h"
#include "ops/cuda/conv1d/step.cuh"
#include "ops/cuda/emulated/emulated.h"

namespace kadence::ops::cuda {
namespace {

int tile_tokens = 64;

ConvWindows windows(const WindowView& v) { return {v.base, v.slot_pitch, v.base ? v.slots : 0}; }

template <class F>
void dispatch(DType type, int32_t channels, F&& f) {
  const auto width = [&]<class E>(E) {
    if (channels % 8 == 0) {
      f.template operator()<E, 4>();
    } else {
      f.template operator()<E, 1>();
    }
  };
  if (type == DType::kF32) return width(float{});
  if (type == DType::kBF16) return width(__nv_bfloat16{});
  width(__half{});
}

unsigned blocks_for(int32_t channels, int vec) {
  return static_cast<unsigned>((channels + kConvThreads * vec - 1) / (kConvThreads * vec));
}

template <class Params>
void fill(Params& p, const Conv1dArgs& c) {
  p.x = c.x.data, p.x_pitch = c.x.pitch, p.y = c.y.data, p.y_pitch = c.y.pitch;
  p.channels = c.channels, p.weight = c.weight, p.bias = c.bias;
}

void extend(const KdaPlan& plan, const Conv1dExtendArgs& a, device::Stream&) {
  ConvExtendParams p;
  fill(p, a.conv);
  p.in = windows(a.window_in), p.out = windows(a.window_out), p.ckpt = windows(a.checkpoints);
  p.table.meta = a.metadata, p.table.seq_int64 = plan.problem().seq_int64, p.table.tokens = a.tokens;
  p.table.in_slots = p.in.slots, p.table.out_slots = p.out.slots, p.table.ckpt_slots = p.ckpt.slots;
  p.table.max_checkpoints = plan.problem().bounds.max_checkpoints;
  p.tile = tile_tokens;
  p.tiles = static_cast<int32_t>((a.tokens + p.tile - 1) / p.tile);
  const unsigned row_blocks = static_cast<unsigned>((a.metadata.rows + kConvThreads - 1) / kConvThreads);
  dispatch(a.conv.dtype, p.channels, [&]<class E, int VEC>() {
    emulated::run(dim3(static_cast<unsigned>(p.tiles) + row_blocks, blocks_for(p.channels, VEC)),
                  [&] { conv_extend_kernel<E, VEC>(p); });
  });
}

void step(const Conv1dStepArgs& a, device::Stream&) {
  ConvStepParams p;
  fill(p, a.conv);
  p.rows = a.rows, p.slot_in = a.slot_in, p.slot_out = a.slot_out;
  p.window_in = a.window_in.base, p.in_pitch = a.window_in.slot_pitch, p.in_slots = a.window_in.slots;
  p.window_out = a.window_out.base, p.out_pitch = a.window_out.slot_pitch, p.out_slots = a.window_out.slots;
  dispatch(a.conv.dtype, p.channels, [&]<class E, int VEC>() {
    emulated::run(dim3(blocks_for(p.channels, VEC), static_cast<unsigned>(p.rows)),
                  [&] { conv_step_kernel<E, VEC>(p); });
  });
}

void verify(const Conv1dVerifyArgs& a, device::Stream&) {
  ConvVerifyParams p;
  fill(p, a.conv);
  p.rows = a.rows, p.D = a.D, p.n_draft = a.n_draft, p.parent = a.parent, p.slot_in = a.slot_in,
  p.window = windows(a.window_in);
  dispatch(a.conv.dtype, p.channels, [&]<class E, int VEC>() {
    emulated::run(dim3(blocks_for(p.channels, VEC), static_cast<unsigned>(p.rows)),
                  [&] { conv_verify_kernel<E, VEC>(p); });
  });
}

class EmulatedConv : public testing::TestWithParam<int> {};

// Tiles shorter than a row, longer than many rows, and of the smallest size that the ownership rule allows for.
TEST_P(EmulatedConv, MatchesTheOracle) {
  tile_tokens = GetParam();
  device::Stream stream = device::Stream::cpu(1);
  bench::Report report;
  bench::check_conv(report, stream, /*small=*/false, {extend, step, verify});
  EXPECT_GT(report.checks, 30000);
  EXPECT_EQ(report.failed, 0);
}
INSTANTIATE_TEST_SUITE_P(Tiles, EmulatedConv, testing::Values(4, 16, 64, 256));

}  // namespace
}  // namespace kadence::ops::cuda
