#include "ops/testing/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace kadence::ops::testing {

std::string ErrorStats::describe() const {
  std::ostringstream s;
  s << "head " << head << ", worst row " << row << (finite ? "" : ", NOT FINITE");
  return s.str();
}

ErrorStats compare(const std::vector<float>& got, const std::vector<double>& want, int64_t heads, int64_t width,
                   double resolution) {
  ErrorStats stats;
  if (got.size() != want.size()) {
    stats.finite = false;
    return stats;
  }
  const int64_t rows = static_cast<int64_t>(want.size()) / (heads * width);
  for (int64_t h = 0; h < heads; ++h) {
    double error = 0, norm = 0, worst_row = 0;
    for (int64_t r = 0; r < rows; ++r) {
      double row_error = 0;
      for (int64_t c = 0; c < width; ++c) {
        const size_t i = static_cast<size_t>((r * heads + h) * width + c);
        if (!std::isfinite(got[i])) stats.finite = false;
        const double d = std::max(0.0, std::abs(got[i] - want[i]) - resolution);
        row_error += d * d;
        norm += want[i] * want[i];
      }
      error += row_error;
      worst_row = std::max(worst_row, row_error);
    }
    // Below the smallest normal float nothing can be resolved.
    const double floor = static_cast<double>(rows * width) * 1e-76;
    if (norm <= floor) {
      if (error > floor) stats.head = stats.row = std::numeric_limits<double>::infinity();
      continue;
    }
    stats.head = std::max(stats.head, std::sqrt(error / norm));
    stats.row = std::max(stats.row, std::sqrt(worst_row / (norm / static_cast<double>(rows))));
  }
  return stats;
}

ErrorStats worst(const ErrorStats& a, const ErrorStats& b) {
  return {std::max(a.head, b.head), std::max(a.row, b.row), a.finite && b.finite};
}

std::string exceeds(const ErrorStats& s, double tolerance, const std::string& what) {
  if (s.finite && s.head <= tolerance && s.row <= 8 * tolerance) return "";
  std::ostringstream text;
  text << what << ": " << s.describe() << "; allowed " << tolerance << " and " << 8 * tolerance;
  return text.str();
}

}  // namespace kadence::ops::testing
