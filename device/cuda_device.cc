// CUDA streams and memory. Everything checks its return code; nothing here synchronises but synchronize() and release.
#include <cuda_runtime.h>

#include <mutex>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "device/stream_impl.h"

namespace kadence::device {
namespace {

void check(cudaError_t e, const std::string& what) {
  if (e != cudaSuccess)
    base::throw_error(base::ErrorCode::kDevice, what + ": " + cudaGetErrorString(e) + " (" + cudaGetErrorName(e) + ")");
}

// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    changed_ = before_ != ordinal;
    if (changed_) check(cudaSetDevice(ordinal), "cudaSetDevice(" + std::to_string(ordinal) + ")");
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

DeviceInfo query(int ordinal) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, ordinal), "cudaGetDeviceProperties(" + std::to_string(ordinal) + ")");
  DeviceInfo d;
  d.kind = DeviceKind::kCuda;
  d.ordinal = ordinal;
  d.name = "cuda:" + std::to_string(ordinal) + " (" + p.name + ")";
  d.sm_major = p.major, d.sm_minor = p.minor;
  d.sm_count = p.multiProcessorCount;
  d.l2_bytes = p.l2CacheSize;
  d.shared_bytes_per_block = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  d.total_memory = static_cast<int64_t>(p.totalGlobalMem);
  return d;
}

struct CudaStream final : Stream::Impl {
  explicit CudaStream(int ordinal) : owned(true) {
    info = cuda_info(ordinal);
    const DeviceScope scope(ordinal);
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  // Null is a stream like any other: the device's default one.
  CudaStream(int ordinal, void* wrapped) : stream(static_cast<cudaStream_t>(wrapped)), owned(false) {
    info = cuda_info(ordinal);
  }
  ~CudaStream() override {
    if (owned) cudaStreamDestroy(stream);  // work in flight still finishes
  }
  void parallel_for(int64_t, const std::function<void(int64_t, int)>&) override {
    base::throw_error(base::ErrorCode::kUnsupported, "parallel_for runs on CPU streams; this one is of " + info.name);
  }
  void synchronize() override {
    const DeviceScope scope(info.ordinal);  // the default stream is the current device's
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  void* native() const override { return stream; }
  void copy(void* dst, const void* src, size_t bytes) override {
    if (!bytes) return;
    const DeviceScope scope(info.ordinal);
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }
  void fill(void* dst, int value, size_t bytes) override {
    if (!bytes) return;
    const DeviceScope scope(info.ordinal);
    check(cudaMemsetAsync(dst, value, bytes, stream), "cudaMemsetAsync");
  }
  cudaStream_t stream = nullptr;
  const bool owned;
};

}  // namespace

int cuda_device_count(std::string* why) {
  int n = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  if (e == cudaSuccess && n > 0) return n;
  if (why)
    *why = e == cudaSuccess ? "the CUDA driver sees no device"
                            : std::string("cudaGetDeviceCount: ") + cudaGetErrorString(e);
  cudaGetLastError();  // a missing driver is an answer here, not an error of later calls
  return 0;
}

DeviceInfo cuda_info(int ordinal) {
  // Facts do not change while a process runs, and asking for them takes a while.
  static std::mutex mutex;
  static std::vector<DeviceInfo> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (known.empty()) {
    std::string why;
    const int n = cuda_device_count(&why);
    if (n == 0) base::throw_error(base::ErrorCode::kUnsupported, "no CUDA device: " + why);
    for (int i = 0; i < n; ++i) known.push_back(query(i));
  }
  if (ordinal < 0 || ordinal >= static_cast<int>(known.size()))
    base::throw_invalid("CUDA device", "0 to " + std::to_string(known.size() - 1), std::to_string(ordinal));
  return known[static_cast<size_t>(ordinal)];
}

std::unique_ptr<Stream::Impl> make_cuda_stream(int ordinal) { return std::make_unique<CudaStream>(ordinal); }
std::unique_ptr<Stream::Impl> wrap_cuda_stream(int ordinal, void* stream) {
  return std::make_unique<CudaStream>(ordinal, stream);
}

void* cuda_allocate(int ordinal, size_t bytes) {
  const DeviceScope scope(ordinal);
  void* p = nullptr;
  const cudaError_t e = cudaMalloc(&p, bytes);
  if (e == cudaSuccess) return p;
  cudaGetLastError();
  size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  base::throw_error(base::ErrorCode::kDevice, "no memory for a buffer of " + std::to_string(bytes) + " bytes on cuda:" +
                                                  std::to_string(ordinal) + " (" + std::to_string(available) + " of " +
                                                  std::to_string(total) + " free): " + cudaGetErrorString(e));
}

void cuda_release(int, void* data) noexcept { cudaFree(data); }

}  // namespace kadence::device
