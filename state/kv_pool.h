// Pages of attention latents for all attention layers. Page p of layer l: page_size rows of `width` elements.
// Bookkeeping as in StatePool; one engine thread owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "device/device.h"

namespace kadence::state {

using base::PageId;

struct KvShape {
  int32_t layers = 0;  // attention layers; may be 0 (pure KDA models): pages are then bookkeeping only
  int32_t width = 0;   // elements a token and layer (R + P)
  int32_t page_size = 64;
  base::DType dtype = base::DType::kF32;
};
size_t bytes_per_page(const KvShape& shape);

enum class PageUse : uint8_t { kFree, kWorking, kCached };

struct PageCounts {
  int32_t capacity = 0, free = 0, working = 0, cached = 0;
};

class KvPool {
 public:
  KvPool(const KvShape& shape, int32_t pages, const device::DeviceInfo& device);

  // n >= 0 pages for a running request, all or nothing. With KADENCE_DEBUG_CHECKS their rows are NaN (CPU).
  std::optional<std::vector<PageId>> allocate(int32_t n);
  // Throws Error{kInternal} for a page that is free.
  void release(std::span<const PageId> pages);
  void release(PageId page);
  // working -> cached on publication and back never; throws Error{kInternal} on a free page and on the way back.
  void set_use(PageId page, PageUse use);
  PageUse use(PageId page) const;

  PageCounts counts() const;
  // free + working + cached = capacity. Throws Error{kInternal}.
  void check_accounting() const;

  const KvShape& shape() const { return shape_; }
  int32_t pages() const { return static_cast<int32_t>(use_.size()); }
  size_t bytes() const { return buffer_.size(); }
  // Rows of page p, layer l at data() + l*layer_pitch() + p*page_pitch(), elements of dtype.
  void* data() const { return buffer_.data(); }
  int64_t page_pitch() const { return page_pitch_; }
  int64_t layer_pitch() const { return layer_pitch_; }

 private:
  size_t index(PageId page) const;
  void poison(PageId page);

  KvShape shape_;
  device::Buffer buffer_;
  int64_t page_pitch_ = 0, layer_pitch_ = 0;
  bool poison_ = false;
  PageCounts counts_;
  std::vector<PageUse> use_;
  std::vector<int32_t> free_;  // the last one is given next
};

}  // namespace kadence::state
