// expect: no matching function|could not convert|cannot convert
#include "base/ids.h"

void release(kadence::base::SlotId);

void f() {
  release(kadence::base::SlotId(3));
  release(kadence::base::PageId(3));  // BAD
}
