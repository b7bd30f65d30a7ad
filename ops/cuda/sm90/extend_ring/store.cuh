// The storing warp of half a state: outputs and states from shared memory to their tensors, by the copy engine.
#pragma once

#include "ops/cuda/sm90/extend_ring/scan.cuh"

namespace kadence::ops::cuda::sm90::extend {

class Storer {
 public:
  // `notes`: those of this half, kSharedNotes of shared memory.
  __device__ Storer(const RingParams& params, const Schedule& schedule, uint32_t shared, EventNote* notes, int scanner,
                    int place, int half, int lane)
      : p(params),
        bars(shared, place),
        notes_(notes),
        events_(params, schedule, scanner),
        out_(shared + Scan::kOut + place * 4096),
        state_(shared + Scan::kState + place * Scan::kStateBytes),
        half_(half),
        l(lane) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) announce(i);
    if (l == 0) mbarrier_arrive(bars.state_free);
  }

  // Mirrors Scanner::scan_piece.
  __device__ __forceinline__ void store_piece(const Piece& piece) {
    const int n = piece.count(), column = piece.head * kDim + half_ * 64, last = outputs_ + n,
              whole = piece.tokens(n - 1) == kChunk ? last : last - 1;
    int token = piece.row.token + piece.begin * kChunk;
    while (outputs_ < last) {
      // Outputs alone up to the next event, then the state and the output of its chunk.
      const int event = notes_[slot_].after, stop = min(whole, event - 1);
      if (l == 0)
        for (int k = outputs_; k < stop; ++k) store_tile(k, column, token + (k - outputs_) * kChunk);
      __syncwarp();
      token += (stop - outputs_) * kChunk, outputs_ = stop;
      if (outputs_ == last) break;
      const bool at_event = outputs_ + 1 == event;
      int handed_over = -1;
      if (at_event) handed_over = store_states();
      if (outputs_ < whole) {
        if (l == 0) store_tile(outputs_, column, token);
      } else {
        store_rows(static_cast<char*>(p.out) + (static_cast<int64_t>(token) * p.out_pitch + column) * 2,
                   piece.tokens(n - 1));
      }
      __syncwarp();
      if (l == 0 && at_event) mbarrier_arrive(bars.state_free);
      if (l == 0 && handed_over >= 0) {
        bulk_wait<0>();
        fence_proxy_async_global();
        st_release_gpu(p.handoff_flags + handed_over * 2 + half_, 1);
      }
      ++outputs_, token += kChunk;
    }
  }
  // Before the warp ends.
  __device__ __forceinline__ void finish() const {
    if (l == 0) bulk_wait<0>();
  }

 private:
  __device__ __forceinline__ void announce(int slot) {
    const EventNote note = events_.next(l);
    if (l == 0) notes_[slot] = note;
    __syncwarp();
  }
  __device__ __forceinline__ void wait_state() {
    mbarrier_wait(bars.state_full, state_phase_);
    state_phase_ ^= 1;
  }
  // Round r of a state: what lies in shared memory.
  __device__ __forceinline__ void store_state(const CUtensorMap& map, const StatePool& pool, int slot, int head,
                                              int r) const {
    if (slot < 0 || slot >= pool.slots) return;
    const int row = head * kDim + half_ * 64, width = pool.dtype == static_cast<int>(DType::kF32) ? 32 : 64;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      tensor_store_3d(&map, state_ + i * 8192, (2 * r + i) * width, row, slot, policy_stream());
  }
  // The states of the event that has come. Their memory is not free yet. Returns the scanner that waits for one, or -1.
  __device__ __forceinline__ int store_states() {
    const EventNote note = notes_[slot_];
    bool checkpoint = true;  // in the first copy
#pragma unroll 1
    for (int copies = note.copies; copies != 0; checkpoint = false) {
      const int rounds = (copies & 15) == static_cast<int>(DType::kF32) + 1 ? 2 : 1;
      copies >>= 4;
#pragma unroll 1
      for (int r = 0; r < rounds; ++r) {
        wait_state();
        if (l == 0) {
          fence_proxy_async_shared();
          if (checkpoint) store_state(p.checkpoint_map, p.checkpoints, note.checkpoint, note.head, r);
          if (copies == 0 && note.cut) store_state(p.handoff_map, p.handoff, note.end, 0, r);
          if (copies == 0 && !note.cut) store_state(p.state_out_map, p.state_out, note.end, note.head, r);
          bulk_commit();
          if (copies != 0 || r + 1 < rounds) {
            bulk_wait_read<0>();
            mbarrier_arrive(bars.state_free);
          }
        }
        __syncwarp();
      }
    }
    announce(slot_);
    slot_ ^= 1;
    return note.cut ? note.end : -1;
  }
  // By one lane: the output of chunk k of the stream, 32 tokens. Waits until it has been read, and all stores before.
  __device__ __forceinline__ void store_tile(int k, int column, int token) const {
    const int buffer = k & 1;
    mbarrier_wait(bars.out_full + buffer * 8, k >> 1 & 1);
    fence_proxy_async_shared();
    tensor_store_2d(&p.out_map, out_ + buffer * 8192, column, token, policy_stream());
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(bars.out_free + buffer * 8);
  }
  // By all lanes: the first `count` tokens of the next output, when those after them are another row's.
  __device__ __forceinline__ void store_rows(char* out, int count) const {
    const int buffer = outputs_ & 1;
    mbarrier_wait(bars.out_full + buffer * 8, outputs_ >> 1 & 1);
    for (int i = l; i < count * 8; i += 32) {
      const int r = i >> 3, c = i & 7;
      *reinterpret_cast<uint4*>(out + r * p.out_pitch * 2 + c * 16) =
          ld_shared_v4u(out_ + buffer * 8192 + r * 128 + ((c ^ (r & 7)) << 4));
    }
    __syncwarp();
    if (l == 0) {
      bulk_wait_read<0>();
      mbarrier_arrive(bars.out_free + buffer * 8);
    }
  }

  const RingParams& p;
  const StoreBarriers bars;
  EventNote* notes_;
  Events events_;
  const uint32_t out_, state_;
  const int half_, l;
  int outputs_ = 0;  // of the stream that have been stored
  int slot_ = 0, state_phase_ = 0;
};

}  // namespace kadence::ops::cuda::sm90::extend
