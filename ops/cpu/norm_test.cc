#include "ops/norm.h"

#include <algorithm>

#include "ops/cpu/nn_kernels.h"
#include "ops/cpu/nn_testing.h"

namespace kadence::ops {
namespace {

using testing::kGuard;
using testing::kNaN;
using testing::normals;
using testing::same_bits;
using testing::ulps;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
constexpr int64_t kWidths[] = {1, 3, 16, 31, 64, 100, 256, 2304};

class Norm : public ::testing::TestWithParam<device::Isa> {
 protected:
  device::Stream stream_ = device::Stream::cpu(2, GetParam());
};

// Rows of `width` at `pitch`, `between` them what must not be read (NaN) or written (kGuard).
std::vector<float> spread(const std::vector<float>& dense, int64_t width, int64_t pitch, float between = kNaN) {
  const int64_t rows = static_cast<int64_t>(dense.size()) / width;
  std::vector<float> v(static_cast<size_t>(rows * pitch), between);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(&dense[r * width], width, &v[r * pitch]);
  return v;
}
void expect_padding_untouched(const std::vector<float>& v, int64_t width, int64_t pitch) {
  for (size_t i = 0; i < v.size(); ++i)
    ASSERT_TRUE(static_cast<int64_t>(i) % pitch < width || v[i] == kGuard) << "written outside at " << i;
}

TEST_P(Norm, RmsNormAgreesWithDouble) {
  for (const int64_t width : kWidths) {
    const int64_t rows = width > 1000 ? 90 : 7, pitch = width + 3;
    const auto dense = normals(rows * width, 1, 3), weight = normals(width, 2);
    const auto x = spread(dense, width, pitch);
    std::vector<float> y(x.size(), kGuard);
    rms_norm(x.data(), pitch, weight.data(), 1e-5f, y.data(), pitch, rows, width, stream_);
    expect_padding_untouched(y, width, pitch);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(dense[r * width + i]) * dense[r * width + i];
      const double scale = 1 / std::sqrt(sum / width + 1e-5f);
      for (int64_t i = 0; i < width; ++i) {
        const double want = dense[r * width + i] * scale * weight[i];
        ASSERT_NEAR(y[r * pitch + i], want, 6e-7 * std::abs(want)) << width << " row " << r << " at " << i;
      }
    }
    auto in_place = x;
    rms_norm(in_place.data(), pitch, weight.data(), 1e-5f, in_place.data(), pitch, rows, width, stream_);
    std::vector<float> alone(static_cast<size_t>(width));
    auto one = device::Stream::cpu(1, GetParam());
    for (int64_t r = 0; r < rows; ++r) {
      ASSERT_TRUE(same_bits(&in_place[r * pitch], &y[r * pitch], width));
      rms_norm(&dense[r * width], width, weight.data(), 1e-5f, alone.data(), width, 1, width, one);
      ASSERT_TRUE(same_bits(alone.data(), &y[r * pitch], width)) << "a row depends on its company";
    }
  }
}

TEST_P(Norm, GatedRmsNormNormsFirst) {
  for (const int64_t width : {int64_t{5}, int64_t{32}, int64_t{128}}) {
    const int64_t tokens = 60, heads = 3, pitch = heads * width + 2;
    const auto dx = normals(tokens * heads * width, 3), dz = normals(tokens * heads * width, 4, 5),
               weight = normals(width, 5);
    const auto x = spread(dx, heads * width, pitch), z = spread(dz, heads * width, pitch + 1);
    std::vector<float> y(x.size(), kGuard);
    gated_rms_norm(x.data(), pitch, z.data(), pitch + 1, weight.data(), 1e-6f, y.data(), pitch, tokens, heads, width,
                   stream_);
    expect_padding_untouched(y, heads * width, pitch);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const float* row = &dx[(t * heads + h) * width];
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(row[i]) * row[i];
        for (int64_t i = 0; i < width; ++i) {
          const double want =
              row[i] / std::sqrt(sum / width + 1e-6f) * weight[i] * sigmoid(dz[(t * heads + h) * width + i]);
          ASSERT_NEAR(y[t * pitch + h * width + i], want, 8e-7 * std::abs(want) + 1e-30);
        }
      }
    auto in_place = x;
    gated_rms_norm(in_place.data(), pitch, z.data(), pitch + 1, weight.data(), 1e-6f, in_place.data(), pitch, tokens,
                   heads, width, stream_);
    for (int64_t t = 0; t < tokens; ++t) ASSERT_TRUE(same_bits(&in_place[t * pitch], &y[t * pitch], heads * width));
  }
}

