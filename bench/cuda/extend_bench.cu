// Times extend on a CUDA device over the table of shapes.
//   extend_bench [results.jsonl] [filter] [--block TOKENS] [--reps N] [--backend NAME]
// Random normal inputs (never zeros), fp32 states in and out in place, one fp32 checkpoint every 1,024 tokens unless
// the line says otherwise. Times are medians of single calls between events, after two warm-up calls.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "ops/cuda/common/check.h"
#include "ops/cuda/sm90/extend_ring/plan.h"
#include "ops/kda.h"

namespace kadence::ops {
namespace {

using cuda::check;

std::string backend = "auto";

__device__ float normal(uint64_t i, uint32_t seed) {
  uint64_t x = i * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull + 0x94d049bb133111ebull;
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull, x ^= x >> 27, x *= 0x94d049bb133111ebull, x ^= x >> 31;
  const float u = (static_cast<uint32_t>(x) + 1.0f) * 0x1p-32f, v = static_cast<uint32_t>(x >> 32) * 0x1p-32f;
  return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}
__global__ void fill_bf16(__nv_bfloat16* p, int64_t n, uint32_t seed, float scale, float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    p[i] = __float2bfloat16(shift + scale * normal(i, seed));
}
__global__ void fill_f32(float* p, int64_t n, uint32_t seed, float scale, float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    p[i] = shift + scale * normal(i, seed);
}

struct Case {
  std::string name;
  int heads;
  std::vector<int64_t> lengths;
  KdaGate gate = KdaGate::kBounded;
  int every = 1024;
  DType state = DType::kF32;
};

struct Device {
  device::Stream stream = device::Stream::cuda(0);
  std::vector<device::Buffer> buffers;
  template <class T>
  T* make(int64_t n) {
    buffers.push_back(
        device::Buffer::allocate(stream.info(), static_cast<size_t>(std::max<int64_t>(n, 1)) * sizeof(T)));
    return buffers.back().as<T>();
  }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream.native()); }
};

double copy_bandwidth(Device& d) {
  const size_t bytes = size_t{2} << 30;
  char *a = d.make<char>(bytes), *b = d.make<char>(bytes);
  cudaEvent_t e0, e1;
  check(cudaEventCreate(&e0), "event"), check(cudaEventCreate(&e1), "event");
  std::vector<float> t;
  for (int i = 0; i < 8; ++i) {
    check(cudaEventRecord(e0, d.native()), "record");
    check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, d.native()), "copy");
    check(cudaEventRecord(e1, d.native()), "record");
    check(cudaEventSynchronize(e1), "sync");
    float ms;
    check(cudaEventElapsedTime(&ms, e0, e1), "elapsed");
    if (i > 1) t.push_back(ms);
  }
  std::sort(t.begin(), t.end());
  return 2.0 * bytes / t[t.size() / 2] / 1e6;  // GB/s
}

