// Checkpoints of tests: read a model's tensors, change them, write them as a safetensors file.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "model/json.h"
#include "model/safetensors.h"
#include "model/tests/temp_dir.h"

namespace kadence::model {

struct TestTensor {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;

  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
  std::vector<double> values() const {
    std::vector<double> v(static_cast<size_t>(elements()));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = base::load_f32(bytes.data(), static_cast<int64_t>(i),
                            dtype == "BF16"  ? base::DType::kBF16
                            : dtype == "F16" ? base::DType::kF16
                                             : base::DType::kF32);
    return v;
  }
};
using TestTensors = std::map<std::string, TestTensor>;

inline TestTensor f32_tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {"F32", std::move(shape), std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}
// Normal values times `scale`.
inline TestTensor random_tensor(std::vector<int64_t> shape, uint64_t seed, double scale) {
  TestTensor t;
  t.shape = std::move(shape);
  base::Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(t.elements()));
  for (float& x : v) x = static_cast<float>(rng.normal() * scale);
  return f32_tensor(t.shape, v);
}

inline TestTensors read_tensors(const std::filesystem::path& dir) {
  const Checkpoint c = Checkpoint::open(dir);
  TestTensors out;
  for (const auto& [name, view] : c.tensors())
    out[name] = {view.info->dtype, view.info->shape,
                 std::string(static_cast<const char*>(view.data), view.info->end - view.info->begin)};
  return out;
}

// `pad` spaces after the header move the data to any alignment.
inline std::string safetensors_bytes(const TestTensors& tensors, size_t pad = 0) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump() + std::string(pad, ' ');
  const uint64_t n = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + text + data;
}

// A model folder with config.json and one file.
inline void write_model(const TempDir& dir, const Json& config, const TestTensors& tensors, size_t pad = 0) {
  dir.write("config.json", config.dump());
  dir.write("model.safetensors", safetensors_bytes(tensors, pad));
}

}  // namespace kadence::model
