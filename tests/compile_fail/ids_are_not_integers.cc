// expect: could not convert|cannot convert|conversion from
#include "base/ids.h"

kadence::base::SlotId good() { return kadence::base::SlotId(3); }
kadence::base::SlotId bad() { return 3; }  // BAD
