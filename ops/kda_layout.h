// Constants of the KDA operators that more than one file needs. Each has its home here and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kadence::ops {

inline constexpr int kChunkTokens = 64;  // kernel chunk: extend's arithmetic restarts its in-chunk sums here
inline constexpr int kConvWidth = 4;     // taps of the short convolution; tap 3 is the current token
inline constexpr int kConvWindow = kConvWidth - 1;
inline constexpr float kL2NormEps = 1e-6f;              // inside the root, on the sum of squares
inline constexpr float kSoftplusThreshold = 20.0f;      // softplus(x) = x at and above this
inline constexpr float kMinAnchoredLowerBound = -5.5f;  // bounded gates below this take the exact path
inline constexpr size_t kWorkspaceAlign = 256;          // bytes
inline constexpr size_t kTensorAlign = 16;              // bytes, base and token pitch of every tensor but beta
inline constexpr int kMaxDraftTokens = 64;              // per row of one verify call

}  // namespace kadence::ops
