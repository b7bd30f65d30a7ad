// expect: engine/engine.h: No such file
// module: model
#include "model/model.h"
#include "engine/engine.h"  // BAD

int x;