void run_case(const Case& c, int block, int reps, double bandwidth, FILE* out) {
  Device d;
  const int64_t tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  const int64_t n = tokens * c.heads * 128, state = int64_t{c.heads} * 128 * 128;
  KdaProblem p;
  p.H = p.HV = c.heads, p.K = p.V = 128, p.io = p.decay = p.beta = DType::kBF16, p.gate = c.gate;
  p.state_in = p.state_out = p.checkpoints = c.state;
  KdaHostMetadata m;
  std::vector<int64_t> begin{0};
  std::vector<int32_t> slots, ckpt_begin{0}, depth, ckpt_slot;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    begin.push_back(begin.back() + c.lengths[i]);
    slots.push_back(static_cast<int32_t>(i));
    for (int64_t at = c.every; c.every > 0 && at <= c.lengths[i]; at += c.every)
      depth.push_back(static_cast<int32_t>(at));
    ckpt_begin.push_back(static_cast<int32_t>(depth.size()));
  }
  const int64_t pool_slots = static_cast<int64_t>(c.lengths.size() + depth.size());
  for (size_t i = 0; i < depth.size(); ++i) ckpt_slot.push_back(static_cast<int32_t>(c.lengths.size() + i));
  p.bounds = {static_cast<int32_t>(c.lengths.size()), tokens, static_cast<int32_t>(depth.size())};
  KdaOptions options;
  options.extend_block_tokens = block, options.backend = backend;
  const KdaPlan plan = plan_kda(p, d.stream.info(), options);

  auto *q = d.make<__nv_bfloat16>(n), *k = d.make<__nv_bfloat16>(n), *v = d.make<__nv_bfloat16>(n),
       *g = d.make<__nv_bfloat16>(n), *o = d.make<__nv_bfloat16>(n), *beta = d.make<__nv_bfloat16>(tokens * c.heads);
  const size_t state_bytes = base::size_of(c.state);
  char* pool = d.make<char>(pool_slots * state * static_cast<int64_t>(state_bytes));
  float *a_log = d.make<float>(c.heads), *bias = d.make<float>(c.heads * 128);
  const auto fill = [&](__nv_bfloat16* x, int64_t count, uint32_t seed) {
    fill_bf16<<<1024, 256, 0, d.native()>>>(x, count, seed, 1.0f, 0.0f);
  };
  fill(q, n, 1), fill(k, n, 2), fill(v, n, 3), fill(g, n, 4), fill(beta, tokens * c.heads, 5);
  if (c.state == DType::kF32)
    fill_f32<<<1024, 256, 0, d.native()>>>(reinterpret_cast<float*>(pool),
                                           static_cast<int64_t>(c.lengths.size()) * state, 6, 0.3f, 0.0f);
  else
    device::fill_async(pool, 0, static_cast<size_t>(pool_slots * state) * state_bytes, d.stream);
  fill_f32<<<1, 256, 0, d.native()>>>(a_log, c.heads, 7, 0.3f, 0.0f);
  fill_f32<<<8, 256, 0, d.native()>>>(bias, c.heads * 128, 8, 0.3f, 0.0f);
  check(cudaGetLastError(), "fill");

  m.seq_begin = begin, m.state_in = slots, m.state_out = slots, m.tokens = tokens;
  if (!depth.empty()) m.ckpt_begin = ckpt_begin, m.ckpt_depth = depth, m.ckpt_slot = ckpt_slot;
  m.state_in_slots = m.state_out_slots = m.ckpt_slots = pool_slots;
  KdaExtendArgs a;
  const int64_t pitch = int64_t{c.heads} * 128;
  a.q = {q, pitch}, a.k = {k, pitch}, a.v = {v, pitch}, a.decay = {g, pitch}, a.beta = {beta, c.heads},
  a.out = {o, pitch};
  a.A_log = a_log, a.dt_bias = bias, a.tokens = tokens;
  a.metadata = upload(plan, m, d.make<char>(static_cast<int64_t>(plan.metadata_bytes())), d.stream);
  a.state_in = a.state_out = a.checkpoints = {pool, c.state, pool_slots, state, 1, 0};
  a.workspace = d.make<char>(static_cast<int64_t>(plan.workspace_bytes()));
  check(cudaMemsetAsync(a.workspace, 0xff, plan.workspace_bytes(), d.native()), "poison");

  cudaEvent_t e0, e1;
  check(cudaEventCreate(&e0), "event"), check(cudaEventCreate(&e1), "event");
  std::vector<float> times;
  double host_us = 1e30;
  for (int i = 0; i < reps + 2; ++i) {
    check(cudaEventRecord(e0, d.native()), "record");
    const auto t0 = std::chrono::steady_clock::now();
    run_kda(plan, a, d.stream);
    host_us =
        std::min(host_us, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - t0).count());
    check(cudaEventRecord(e1, d.native()), "record");
    check(cudaEventSynchronize(e1), c.name.c_str());
    float ms;
    check(cudaEventElapsedTime(&ms, e0, e1), "elapsed");
    if (i > 1) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2];
  const double bytes =
      n * 10.0 + tokens * c.heads * 2.0 + (2.0 * c.lengths.size() + depth.size()) * state * state_bytes;
  const double floor_ms = bytes / bandwidth / 1e6;
  std::printf("%-28s %9.4f ms (min %.4f) floor %.4f x%.2f %5.0f ns/chunk.head.SM ws %.1f MB host %.1f us",
              c.name.c_str(), ms, times[0], floor_ms, ms / floor_ms,
              ms * 1e6 * d.stream.info().sm_count / (tokens / 32.0 * c.heads), plan.workspace_bytes() / 1e6, host_us);
