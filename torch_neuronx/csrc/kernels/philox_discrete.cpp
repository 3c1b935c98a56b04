// The distributions of philox.h over integers and masks.
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "kernels/philox_detail.h"
#include "kernels/pointwise.h"

namespace torch_neuronx::kernels {
namespace {

using detail::each_strip;
using detail::each_word64;
using detail::kStripGroups;

// A word w counts as a success when w + 1/2 <= p 2^32, that is w < round(p 2^32).
constexpr double kTwo32 = 4294967296.0;

uint64_t threshold(double p) {
  return p >= 1.0 ? uint64_t{1} << 32 : static_cast<uint64_t>(std::floor(p * kTwo32 + 0.5));
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, c10::BFloat16> || std::is_same_v<To, c10::Half>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

uint64_t high_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

template <class P>
void compare(const uint32_t* words, const P* p, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double middle =
        static_cast<double>(static_cast<int32_t>(words[i] ^ 0x80000000u)) + 2147483648.5;
    out[i] = middle <= static_cast<double>(p[i]) * kTwo32;
  }
}

// Calls mask(first, count, block, groups, bytes) to make 0/1 bytes strip by strip and stores them
// as dtype.
template <class Mask>
void store_mask(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, const Mask& mask) {
  detail::with_type(dtype, "bernoulli", [&]<class T>() {
    T* values = static_cast<T*>(out);
    each_strip(state, n, 64, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
      alignas(64) uint8_t bytes[kStripGroups * 64];
      const bool direct = sizeof(T) == 1 && count == groups * 64;
      uint8_t* target = direct ? reinterpret_cast<uint8_t*>(values + first) : bytes;
      mask(first, count, block, groups, target);
      if (!direct) {
        const T zero = convert<T>(0), one = convert<T>(1);
        for (int64_t i = 0; i < count; ++i) {
          values[first + i] = bytes[i] ? one : zero;
        }
      }
    });
  });
}

}  // namespace

void philox_bernoulli(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double p) {
  const auto fill = philox_table().bernoulli;
  const uint64_t limit = threshold(p);
  store_mask(state, dtype, out, n,
             [&](int64_t, int64_t, uint64_t block, int64_t groups, uint8_t* bytes) {
               fill(state, block, groups, limit, bytes);
             });
}

void philox_bernoulli_tensor(PhiloxState state, c10::ScalarType dtype, void* out,
                             c10::ScalarType p_dtype, const void* p, int64_t n) {
  TORCH_CHECK(pointwise_supports(p_dtype) || p_dtype == c10::ScalarType::Double,
              "bernoulli: expected floating-point probabilities, got ", c10::toString(p_dtype));
  const auto words = philox_table().words;
  store_mask(state, dtype, out, n,
             [&](int64_t first, int64_t count, uint64_t block, int64_t groups, uint8_t* bytes) {
               alignas(64) uint32_t buffer[kStripGroups * 64];
               words(state, block, groups, buffer);
               detail::with_type(p_dtype, "bernoulli", [&]<class P>() {
                 compare(buffer, static_cast<const P*>(p) + first, bytes, count);
               });
             });
}

void philox_random_from_to(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n,
                           uint64_t range, int64_t base) {
  detail::with_type(dtype, "random_", [&]<class T>() {
    T* values = static_cast<T*>(out);
    // Unsigned additions wrap where signed ones would overflow.
    const auto store = [&](int64_t i, uint64_t value) {
      const uint64_t sum = static_cast<uint64_t>(base) + value;
      values[i] =
          std::is_same_v<T, uint64_t> ? convert<T>(sum) : convert<T>(static_cast<int64_t>(sum));
    };
    if (range != 0 && range <= (1u << 16)) {
      const auto words = philox_table().words;
      each_strip(state, n, 64, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
        alignas(64) uint32_t buffer[kStripGroups * 64];
        words(state, block, groups, buffer);
        for (int64_t i = 0; i < count; ++i) {
          store(first + i, (buffer[i] * range) >> 32);
        }
      });
    } else {
      each_word64(state, n, [&](int64_t i, uint64_t w) {
        store(i, range == 0 ? w : high_product(w, range));
      });
    }
  });
}

void philox_random_full(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n) {
  uint64_t range = 0;
  detail::with_type(dtype, "random_", [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      range = 2;
    } else if constexpr (std::is_integral_v<T>) {
      range = static_cast<uint64_t>(std::numeric_limits<T>::max()) + 1;
    } else {
      range = (uint64_t{1} << std::numeric_limits<T>::digits) + 1;
    }
  });
  philox_random_from_to(state, dtype, out, n, range, 0);
}

void philox_randperm(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n) {
  detail::check_offset(state);
  detail::refuse_bool(dtype, "randperm");
  const int64_t groups = detail::groups_for(n, 32);
  const auto words = philox_table().words;
  detail::with_type(dtype, "randperm", [&]<class T>() {
    T* values = static_cast<T*>(out);
    alignas(64) uint32_t buffer[kStripGroups * 64];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t in_strip = i % (kStripGroups * 32);
      if (in_strip == 0) {
        const int64_t g = i / 32;
        words(state, static_cast<uint64_t>(g) * 16, std::min(kStripGroups, groups - g), buffer);
      }
      // "Inside-out": position i takes a random earlier value, which makes room for i.
      const uint64_t j =
          high_product(detail::word64(buffer, in_strip), static_cast<uint64_t>(i) + 1);
      values[i] = values[j];
      values[j] = convert<T>(i);
    }
  });
}

}  // namespace torch_neuronx::kernels
