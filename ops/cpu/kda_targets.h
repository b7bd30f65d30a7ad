// Instruction sets that the KDA kernels are compiled for: SSE4 (the baseline), AVX2, AVX-512. Comes before any header
// of Highway, in every file that is compiled once per instruction set.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
