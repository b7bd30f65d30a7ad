#include "base/error.h"
#include "ops/cuda/conv1d/extend.cuh"
#include "ops/cuda/conv1d/launch.h"
#include "ops/cuda/conv1d/step.cuh"
#include "ops/cuda/sm90/step_core/host.h"
#include "ops/kda_backend.h"

namespace kadence::ops::cuda {
namespace {

// Whether every address that is touched is a multiple of 16 bytes.
class Alignment {
 public:
  explicit Alignment(DType t) : size_(static_cast<int64_t>(base::size_of(t))) {}
  Alignment& add(const void* data, int64_t pitch = 0) {
    bits_ |= reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(pitch * size_);
    return *this;
  }
  bool vector() const { return bits_ % kTensorAlign == 0; }

 private:
  int64_t size_;
  uintptr_t bits_ = 0;
};

template <class F>
void dispatch(DType type, bool vector, F&& f) {
  auto width = [&]<class E>(E) {
    if (vector) {
      f.template operator()<E, 16 / sizeof(E)>();
    } else {
      f.template operator()<E, 1>();
    }
  };
  switch (type) {
    case DType::kF32:
      return width(float{});
    case DType::kBF16:
      return width(__nv_bfloat16{});
    case DType::kF16:
      return width(__half{});
    default:
      base::throw_invalid("conv1d dtype", "float32, bfloat16 or float16", base::to_string(type));
  }
}

unsigned blocks_for(int32_t channels, int vec) {
  return static_cast<unsigned>((channels + kConvThreads * vec - 1) / (kConvThreads * vec));
}

ConvWindows windows(const WindowView& v) { return {v.base, v.slot_pitch, v.base ? v.slots : 0}; }

}  // namespace

void launch_conv_step(const ConvStepParams& p, DType type, cudaStream_t stream) {
  if (p.rows == 0) return;
  Alignment a(type);
  a.add(p.x, p.x_pitch).add(p.window_in, p.in_pitch).add(p.window_out, p.out_pitch).add(nullptr, p.channels);
  if (!p.y_f32) a.add(p.y, p.y_pitch);
  dispatch(type, a.vector(), [&]<class E, int VEC>() {
    conv_step_kernel<E, VEC><<<rows_grid(blocks_for(p.channels, VEC), p.rows), kConvThreads, 0, stream>>>(p);
  });
  check_launch("conv1d step kernel launch");
}

void conv1d_step(const Conv1dStepArgs& args, device::Stream& stream) {
  LaunchScope scope(stream);
  ConvStepParams p;
  p.x = args.conv.x.data, p.x_pitch = args.conv.x.pitch, p.y = args.conv.y.data, p.y_pitch = args.conv.y.pitch;
  p.channels = args.conv.channels, p.weight = args.conv.weight, p.bias = args.conv.bias;
  p.rows = args.rows, p.slot_in = args.slot_in, p.slot_out = args.slot_out;
  p.window_in = args.window_in.base, p.in_pitch = args.window_in.slot_pitch, p.in_slots = args.window_in.slots;
  p.window_out = args.window_out.base, p.out_pitch = args.window_out.slot_pitch, p.out_slots = args.window_out.slots;
  launch_conv_step(p, args.conv.dtype, scope.stream());
}

void conv1d_verify(const Conv1dVerifyArgs& args, device::Stream& stream) {
  if (args.rows == 0 || args.D == 0) return;
  LaunchScope scope(stream);
  ConvVerifyParams p;
  p.x = args.conv.x.data, p.x_pitch = args.conv.x.pitch, p.y = args.conv.y.data, p.y_pitch = args.conv.y.pitch;
  p.channels = args.conv.channels, p.weight = args.conv.weight, p.bias = args.conv.bias;
  p.rows = args.rows, p.D = args.D, p.n_draft = args.n_draft, p.parent = args.parent, p.slot_in = args.slot_in;
  p.window = windows(args.window_in);
  Alignment a(args.conv.dtype);
  a.add(p.x, p.x_pitch).add(p.y, p.y_pitch).add(p.window.base, p.window.pitch).add(nullptr, p.channels);
  dispatch(args.conv.dtype, a.vector(), [&]<class E, int VEC>() {
    conv_verify_kernel<E, VEC><<<rows_grid(blocks_for(p.channels, VEC), p.rows), kConvThreads, 0, scope.stream()>>>(p);
  });
  check_launch("conv1d verify kernel launch");
}

void conv1d_extend(const KdaPlan& plan, const Conv1dExtendArgs& args, device::Stream& stream) {
  LaunchScope scope(stream);
  ConvExtendParams p;
  p.x = args.conv.x.data, p.x_pitch = args.conv.x.pitch, p.y = args.conv.y.data, p.y_pitch = args.conv.y.pitch;
  p.channels = args.conv.channels, p.weight = args.conv.weight, p.bias = args.conv.bias;
  p.in = windows(args.window_in), p.out = windows(args.window_out), p.ckpt = windows(args.checkpoints);
  p.table.meta = args.metadata, p.table.seq_int64 = plan.problem().seq_int64, p.table.tokens = args.tokens;
  p.table.in_slots = p.in.slots, p.table.out_slots = p.out.slots, p.table.ckpt_slots = p.ckpt.slots;
  p.table.max_checkpoints = plan.problem().bounds.max_checkpoints;
  Alignment a(args.conv.dtype);
  a.add(p.x, p.x_pitch).add(p.y, p.y_pitch).add(nullptr, p.channels);
  a.add(p.in.base, p.in.pitch).add(p.out.base, p.out.pitch).add(p.ckpt.base, p.ckpt.pitch);
  dispatch(args.conv.dtype, a.vector(), [&]<class E, int WIDTH>() {
    constexpr int VEC = WIDTH > 1 ? 4 : 1;
    const unsigned channel_blocks = blocks_for(p.channels, VEC);
    p.tile = conv_tile_tokens(p.table.tokens, static_cast<int>(channel_blocks), stream.info().sm_count);
    p.tiles = static_cast<int32_t>((p.table.tokens + p.tile - 1) / p.tile);
    const unsigned row_blocks = static_cast<unsigned>((p.table.meta.rows + kConvThreads - 1) / kConvThreads);
    if (p.tiles + row_blocks == 0) return;
    conv_extend_kernel<E, VEC>
        <<<dim3(static_cast<unsigned>(p.tiles) + row_blocks, channel_blocks), kConvThreads, 0, scope.stream()>>>(p);
  });
  check_launch("conv1d extend kernel launch");
}

}  // namespace kadence::ops::cuda
