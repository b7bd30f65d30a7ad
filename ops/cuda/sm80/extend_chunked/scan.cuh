// Recurrence: a CTA keeps 64 value rows x 128 keys of one head's state in fp32 accumulators, 16 rows a warp, while it
// walks the chunks that a row has in a window. Symbols and the algebra: ../README.md.
//
// Lane 4 r + c of a warp holds, in s[n], rows r and r + 8 of tile n = 4 b + m at keys 32 b + 8 c + 2 m and the next: 8
// keys that lie together in memory. Rows r and r + 8 are the values value_of(r) and value_of(r) + 2 of the warp's 16,
// so that four values of a token lie together after a transposition.
#pragma once

#include "ops/cuda/common/element.cuh"
#include "ops/cuda/sm80/extend_chunked/places.cuh"
#include "ops/cuda/sm80/extend_chunked/prep.cuh"

namespace kadence::ops::cuda::sm80 {

__device__ __forceinline__ constexpr int value_of(int r) { return 4 * (r >> 1) + (r & 1); }

// Exponent of x >= 0 after rounding to 11 bits; -127 for 0.
__device__ __forceinline__ int rounded_exponent(float x) {
  return static_cast<int>((__float_as_uint(x) + 0x1000u) >> 23) - 127;
}

template <class Io>
struct Scanner {
  // The operand copy of the state is fp16 of the state over 2^scale, 2^scale a multiple of 4 such that its largest
  // element lies in [1, 16), or the values' in [2^10, 2^14) if they are that much larger. The accumulators hold the
  // state over 2^scale too. Powers of two change no bit of the significands, and `scale` follows from the state and
  // the chunk's values alone.
  static constexpr float kStateMost = 16.0f, kValueLeast = 1024.0f, kValueMost = 16384.0f;

  const WindowParams& p;
  uint8_t* const shared;
  const int head, w, l, r, c;
  const int64_t value;  // this lane's first value channel of all heads
  float s[16][4];
  int scale = 0;

  __device__ Scanner(const WindowParams& params, uint8_t* shared_base, int value_head, int which)
      : p(params),
        shared(shared_base),
        head(value_head),
        w(static_cast<int>(threadIdx.x) >> 5),
        l(static_cast<int>(threadIdx.x) & 31),
        r(l >> 2),
        c(l & 3),
        value(static_cast<int64_t>(head) * kDim + which * 64 + w * 16) {}

