// Shared by the parts of step_check.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/conv1d.h"

namespace kadence::bench {

inline std::string number(double x) {
  char s[32];
  std::snprintf(s, sizeof s, "%.3g", x);
  return s;
}

struct Report {
  int checks = 0, failed = 0;
  std::vector<std::string> notes;
  void expect(bool ok, const std::string& what) {
    ++checks;
    if (ok) return;
    if (++failed <= 40) std::printf("FAILED: %s\n", what.c_str());
  }
  void note(const std::string& s) { notes.push_back(s); }
  void print() const {
    for (const std::string& s : notes) std::printf("%s\n", s.c_str());
    std::printf("%d checks, %d failed\n", checks, failed);
  }
};

void check_fused(Report& report, device::Stream& stream, bool small);
// Who runs the convolution: the public functions unless others are given.
struct ConvOps {
  std::function<void(const ops::KdaPlan&, const ops::Conv1dExtendArgs&, device::Stream&)> extend;
  std::function<void(const ops::Conv1dStepArgs&, device::Stream&)> step;
  std::function<void(const ops::Conv1dVerifyArgs&, device::Stream&)> verify;
};
void check_conv(Report& report, device::Stream& stream, bool small, ConvOps run = {});
void check_copies(Report& report, device::Stream& stream, bool small);
void check_hostile(Report& report, device::Stream& stream, bool small);
void check_layers(Report& report, device::Stream& stream);
void check_graph(Report& report, device::Stream& stream);
void check_big_pitch(Report& report, device::Stream& stream);

}  // namespace kadence::bench
