#include "ops/cuda/common/tensor_map.h"

#include <cudaTypedefs.h>

#include <string>

#include "ops/cuda/common/check.h"

namespace kadence::ops::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 f = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || !p)
      base::throw_error(base::ErrorCode::kDevice,
                        "the driver lacks cuTensorMapEncodeTiled; a driver for CUDA 12 or later is needed");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(p);
  }();
  return f;
}

}  // namespace

CUtensorMap encode_bf16_map(const void* base, int64_t rows, int64_t columns, int64_t pitch, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult r = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), dims, strides, box,
                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    base::throw_error(base::ErrorCode::kDevice, "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(r)) +
                                                    " for " + std::to_string(rows) + " x " + std::to_string(columns) +
                                                    ", pitch " + std::to_string(pitch));
  return map;
}

CUtensorMap encode_state_map(const void* base, bool sixteen_bit, int64_t slots, int64_t rows, int64_t pitch) {
  CUtensorMap map{};
  const cuuint64_t size = sixteen_bit ? 2 : 4;
  const cuuint64_t dims[3] = {128, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(slots)};
  const cuuint64_t strides[2] = {128 * size, static_cast<cuuint64_t>(pitch) * size};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / size), 64, 1}, steps[3] = {1, 1, 1};
  // Bits are moved, never read as numbers, so that one 16-bit type serves both.
  const CUresult r =
      encoder()(&map, sixteen_bit ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT32, 3,
                const_cast<void*>(base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    base::throw_error(base::ErrorCode::kDevice, "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(r)) +
                                                    " for " + std::to_string(slots) + " slots of " +
                                                    std::to_string(rows) + " rows, pitch " + std::to_string(pitch));
  return map;
}

}  // namespace kadence::ops::cuda
