// expect: state/state_pool.h: No such file
// module: ops
#include "ops/kda.h"
#include "state/state_pool.h"  // BAD

int x;
