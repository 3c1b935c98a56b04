// Rearranging and storing at any stride, without vector instructions of a particular processor.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "gemm/kernels.h"
#include "kernels/isa.h"

namespace torch_neuronx::gemm {
namespace {

float load_f32(Element element, const char* p) {
  if (element == Element::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  if (element == Element::kBf16) return float(c10::BFloat16(bits, c10::BFloat16::from_bits()));
  return float(c10::Half(bits, c10::Half::from_bits()));
}

void store_element(Element element, char* p, float value) {
  if (element == Element::kF32) {
    std::memcpy(p, &value, sizeof(value));
    return;
  }
  const uint16_t bits = element == Element::kBf16 ? c10::BFloat16(value).x : c10::Half(value).x;
  std::memcpy(p, &bits, sizeof(bits));
}

// The unit at (k index p, other index i): a float32, or a pair of bfloat16 padded with zero.
uint32_t unit_at(const PackArgs& m, int64_t unit, int64_t p, int64_t i) {
  const char* at = m.src + p * m.k_bytes + i * m.other_bytes;
  uint32_t bits = 0;
  if (unit == 1) {
    const float value = load_f32(m.element, at);
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  uint16_t low, high = 0;
  std::memcpy(&low, at, sizeof(low));
  if (p + 1 < m.k) std::memcpy(&high, at + m.k_bytes, sizeof(high));
  return uint32_t(low) | uint32_t(high) << 16;
}

}  // namespace

void pack_b_portable(const PackArgs& b, int64_t unit) {
  for (int64_t p = 0; p < b.k; p += unit) {
    uint32_t* dst = b.dst + p / unit * kPanelCols;
    for (int64_t j = 0; j < b.other; ++j) dst[j] = unit_at(b, unit, p, j);
    std::fill(dst + b.other, dst + kPanelCols, 0U);
  }
}

void pack_a_rows_portable(const PackArgs& a, int64_t unit) {
  const int64_t units = (a.k + unit - 1) / unit;
  // Blocks of 16 x 16 keep both sides in cache when the source is transposed.
  constexpr int64_t kBlock = 16;
  for (int64_t i0 = 0; i0 < a.other; i0 += kBlock) {
    for (int64_t u0 = 0; u0 < units; u0 += kBlock) {
      for (int64_t i = i0; i < std::min(i0 + kBlock, a.other); ++i) {
        for (int64_t u = u0; u < std::min(u0 + kBlock, units); ++u) {
          a.dst[i * a.dst_row + u] = unit_at(a, unit, u * unit, i);
        }
      }
    }
  }
}

void to_f32_rows(const PackArgs& a) {
  if (const Kernels* vector = avx512_kernels()) return vector->pack_a_rows(a);
  pack_a_rows_portable(a, 1);
}

void store_portable(const StoreArgs& s) {
  const int64_t size = element_size(s.element);
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.cols; ++j) {
      float value = s.alpha * s.src[i * s.src_row + j * s.src_col];
      if (s.c0 != nullptr) {
        value += s.beta * load_f32(s.element, s.c0 + i * s.c0_row_bytes + j * s.c0_col_bytes);
      }
      store_element(s.element, s.out + i * s.out_row_bytes + j * size, value);
    }
  }
}

void store(const StoreArgs& s) {
  if (host_has_avx512() && store_avx512(s)) return;
  store_portable(s);
}

const Kernels* own_kernels(Element element, bool with_amx) {
  const Kernels* found = nullptr;
  if (element == Element::kBf16) {
    if (with_amx) found = amx_kernels();
    if (found == nullptr) found = avx512bf16_kernels();
  }
  return found != nullptr ? found : avx512_kernels();
}

bool host_has_avx512() { return kernels::best_isa() == kernels::Isa::Avx512; }
bool host_has_avx512bf16() { return kernels::may_use_avx512bf16(); }
bool host_has_amx() { return kernels::may_use_amx(); }

#if !defined(__x86_64__)
// The files of these are left out of builds for other processors.
const Kernels* avx512_kernels() { return nullptr; }
const Kernels* avx512bf16_kernels() { return nullptr; }
const Kernels* amx_kernels() { return nullptr; }
bool store_avx512(const StoreArgs&) { return false; }
#endif

}  // namespace torch_neuronx::gemm
