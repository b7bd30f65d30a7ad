// Tensor maps of the copy engine, encoded on the host (about a microsecond, no allocation).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kadence::ops::cuda {

// A 2-D map over a bf16 matrix [rows][columns] with `pitch` elements from a row to the next (a multiple of 8; base
// 16-byte aligned), for boxes of box_rows x 64 columns in the 128-byte swizzle. Rows at or past `rows` read as zeros.
// Throws Error{kDevice}.
CUtensorMap encode_bf16_map(const void* base, int64_t rows, int64_t columns, int64_t pitch, int box_rows);
// A 3-D map over a pool of states [slots][rows][128] of 4-byte floats (2 bytes if `sixteen_bit`), rows dense, `pitch`
// elements from a slot to the next (a multiple of 16 bytes), for boxes of 64 rows x 128 bytes in the 128-byte swizzle.
CUtensorMap encode_state_map(const void* base, bool sixteen_bit, int64_t slots, int64_t rows, int64_t pitch);

}  // namespace kadence::ops::cuda
