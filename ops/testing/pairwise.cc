#include "ops/testing/pairwise.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/rng.h"

namespace kadence::ops::testing {

// Greedy: a row starts from a pair not yet covered; every other axis then takes the value that covers most new pairs.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes) {
  const int axes = static_cast<int>(sizes.size());
  using Pair = std::tuple<int, int, int, int>;  // axis, value, later axis, value
  std::set<Pair> open;
  for (int a = 0; a < axes; ++a)
    for (int b = a + 1; b < axes; ++b)
      for (int x = 0; x < sizes[static_cast<size_t>(a)]; ++x)
        for (int y = 0; y < sizes[static_cast<size_t>(b)]; ++y) open.insert({a, x, b, y});
  const auto key = [](int a, int x, int b, int y) { return a < b ? Pair{a, x, b, y} : Pair{b, y, a, x}; };
  base::Rng rng(7);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> row(static_cast<size_t>(axes), -1);
    const auto [a0, x0, b0, y0] = *open.begin();
    row[static_cast<size_t>(a0)] = x0, row[static_cast<size_t>(b0)] = y0;
    for (int a = 0; a < axes; ++a) {
      if (row[static_cast<size_t>(a)] >= 0) continue;
      int best = -1, best_gain = -1;
      const int n = sizes[static_cast<size_t>(a)], shift = static_cast<int>(rng.below(static_cast<uint64_t>(n)));
      for (int i = 0; i < n; ++i) {
        const int x = (i + shift) % n;
        int gain = 0;
        for (int b = 0; b < axes; ++b)
          if (row[static_cast<size_t>(b)] >= 0 && open.count(key(a, x, b, row[static_cast<size_t>(b)]))) ++gain;
        if (gain > best_gain) best = x, best_gain = gain;
      }
      row[static_cast<size_t>(a)] = best;
    }
    for (int a = 0; a < axes; ++a)
      for (int b = a + 1; b < axes; ++b) open.erase({a, row[static_cast<size_t>(a)], b, row[static_cast<size_t>(b)]});
    rows.push_back(row);
  }
  return rows;
}

}  // namespace kadence::ops::testing
