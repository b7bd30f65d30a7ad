// Streams of work and the memory they work on. One header for every kind of device; CPU code is in cpu_*.cc, CUDA
// code in cuda_*.cc (built with KADENCE_CUDA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace kadence::device {

enum class DeviceKind { kCpu, kCuda };

// Instruction sets of the CPU operators, as the flag --isa names them. kAuto = the best that this machine runs.
enum class Isa { kAuto, kBaseline, kAvx2, kAvx512 };
const char* to_string(Isa isa);
// "auto", "baseline", "avx2", "avx512". Throws Error{kInvalidArgument}.
Isa parse_isa(const std::string& name);
// The instruction set that `requested` means on this machine. Throws Error{kUnsupported} if the machine lacks it.
Isa resolve_isa(Isa requested);

// What a planner may know of a device: facts, no handles.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  std::string name;
  int threads = 1;                 // CPU: workers of the stream
  Isa isa = Isa::kBaseline;        // CPU: resolved, never kAuto
  int sm_major = 0, sm_minor = 0;  // CUDA: compute capability
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;
  int64_t total_memory = 0;  // bytes
};

DeviceInfo cpu_info(int threads, Isa isa = Isa::kAuto);
// Number of CUDA devices; 0 when built without CUDA or none is there, with the reason in *why if given.
int cuda_device_count(std::string* why = nullptr);
DeviceInfo cuda_info(int ordinal);

// An ordered queue of work on one device. On the CPU, work runs inside the enqueueing call, spread over a pool of
// workers. Each worker keeps OpenMP to one thread. Move-only; not safe for concurrent use by several threads.
class Stream {
 public:
  // A CPU stream with `threads` >= 1 workers, the calling thread counted.
  static Stream cpu(int threads, Isa isa = Isa::kAuto);
  // A non-blocking CUDA stream on device `ordinal`. Throws Error{kUnsupported} when built without CUDA.
  static Stream cuda(int ordinal);
  // Wraps a caller's cudaStream_t without owning it; null is the default stream.
  static Stream wrap_cuda(int ordinal, void* cuda_stream);
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  const DeviceInfo& info() const;
  // CPU: runs task(i, worker) for i in [0, n), each exactly once, worker in [0, info().threads); returns when all are
  // done. Tasks are handed out dynamically in ascending order, so a task's result must not depend on its worker.
  // An exception in a task is rethrown here after the others finish.
  void parallel_for(int64_t n, const std::function<void(int64_t task, int worker)>& task);
  // Waits for everything enqueued so far.
  void synchronize();
  // The cudaStream_t, or null on the CPU.
  void* native() const;

  struct Impl;
  Impl& impl() { return *impl_; }  // for device/ itself

 private:
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Owned device memory, 256-byte aligned. CPU memory is committed lazily by the system. Move-only.
class Buffer {
 public:
  Buffer() = default;
  // `bytes` of uninitialised memory on the device of `info`. Throws Error{kDevice} with the size when it is not to be
  // had.
  static Buffer allocate(const DeviceInfo& info, size_t bytes);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void release() noexcept;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceKind kind_ = DeviceKind::kCpu;
  int ordinal_ = 0;
};

// Enqueues a copy of `bytes` between any two devices' memory on `stream`.
void copy_async(void* dst, const void* src, size_t bytes, Stream& stream);
// Enqueues a fill with `value` bytes.
void fill_async(void* dst, int value, size_t bytes, Stream& stream);

}  // namespace kadence::device
