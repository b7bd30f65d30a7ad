// Checkpoints in safetensors files: one file or shards with an index, memory-mapped, every header field checked before
// use. Format: 8 bytes little-endian header length, JSON header, data; https://github.com/huggingface/safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace kadence::model {

struct TensorInfo {
  std::string dtype;                // as in the header, e.g. "BF16", "F8_E4M3"
  std::optional<base::DType> type;  // none for a dtype that base does not know
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data section
  int64_t elements = 0;
};
std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 3]"

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

// `prefix`: the file's first bytes, at least the header (8 + its length) when the file has that many. Checks the header
// length against file_size, JSON, dtype names, shapes (products without overflow), offsets (in range, no overlap, no
// holes, the size that dtype and shape make). Throws Error{kIo} naming `origin` and the tensor.
TensorMap parse_safetensors_header(std::string_view prefix, uint64_t file_size, const std::string& origin);

// A tensor of a checkpoint; `data` lives as long as the checkpoint and need not be aligned.
struct TensorView {
  const void* data = nullptr;
  const TensorInfo* info = nullptr;
  const std::string* file = nullptr;
};

class Checkpoint {
 public:
  // DIR/model.safetensors.index.json with its shards, or DIR/model.safetensors. Throws Error{kIo}.
  static Checkpoint open(const std::filesystem::path& dir);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const TensorView* find(std::string_view name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  uint64_t data_bytes() const { return data_bytes_; }
  const std::string& origin() const { return origin_; }
  // What is odd about the index without making it wrong, in words; empty = nothing.
  const std::string& index_note() const { return index_note_; }

 private:
  struct Mapping;
  Checkpoint();
  void add_file(const std::filesystem::path& file, const std::map<std::string, std::string>* weight_map);

  std::string origin_, index_note_;
  std::vector<std::unique_ptr<Mapping>> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  uint64_t data_bytes_ = 0;
};

}  // namespace kadence::model
