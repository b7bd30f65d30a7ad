#include "state/kv_pool.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "state/sizes.h"

namespace kadence::state {

using base::ErrorCode;
using base::throw_error;

namespace {

int64_t layer_bytes(const KvShape& s) {
  require_at_least(s.layers, 0, "attention layers");
  require_at_least(s.width, s.layers ? 1 : 0, "width of a latent row");
  require_at_least(s.page_size, 1, "page size");
  require_float(s.dtype, "dtype of latent pages");
  const char* what = "bytes of a page";
  const int64_t row = s.width * static_cast<int64_t>(size_of(s.dtype));
  return aligned_part(checked_mul(row, s.page_size, what), what);
}

std::string name(PageId page) { return "page " + std::to_string(page.value); }

}  // namespace

size_t bytes_per_page(const KvShape& shape) {
  return static_cast<size_t>(checked_mul(layer_bytes(shape), shape.layers, "bytes of a page"));
}

KvPool::KvPool(const KvShape& shape, int32_t pages, const device::DeviceInfo& device) : shape_(shape) {
  require_at_least(pages, 1, "pages");
  const auto page = static_cast<int64_t>(bytes_per_page(shape));
  const int64_t bytes = checked_mul(page, pages, "bytes of the page pool");
  try {
    buffer_ = device::Buffer::allocate(device, static_cast<size_t>(bytes));
  } catch (const base::Error& error) {
    throw_error(ErrorCode::kDevice, "no memory for " + std::to_string(pages) + " pages of " + std::to_string(page) +
                                        " bytes, " + std::to_string(bytes) + " in all: " + error.what());
  }
  const auto element = static_cast<int64_t>(size_of(shape.dtype));
  page_pitch_ = page / element, layer_pitch_ = layer_bytes(shape) / element;
  poison_ = kPoison && device.kind == device::DeviceKind::kCpu && bytes > 0;
  use_.assign(static_cast<size_t>(pages), PageUse::kFree);
  free_.reserve(static_cast<size_t>(pages));
  for (int32_t p = pages; p-- > 0;) free_.push_back(p);  // page 0 is given first
  counts_.capacity = counts_.free = pages;
}

size_t KvPool::index(PageId page) const {
  if (!page.valid() || page.value >= pages()) {
    throw_error(ErrorCode::kInternal, name(page) + " is not one of the pool's " + std::to_string(pages()));
  }
  return static_cast<size_t>(page.value);
}

void KvPool::poison(PageId page) {
  if (!poison_) return;
  const size_t bytes = buffer_.size() / use_.size();
  std::memset(buffer_.as<char>() + static_cast<size_t>(page.value) * bytes, kPoisonByte, bytes);
}

std::optional<std::vector<PageId>> KvPool::allocate(int32_t n) {
  if (n < 0) throw_error(ErrorCode::kInternal, "cannot allocate " + std::to_string(n) + " pages");
  if (n > counts_.free) return std::nullopt;
  std::vector<PageId> got;
  got.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    const PageId page(free_.back());
    free_.pop_back();
    use_[index(page)] = PageUse::kWorking;
    poison(page);
    got.push_back(page);
  }
  counts_.free -= n, counts_.working += n;
  return got;
}

void KvPool::release(std::span<const PageId> pages) {
  for (const PageId page : pages) release(page);
}

void KvPool::release(PageId page) {
  const size_t i = index(page);
  if (use_[i] == PageUse::kFree) throw_error(ErrorCode::kInternal, "cannot release " + name(page) + ": it is free");
  --(use_[i] == PageUse::kWorking ? counts_.working : counts_.cached), ++counts_.free;
  use_[i] = PageUse::kFree;
  free_.push_back(page.value);
  poison(page);
}

void KvPool::set_use(PageId page, PageUse use) {
  const size_t i = index(page);
  if (use_[i] == PageUse::kFree)
    throw_error(ErrorCode::kInternal, "cannot change the use of " + name(page) + ": it is free");
  if (use == PageUse::kFree) throw_error(ErrorCode::kInternal, name(page) + " becomes free by release() only");
  if (use_[i] == use) return;
  if (use == PageUse::kWorking)
    throw_error(ErrorCode::kInternal, name(page) + " is cached and leaves the cache by release() only");
  use_[i] = PageUse::kCached;
  --counts_.working, ++counts_.cached;
}

PageUse KvPool::use(PageId page) const { return use_[index(page)]; }

PageCounts KvPool::counts() const { return counts_; }

void KvPool::check_accounting() const {
  PageCounts seen;
  for (const PageUse use : use_) {
    ++seen.capacity;
    ++(use == PageUse::kFree ? seen.free : use == PageUse::kWorking ? seen.working : seen.cached);
  }
  if (seen.capacity != counts_.capacity || seen.free != counts_.free || seen.working != counts_.working ||
      seen.cached != counts_.cached || counts_.free + counts_.working + counts_.cached != counts_.capacity) {
    throw_error(ErrorCode::kInternal, "page counters are wrong: free " + std::to_string(counts_.free) + " of " +
                                          std::to_string(seen.free) + ", capacity " + std::to_string(counts_.capacity));
  }
  std::vector<bool> listed(use_.size());
  for (const int32_t p : free_) {
    const size_t i = index(PageId(p));
    if (listed[i]) throw_error(ErrorCode::kInternal, name(PageId(p)) + " is twice in the free list");
    if (use_[i] != PageUse::kFree)
      throw_error(ErrorCode::kInternal, name(PageId(p)) + " is in the free list, but not free");
    listed[i] = true;
  }
  if (static_cast<int32_t>(free_.size()) != seen.free) {
    throw_error(ErrorCode::kInternal, "the free list has " + std::to_string(free_.size()) + " pages, " +
                                          std::to_string(seen.free) + " are free");
  }
}

}  // namespace kadence::state
