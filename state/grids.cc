#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "state/sizes.h"
#include "state/state_pool.h"

namespace kadence::state {

namespace {

constexpr int64_t kKernelChunk = 64;  // the only depths at which extend can write a state are multiples of this

int64_t checked_lcm(int64_t a, int64_t b, const char* what) { return checked_mul(a / std::gcd(a, b), b, what); }

}  // namespace

Grids make_grids(int64_t page_size, int64_t track_interval, int64_t index_group) {
  require_at_least(page_size, 1, "page size");
  require_at_least(track_interval, 1, "track interval");
  require_at_least(index_group, 0, "index group");
  Grids g;
  g.tree_page = index_group == 0 ? page_size : checked_lcm(page_size, index_group, "tree page");
  g.checkpoint = checked_lcm(kKernelChunk, g.tree_page, "checkpoint grid");
  g.track = checked_lcm(g.checkpoint, track_interval, "track grid");
  return g;
}

std::vector<int64_t> checkpoint_depths(int64_t begin, int64_t end, int64_t n, int64_t branch, int64_t grid) {
  require_at_least(grid, 1, "checkpoint grid");
  require_at_least(begin, 0, "begin of a grant");
  require_at_least(end, begin, "end of a grant");
  require_at_least(n, end, "tokens of the prompt");
  require_at_least(branch, 0, "branch point");
  if (begin % grid != 0) {
    base::throw_invalid("begin of a grant", "a multiple of the checkpoint grid " + std::to_string(grid),
                        std::to_string(begin));
  }
  std::vector<int64_t> depths;
  const auto want = [&](int64_t depth) {
    if (depth > begin && depth <= end && depth % grid == 0) depths.push_back(depth);
  };
  want(branch);
  if (n > 0) want(base::round_down(n - 1, grid));  // where the same prompt, sent again, resumes
  want(base::round_down(n, grid));                 // where a longer one does
  if (end < n) want(end);
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

}  // namespace kadence::state
