#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "model/tests/temp_dir.h"

namespace kadence::model {
namespace {

using base::ErrorCode;

std::string file_of(const std::string& header, size_t data_bytes, std::optional<uint64_t> claimed = {}) {
  uint64_t n = claimed.value_or(header.size());
  std::string f(8, '\0');
  std::memcpy(f.data(), &n, 8);
  return f + header + std::string(data_bytes, '\x11');
}
TensorMap parse(const std::string& file) { return parse_safetensors_header(file, file.size(), "x.safetensors"); }
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsAWellFormedHeader) {
  const TensorMap m =
      parse(file_of("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "BF16", "[2,3]", "[4,16]") + "," +
                        entry("a", "F32", "[]", "[0,4]") + "," + entry("e", "F8_E4M3", "[0,7]", "[16,16]") + "}   ",
                    16));
  ASSERT_EQ(m.size(), 3u);
  EXPECT_EQ(m.at("a").elements, 1);
  EXPECT_EQ(m.at("b").type, base::DType::kBF16);
  EXPECT_EQ(m.at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(m.at("e").type.has_value());
  EXPECT_TRUE(parse(file_of("{}", 0)).empty());
}

TEST(Safetensors, EveryHeaderFieldIsChecked) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets, size_t bytes) {
    return file_of("{" + entry("t", dtype, shape, offsets) + "}", bytes);
  };
  const struct {
    std::string what, file, message;
  } cases[] = {
      {"empty", "", "too few"},
      {"short", "1234567", "too few"},
      {"length beyond the file", file_of("{}", 0, 3), "truncated"},
      {"length huge", file_of("{}", 0, UINT64_MAX), "limit"},
      {"length over the limit", file_of("{}", 0, 100000001), "limit"},
      {"empty header", file_of("", 0), "begin"},
      {"leading space", file_of(" {}", 0), "begin"},
      {"not JSON", file_of("{\"a\":", 0), "not valid JSON"},
      {"bad UTF-8", file_of("{\"\xff\":1}", 0), "not valid JSON"},
      {"two names", file_of("{" + entry("t", "U8", "[1]", "[0,1]") + "," + entry("t", "U8", "[1]", "[0,1]") + "}", 1),
       "twice"},
      {"nested", file_of("{\"t\":" + std::string(5000, '[') + "}", 0), "nested"},
      {"entry not an object", file_of("{\"t\":3}", 0), "object"},
      {"unknown field", file_of("{\"t\":{\"x\":1}}", 0), "unknown field x"},
      {"no dtype", file_of("{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4), "dtype"},
      {"no shape", file_of("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4), "shape"},
      {"no offsets", file_of("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "data_offsets"},
      {"mistyped dtype", one("F33", "[1]", "[0,4]", 4), "unknown dtype"},
      {"lower-case dtype", one("f32", "[1]", "[0,4]", 4), "unknown dtype"},
      {"negative size", one("F32", "[-1]", "[0,4]", 4), "shape"},
      {"fractional size", one("F32", "[1.0]", "[0,4]", 4), "shape"},
      {"huge size", one("F32", "[18446744073709551615]", "[0,4]", 4), "shape"},
      {"product overflows", one("U8", "[4294967296,4294967296]", "[0,0]", 0), "overflow"},
      {"bytes overflow", one("F64", "[4611686018427387904]", "[0,0]", 0), "overflow"},
      {"zero hides an overflow", one("U8", "[4294967296,4294967296,4294967296,0]", "[0,0]", 0), "overflow"},
      {"rank", one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]", 1), "shape"},
      {"shape not a list", one("F32", "4", "[0,4]", 4), "shape"},
      {"offsets not a pair", one("F32", "[1]", "[0,4,8]", 4), "data_offsets"},
      {"offsets negative", one("F32", "[1]", "[-4,0]", 4), "data_offsets"},
      {"offsets reversed", one("F32", "[1]", "[4,0]", 4), "outside"},
      {"offsets beyond the data", one("F32", "[2]", "[0,8]", 4), "outside"},
      {"offsets huge", one("F32", "[1]", "[18446744073709551612,18446744073709551615]", 4), "outside"},
      {"bytes do not fit the shape", one("F32", "[2]", "[0,4]", 4), "needs 8"},
      {"bytes do not fit the dtype", one("BF16", "[1]", "[0,4]", 4), "needs 2"},
      {"overlap", file_of("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[2,6]") + "}", 6),
       "a and b overlap"},
      {"contained", file_of("{" + entry("a", "U8", "[6]", "[0,6]") + "," + entry("b", "U8", "[2]", "[2,4]") + "}", 6),
       "overlap"},
      {"hole", file_of("{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[4,6]") + "}", 6),
       "hole of 2"},
      {"hole at the start", one("U8", "[2]", "[2,4]", 4), "hole"},
      {"data left over", one("U8", "[2]", "[0,2]", 5), "5 bytes of data"},
      {"data without tensors", file_of("{}", 5), "5 bytes of data"},
      {"metadata not strings", file_of("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__"},
      {"metadata not an object", file_of("{\"__metadata__\":1}", 0), "__metadata__"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_ERROR(parse(c.file), ErrorCode::kIo, "x.safetensors", c.message);
  }
}

TEST(Checkpoint, ReadsTheShardedModel) {
  const Checkpoint c = Checkpoint::open(model_dir("kadence-tiny"));
  EXPECT_EQ(c.data_bytes(), 19836944u);
  const TensorView* t = c.find("model.layers.0.self_attn.A_log");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->info->shape, (std::vector<int64_t>{1, 1, 2, 1}));
  EXPECT_EQ(c.find("nothing"), nullptr);
}

std::string index_of(const std::string& map) { return "{\"weight_map\":{" + map + "}}"; }

TEST(Checkpoint, TruncatedShardsNeverLoad) {
  TempDir dir;
  const std::string whole = file_of("{" + entry("a", "F32", "[3]", "[0,12]") + "}", 12);
  for (size_t n = 0; n < whole.size(); ++n) {
    dir.write("model.safetensors", whole.substr(0, n));
    EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "model.safetensors");
  }
  dir.write("model.safetensors", whole);
  EXPECT_EQ(Checkpoint::open(dir.path()).data_bytes(), 12u);
  dir.write("model.safetensors", whole + "x");
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "13 bytes of data");
}

TEST(Checkpoint, IndexProblems) {
  TempDir dir;
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "neither");
  const std::string a = file_of("{" + entry("a", "U8", "[1]", "[0,1]") + "}", 1);
  dir.write("one.safetensors", a);
  dir.write("model.safetensors.index.json", index_of("\"a\":\"one.safetensors\""));
  EXPECT_NE(Checkpoint::open(dir.path()).find("a"), nullptr);
  dir.write("model.safetensors.index.json", index_of("\"a\":\"one.safetensors\",\"b\":\"one.safetensors\""));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "tensor b is not in one.safetensors");
  dir.write("model.safetensors.index.json", index_of("\"a\":\"two.safetensors\""));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "two.safetensors", "not there");
  for (const char* evil : {"../one.safetensors", "/etc/passwd", "", ".."}) {
    dir.write("model.safetensors.index.json", index_of("\"a\":\"" + std::string(evil) + "\""));
    EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "plain file name");
  }
  dir.write("model.safetensors.index.json", index_of("\"a\":3"));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "file name");
  dir.write("model.safetensors.index.json", index_of("\"a\":\"one.safetensors\",\"a\":\"one.safetensors\""));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "twice");
  dir.write("model.safetensors.index.json", index_of(""));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "weight_map");
  dir.write("two.safetensors",
            file_of("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[1,2]") + "}", 2));
  dir.write("model.safetensors.index.json", index_of("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
  EXPECT_ERROR(Checkpoint::open(dir.path()), ErrorCode::kIo, "tensor a is also in one.safetensors");
}

}  // namespace
}  // namespace kadence::model
