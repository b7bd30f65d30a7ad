// Errors of a result against an oracle, per head and per row. NaN and Inf never pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kadence::ops::testing {

struct ErrorStats {
  double head = 0;  // largest over heads of |got - want| / |want| (root mean squares over the head)
  double row = 0;   // largest over rows of |got - want| of the row / root mean square |want| of a row of its head
  bool finite = true;
  std::string describe() const;
};

// Values lie as [rows, heads, width]. A head that is zero in `want` must be zero in `got`. Differences up to
// `resolution` do not count (half the smallest step of the stored dtype).
ErrorStats compare(const std::vector<float>& got, const std::vector<double>& want, int64_t heads, int64_t width,
                   double resolution = 0);
// The larger of both.
ErrorStats worst(const ErrorStats& a, const ErrorStats& b);
// Empty, or why `stats` exceeds `tolerance` (a single row may err 8 times as much).
std::string exceeds(const ErrorStats& stats, double tolerance, const std::string& what);

}  // namespace kadence::ops::testing
