#include "model/weights.h"

#include <cstring>

#include "base/error.h"

namespace kadence::model {
namespace {

// Tensor data of a file may start at any byte; operators want addresses that their element type allows.
struct AlignedData {
  std::vector<std::byte> copy;
  const void* data = nullptr;
  AlignedData(const void* source, size_t bytes, size_t element) {
    if (reinterpret_cast<uintptr_t>(source) % element == 0) {
      data = source;
      return;
    }
    copy.resize(bytes);
    std::memcpy(copy.data(), source, bytes);
    data = copy.data();
  }
};

}  // namespace

bool WeightLoader::has(const Names& names) const {
  for (const std::string& n : names)
    if (checkpoint_.find(n)) return true;
  return false;
}

std::vector<std::string> WeightLoader::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, view] : checkpoint_.tensors())
    if (read_.find(name) == read_.end()) names.push_back(name);
  return names;
}

const TensorView& WeightLoader::require(const Names& names, std::string* name) const {
  for (const std::string& n : names)
    if (const TensorView* t = checkpoint_.find(n)) {
      *name = n;
      read_.insert(n);
      return *t;
    }
  std::string also;
  for (size_t i = 1; i < names.size(); ++i) also += (i == 1 ? " (also looked for as " : ", ") + names[i];
  base::throw_error(base::ErrorCode::kIo,
                    checkpoint_.origin() + ": tensor " + names[0] + " is missing" + also + (also.empty() ? "" : ")"));
}

base::DType WeightLoader::float_type(const TensorView& t, const std::string& name) const {
  if (t.info->type != base::DType::kF32 && t.info->type != base::DType::kBF16 && t.info->type != base::DType::kF16)
    base::throw_error(base::ErrorCode::kUnsupported,
                      *t.file + ": tensor " + name + " has dtype " + t.info->dtype + "; implemented: F32, BF16, F16");
  return *t.info->type;
}

void WeightLoader::note(const TensorView& t) {
  done_ += static_cast<int64_t>(t.info->end - t.info->begin);
  if (progress_) progress_(done_, static_cast<int64_t>(checkpoint_.data_bytes()));
}

namespace {
[[noreturn]] void throw_shape(const TensorView& t, const std::string& name, const std::string& wanted) {
  base::throw_error(base::ErrorCode::kIo,
                    *t.file + ": tensor " + name + ": wanted shape " + wanted + ", got " + shape_text(t.info->shape));
}
}  // namespace

ops::Linear WeightLoader::linear(const std::vector<Rows>& parts, int64_t in) {
  std::vector<ops::Linear::Part> list;
  std::vector<AlignedData> aligned;
  aligned.reserve(parts.size());
  int64_t out = 0;
  std::vector<const TensorView*> views;
  for (const Rows& part : parts) {
    std::string name;
    const TensorView& t = require(part.names, &name);
    const base::DType type = float_type(t, name);
    const std::vector<int64_t> shape = part.shape.empty() ? std::vector<int64_t>{part.rows, in} : part.shape;
    if (t.info->shape != shape) throw_shape(t, name, shape_text(shape));
    out += part.rows;
    if (planning()) continue;
    const size_t element = base::size_of(type);
    const auto* source = static_cast<const std::byte*>(t.data) + static_cast<size_t>(part.first * in) * element;
    aligned.emplace_back(source, static_cast<size_t>(part.rows * in) * element, element);
    list.push_back({aligned.back().data, type, part.rows});
    if (part.first == 0) views.push_back(&t);
  }
  ops::Linear l = planning() ? ops::Linear::planned(out, in) : ops::Linear::create(list, in, *stream_);
  for (const TensorView* t : views) note(*t);
  bytes_ += l.weight_bytes();
  return l;
}

ops::Linear WeightLoader::linear(const Names& names, int64_t out, int64_t in) {
  return linear({Rows{names, out, {}, 0}}, in);
}

ops::Linear WeightLoader::linear_from(const float* rows, int64_t out, int64_t in) {
  ops::Linear l =
      planning() ? ops::Linear::planned(out, in) : ops::Linear::create(rows, base::DType::kF32, out, in, *stream_);
  bytes_ += l.weight_bytes();
  return l;
}

std::vector<float> WeightLoader::vector(const Names& names, int64_t count, bool at_least, bool counted) {
  std::string name;
  const TensorView& t = require(names, &name);
  const base::DType type = float_type(t, name);
  if (at_least ? t.info->elements < count : t.info->elements != count)
    throw_shape(t, name, (at_least ? "of at least " : "of ") + std::to_string(count) + " elements");
  if (counted) bytes_ += static_cast<size_t>(count) * sizeof(float);
  if (planning()) return {};
  const size_t element = base::size_of(type);
  const AlignedData a(t.data, static_cast<size_t>(t.info->elements) * element, element);
  std::vector<float> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = base::load_f32(a.data, i, type);
  note(t);
  return v;
}

WeightLoader::Table WeightLoader::table(const Names& names, int64_t rows, int64_t width) {
  std::string name;
  const TensorView& t = require(names, &name);
  Table table;
  table.dtype = float_type(t, name), table.rows = rows, table.width = width;
  if (t.info->shape != std::vector<int64_t>{rows, width}) throw_shape(t, name, shape_text({rows, width}));
  const size_t bytes = t.info->end - t.info->begin;
  bytes_ += bytes;
  if (planning()) return table;
  table.data = device::Buffer::allocate(stream_->info(), bytes);
  std::memcpy(table.data.data(), t.data, bytes);
  note(t);
  return table;
}

}  // namespace kadence::model
