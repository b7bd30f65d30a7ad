#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "device/stream_impl.h"

namespace kadence::device {
namespace {

// A fixed set of workers that run one indexed loop at a time. The caller is worker 0.
class WorkerPool {
 public:
  explicit WorkerPool(int threads) {
    omp_set_num_threads(1);
    for (int w = 1; w < threads; ++w) threads_.emplace_back([this, w] { run_worker(w); });
  }
  ~WorkerPool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void parallel_for(int64_t n, const std::function<void(int64_t, int)>& task) {
    if (n <= 0) return;
    if (threads_.empty() || n == 1) {
      for (int64_t i = 0; i < n; ++i) task(i, 0);
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task, end_ = n, next_.store(0), error_ = nullptr;
      busy_ = static_cast<int>(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    task_ = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run_worker(int w) {
    omp_set_num_threads(1);
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      lock.unlock();
      work(w);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }
  void work(int w) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < end_;) {
      try {
        (*task_)(i, w);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int)>* task_ = nullptr;
  int64_t end_ = 0;
  std::atomic<int64_t> next_{0};
  std::exception_ptr error_;
  int busy_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
};

struct CpuStream final : Stream::Impl {
  CpuStream(int threads, Isa isa) : pool(threads) { info = cpu_info(threads, isa); }
  void parallel_for(int64_t n, const std::function<void(int64_t, int)>& task) override { pool.parallel_for(n, task); }
  void synchronize() override {}
  void* native() const override { return nullptr; }
  void copy(void* dst, const void* src, size_t bytes) override {
    if (bytes) std::memmove(dst, src, bytes);
  }
  void fill(void* dst, int value, size_t bytes) override {
    if (bytes) std::memset(dst, value, bytes);
  }
  WorkerPool pool;
};

}  // namespace

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
      return "auto";
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa parse_isa(const std::string& name) {
  for (Isa isa : {Isa::kAuto, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512})
    if (name == to_string(isa)) return isa;
  base::throw_invalid("isa", "auto, baseline, avx2 or avx512", name);
}

Isa resolve_isa(Isa requested) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
#else
  const bool avx2 = false, avx512 = false;
#endif
  const Isa best = avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kBaseline;
  if (requested == Isa::kAuto) return best;
  if (requested > best)
    base::throw_error(base::ErrorCode::kUnsupported, std::string("isa ") + to_string(requested) +
                                                         " was asked for, but this machine supports up to " +
                                                         to_string(best));
  return requested;
}

DeviceInfo cpu_info(int threads, Isa isa) {
  if (threads < 1) base::throw_invalid("threads", "1 or more", std::to_string(threads));
  DeviceInfo d;
  d.kind = DeviceKind::kCpu;
  d.threads = threads;
  d.isa = resolve_isa(isa);
  d.name = std::string("cpu (") + to_string(d.isa) + ", " + std::to_string(threads) +
           (threads == 1 ? " thread)" : " threads)");
  d.total_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return d;
}

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream Stream::cpu(int threads, Isa isa) {
  if (threads < 1) base::throw_invalid("threads", "1 or more", std::to_string(threads));
  return Stream(std::make_unique<CpuStream>(threads, isa));
}
Stream Stream::cuda(int ordinal) { return Stream(make_cuda_stream(ordinal)); }
Stream Stream::wrap_cuda(int ordinal, void* cuda_stream) { return Stream(wrap_cuda_stream(ordinal, cuda_stream)); }

const DeviceInfo& Stream::info() const { return impl_->info; }
void Stream::parallel_for(int64_t n, const std::function<void(int64_t, int)>& task) { impl_->parallel_for(n, task); }
void Stream::synchronize() { impl_->synchronize(); }
void* Stream::native() const { return impl_->native(); }

void copy_async(void* dst, const void* src, size_t bytes, Stream& stream) { stream.impl().copy(dst, src, bytes); }
void fill_async(void* dst, int value, size_t bytes, Stream& stream) { stream.impl().fill(dst, value, bytes); }

Buffer Buffer::allocate(const DeviceInfo& info, size_t bytes) {
  Buffer b;
  b.kind_ = info.kind, b.ordinal_ = info.ordinal, b.bytes_ = bytes;
  if (bytes == 0) return b;
  if (info.kind == DeviceKind::kCuda) {
    b.data_ = cuda_allocate(info.ordinal, bytes);
    return b;
  }
  // Large buffers ask for huge pages: rows of one head lie kilobytes apart, so small pages mean a table walk a row.
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t align = bytes >= 2 * kHuge ? kHuge : 256;
  b.data_ = bytes > SIZE_MAX - align ? nullptr : std::aligned_alloc(align, (bytes + align - 1) / align * align);
#ifdef MADV_HUGEPAGE
  if (b.data_ && align == kHuge)
    madvise(b.data_, bytes / kHuge * kHuge, MADV_HUGEPAGE);  // a wish; refusal costs speed only
#endif
  if (!b.data_) {
    b.bytes_ = 0;
    base::throw_error(base::ErrorCode::kDevice,
                      "no memory for a buffer of " + std::to_string(bytes) + " bytes on " + info.name);
  }
  return b;
}

void Buffer::release() noexcept {
  if (!data_) return;
  if (kind_ == DeviceKind::kCuda)
    cuda_release(ordinal_, data_);
  else
    std::free(data_);
  data_ = nullptr;
}

Buffer::Buffer(Buffer&& o) noexcept : data_(o.data_), bytes_(o.bytes_), kind_(o.kind_), ordinal_(o.ordinal_) {
  o.data_ = nullptr, o.bytes_ = 0;
}
Buffer& Buffer::operator=(Buffer&& o) noexcept {
  if (this != &o) {
    release();
    data_ = o.data_, bytes_ = o.bytes_, kind_ = o.kind_, ordinal_ = o.ordinal_;
    o.data_ = nullptr, o.bytes_ = 0;
  }
  return *this;
}
Buffer::~Buffer() { release(); }

}  // namespace kadence::device
