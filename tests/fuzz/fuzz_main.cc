// libFuzzer's entry; KADENCE_FUZZ_TARGET names the function of model_files.h.
#include "model_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kadence::fuzz::KADENCE_FUZZ_TARGET(data, size);
  return 0;
}
