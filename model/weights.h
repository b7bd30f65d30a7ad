// Private to model/: takes tensors out of a checkpoint by any of their spellings, checks shapes, builds operator
// weights. Without a stream it only plans: every name, shape and dtype is checked and every byte counted, no weight is
// read.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/safetensors.h"
#include "ops/gemm.h"

namespace kadence::model {

class WeightLoader {
 public:
  using Names = std::vector<std::string>;
  using Progress = std::function<void(int64_t done, int64_t total)>;

  WeightLoader(const Checkpoint& checkpoint, device::Stream* stream, Progress progress)
      : checkpoint_(checkpoint), stream_(stream), progress_(std::move(progress)) {}

  bool planning() const { return stream_ == nullptr; }
  // Names of tensors that the checkpoint has and nobody asked for: another shape of model than the config says?
  std::vector<std::string> unread() const;
  // Bytes that the weights take in memory so far.
  size_t bytes() const { return bytes_; }

  bool has(const Names& names) const;
  // Rows [first, first + rows) of a tensor, seen as [total_rows, width] with width = the product of all sizes but the
  // first ones.
  struct Rows {
    Names names;
    int64_t rows = 0;
    std::vector<int64_t> shape;  // the tensor's shape, as expected
    int64_t first = 0;
  };
  // Stacks the parts along the outputs.
  ops::Linear linear(const std::vector<Rows>& parts, int64_t in);
  ops::Linear linear(const Names& names, int64_t out, int64_t in);
  // A weight made by the caller from fp32 rows [out, in], which live until the call returns. Null data when planning.
  ops::Linear linear_from(const float* rows, int64_t out, int64_t in);
  // A tensor as fp32, any shape with exactly `count` elements, or (`at_least`) the first `count` of more.
  std::vector<float> vector(const Names& names, int64_t count, bool at_least = false, bool counted = true);
  // A matrix [rows, width] in the dtype of its file.
  struct Table {
    device::Buffer data;
    base::DType dtype = base::DType::kF32;
    int64_t rows = 0, width = 0;
  };
  Table table(const Names& names, int64_t rows, int64_t width);

 private:
  const TensorView& require(const Names& names, std::string* name) const;
  base::DType float_type(const TensorView& t, const std::string& name) const;
  void note(const TensorView& t);

  const Checkpoint& checkpoint_;
  device::Stream* stream_;
  Progress progress_;
  mutable std::set<std::string, std::less<>> read_;
  size_t bytes_ = 0;
  int64_t done_ = 0;
};

}  // namespace kadence::model
