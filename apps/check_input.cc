#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "apps/check.h"
#include "apps/numbers.h"
#include "base/error.h"
#include "base/rng.h"

namespace kadence::apps {

Difference compare(const std::vector<float>& a, const std::vector<float>& b) {
  KADENCE_CHECK(a.size() == b.size());
  Difference d;
  std::vector<double> gaps;
  gaps.reserve(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    d.bits &= std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]);
    d.finite &= std::isfinite(a[i]) && std::isfinite(b[i]);
    gaps.push_back(std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  if (gaps.empty()) return d;
  std::sort(gaps.begin(), gaps.end());
  d.max = gaps.back();
  d.p90 = gaps[std::min(gaps.size() - 1, gaps.size() * 9 / 10)];
  for (const double g : gaps) d.mean += g / static_cast<double>(gaps.size());
  return d;
}

Json load_golden(const std::string& model) {
  const std::filesystem::path file = std::filesystem::path(model) / "golden.json";
  if (!std::filesystem::exists(file)) return Json::object();
  try {
    return Json::parse(read_text(file.string()));
  } catch (const Json::exception& e) {
    throw base::Error(base::ErrorCode::kIo, file.string() + ": " + e.what());
  }
}

std::vector<int32_t> make_context(const Json& golden, int32_t vocab, int64_t tokens) {
  constexpr uint64_t kSeed = 20260;
  std::vector<int32_t> base;
  if (golden.contains("copy_cases")) {
    for (auto it = golden["copy_cases"].rbegin(); it != golden["copy_cases"].rend(); ++it) {
      for (const auto& id : (*it)["token_ids"]) base.push_back(id.get<int32_t>());
    }
  }
  if (golden.contains("prompts")) {
    for (const auto& p : golden["prompts"]) {
      for (const auto& id : p["token_ids"]) base.push_back(id.get<int32_t>());
    }
  }
  if (base.empty()) {
    for (uint64_t i = 0; i < 4096; ++i)
      base.push_back(static_cast<int32_t>(base::draw_u64(kSeed, i) % static_cast<uint64_t>(vocab)));
  }
  // Pass r starts at another place, and one token in 97 is another one of the same text.
  constexpr size_t kShift = 1237, kChange = 97;
  const size_t n = base.size();
  std::vector<int32_t> out(static_cast<size_t>(tokens));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t pass = i / n;
    out[i] = base[(i % n + pass * kShift) % n];
    if (pass > 0 && i % kChange == 0) out[i] = base[base::draw_u64(kSeed + pass, i) % n];
  }
  return out;
}

}  // namespace kadence::apps