#ifndef KADENCE_BENCH_PORTABLE
  if (plan.backend() == "sm90") {
    const auto shape = cuda::sm90::extend::choose_shape(p, d.stream.info().sm_count, block);
    cuda::sm90::extend::Schedule schedule;
    device::copy_async(&schedule,
                       static_cast<char*>(a.workspace) + cuda::sm90::extend::layout_workspace(p, shape).schedule,
                       sizeof schedule, d.stream);
    d.stream.synchronize();
    std::printf("; %d scanners of %d warpgroups, longest %d chunks", schedule.scanners, schedule.width,
                schedule.longest);
  }
#endif
  std::printf("\n");
  std::fflush(stdout);
  if (out)
    std::fprintf(out,
                 "{\"case\":\"%s\",\"backend\":\"%s\",\"ms\":%.5f,\"min_ms\":%.5f,\"floor_ms\":%.5f,\"workspace\":%zu,"
                 "\"host_us\":%.2f,"
                 "\"block_tokens\":%d,\"reps\":%d}\n",
                 c.name.c_str(), plan.backend().c_str(), ms, times[0], floor_ms, plan.workspace_bytes(), host_us,
                 plan.block_tokens(), reps);
}

// Host time of a call with 256 rows and 1,024 checkpoints: the same metadata again, and all of it made anew.
void host_times(FILE* out) {
  Device d;
  constexpr int kRows = 256, kCheckpoints = 1024, kHeads = 12, kLength = 256;
  constexpr int64_t kTokens = int64_t{kRows} * kLength, kWidth = kHeads * 128, kStateSize = kWidth * 128;
  KdaProblem p;
  p.H = p.HV = kHeads, p.K = p.V = 128, p.io = p.decay = p.beta = DType::kBF16;
  p.bounds = {kRows, kTokens, kCheckpoints};
  KdaPlan plan = plan_kda(p, d.stream.info(), {});
  std::vector<int64_t> begin{0};
  std::vector<int32_t> slots, ckpt_begin{0}, depth, ckpt_slot;
  for (int i = 0; i < kRows; ++i) {
    begin.push_back(begin.back() + kLength), slots.push_back(i);
    for (int at = 64; at <= kLength; at += 64)
      ckpt_slot.push_back(kRows + static_cast<int>(depth.size())), depth.push_back(at);
    ckpt_begin.push_back(static_cast<int32_t>(depth.size()));
  }
  KdaHostMetadata m;
  m.seq_begin = begin, m.state_in = slots, m.state_out = slots, m.tokens = kTokens;
  m.ckpt_begin = ckpt_begin, m.ckpt_depth = depth, m.ckpt_slot = ckpt_slot;
  m.state_in_slots = m.state_out_slots = m.ckpt_slots = kRows + kCheckpoints;
  auto* x = d.make<__nv_bfloat16>(kTokens * kWidth);
  fill_bf16<<<1024, 256, 0, d.native()>>>(x, kTokens * kWidth, 1, 1.0f, 0.0f);
  KdaExtendArgs a;
  a.q = a.k = a.v = a.decay = {x, kWidth}, a.beta = {x, kHeads};
  a.out = {d.make<__nv_bfloat16>(kTokens * kWidth), kWidth};
  a.A_log = d.make<float>(kHeads), a.tokens = kTokens;
  a.state_in = a.state_out = a.checkpoints = {
      d.make<float>((kRows + kCheckpoints) * kStateSize), DType::kF32, kRows + kCheckpoints, kStateSize, 1, 0};
  a.workspace = d.make<char>(static_cast<int64_t>(plan.workspace_bytes()));
  char* buffer = d.make<char>(static_cast<int64_t>(plan.metadata_bytes()));
  d.stream.synchronize();
  for (const bool changed : {false, true}) {
    std::vector<double> t;
    for (int i = 0; i < 60; ++i) {
      const auto start = std::chrono::steady_clock::now();
      if (changed || i == 0) {
        plan = plan_kda(p, d.stream.info(), {});
        a.metadata = upload(plan, m, buffer, d.stream);
      }
      run_kda(plan, a, d.stream);
      t.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      d.stream.synchronize();
    }
    std::sort(t.begin(), t.end());
    const char* name = changed ? "plan, metadata, run" : "run";
    std::printf("host: %-20s %6.1f us (median of %zu, 256 rows, 1024 checkpoints)\n", name, t[t.size() / 2], t.size());
    if (out) std::fprintf(out, "{\"case\":\"host %s\",\"host_us\":%.2f}\n", name, t[t.size() / 2]);
  }
}

