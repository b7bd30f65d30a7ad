// Convolution on the CPU: which tokens and windows feed which output. The arithmetic is in conv1d_kernel.cc.
#include <cstring>

#include "ops/cpu/conv1d_kernel.h"
#include "ops/cpu/conv1d_windows.h"
#include "ops/cpu/kda_cpu.h"
#include "ops/kda_backend.h"
#include "ops/kda_rows.h"

namespace kadence::ops::cpu {
namespace {

constexpr int kTileChannels = 128;
constexpr int kRunTokens = 64;  // tokens of one kernel call

// Channels [begin, end) of one task.
struct Tile {
  int begin, end;
  int size() const { return end - begin; }
};
int tile_count(int channels) { return (channels + kTileChannels - 1) / kTileChannels; }
Tile tile_of(int channels, int64_t index) {
  const int begin = static_cast<int>(index) * kTileChannels;
  return {begin, std::min(channels, begin + kTileChannels)};
}

const char* at(const void* base, int64_t element, DType dtype) {
  return static_cast<const char*>(base) + element * static_cast<int64_t>(base::size_of(dtype));
}

// Address of row `j` (0..2, oldest first) of a window, at a channel.
char* window_row(const WindowView& w, int64_t slot, int j, int channels, int channel, int64_t layer = 0) {
  return slot_address(w, slot, layer) +
         (int64_t{j} * channels + channel) * static_cast<int64_t>(base::size_of(w.dtype));
}

// The raw input `back` tokens before token `t` of a row (back = 1..3): a token of the row, or a row of the old window;
// null means zeros.
const char* history(const Conv1dArgs& c, const KdaRow& row, int64_t t, int back, const WindowView& window_in,
                    int channel) {
  const int64_t i = t - back;
  if (i >= 0) return at(c.x.data, (row.begin + i) * c.x.pitch + channel, c.dtype);
  if (row.state_in < 0) return nullptr;
  return window_row(window_in, row.state_in, static_cast<int>(kConvWindow + i), c.channels, channel);
}

// Three window rows of a tile, copied before anything is overwritten.
struct WindowCopy {
  alignas(64) char bytes[kConvWindow][kTileChannels * 4];
};

void take(WindowCopy& to, int j, const char* from, int channels, DType dtype) {
  const size_t n = static_cast<size_t>(channels) * base::size_of(dtype);
  if (from)
    std::memcpy(to.bytes[j], from, n);
  else
    std::memset(to.bytes[j], 0, n);
}
void put(const WindowCopy& from, const WindowView& w, int64_t slot, int channels, Tile tile, int64_t layer = 0) {
  for (int j = 0; j < kConvWindow; ++j)
    std::memcpy(window_row(w, slot, j, channels, tile.begin, layer), from.bytes[j],
                static_cast<size_t>(tile.size()) * base::size_of(w.dtype));
}

// The window after `depth` tokens of a row.
void window_after(const Conv1dArgs& c, const KdaRow& row, int64_t depth, const WindowView& window_in, Tile tile,
                  WindowCopy& to) {
  for (int j = 0; j < kConvWindow; ++j)
    take(to, j, history(c, row, depth, kConvWindow - j, window_in, tile.begin), tile.size(), c.dtype);
}

void zero_tokens(const Conv1dArgs& c, int64_t begin, int64_t end, Tile tile) {
  for (int64_t t = begin; t < end; ++t)
    std::memset(const_cast<char*>(at(c.y.data, t * c.y.pitch + tile.begin, c.dtype)), 0,
                static_cast<size_t>(tile.size()) * base::size_of(c.dtype));
}

char* output(const Conv1dArgs& c, int64_t token, Tile tile) {
  return const_cast<char*>(at(c.y.data, token * c.y.pitch + tile.begin, c.dtype));
}

// Memory that a call over `tokens` touches, about: weights, windows, inputs and outputs.
int64_t call_bytes(const Conv1dArgs& c, int64_t tokens) { return int64_t{c.channels} * 4 * (kConvWidth + 8 * tokens); }

void extend_row(const Conv1dExtendArgs& a, const KdaRow& row, Tile tile, const ConvKernel& kernel) {
  const Conv1dArgs& c = a.conv;
  const void* x[kRunTokens + kConvWindow];
  for (int64_t first = 0; first < row.len; first += kRunTokens) {
    const int n = static_cast<int>(std::min<int64_t>(kRunTokens, row.len - first));
    for (int i = 0; i < n + kConvWindow; ++i) x[i] = history(c, row, first + i, kConvWindow, a.window_in, tile.begin);
    kernel(c, x, n, tile.begin, tile.size(), output(c, row.begin + first, tile),
           c.y.pitch * static_cast<int64_t>(base::size_of(c.dtype)));
  }
  WindowCopy window;
  // The final window first: state_out may be the slot of state_in, and checkpoints of depth >= 64 read tokens only.
  const bool untouched = row.len == 0 && row.state_in >= 0 && row.state_out >= 0 &&
                         slot_address(a.window_in, row.state_in) == slot_address(a.window_out, row.state_out);
  if (row.state_out >= 0 && !untouched) {
    window_after(c, row, row.len, a.window_in, tile, window);
    put(window, a.window_out, row.state_out, c.channels, tile);
  }
  for (int32_t i = row.ckpt_begin; i < row.ckpt_end; ++i) {
    if (a.metadata.ckpt_slot[i] < 0) continue;
    window_after(c, row, a.metadata.ckpt_depth[i], a.window_in, tile, window);
    put(window, a.checkpoints, a.metadata.ckpt_slot[i], c.channels, tile);
  }
}

}  // namespace

void conv1d_extend(const KdaPlan& plan, const Conv1dExtendArgs& a, device::Stream& stream) {
  const Conv1dArgs& c = a.conv;
  const KdaProblem& p = plan.problem();
  const ConvKernel kernel = conv_kernel(plan.isa());
  if (a.metadata.rows > 0) {
    KdaRowCursor cursor(a.metadata, p, a.tokens, a.window_in.slots, a.window_out.slots, a.checkpoints.slots);
    for (int32_t i = 0; i < cursor.rows(); ++i) report_row(a.metadata.status, i, cursor.next().status);
  }
  run_tasks(stream, tile_count(c.channels), call_bytes(c, a.tokens), [&](int64_t task, int) {
    const Tile tile = tile_of(c.channels, task);
    int64_t zeroed = 0;
    if (a.metadata.rows > 0) {
      KdaRowCursor cursor(a.metadata, p, a.tokens, a.window_in.slots, a.window_out.slots, a.checkpoints.slots);
      for (int32_t i = 0; i < cursor.rows(); ++i) {
        const KdaRow row = cursor.next();
        if (row.status != KdaRowStatus::kOk) continue;
        zero_tokens(c, zeroed, row.begin, tile);
        extend_row(a, row, tile, kernel);
        zeroed = row.begin + row.len;
      }
    }
    zero_tokens(c, zeroed, a.tokens, tile);
  });
}

void conv1d_step(const Conv1dStepArgs& a, device::Stream& stream) {
  const Conv1dArgs& c = a.conv;
  const ConvKernel kernel = conv_kernel(stream.info().isa);
  const int tiles = tile_count(c.channels);
  run_tasks(stream, int64_t{a.rows} * tiles, call_bytes(c, a.rows), [&](int64_t task, int) {
    const int64_t n = task / tiles;
    const Tile tile = tile_of(c.channels, task % tiles);
    const int32_t in = a.slot_in[n], out = a.slot_out[n];
    if (in < 0 || in >= a.window_in.slots || out < -1 || out >= a.window_out.slots)
      return zero_tokens(c, n, n + 1, tile);
    WindowCopy window;
    for (int j = 0; j < kConvWindow; ++j)
      take(window, j, window_row(a.window_in, in, j, c.channels, tile.begin), tile.size(), c.dtype);
    const char* x = at(c.x.data, n * c.x.pitch + tile.begin, c.dtype);
    const void* const taps[kConvWidth] = {window.bytes[0], window.bytes[1], window.bytes[2], x};
    kernel(c, taps, 1, tile.begin, tile.size(), output(c, n, tile), 0);
    if (out < 0) return;
    std::memmove(window.bytes[0], window.bytes[1], sizeof(window.bytes[0]) * (kConvWindow - 1));
    take(window, kConvWindow - 1, x, tile.size(), c.dtype);
    put(window, a.window_out, out, c.channels, tile);
  });
}

void conv1d_verify(const Conv1dVerifyArgs& a, device::Stream& stream) {
  const Conv1dArgs& c = a.conv;
  const ConvKernel kernel = conv_kernel(stream.info().isa);
  const int tiles = tile_count(c.channels);
  run_tasks(stream, int64_t{a.rows} * tiles, call_bytes(c, int64_t{a.rows} * a.D), [&](int64_t task, int) {
    const int64_t n = task / tiles;
    const Tile tile = tile_of(c.channels, task % tiles);
    const bool live = a.slot_in[n] >= 0 && a.slot_in[n] < a.window_in.slots && a.n_draft[n] >= 0 && a.n_draft[n] <= a.D;
    for (int d = 0; d < a.D; ++d) {
      int32_t path[kMaxDraftTokens];
      const int32_t depth = live ? draft_path(a.parent + n * a.D, a.n_draft[n], d, path) : 0;
      if (depth == 0) {
        zero_tokens(c, n * a.D + d, n * a.D + d + 1, tile);
        continue;
      }
      const void* taps[kConvWidth];
      for (int j = 0; j < kConvWidth; ++j) {
        const int32_t i = depth - kConvWidth + j;  // index into the path; negative = committed window
        taps[j] = i >= 0 ? at(c.x.data, (n * a.D + path[i]) * c.x.pitch + tile.begin, c.dtype)
                         : window_row(a.window_in, a.slot_in[n], kConvWindow + i, c.channels, tile.begin);
      }
      kernel(c, taps, 1, tile.begin, tile.size(), output(c, n * a.D + d, tile), 0);
    }
  });
}

void commit_windows(const KdaProblem& p, const KdaCommitArgs& a, const KdaCommitRow& r, int64_t index, int64_t layer) {
  if (!a.conv_x.data) return;
  const DType dtype = a.windows.dtype;
  for (int tile_index = 0; tile_index < tile_count(a.conv_channels); ++tile_index) {
    const Tile tile = tile_of(a.conv_channels, tile_index);
    WindowCopy committed, window;
    for (int j = 0; j < kConvWindow; ++j)
      take(committed, j, window_row(a.windows, a.slot_in[index], j, a.conv_channels, tile.begin, layer), tile.size(),
           dtype);
    for (const KdaCommitRow::Target* target : {&r.track, &r.commit}) {
      if (target->depth == 0) continue;
      for (int j = 0; j < kConvWindow; ++j) {
        const int32_t i = target->depth - kConvWindow + j;
        const char* from =
            i >= 0 ? at(a.conv_x.data,
                        layer * a.conv_x_layer_pitch + (index * p.D + target->path[i]) * a.conv_x.pitch + tile.begin,
                        dtype)
                   : committed.bytes[kConvWindow + i];
        take(window, j, from, tile.size(), dtype);
      }
      put(window, a.windows, target->slot, a.conv_channels, tile, layer);
    }
  }
}

}  // namespace kadence::ops::cpu
