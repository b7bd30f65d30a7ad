// Time as a dependency, so that schedulers can be tested on a virtual clock.
#pragma once

#include <chrono>

namespace kadence::base {

class Clock {
 public:
  virtual ~Clock() = default;
  // Seconds since an arbitrary start; never decreases.
  virtual double now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

class VirtualClock final : public Clock {
 public:
  double now() const override { return now_; }
  void advance(double seconds) { now_ += seconds; }

 private:
  double now_ = 0;
};

}  // namespace kadence::base
