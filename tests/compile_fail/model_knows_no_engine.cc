// expect: engine/engine.h: No such file
// module: model
#include "engine/engine.h"  // BAD
#include "model/model.h"

int x;
