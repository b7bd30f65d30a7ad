// Open-loop load on an OpenAI-compatible server: requests start when the clock says so, whether or not earlier ones are
// done, so that a slow server cannot slow its own measurement down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kadence::apps {

// http://host[:port][/prefix]; the prefix defaults to /v1.
struct ApiUrl {
  std::string host, port, prefix;
};
// Throws UsageError naming `flag`; https is refused: there is no TLS here.
ApiUrl parse_api_url(const std::string& flag, const std::string& url);

struct LoadPlan {
  ApiUrl url;
  std::string model, api_key;
  double rate = 2;  // requests a second, exponential gaps; 0 = one after the other (closed loop of one)
  int requests = 20;
  int prompt_tokens = 4096, output_tokens = 32;
  double cached_share = 0.95;  // of the prompt: a prefix that was sent before; 0 = every prompt is new
  int prefixes = 1;            // different prefixes, taken in turn
  int vocab = 4000;            // prompts are ids below this
  uint64_t seed = 1;
  double timeout = 300;  // seconds of one request
};

struct LoadSample {
  double first_token = 0, total = 0;  // seconds from the moment it was due
  std::vector<double> gaps;           // seconds between events that carried text
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string error;  // empty = answered in full
};

struct LoadRun {
  std::vector<LoadSample> samples;
  double seconds = 0;  // from the first due moment to the last end
};

// Sends the prefixes once, waits until they are done, then the load.
LoadRun run_load(const LoadPlan& plan);

}  // namespace kadence::apps
