// What a scanner walks through: pieces of items. The loading warp, the scanning and the storing warps of a CTA each
// walk the same pieces; preparation sees them as numbered chunks. Runs on the host, too, for plan_test.cc.
#pragma once

#include "ops/cuda/sm90/extend_ring/deal.h"
#include "ops/cuda/sm90/extend_ring/params.h"

namespace kadence::ops::cuda::sm90::extend {

// Chunks [begin, end) of a row and head. An item that is cut has two pieces: the first one opens the stream of a
// scanner, the second one closes the stream of the next; the state goes from one to the other through the workspace.
struct Piece {
  RowInfo row;
  int head, begin, end;
  int boundary;  // of the cut where it begins (begin > 0) or ends (end < all), else unused
  bool ends;     // with the row's last token
  KADENCE_HOST_DEVICE int count() const { return end - begin; }
  // Tokens of chunk i of the piece.
  KADENCE_HOST_DEVICE int tokens(int i) const {
    const int left = row.len - (begin + i) * kChunk;
    return left < kChunk ? left : kChunk;
  }
};

class Pieces {
 public:
  KADENCE_HOST_DEVICE Pieces(const RingParams& params, const Schedule& schedule, int scanner)
      : p_(params), c_(schedule), scanner_(scanner), item_(c_.item[scanner] + (c_.cut[scanner] > 0)) {}
  // The next piece; false at the end of the stream. Rows without tokens have pieces of no chunks.
  KADENCE_HOST_DEVICE bool next(Piece& piece) {
    int item = item_, boundary = scanner_;
    bool head_part = false, tail_part = false;
    if (opening_ && c_.cut[scanner_ + 1] > 0)
      item = c_.item[scanner_ + 1], boundary = scanner_ + 1, head_part = true;
    else if (item_ < c_.item[scanner_ + 1])
      ++item_;
    else if (!closed_ && c_.cut[scanner_] > 0)
      item = c_.item[scanner_], tail_part = closed_ = true;
    else
      return false;
    opening_ = false;
    const int row = item / p_.heads;
    piece.row = p_.row_info[row], piece.head = item - row * p_.heads, piece.boundary = boundary;
    const int chunks = (piece.row.len + kChunk - 1) / kChunk;
    piece.begin = tail_part ? c_.cut[scanner_] : 0, piece.end = head_part ? c_.cut[scanner_ + 1] : chunks;
    piece.ends = piece.end == chunks;
    return true;
  }

 private:
  const RingParams& p_;
  const Schedule& c_;
  int scanner_, item_;
  bool opening_ = true, closed_ = false;
};

// When states leave the registers of a stream, told by the storing warp to the scanning ones two events ahead.
struct EventNote {
  int32_t after;            // chunks of the stream; kNever = no more events
  int32_t copies;           // 4 bits a copy in shared memory: dtype + 1, first in the low bits
  int32_t checkpoint, end;  // slots, -1 = none; `end` of the pool of final states or of the one of cut items
  int32_t head;
  int32_t cut;  // whether `end` is a slot of cut items
  static constexpr int kNever = 0x7fffffff;
};
static_assert(2 * sizeof(EventNote) == kNoteBytes);

// The events of a stream in order, for one warp.
class Events {
 public:
  KADENCE_HOST_DEVICE Events(const RingParams& params, const Schedule& schedule, int scanner)
      : p_(params), pieces_(params, schedule, scanner) {}
  KADENCE_HOST_DEVICE EventNote next(int l) {
    EventNote note;
    do {
      note.after = EventNote::kNever, note.copies = 0, note.checkpoint = note.end = -1, note.cut = 0;
      if (!advance(note, l)) break;
    } while (note.copies == 0);
    return note;
  }

 private:
  static constexpr int kFar = 1 << 30;
  // The next checkpoint or end; without copies if nothing is to be stored. False: no more.
  KADENCE_HOST_DEVICE bool advance(EventNote& note, int l) {
    while (!more_) {  // a checkpoint of this piece or its end
      done_ += count_;
      count_ = 0;
      if (!pieces_.next(piece_)) return false;
      count_ = piece_.count();
      if (count_ == 0) continue;
      ckpt_ = piece_.row.ckpt_begin;
      if (piece_.begin > 0) ckpt_ = first_past(ckpt_, piece_.row.ckpt_end, piece_.begin * kChunk, l);
      more_ = true;
    }
    int at = kFar;
    if (ckpt_ < piece_.row.ckpt_end) at = p_.ckpt_depth[ckpt_] / kChunk - piece_.begin;
    note.head = piece_.head;
    if (at <= count_) {
      note.after = done_ + at, note.checkpoint = p_.ckpt_slot[ckpt_++], note.copies = p_.checkpoints.dtype + 1;
      if (at < count_) return true;
    }
    more_ = false;
    const int format = piece_.ends ? p_.state_out.dtype : static_cast<int>(DType::kF32);
    note.end = piece_.ends ? piece_.row.state_out : piece_.boundary, note.cut = !piece_.ends;
    if (note.end < 0) return true;
    note.after = done_ + count_;
    if (at > count_ || format != p_.checkpoints.dtype) note.copies |= (format + 1) << (note.copies ? 4 : 0);
    return true;
  }
  // First entry of a list of checkpoints deeper than `depth`, by a warp.
  KADENCE_HOST_DEVICE int first_past(int low, int high, int depth, int l) const {
#ifdef __CUDA_ARCH__
    while (low < high) {
      const int step = (high - low + 31) / 32, mine = low + (l + 1) * step - 1;
      const int before = __popc(__ballot_sync(~0u, mine < high && p_.ckpt_depth[mine] <= depth));
      if (step == 1) return low + before;
      low += before * step, high = min(high, low + step);
    }
#else
    static_cast<void>(l);
    while (low < high && p_.ckpt_depth[low] <= depth) ++low;
#endif
    return low;
  }
  const RingParams& p_;
  Pieces pieces_;
  Piece piece_{};
  bool more_ = false;
  int done_ = 0, count_ = 0, ckpt_ = 0;
};

}  // namespace kadence::ops::cuda::sm90::extend
