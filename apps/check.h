// `kadence check`: procedures that compare a model's serving with recorded outputs and with itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/progress.h"
#include "apps/table.h"

namespace kadence::apps {

struct CheckOptions {
  std::string model;
  EngineFlags engine;
  std::vector<int64_t> contexts;  // cold-cached; empty = the default list
  std::vector<std::string> runs;  // cold-cached; empty = all
  bool quick = false;
};

// What a check found. ok is true only if everything that was to hold did.
struct CheckReport {
  std::string name;
  bool ok = true;
  std::vector<Table> tables;
  std::vector<std::string> notes;
  double seconds = 0;
};

CheckReport check_golden(const CheckOptions& options, Progress& progress);
CheckReport check_cold_cached(const CheckOptions& options, Progress& progress);
CheckReport check_branching(const CheckOptions& options, Progress& progress);
CheckReport check_blocks(const CheckOptions& options, Progress& progress);

// -- shared by the checks -------------------------------------------------------------------------------------------

inline constexpr double kGoldenTolerance = 5e-4;  // absolute, of logits and log-probs against the recorded float32 ones
inline constexpr int64_t kContinuation = 167;     // tokens

// Differences between two runs' log-probs. `bits` = every value equal to the last bit.
struct Difference {
  double max = 0, mean = 0, p90 = 0;
  bool bits = true, finite = true;
};
// Throws Error{kInternal} on different lengths.
Difference compare(const std::vector<float>& a, const std::vector<float>& b);

// golden.json of a model folder, or an empty object when there is none.
Json load_golden(const std::string& model);

// A long context made of a model's recorded prompts: the copy cases and prompts one after another, then the same again
// from another place with a few tokens changed, and so on: deterministic, never periodic. Without recorded prompts:
// random ids.
std::vector<int32_t> make_context(const Json& golden, int32_t vocab, int64_t tokens);

}  // namespace kadence::apps
