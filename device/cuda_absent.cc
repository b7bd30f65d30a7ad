// Stands in for cuda_device.cc when Kadence is built without CUDA: everything says so.
#include "base/error.h"
#include "device/device.h"
#include "device/stream_impl.h"

namespace kadence::device {
namespace {
constexpr const char* kReason = "built without CUDA (configure with the cuda preset)";
}

int cuda_device_count(std::string* why) {
  if (why) *why = kReason;
  return 0;
}
DeviceInfo cuda_info(int) { base::throw_error(base::ErrorCode::kUnsupported, kReason); }
std::unique_ptr<Stream::Impl> make_cuda_stream(int) { base::throw_error(base::ErrorCode::kUnsupported, kReason); }
std::unique_ptr<Stream::Impl> wrap_cuda_stream(int, void*) {
  base::throw_error(base::ErrorCode::kUnsupported, kReason);
}
void* cuda_allocate(int, size_t) { base::throw_error(base::ErrorCode::kUnsupported, kReason); }
void cuda_release(int, void*) noexcept {}

}  // namespace kadence::device
