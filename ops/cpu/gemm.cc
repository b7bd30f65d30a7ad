#include "ops/gemm.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/math.h"

namespace kadence::ops {
namespace {

using dnnl::memory;

// Columns of a panel: wide enough for full speed, narrow enough that a weight has work for several workers. Panels
// depend on the weight's shape alone, so that no bit depends on who computes them.
constexpr int64_t kPanel = 256;
// Below this many multiply-adds a call stays on its thread: that is 50 us of work, and waking a worker costs 10 or
// more.
constexpr int64_t kParallelWork = 12'000'000;
constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return base::round_up(bytes, kAlign); }

const dnnl::engine& cpu_engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // leaked: outlives every thread
  return *engine;
}

// OpenMP's thread count belongs to the calling thread; oneDNN reads it when it plans and when it runs.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneOmpThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_;
};

// The two primitives of a panel shape. Both read one weight layout, the one that the prefill primitive likes.
struct PanelPrimitives {
  struct Phase {
    memory::desc src, dst, scratch;
    dnnl::matmul primitive;
  };
  memory::desc weight;
  Phase phases[2];  // by GemmPhase
  const Phase& phase(GemmPhase p) const { return phases[p == GemmPhase::kPrefill ? 0 : 1]; }
  size_t scratch_bytes() const { return std::max(phases[0].scratch.get_size(), phases[1].scratch.get_size()); }
};

std::atomic<bool> products_started{false};

std::unique_ptr<PanelPrimitives> make_primitives(int64_t in, int64_t out) {
  products_started = true;
  const OneOmpThread one;
  auto result = std::make_unique<PanelPrimitives>();
  constexpr auto kF32 = memory::data_type::f32;
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own scratchpad is tied to the creating thread
  for (const GemmPhase p : {GemmPhase::kPrefill, GemmPhase::kDecode}) {
    const int64_t m = gemm_rows(p);
    const memory::desc src({m, in}, kF32, memory::format_tag::ab);
    const memory::desc dst({m, out}, kF32, memory::format_tag::ab);
    const memory::desc weight =
        p == GemmPhase::kPrefill ? memory::desc({in, out}, kF32, memory::format_tag::any) : result->weight;
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(src, weight, dst), attr, cpu_engine());
    if (p == GemmPhase::kPrefill) result->weight = pd.weights_desc();
    result->phases[p == GemmPhase::kPrefill ? 0 : 1] = {src, dst, pd.scratchpad_desc(), dnnl::matmul(pd)};
  }
  return result;
}

// Shared by all weights of a shape and kept for the life of the process: a model has a few dozen shapes.
const PanelPrimitives* primitives_of(int64_t in, int64_t out) {
  static std::mutex mutex;
  static auto* cache = new std::map<std::pair<int64_t, int64_t>, std::unique_ptr<PanelPrimitives>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*cache)[{in, out}];
  if (!entry) entry = make_primitives(in, out);
  return entry.get();
}

// What a thread needs to run primitives: a oneDNN stream, and memory objects that it points at its data.
struct ThreadContext {
  struct Objects {
    memory src, dst, scratch;
  };
  dnnl::stream stream{cpu_engine()};
  std::unordered_map<const PanelPrimitives::Phase*, Objects> objects;

  Objects& of(const PanelPrimitives::Phase& phase) {
    const auto it = objects.find(&phase);
    if (it != objects.end()) return it->second;
    const dnnl::engine& e = cpu_engine();
    return objects
        .emplace(&phase, Objects{memory(phase.src, e, nullptr), memory(phase.dst, e, nullptr),
                                 memory(phase.scratch, e, nullptr)})
        .first->second;
  }
};

void run_panel(const PanelPrimitives::Phase& phase, const float* x, dnnl_memory_t weight, float* y, void* scratch) {
  thread_local ThreadContext context;
  ThreadContext::Objects& o = context.of(phase);
  o.src.set_data_handle(const_cast<float*>(x));
  o.dst.set_data_handle(y);
  o.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, o.src.get()},
                                  {DNNL_ARG_WEIGHTS, weight},
                                  {DNNL_ARG_DST, o.dst.get()},
                                  {DNNL_ARG_SCRATCHPAD, o.scratch.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(phase.primitive.get(), context.stream.get(), 4, args);
  if (status != dnnl_success)
    base::throw_error(base::ErrorCode::kInternal,
                      "oneDNN refused to run a product, status " + std::to_string(static_cast<int>(status)));
}

void convert_row(const void* data, int64_t row, int64_t in, base::DType dtype, float* dst) {
  if (dtype == base::DType::kF32) {
    std::memcpy(dst, static_cast<const float*>(data) + row * in, static_cast<size_t>(in) * sizeof(float));
  } else {
    const uint16_t* src = static_cast<const uint16_t*>(data) + row * in;
    if (dtype == base::DType::kBF16)
      for (int64_t i = 0; i < in; ++i) dst[i] = base::bf16_to_f32(src[i]);
    else
      for (int64_t i = 0; i < in; ++i) dst[i] = base::f16_to_f32(src[i]);
  }
}