int run(int argc, char** argv) {
  std::string filter;
  FILE* out = nullptr;
  int block = 0, reps = 9, positional = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--block"))
      block = std::atoi(argv[++i]);
    else if (!std::strcmp(argv[i], "--backend"))
      backend = argv[++i];
    else if (!std::strcmp(argv[i], "--reps"))
      reps = std::atoi(argv[++i]);
    else if (positional++ == 0)
      out = std::fopen(argv[i], "a");
    else
      filter = argv[i];
  }
  using L = std::vector<int64_t>;
  const auto eight = [](int64_t n) { return L(8, n); };
  std::vector<Case> cases{
      {"H12 2048", 12, {2048}},
      {"H12 32x256", 12, L(32, 256)},
      {"H12 8192", 12, {8192}},
      {"H12 16384", 12, {16384}},
      {"H12 8x16384", 12, eight(16384)},
      {"H12 131072", 12, {131072}},
      {"H32 8192", 32, {8192}},
      {"H32 8x4096", 32, eight(4096)},
      {"H32 8x16384", 32, eight(16384)},
      {"H64 8192", 64, {8192}},
      {"H64 mixed", 64, {1300, 547, 2048, 963, 271, 3063}},
      {"H96 8192", 96, {8192}},
      {"H96 8x1024", 96, eight(1024)},
      {"H32 8x4096 softplus", 32, eight(4096), KdaGate::kSoftplus},
      {"H32 8x4096 no checkpoints", 32, eight(4096), KdaGate::kBounded, 0},
      {"H32 8x4096 every 256", 32, eight(4096), KdaGate::kBounded, 256},
      {"H32 8x4096 every 64", 32, eight(4096), KdaGate::kBounded, 64},
      {"H64 8192 every 64", 64, {8192}, KdaGate::kBounded, 64},
      {"H64 8192 bf16 states", 64, {8192}, KdaGate::kBounded, 1024, DType::kBF16},
      {"H32 2048x16", 32, L(2048, 16)},
      {"H4 65536", 4, {65536}},
      {"H12 1048576", 12, {1048576}},
      {"H96 131072", 96, {131072}},
  };
  double bandwidth;
  {
    Device d;
    bandwidth = copy_bandwidth(d);
    std::printf("%s, copy %.0f GB/s\n", d.stream.info().name.c_str(), bandwidth);
  }
  for (const Case& c : cases)
    if (filter.find(',') == std::string::npos ? c.name.find(filter) != std::string::npos
                                              : ("," + filter + ",").find("," + c.name + ",") != std::string::npos)
      run_case(c, block, reps, bandwidth, out);
  if (filter.empty()) host_times(out);
  if (out) std::fclose(out);
  return 0;
}

}  // namespace
}  // namespace kadence::ops

int main(int argc, char** argv) {
  try {
    return kadence::ops::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("extend_bench: %s\n", e.what());
    return 2;
  }
}