TEST_P(Norm, AddRowsAddsOnce) {
  for (const int64_t width : kWidths) {
    const int64_t rows = 80, pitch = width + 1;
    const auto a = normals(rows * width, 6), b = normals(rows * width, 7);
    auto acc = spread(a, width, pitch, kGuard);
    const auto x = spread(b, width, pitch + 4);
    add_rows(acc.data(), pitch, x.data(), pitch + 4, rows, width, stream_);
    expect_padding_untouched(acc, width, pitch);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) ASSERT_EQ(acc[r * pitch + i], a[r * width + i] + b[r * width + i]);
  }
}

double activated(const Activation& a, double gate, double up) {
  switch (a.kind) {
    case Activation::Kind::kSilu:
      return gate * sigmoid(gate) * up;
    case Activation::Kind::kClampedSilu:
      gate = std::min<double>(gate, a.limit);
      up = std::clamp<double>(up, -a.limit, a.limit);
      return gate * sigmoid(gate) * up;
    case Activation::Kind::kSitu:
      return a.beta * std::tanh(gate / a.beta) * sigmoid(gate) * a.linear_beta * std::tanh(up / a.linear_beta);
  }
  return 0;
}

TEST_P(Norm, ActivationsAgreeWithDouble) {
  Activation silu, clamped, situ, situ_narrow;
  clamped.kind = Activation::Kind::kClampedSilu, clamped.limit = 1.5f;
  situ.kind = situ_narrow.kind = Activation::Kind::kSitu, situ_narrow.beta = 0.7f, situ_narrow.linear_beta = 1.1f;
  for (const Activation& a : {silu, clamped, situ, situ_narrow})
    for (const int64_t width : {int64_t{1}, int64_t{96}, int64_t{333}}) {
      const int64_t rows = 50, pitch = 2 * width + 1, y_pitch = width + 2;
      const auto dense = normals(rows * 2 * width, 8, 4);
      const auto x = spread(dense, 2 * width, pitch);
      std::vector<float> y(static_cast<size_t>(rows * y_pitch), kGuard);
      gated_activation(a, x.data(), pitch, y.data(), y_pitch, rows, width, stream_);
      expect_padding_untouched(y, width, y_pitch);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < width; ++i) {
          const double want = activated(a, dense[r * 2 * width + i], dense[r * 2 * width + width + i]);
          ASSERT_NEAR(y[r * y_pitch + i], want, 1.2e-6 * std::abs(want) + 1e-30) << "kind " << static_cast<int>(a.kind);
        }
    }
}

TEST_P(Norm, ElementaryFunctionsAreAccurate) {
  std::vector<float> x;
  for (float v = -110; v < 95; v += 0.00317f) x.push_back(v);
  for (float v = 1e-30f; v < 1; v *= 1.07f) x.push_back(v), x.push_back(-v);
  std::vector<float> y(x.size());
  const auto worst = [&](Elementary f, double (*exact)(double), float low, float high) {
    elementary_row(GetParam(), f, x.data(), y.data(), static_cast<int64_t>(x.size()));
    double bound = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] >= low && x[i] <= high) bound = std::max(bound, ulps(y[i], exact(x[i])));
    return bound;
  };
  EXPECT_LE(worst(
                Elementary::kExp, [](double v) { return std::exp(v); }, -200, 200),
            2);
  EXPECT_LE(worst(
                Elementary::kExpNonpositive, [](double v) { return std::exp(v); }, -86.9f, 0),
            2);
  EXPECT_LE(worst(
                Elementary::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, -85, 200),
            4);
  EXPECT_LE(worst(
                Elementary::kTanh, [](double v) { return std::tanh(v); }, -200, 200),
            4);
}

TEST_P(Norm, ElementaryFunctionsAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0.0f, -0.0f, -inf, inf, kNaN, -1000.0f, 1000.0f};
  float y[7];
  elementary_row(GetParam(), Elementary::kExp, x, y, 7);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], inf);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], 0);
  EXPECT_EQ(y[6], inf);
  elementary_row(GetParam(), Elementary::kExpNonpositive, x, y, 7);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], 0);
  elementary_row(GetParam(), Elementary::kSigmoid, x, y, 7);
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 1);
  EXPECT_TRUE(std::isnan(y[4]));
  elementary_row(GetParam(), Elementary::kTanh, x, y, 7);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[2], -1);
  EXPECT_EQ(y[3], 1);
  EXPECT_TRUE(std::isnan(y[4]));
}

INSTANTIATE_TEST_SUITE_P(Isas, Norm, ::testing::ValuesIn(testing::all_isas()),
                         [](const auto& tested) { return std::string(device::to_string(tested.param)); });

}  // namespace
}  // namespace kadence::ops