void copy_rows(float* dst, int64_t dst_pitch, const float* src, int64_t src_pitch, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(dst + r * dst_pitch, src + r * src_pitch, static_cast<size_t>(width) * sizeof(float));
}

std::mutex isa_mutex;
device::Isa isa_cap = device::Isa::kAuto;

}  // namespace

void set_gemm_isa(device::Isa isa) {
  const std::lock_guard<std::mutex> lock(isa_mutex);
  if (device::resolve_isa(isa) == device::resolve_isa(isa_cap)) return;
  dnnl::cpu_isa cap = dnnl::cpu_isa::all;
  if (isa == device::Isa::kBaseline) cap = dnnl::cpu_isa::sse41;
  if (isa == device::Isa::kAvx2) cap = dnnl::cpu_isa::avx2;
  if (isa == device::Isa::kAvx512) cap = dnnl::cpu_isa::avx512_core;
  if (products_started || dnnl::set_max_cpu_isa(cap) != dnnl::status::success)
    base::throw_error(base::ErrorCode::kInvalidArgument,
                      std::string("isa of matrix products: wanted a choice before the first product, got ") +
                          device::to_string(isa) + " after products ran with " +
                          device::to_string(device::resolve_isa(isa_cap)));
  isa_cap = isa;
}

struct Linear::Impl {
  struct Panel {
    int64_t begin = 0, width = 0;
    size_t offset = 0;  // bytes into the weights
    const PanelPrimitives* primitives = nullptr;
    memory weight;
  };
  int64_t in = 0, out = 0;
  device::Buffer weights;
  std::vector<Panel> panels;
  size_t weight_bytes = 0;
  size_t x_bytes = 0, y_bytes = 0, scratch_bytes = 0;  // of a tile workspace

  // Panels [first, last) of one tile whose input is a full, padded tile.
  void run_panels(GemmPhase phase, const float* x_tile, float* y, int64_t y_pitch, int64_t rows, int64_t first,
                  int64_t last, std::byte* ws) const {
    float* y_tile = reinterpret_cast<float*>(ws + x_bytes);
    void* scratch = ws + x_bytes + y_bytes;
    const OneOmpThread one;
    for (int64_t p = first; p < last; ++p) {
      const Panel& panel = panels[p];
      const bool direct = rows == gemm_rows(phase) && y_pitch == panel.width;  // then panel.width == out
      float* dst = direct ? y : y_tile;
      run_panel(panel.primitives->phase(phase), x_tile, panel.weight.get(), dst, scratch);
      if (!direct) copy_rows(y + panel.begin, y_pitch, y_tile, panel.width, rows, panel.width);
    }
  }
  // The tile as the primitive wants it: full height, dense, zeros below `rows`.
  const float* padded(GemmPhase phase, const float* x, int64_t x_pitch, int64_t rows, std::byte* ws) const {
    const int64_t m = gemm_rows(phase);
    if (rows == m && x_pitch == in) return x;
    float* tile = reinterpret_cast<float*>(ws);
    copy_rows(tile, in, x, x_pitch, rows, in);
    std::memset(tile + rows * in, 0, static_cast<size_t>((m - rows) * in) * sizeof(float));
    return tile;
  }
};

Linear::Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;

Linear Linear::planned(int64_t out, int64_t in) {
  if (in < 1) base::throw_invalid("inputs of a weight", "1 or more", std::to_string(in));
  if (out < 1) base::throw_invalid("outputs of a weight", "1 or more", std::to_string(out));
  auto impl = std::make_unique<Impl>();
  impl->in = in, impl->out = out;
  for (int64_t begin = 0; begin < out; begin += kPanel) {
    Impl::Panel panel;
    panel.begin = begin, panel.width = std::min(kPanel, out - begin);
    panel.primitives = primitives_of(in, panel.width);
    panel.offset = impl->weight_bytes;
    impl->weight_bytes += aligned(panel.primitives->weight.get_size());
    impl->scratch_bytes = std::max(impl->scratch_bytes, aligned(panel.primitives->scratch_bytes()));
    impl->panels.push_back(std::move(panel));
  }
  impl->x_bytes = aligned(static_cast<size_t>(kGemmRowsPrefill * in) * sizeof(float));
  impl->y_bytes = aligned(static_cast<size_t>(kGemmRowsPrefill * std::min(kPanel, out)) * sizeof(float));
  Linear linear;
  linear.impl_ = std::move(impl);
  return linear;
}

