#include "kernels/philox.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "kernels/philox_detail.h"
#include "kernels/pointwise.h"

namespace torch_neuronx::kernels {
namespace {

using detail::each_strip;
using detail::each_word64;
using detail::kStripGroups;

// Largest value of a 16-bit sign-and-magnitude float type below x.
template <class T>
float below16(double x) {
  T value(static_cast<float>(x));
  if (static_cast<double>(static_cast<float>(value)) >= x) {
    value.x = value.x == 0 || value.x == 0x8000 ? 0x8001
              : value.x & 0x8000                ? value.x + 1
                                                : value.x - 1;
  }
  return static_cast<float>(value);
}

float round16(c10::ScalarType dtype, double x) {
  return dtype == c10::ScalarType::Half ? static_cast<float>(c10::Half(static_cast<float>(x)))
                                        : static_cast<float>(c10::BFloat16(static_cast<float>(x)));
}

float below(c10::ScalarType dtype, double x) {
  if (dtype == c10::ScalarType::Half) {
    return below16<c10::Half>(x);
  }
  if (dtype == c10::ScalarType::BFloat16) {
    return below16<c10::BFloat16>(x);
  }
  const float value = static_cast<float>(x);
  return static_cast<double>(value) < x
             ? value
             : std::nextafterf(value, -std::numeric_limits<float>::infinity());
}

// Fills Float, BFloat16 or Half; values over `limit` become `limit`.
void fill_float(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n,
                PhiloxTable::Fill fill, float a, float b, const char* what,
                float limit = std::numeric_limits<float>::infinity()) {
  const int index = kernel_dtype_index(dtype, what);
  const auto round = philox_table().round[index];
  const bool limited = limit < std::numeric_limits<float>::infinity();
  each_strip(state, n, 64, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
    alignas(64) float buffer[kStripGroups * 64];
    const bool direct = index == 0 && count == groups * 64;
    float* values = direct ? static_cast<float*>(out) + first : buffer;
    fill(state, block, groups, a, b, values);
    if (limited) {
      for (int64_t i = 0; i < count; ++i) {
        values[i] = std::min(values[i], limit);
      }
    }
    if (!direct) {
      round(buffer, static_cast<char*>(out) + first * (index == 0 ? 4 : 2), count);
    }
  });
}

// In (0, 1]; the smallest is 2^-54.
double unit_open_zero(uint64_t w) { return static_cast<double>(w >> 11) * 0x1p-53 + 0x1p-54; }

// Standard normal pairs for Double: elements i and i + 16 of a group of 32 share a radius.
template <class Store>
void normal_double(PhiloxState state, int64_t n, const Store& store) {
  const PhiloxTable& table = philox_table();
  each_strip(state, n, 32, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
    alignas(64) uint32_t buffer[kStripGroups * 64];
    table.words(state, block, groups, buffer);
    alignas(64) double values[2][kStripGroups * 16];
    for (int64_t k = 0; k < groups * 16; ++k) {
      const int64_t i = (k / 16) * 32 + k % 16;
      values[0][k] = unit_open_zero(detail::word64(buffer, i));
      values[1][k] =
          static_cast<double>(static_cast<int64_t>(detail::word64(buffer, i + 16)) >> 11) * 0x1p-52;
    }
    table.normal_pairs(values[0], values[1], groups * 16);
    for (int64_t i = 0; i < count; ++i) {
      store(first + i, values[(i / 16) % 2][(i / 32) * 16 + i % 16]);
    }
  });
}

}  // namespace

void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  std::copy(c, c + 4, out);
}

void philox_words(PhiloxState state, uint32_t* out, int64_t n) {
  const auto words = philox_table().words;
  each_strip(state, n, 64, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
    alignas(64) uint32_t buffer[kStripGroups * 64];
    words(state, block, groups, buffer);
    std::copy(buffer, buffer + count, out + first);
  });
}

void philox_uniform(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double from,
                    double to) {
  if (dtype == c10::ScalarType::Double) {
    const double limit =
        std::max(from, std::nextafter(to, -std::numeric_limits<double>::infinity()));
    double* values = static_cast<double*>(out);
    return each_word64(state, n, [&](int64_t i, uint64_t w) {
      values[i] = std::min(limit, from + static_cast<double>(w >> 11) * 0x1p-53 * (to - from));
    });
  }
  const float low =
      dtype == c10::ScalarType::Float ? static_cast<float>(from) : round16(dtype, from);
  const float limit = std::max(low, below(dtype, to));
  fill_float(state, dtype, out, n, philox_table().uniform, static_cast<float>(from),
             static_cast<float>(to - from), "uniform_", limit);
}

void philox_normal(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double mean,
                   double std) {
  if (dtype == c10::ScalarType::Double) {
    double* values = static_cast<double*>(out);
    return normal_double(state, n, [&](int64_t i, double z) { values[i] = mean + std * z; });
  }
  fill_float(state, dtype, out, n, philox_table().normal, static_cast<float>(mean),
             static_cast<float>(std), "normal_");
}

void philox_log_normal(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double mean,
                       double std) {
  if (dtype == c10::ScalarType::Double) {
    double* values = static_cast<double*>(out);
    return normal_double(state, n,
                         [&](int64_t i, double z) { values[i] = std::exp(mean + std * z); });
  }
  fill_float(state, dtype, out, n, philox_table().log_normal, static_cast<float>(mean),
             static_cast<float>(std), "log_normal_");
}

void philox_exponential(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n,
                        double lambda) {
  if (dtype == c10::ScalarType::Double) {
    double* values = static_cast<double*>(out);
    return each_word64(state, n, [&](int64_t i, uint64_t w) {
      values[i] = std::max(-std::log(unit_open_zero(w)), 0x1p-54) / lambda;
    });
  }
  fill_float(state, dtype, out, n, philox_table().exponential, static_cast<float>(1.0 / lambda),
             0.0f, "exponential_");
}

void philox_cauchy(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double median,
                   double sigma) {
  if (dtype == c10::ScalarType::Double) {
    double* values = static_cast<double*>(out);
    return each_word64(state, n, [&](int64_t i, uint64_t w) {
      // Odd multiples of 2^-53 in (-1/2, 1/2).
      const int64_t odd = ((static_cast<int64_t>(w) >> 12) << 1) + 1;
      values[i] = median + sigma * std::tan(std::numbers::pi * static_cast<double>(odd) * 0x1p-53);
    });
  }
  fill_float(state, dtype, out, n, philox_table().cauchy, static_cast<float>(median),
             static_cast<float>(sigma), "cauchy_");
}

void philox_geometric(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double p) {
  const double scale = 1.0 / std::log1p(-p);
  if (pointwise_supports(dtype)) {
    return fill_float(state, dtype, out, n, philox_table().geometric, static_cast<float>(scale),
                      0.0f, "geometric_");
  }
  detail::refuse_bool(dtype, "geometric_");
  detail::with_type(dtype, "geometric_", [&]<class T>() {
    T* values = static_cast<T*>(out);
    each_word64(state, n, [&](int64_t i, uint64_t w) {
      const double trials = std::max(1.0, std::ceil(std::log(unit_open_zero(w)) * scale));
      if constexpr (std::is_integral_v<T>) {
        // Compared as double: the largest int64 rounds up to 2^63, which does not fit.
        constexpr T most = std::numeric_limits<T>::max();
        values[i] = trials >= static_cast<double>(most) ? most : static_cast<T>(trials);
      } else {
        values[i] = static_cast<T>(trials);
      }
    });
  });
}

}  // namespace torch_neuronx::kernels
