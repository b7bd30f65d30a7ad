// Pairwise cover: few combinations of axis values in which every pair of values of two axes occurs at least once.
#pragma once

#include <cstdint>
#include <vector>

namespace kadence::ops::testing {

// `sizes[a]` values on axis a. Returns rows of value indices; deterministic.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes);

}  // namespace kadence::ops::testing
