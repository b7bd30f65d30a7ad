// libFuzzer's entry; KADENCE_FUZZ_TARGET names the function of server_requests.h.
#include "server_requests.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kadence::fuzz::KADENCE_FUZZ_TARGET(data, size);
  return 0;
}