Linear Linear::create(std::span<const Part> parts, int64_t in, device::Stream& stream) {
  if (in < 1) base::throw_invalid("inputs of a weight", "1 or more", std::to_string(in));
  int64_t out = 0;
  for (const Part& part : parts) {
    if (part.out < 1) base::throw_invalid("outputs of a weight", "1 or more", std::to_string(part.out));
    if (!part.data) base::throw_invalid("data of a weight", "an address", "null");
    if (part.dtype != base::DType::kF32 && part.dtype != base::DType::kBF16 && part.dtype != base::DType::kF16)
      base::throw_invalid("dtype of a weight", "float32, bfloat16 or float16", base::to_string(part.dtype));
    out += part.out;
  }
  if (out < 1) base::throw_invalid("parts of a weight", "1 or more", "none");

  Linear linear = planned(out, in);
  Impl* impl = linear.impl_.get();
  impl->weights = device::Buffer::allocate(stream.info(), impl->weight_bytes);

  stream.parallel_for(static_cast<int64_t>(impl->panels.size()), [&](int64_t p, int) {
    const OneOmpThread one;
    Impl::Panel& panel = impl->panels[p];
    std::vector<float> rows(static_cast<size_t>(panel.width * in));
    int64_t part_begin = 0;
    for (const Part& part : parts) {
      const int64_t first = std::max(part_begin, panel.begin),
                    last = std::min(part_begin + part.out, panel.begin + panel.width);
      for (int64_t o = first; o < last; ++o)
        convert_row(part.data, o - part_begin, in, part.dtype, rows.data() + (o - panel.begin) * in);
      part_begin += part.out;
    }
    const dnnl::engine& e = cpu_engine();
    memory plain(memory::desc({in, panel.width}, memory::data_type::f32, memory::format_tag::ba), e, rows.data());
    panel.weight = memory(panel.primitives->weight, e, impl->weights.as<std::byte>() + panel.offset);
    dnnl::stream s(e);
    dnnl::reorder(plain, panel.weight).execute(s, plain, panel.weight);
    s.wait();
  });
  return linear;
}

Linear Linear::create(const void* weight, base::DType dtype, int64_t out, int64_t in, device::Stream& stream) {
  const Part part{weight, dtype, out};
  return create(std::span<const Part>(&part, 1), in, stream);
}

int64_t Linear::in() const { return impl_ ? impl_->in : 0; }
int64_t Linear::out() const { return impl_ ? impl_->out : 0; }
size_t Linear::weight_bytes() const { return impl_ ? impl_->weight_bytes : 0; }
size_t Linear::tile_workspace_bytes() const {
  return impl_ ? impl_->x_bytes + impl_->y_bytes + impl_->scratch_bytes : 0;
}
size_t Linear::workspace_bytes(int threads) const { return static_cast<size_t>(threads) * tile_workspace_bytes(); }

void Linear::run_tile(GemmPhase phase, const float* x, int64_t x_pitch, float* y, int64_t y_pitch, int64_t rows,
                      void* tile_workspace) const {
  KADENCE_CHECK(impl_ != nullptr && impl_->weights.data() != nullptr);
  if (rows <= 0) return;
  KADENCE_CHECK(rows <= gemm_rows(phase));
  auto* ws = static_cast<std::byte*>(tile_workspace);
  const float* tile = impl_->padded(phase, x, x_pitch, rows, ws);
  impl_->run_panels(phase, tile, y, y_pitch, rows, 0, static_cast<int64_t>(impl_->panels.size()), ws);
}

void Linear::run(GemmPhase phase, const float* x, int64_t x_pitch, float* y, int64_t y_pitch, int64_t rows,
                 void* workspace, device::Stream& stream) const {
  KADENCE_CHECK(impl_ != nullptr && impl_->weights.data() != nullptr);
  if (rows <= 0) return;
  const Impl& impl = *impl_;
  const int64_t m = gemm_rows(phase), tiles = base::ceil_div(rows, m),
                panels = static_cast<int64_t>(impl.panels.size());
  const int threads = stream.info().threads;
  // Groups of panels are a matter of balance: a panel's bits are its own.
  int64_t groups = 1;
  if (threads > 1 && tiles < 4 * threads)
    groups = std::min<int64_t>(panels, base::ceil_div<int64_t>(4 * threads, tiles));
  const auto task = [&](int64_t i, int worker) {
    const int64_t tile = i / groups, group = i % groups, row = tile * m, count = std::min(m, rows - row);
    std::byte* ws = static_cast<std::byte*>(workspace) + static_cast<size_t>(worker) * tile_workspace_bytes();
    const float* x_tile = impl.padded(phase, x + row * x_pitch, x_pitch, count, ws);
    impl.run_panels(phase, x_tile, y + row * y_pitch, y_pitch, count, group * panels / groups,
                    (group + 1) * panels / groups, ws);
  };
  if (threads == 1 || tiles * m * impl.in * impl.out < kParallelWork) {
    groups = 1;
    for (int64_t i = 0; i < tiles; ++i) task(i, 0);
  } else {
    stream.parallel_for(tiles * groups, task);
  }
}

}  // namespace kadence::ops