  // --- the state in memory -------------------------------------------------------------------------------------------
  // f(element offset, tile) for the two rows and four blocks of keys of this lane: 8 elements from the offset on.
  template <class F>
  __device__ __forceinline__ void each_run(F&& f) const {
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int b = 0; b < 4; ++b) f((value + value_of(r) + 2 * row) * kDim + b * 32 + c * 8, row, 4 * b);
  }
  __device__ __forceinline__ void load(const StatePool& pool, int64_t slot) {
    const int64_t base = slot * pool.pitch;
    if (pool.dtype == DType::kF32) {
      load_f32(static_cast<const float*>(pool.base) + base);
    } else if (pool.dtype == DType::kBF16) {
      load_16<__nv_bfloat16>(static_cast<const __nv_bfloat16*>(pool.base) + base);
    } else {
      load_16<__half>(static_cast<const __half*>(pool.base) + base);
    }
  }
  __device__ __forceinline__ void load_f32(const float* base) {
    scale = 0;
    each_run([&](int64_t at, int row, int n) {
      const float4 x = *reinterpret_cast<const float4*>(base + at), y = *reinterpret_cast<const float4*>(base + at + 4);
      s[n][2 * row] = x.x, s[n][2 * row + 1] = x.y, s[n + 1][2 * row] = x.z, s[n + 1][2 * row + 1] = x.w;
      s[n + 2][2 * row] = y.x, s[n + 2][2 * row + 1] = y.y, s[n + 3][2 * row] = y.z, s[n + 3][2 * row + 1] = y.w;
    });
  }
  template <class T>
  __device__ __forceinline__ void load_16(const T* base) {
    scale = 0;
    each_run([&](int64_t at, int row, int n) {
      const uint4 x = *reinterpret_cast<const uint4*>(base + at);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 f = unpack<T>(words[m]);
        s[n + m][2 * row] = f.x, s[n + m][2 * row + 1] = f.y;
      }
    });
  }
  __device__ __forceinline__ void store(const StatePool& pool, int64_t slot) const {
    if (slot < 0) return;
    const int64_t base = slot * pool.pitch;
    if (pool.dtype == DType::kF32) {
      store_f32(static_cast<float*>(pool.base) + base);
    } else if (pool.dtype == DType::kBF16) {
      store_16(static_cast<__nv_bfloat16*>(pool.base) + base, [](float a, float b) { return pack_bf16(a, b); });
    } else {
      store_16(static_cast<__half*>(pool.base) + base, [](float a, float b) { return pack_f16(a, b); });
    }
  }
  __device__ __forceinline__ void store_f32(float* base) const {
    const float f = exponent_to_float(scale);
    const auto bits = [f](float x) { return __float_as_uint(x * f); };
    each_run([&](int64_t at, int row, int n) {
#pragma unroll
      for (int m = 0; m < 4; m += 2)
        store_global(base + at + 2 * m, make_uint4(bits(s[n + m][2 * row]), bits(s[n + m][2 * row + 1]),
                                                   bits(s[n + m + 1][2 * row]), bits(s[n + m + 1][2 * row + 1])));
    });
  }
  template <class T, class Pack>
  __device__ __forceinline__ void store_16(T* base, Pack pack_two) const {
    const float f = exponent_to_float(scale);
    each_run([&](int64_t at, int row, int n) {
      const auto word = [&](int m) { return pack_two(s[n + m][2 * row] * f, s[n + m][2 * row + 1] * f); };
      store_global(base + at, make_uint4(word(0), word(1), word(2), word(3)));
    });
  }

  // --- one chunk -----------------------------------------------------------------------------------------------------
  __device__ __forceinline__ void pack_state(uint32_t (&a)[8][4], float f) const {
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + (i >> 1), e = 2 * (i & 1);
        a[k][i] = pack_f16(s[n][e] * f, s[n][e + 1] * f);
      }
  }
  // Chooses `scale` for the state and this chunk's values; few chunks change it. Returns what the accumulators must
  // still be multiplied by. largest_value: of this lane.
  __device__ __forceinline__ float choose_scale(uint32_t (&a)[8][4], float largest_value) {
    uint32_t most[4] = {a[0][0], a[0][1], a[0][2], a[0][3]};
#pragma unroll
    for (int k = 1; k < 8; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i] = max_magnitude_f16x2(most[i], a[k][i]);
    most[0] = max_magnitude_f16x2(max_magnitude_f16x2(most[0], most[1]), max_magnitude_f16x2(most[2], most[3]));
    const float state = fmaxf(f16_lo(most[0]), f16_hi(most[0])),
                scaled_value = largest_value * exponent_to_float(-scale);
    const bool above = __any_sync(kAllLanes, !(state < kStateMost) || !(scaled_value < kValueMost));
    const bool enough = __any_sync(kAllLanes, state >= 1.0f || scaled_value >= kValueLeast);
    if (!above && enough) return 1.0f;
    float x = 0.0f, v = largest_value;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x = fmaxf(x, fabsf(s[n][i]));
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, d)), v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, d));
    int next = 0;
    if (x > 0.0f || v > 0.0f) {
      const int of_state = x > 0.0f ? rounded_exponent(x) + scale : -200;
      const int of_value = v > 0.0f ? static_cast<int>(__float_as_uint(v) >> 23) - 127 - 10 : -200;
      next = max(-100, min(100, (max(of_state, of_value) >> 2) * 4));
    }
    const float f = exponent_to_float(max(-126, min(127, scale - next)));
    scale = next;
    pack_state(a, f);
    return f;
  }

  // x as the left operand of products over tokens.
  template <bool kHalf>
  __device__ __forceinline__ void operand(uint32_t (&a)[2][4], const float (&x)[4][4]) const {
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[u][i] = pack<kHalf>(x[2 * u + (i >> 1)][(i & 1) * 2], x[2 * u + (i >> 1)][(i & 1) * 2 + 1]);
  }
  template <bool kHalf>
  __device__ __forceinline__ void update(const uint32_t (&a)[2][4], const uint8_t* slot) {
    const uint8_t* const factors = slot + Slot::kUpdate + l * 16;
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int pair = 0; pair < 8; ++pair) {
        const uint4 f = *reinterpret_cast<const uint4*>(factors + (u * 8 + pair) * 512);
        mma<kHalf>(s[2 * pair], a[u], f.x, f.y), mma<kHalf>(s[2 * pair + 1], a[u], f.z, f.w);
      }
  }
  __device__ __forceinline__ void mix(float (&o)[4][4], const uint32_t (&a)[2][4], const uint8_t* slot) const {
    const uint8_t* const at = slot + Slot::kMix + l * 16;
    const uint4 m00 = *reinterpret_cast<const uint4*>(at), m10 = *reinterpret_cast<const uint4*>(at + 512),
                m11 = *reinterpret_cast<const uint4*>(at + 1024);
    mma<true>(o[0], a[0], m00.x, m00.y), mma<true>(o[1], a[0], m00.z, m00.w);
    mma<true>(o[2], a[0], m10.x, m10.y), mma<true>(o[3], a[0], m10.z, m10.w);
    mma<true>(o[2], a[1], m11.x, m11.y), mma<true>(o[3], a[1], m11.z, m11.w);
  }

  // Reads the state with 32 rows of keys or queries: d[tile] += state x rows. a = the state as an operand.
  __device__ __forceinline__ void read_state(float (&d)[4][4], const uint32_t (&a)[8][4], const uint8_t* rows) const {
    const uint8_t* const at = rows + r * 256 + c * 16;
    const int odd = (r & 1) << 6;
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 f = *reinterpret_cast<const uint4*>(at + j * 2048 + ((b * 64) ^ odd));
        mma<true>(d[j], a[2 * b], f.x, f.y), mma<true>(d[j], a[2 * b + 1], f.z, f.w);
      }
  }

  // v becomes this lane's words of the chunk's outputs, by rows of tokens.
  __device__ __forceinline__ void chunk(const uint8_t* slot, uint32_t (&v)[4][2]) {
    float x[4][4], o[4][4] = {}, largest[4];
    const uint8_t* const values = slot + Stage::kValues + r * 128 + ((w ^ (r & 3)) << 5) + c * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint2 words = *reinterpret_cast<const uint2*>(values + j * 1024);
      const float2 f = unpack<Io>(transpose8x8(words.x)), g = unpack<Io>(transpose8x8(words.y));
      x[j][0] = f.x, x[j][1] = f.y, x[j][2] = g.x, x[j][3] = g.y;
      largest[j] = fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(g.x), fabsf(g.y)));
    }
    uint32_t a[8][4];
    pack_state(a, 1.0f);
    const float rescale = choose_scale(a, fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])));
    float lower[4][2];  // 2^m of this lane's tokens
    bool fine = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int2 e = *reinterpret_cast<const int2*>(slot + Slot::kExponent + (8 * j + 2 * c) * 4);
      const int m[2] = {(e.x & (kFineFlag - 1)) - kExponentBias, (e.y & (kFineFlag - 1)) - kExponentBias};
      fine = e.x & kFineFlag;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        lower[j][i] = exponent_to_float(m[i]);
        const float lift = exponent_to_float(-m[i] - scale);
        x[j][i] *= lift, x[j][2 + i] *= lift;
      }
    }
    read_state(x, a, slot + Slot::kKeys);
    read_state(o, a, slot + Slot::kQueries);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float4 d0 = *reinterpret_cast<const float4*>(slot + Slot::kDecay + (b * 32 + c * 8) * 4),
                   d1 = *reinterpret_cast<const float4*>(slot + Slot::kDecay + (b * 32 + c * 8 + 4) * 4);
      const float d[8] = {d0.x * rescale, d0.y * rescale, d0.z * rescale, d0.w * rescale,
                          d1.x * rescale, d1.y * rescale, d1.z * rescale, d1.w * rescale};
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[4 * b + m][i] *= d[2 * m + (i & 1)];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= lower[j][i & 1], o[j][i] *= lower[j][i & 1];
    uint32_t xs[2][4], wide[2][4];
    operand<true>(xs, x), operand<false>(wide, x);
    if (fine)
      update<true>(xs, slot);
    else
      update<false>(wide, slot);
    mix(o, xs, slot);
    const float f = p.scale * exponent_to_float(scale);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        v[j][i] = transpose8x8(pack<std::is_same_v<Io, __half>>(o[j][2 * i] * f, o[j][2 * i + 1] * f));
  }

  // --- a row's chunks in a window ------------------------------------------------------------------------------------
  __device__ __forceinline__ void run(int window, int candidate) {
    const Tables& t = p.tables;
    const Header header = *t.header;
    const int begin = window * p.columns, end = min(begin + p.columns, header.positions);
    if (begin >= end) return;
    const Place first = find_position(t, header, p.group, begin);
    const int row = first.group * p.group + candidate;
    if (row >= header.rows) return;
    const int group = row / p.group, rank = row % p.group, group_row = group * p.group;
    const RowEntry entry = t.rows[row];
    const int chunks_of_lane =
        l < p.group && group_row + l < header.rows ? t.rows[group_row + l].chunks : 0;  // of the group's rows
    int level = 0, position = t.group_begin[group] + rank;
    if (group == first.group) {
      const bool same_level = rank >= first.rank;
      level = first.level + !same_level;
      position = begin - first.rank + rank + (same_level ? 0 : first.active);
    }
    if (level >= entry.chunks || position >= end) return;

    const StatePool carries{p.carry, static_cast<int64_t>(p.heads) * kDim * kDim, DType::kF32};
    if (level > 0)
      load(carries, ((window + 1) & 1) * p.group + rank);
    else if (entry.state_in >= 0)
      load(p.state_in, entry.state_in);
    else
#pragma unroll
      for (int n = 0; n < 16; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    int ckpt = entry.ckpt_begin + warp_partition(entry.ckpt_end - entry.ckpt_begin, [&](int i) {
                 return p.ckpt_depth[entry.ckpt_begin + i] > level * kChunk;
               });
    int next_depth = ckpt < entry.ckpt_end ? p.ckpt_depth[ckpt] : 0;  // 0 = none left

    // Slots are fetched kStages - 1 chunks ahead; `stop` becomes the first chunk that is not of this window.
    const uint8_t* const slots =
        p.slots + (static_cast<int64_t>(window & 1) * p.columns * p.heads + head) * Slot::kBytes;
    int fetch_level = level, fetch_position = position, stop = entry.chunks;
    const int tid = static_cast<int>(threadIdx.x), piece = tid & 7;
    const Io* const v_at = static_cast<const Io*>(p.v) + (value - w * 16) + piece * 8;
    const auto fetch = [&](int stage) {
      const int active = __popc(__ballot_sync(kAllLanes, chunks_of_lane > fetch_level));
      if (fetch_level < stop) {
        const uint8_t* const from =
            slots + static_cast<int64_t>(fetch_position - begin) * p.heads * Slot::kBytes + tid * 16;
        uint8_t* const to = shared + stage * Stage::kBytes;
        constexpr int kPieces = Slot::kBytes / 16;
#pragma unroll
        for (int i = 0; i < kPieces / kThreads; ++i)
          copy_async16(to + (tid + i * kThreads) * 16, from + i * kThreads * 16);
        if (tid < kPieces % kThreads)
          copy_async16(to + (tid + kPieces / kThreads * kThreads) * 16, from + kPieces / kThreads * kThreads * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = (tid >> 3) + 16 * i;
          const bool valid = fetch_level * kChunk + token < entry.len;
          copy_async16(to + Stage::kValues + token * 128 + (((piece >> 1) ^ (token & 3)) << 5) + (piece & 1) * 16,
                       v_at + (valid ? entry.token + fetch_level * kChunk + token : entry.token) * p.v_pitch, valid);
        }
        ++fetch_level, fetch_position += active;
        if (fetch_position >= end) stop = min(stop, fetch_level);
      }
      copy_async_commit();
    };
    Io* const out_at = static_cast<Io*>(p.out) + entry.token * p.out_pitch + value + 4 * c;
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
    int stage = 0;
#pragma unroll 1
    for (; level < stop; ++level) {
      copy_async_wait<kStages - 2>();
      __syncthreads();
      fetch(stage == 0 ? kStages - 1 : stage - 1);
      uint32_t v[4][2];
      chunk(shared + stage * Stage::kBytes, v);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = level * kChunk + 8 * j + r;
        if (token < entry.len) store_global(out_at + token * p.out_pitch, make_uint2(v[j][0], v[j][1]));
      }
      if ((level + 1) * kChunk == next_depth) {
        store(p.checkpoints, p.ckpt_slot[ckpt]);
        next_depth = ++ckpt < entry.ckpt_end ? p.ckpt_depth[ckpt] : 0;
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    if (level == entry.chunks)
      store(p.state_out, entry.state_out);
    else
      store(carries, (window & 1) * p.group + rank);
  }
};

}  // namespace kadence::ops::cuda::sm80
