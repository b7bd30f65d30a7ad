// expect: device/device.h: No such file
// module: prefix
#include "base/ids.h"
#include "device/device.h"  // BAD

int x;
