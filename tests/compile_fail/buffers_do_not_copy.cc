// expect: use of deleted function
#include <utility>

#include "device/device.h"

void f(kadence::device::Buffer b) {
  kadence::device::Buffer moved = std::move(b);
  kadence::device::Buffer copied = moved;  // BAD
  (void)moved;
}
