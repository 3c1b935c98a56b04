// The steps of Winograd's algorithm for 512-bit vectors.
#include "conv/winograd.h"
#include "gemm/avx512_templates.h"
#include "gemm/loads_avx512.h"

namespace torch_neuronx::conv {
namespace {

using gemm::lanes16;
using gemm::transpose16;

// The points are +-kA and +-kB; all constants are exact in float32.
constexpr float kA = 0.625F, kB = 1.5F;
constexpr float kA2 = kA * kA, kB2 = kB * kB;

TN_INLINE __m512 all(float x) { return _mm512_set1_ps(x); }

// Neighbouring elements of a tensor as float32, those of the mask's lanes.
template <Element E>
TN_INLINE __m512 load(const char* p, __mmask16 mask) {
  if constexpr (E == Element::kF32) return _mm512_maskz_loadu_ps(mask, p);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, p);
  return E == Element::kBf16 ? gemm::Load<Element::kBf16>::widen(half) : _mm512_cvtph_ps(half);
}

template <Element E>
TN_INLINE void store(char* p, __mmask16 mask, __m512 v) {
  if constexpr (E == Element::kF32) {
    _mm512_mask_storeu_ps(p, mask, v);
  } else {
    _mm256_mask_storeu_epi16(p, mask, gemm::to_half(E, v));
  }
}

// Calls the instantiation of `fn` for an element type.
#define TN_BY_ELEMENT(element, fn, ...)       \
  switch (element) {                          \
    case Element::kF32:                       \
      return fn<Element::kF32>(__VA_ARGS__);  \
    case Element::kBf16:                      \
      return fn<Element::kBf16>(__VA_ARGS__); \
    case Element::kF16:                       \
      return fn<Element::kF16>(__VA_ARGS__);  \
  }

// Six neighbours of a patch -> their values at the six points.
TN_INLINE void patch_values(const __m512 d[6], __m512 v[6]) {
  const __m512 product = all(kA2 * kB2), sum = all(kA2 + kB2);
  v[0] = _mm512_fmadd_ps(product, d[0], _mm512_fnmadd_ps(sum, d[2], d[4]));
  const __m512 even_a = _mm512_fnmadd_ps(all(kB2), d[2], d[4]);
  const __m512 odd_a = _mm512_fnmadd_ps(all(kB2), d[1], d[3]);
  v[1] = _mm512_fmadd_ps(all(kA), odd_a, even_a);
  v[2] = _mm512_fnmadd_ps(all(kA), odd_a, even_a);
  const __m512 even_b = _mm512_fnmadd_ps(all(kA2), d[2], d[4]);
  const __m512 odd_b = _mm512_fnmadd_ps(all(kA2), d[1], d[3]);
  v[3] = _mm512_fmadd_ps(all(kB), odd_b, even_b);
  v[4] = _mm512_fnmadd_ps(all(kB), odd_b, even_b);
  v[5] = _mm512_fmadd_ps(product, d[1], _mm512_fnmadd_ps(sum, d[3], d[5]));
}

// Products at the six points -> four results.
TN_INLINE void results(const __m512 m[6], __m512 y[4]) {
  const __m512 even_a = _mm512_add_ps(m[1], m[2]), odd_a = _mm512_sub_ps(m[1], m[2]);
  const __m512 even_b = _mm512_add_ps(m[3], m[4]), odd_b = _mm512_sub_ps(m[3], m[4]);
  y[0] = _mm512_add_ps(_mm512_add_ps(m[0], even_a), even_b);
  y[1] = _mm512_fmadd_ps(all(kA), odd_a, _mm512_mul_ps(all(kB), odd_b));
  y[2] = _mm512_fmadd_ps(all(kA2), even_a, _mm512_mul_ps(all(kB2), even_b));
  y[3] = _mm512_fmadd_ps(all(kA2 * kA), odd_a, _mm512_fmadd_ps(all(kB2 * kB), odd_b, m[5]));
}

// Three neighbours of a filter -> their values at the six points. In double precision: filters are
// rounded to float32 once, at the end.
TN_INLINE void filter_values(__m512d g0, __m512d g1, __m512d g2, __m512d v[6]) {
  constexpr double a2 = double(kA) * kA, b2 = double(kB) * kB;
  constexpr double na = 1.0 / (2.0 * a2 * (a2 - b2)), nb = 1.0 / (2.0 * b2 * (b2 - a2));
  const auto constant = [](double x) __attribute__((always_inline)) { return _mm512_set1_pd(x); };
  v[0] = _mm512_mul_pd(g0, constant(1.0 / (a2 * b2)));
  const __m512d even_a = _mm512_fmadd_pd(g2, constant(a2 * na), _mm512_mul_pd(g0, constant(na)));
  const __m512d even_b = _mm512_fmadd_pd(g2, constant(b2 * nb), _mm512_mul_pd(g0, constant(nb)));
  v[1] = _mm512_fmadd_pd(g1, constant(kA * na), even_a);
  v[2] = _mm512_fnmadd_pd(g1, constant(kA * na), even_a);
  v[3] = _mm512_fmadd_pd(g1, constant(kB * nb), even_b);
  v[4] = _mm512_fnmadd_pd(g1, constant(kB * nb), even_b);
  v[5] = g2;
}

// 16 rows of memory -> 16 columns, each written as one vector.
TN_INLINE void transpose_to(const float* src, int64_t src_row, float* dst, int64_t dst_row,
                            int64_t rows) {
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(src + i * src_row);
  transpose16(r);
  if (rows == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(dst + i * dst_row, r[i]);
  } else {
    for (int i = 0; i < rows; ++i) _mm512_storeu_si512(dst + i * dst_row, r[i]);
  }
}

// Nine values of a 3 x 3 filter, 16 output channels -> 36 rows of the panel.
TN_INLINE void filter_lanes(const float (*g)[16], float* dst, int64_t frequency_stride) {
#pragma GCC unroll 2
  for (int half = 0; half < 16; half += 8) {
    __m512d columns[6][3];  // values along the rows of the filter, for each of its columns
#pragma GCC unroll 3
    for (int c = 0; c < 3; ++c) {
      __m512d v[6], x[3];
#pragma GCC unroll 3
      for (int r = 0; r < 3; ++r) x[r] = _mm512_cvtps_pd(_mm256_loadu_ps(g[3 * r + c] + half));
      filter_values(x[0], x[1], x[2], v);
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) columns[i][c] = v[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) {
      __m512d v[6];
      filter_values(columns[i][0], columns[i][1], columns[i][2], v);
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) {
        _mm256_storeu_ps(dst + (6 * i + j) * frequency_stride + half, _mm512_cvtpd_ps(v[j]));
      }
    }
  }
}

// Filters of up to 16 output and 16 input channels -> [input channel][3 x 3][output channel].
struct FilterBlock {
  alignas(64) float at[kLanes][9][kLanes];
};

template <Element E>
void load_filters(const FilterArgs& f, int64_t c, int64_t k, FilterBlock& block) {
  const int64_t outs = f.outs - k < kLanes ? f.outs - k : kLanes;
  const int64_t channels = f.channels - c < kLanes ? f.channels - c : kLanes;
  constexpr int64_t size = gemm::Load<E>::kBytes;
  const char* src = f.src + (k * f.out_stride + c * f.in_stride) * size;
  const bool planes = f.in_stride == 9 && f.row_stride == 3 && f.col_stride == 1;
  if (!planes && f.in_stride != 1) {
    for (int64_t i = 0; i < channels; ++i) {
      for (int r = 0; r < 9; ++r) {
        const int64_t at = i * f.in_stride + r / 3 * f.row_stride + r % 3 * f.col_stride;
        for (int64_t l = 0; l < kLanes; ++l) {
          const __m512 one = load<E>(src + (at + l * f.out_stride) * size, l < outs ? 1 : 0);
          block.at[i][r][l] = _mm512_cvtss_f32(one);
        }
      }
    }
    return;
  }
  // 16 x 16 numbers at a time: neighbours in memory become neighbouring rows of the block.
  for (int r = 0; r < 9; ++r) {
    const int64_t at = planes ? 16 * r : r / 3 * f.row_stride + r % 3 * f.col_stride;
    const __mmask16 mask =
        planes ? (16 * r < 9 * channels ? lanes16(9 * channels - 16 * r) : __mmask16(0))
               : lanes16(channels);
    __m512i v[16];
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) {
      v[l] = _mm512_castps_si512(
          load<E>(src + (at + l * f.out_stride) * size, l < outs ? mask : __mmask16(0)));
    }
    transpose16(v);
    float* dst = planes ? block.at[0][0] + 16 * r * kLanes : block.at[0][r];
    const int64_t step = planes ? kLanes : 9 * kLanes;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(dst + i * step, v[i]);
  }
}

template <Element E>
void filter_of(const FilterArgs& f) {
  FilterBlock block;
  for (int64_t c = 0; c < f.channels; c += kLanes) {
    for (int64_t k = 0; k < kPanel; k += kLanes) {
      load_filters<E>(f, c, k, block);
      for (int64_t i = 0; i < kLanes && c + i < f.channels; ++i) {
        filter_lanes(block.at[i], f.dst + (c + i) * kPanel + k, f.frequency_stride);
      }
    }
  }
}

void filter(const FilterArgs& f) { TN_BY_ELEMENT(f.element, filter_of, f) }

constexpr int64_t kRunCols = kTile * kRun + 2;

// Values of all columns of a run along the columns' direction: [point][column][channel].
struct Columns {
  alignas(64) float at[kPatch][kRunCols][kLanes];
};

// Columns of an image whose channels are planes: vectors hold 16 columns until they are transposed.
template <Element E>
void columns_of_planes(const InputArgs& in, int64_t cols, Columns& out) {
  constexpr int64_t size = gemm::Load<E>::kBytes;
  alignas(64) float values[kPatch][16][16];  // point, channel, column
  for (int64_t x = 0; x < cols; x += 16) {
    const int64_t begin = in.left + x < 0 ? -(in.left + x) : 0;
    const int64_t end = in.width - in.left - x;  // columns from `x` on that exist
    const __mmask16 mask =
        end <= 0 ? __mmask16(0)
                 : __mmask16(lanes16(end) & ~((1U << (begin < 16 ? begin : 16)) - 1U));
    for (int64_t c = 0; c < kLanes; ++c) {
      __m512 d[6], v[6];
      const char* src = in.src + (c * in.channel_stride + x) * size;
#pragma GCC unroll 6
      for (int r = 0; r < 6; ++r) {
        const bool inside = c < in.channels && uint64_t(in.top + r) < uint64_t(in.height);
        d[r] = load<E>(src + r * in.row_stride * size, inside ? mask : __mmask16(0));
      }
      patch_values(d, v);
#pragma GCC unroll 6
      for (int r = 0; r < 6; ++r) _mm512_store_ps(values[r][c], v[r]);
    }
    const int64_t rows = cols - x < 16 ? cols - x : 16;
    for (int r = 0; r < 6; ++r) transpose_to(values[r][0], 16, out.at[r][x], kLanes, rows);
  }
}

// Columns of an image whose channels are neighbours.
template <Element E>
void columns_of_channels(const InputArgs& in, int64_t cols, Columns& out) {
  constexpr int64_t size = gemm::Load<E>::kBytes;
  const __mmask16 mask = lanes16(in.channels);
  for (int64_t x = 0; x < cols; ++x) {
    __m512 d[6], v[6];
    const bool inside_x = uint64_t(in.left + x) < uint64_t(in.width);
    const char* src = in.src + x * in.col_stride * size;
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) {
      const bool inside = inside_x && uint64_t(in.top + r) < uint64_t(in.height);
      d[r] = load<E>(src + r * in.row_stride * size, inside ? mask : __mmask16(0));
    }
    patch_values(d, v);
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) _mm512_store_ps(out.at[r][x], v[r]);
  }
}

template <Element E>
void input_of(const InputArgs& in) {
  Columns columns;
  const int64_t cols = kTile * in.tiles + 2;
  if (in.col_stride == 1) {
    columns_of_planes<E>(in, cols, columns);
  } else {
    columns_of_channels<E>(in, cols, columns);
  }
  for (int64_t t = 0; t < in.tiles; ++t) {
    float* dst = in.dst + t * in.tile_stride;
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) {
      __m512 d[6], v[6];
#pragma GCC unroll 6
      for (int c = 0; c < 6; ++c) d[c] = _mm512_load_ps(columns.at[r][kTile * t + c]);
      patch_values(d, v);
#pragma GCC unroll 6
      for (int c = 0; c < 6; ++c) _mm512_storeu_ps(dst + (6 * r + c) * in.frequency_stride, v[c]);
    }
  }
}

void input(const InputArgs& in) { TN_BY_ELEMENT(in.element, input_of, in) }

// One MR x (16 NV) block of c over up to kSum channels.
template <int MR, int NV>
TN_INLINE void short_sum(const float* a, int64_t a_row, const float* b, float* c, int64_t channels,
                         bool first) {
  __m512 acc[MR][NV];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  for (int64_t p = channels; p > 0; --p) {
    __m512 bv[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) bv[j] = _mm512_loadu_ps(b + 16 * j);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512 av = all(a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = _mm512_fmadd_ps(av, bv[j], acc[i][j]);
    }
    ++a;
    b += kPanel;
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      float* at = c + i * kPanel + 16 * j;
      _mm512_storeu_ps(at, first ? acc[i][j] : _mm512_add_ps(_mm512_loadu_ps(at), acc[i][j]));
    }
  }
}

// The same over up to kDepth channels.
template <int MR, int NV>
TN_INLINE void block(const float* a, int64_t a_row, const float* b, float* c, int64_t channels,
                     bool first) {
  for (int64_t p = 0; p < channels; p += kSum) {
    const int64_t count = channels - p < kSum ? channels - p : kSum;
    short_sum<MR, NV>(a + p, a_row, b + p * kPanel, c, count, first && p == 0);
  }
}

template <int NV>
void multiply_columns(const MultiplyArgs& m) {
  for (int64_t p = 0; p < m.channels; p += kDepth) {
    const int64_t depth = m.channels - p < kDepth ? m.channels - p : kDepth;
    const float* b = m.b + p * kPanel;
    const float* a = m.a + p;
    const bool first = p == 0;
    int64_t t = 0;
    for (; m.tiles - t >= 6; t += 6) {
      block<6, NV>(a + t * m.a_row, m.a_row, b, m.c + t * kPanel, depth, first);
    }
    a += t * m.a_row;
    float* c = m.c + t * kPanel;
    switch (m.tiles - t) {
      case 1:
        block<1, NV>(a, m.a_row, b, c, depth, first);
        break;
      case 2:
        block<2, NV>(a, m.a_row, b, c, depth, first);
        break;
      case 3:
        block<3, NV>(a, m.a_row, b, c, depth, first);
        break;
      case 4:
        block<4, NV>(a, m.a_row, b, c, depth, first);
        break;
      case 5:
        block<5, NV>(a, m.a_row, b, c, depth, first);
        break;
      default:
        break;
    }
  }
}

void multiply(const MultiplyArgs& m) {
  switch ((m.outs + 15) / 16) {
    case 1:
      return multiply_columns<1>(m);
    case 2:
      return multiply_columns<2>(m);
    case 3:
      return multiply_columns<3>(m);
    default:
      return multiply_columns<4>(m);
  }
}

template <Element E>
TN_INLINE __m512 finish(const OutputArgs& o, int64_t at, __m512 v, __mmask16 mask) {
  if (o.residual != nullptr) {
    v = _mm512_add_ps(v, load<E>(o.residual + at * gemm::Load<E>::kBytes, mask));
  }
  // The second operand, if one of them is not a number.
  return o.relu ? _mm512_max_ps(_mm512_setzero_ps(), v) : v;
}

// A row of results of `out` whose channels are planes.
template <Element E>
void store_planes(const OutputArgs& o, int64_t row, int64_t width, const float (*sums)[kLanes]) {
  alignas(64) float tile[kLanes][kTile * kRun];  // channel, column
  for (int64_t x = 0; x < width; x += 16) {
    const __mmask16 mask = lanes16(width - x);
    __m512i v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(sums[x + i]);
    transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i >= o.channels) break;
      const int64_t at = row * o.row_stride + i * o.channel_stride + x;
      const __m512 done = finish<E>(o, at, _mm512_castsi512_ps(v[i]), mask);
      if (o.function == nullptr) {
        store<E>(o.dst + at * gemm::Load<E>::kBytes, mask, done);
      } else {
        _mm512_store_ps(&tile[i][x], done);
      }
    }
  }
  if (o.function != nullptr) {
    o.function(o.buffers, o.image, o.out_channel, o.channels, o.pixel + row * o.image_width, width,
               tile[0], kTile * kRun);
  }
}

// The same where the channels of a pixel are neighbours.
template <Element E>
void store_pixels(const OutputArgs& o, int64_t row, int64_t width, float (*sums)[kLanes]) {
  const __mmask16 mask = lanes16(o.channels);
  for (int64_t x = 0; x < width; ++x) {
    const int64_t at = row * o.row_stride + x * o.col_stride;
    const __m512 done = finish<E>(o, at, _mm512_load_ps(sums[x]), mask);
    if (o.function == nullptr) {
      store<E>(o.dst + at * gemm::Load<E>::kBytes, mask, done);
    } else {
      _mm512_store_ps(sums[x], done);
    }
  }
  if (o.function != nullptr) {
    o.function(o.buffers, o.image, o.pixel + row * o.image_width, width, o.out_channel, o.channels,
               sums[0], kLanes);
  }
}

template <Element E>
bool output_of(const OutputArgs& o) {
  alignas(64) float sums[kTile][kTile * kRun][kLanes];  // row, column, channel
  const __mmask16 lanes = lanes16(o.channels);
  const __m512 scale = o.scale ? _mm512_maskz_loadu_ps(lanes, o.scale) : all(1.0F);
  const __m512 shift = o.shift ? _mm512_maskz_loadu_ps(lanes, o.shift) : all(0.0F);
  const bool affine = o.scale != nullptr || o.shift != nullptr;
  __m512 nothing = _mm512_setzero_ps();  // stays zero as long as all sums are finite
  for (int64_t t = 0; t < o.tiles; ++t) {
    __m512 h[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) {
      __m512 m[6];
#pragma GCC unroll 6
      for (int c = 0; c < 6; ++c) {
        m[c] = _mm512_loadu_ps(o.src + t * kPanel + (6 * r + c) * o.frequency_stride);
      }
      results(m, h[r]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512 m[6] = {h[0][c], h[1][c], h[2][c], h[3][c], h[4][c], h[5][c]};
      __m512 y[4];
      results(m, y);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        nothing = _mm512_fmadd_ps(y[r], _mm512_setzero_ps(), nothing);
        if (affine) y[r] = _mm512_fmadd_ps(y[r], scale, shift);
        _mm512_store_ps(sums[r][kTile * t + c], y[r]);
      }
    }
  }
  const int64_t height = o.height < kTile ? o.height : kTile;
  const int64_t width = o.width < kTile * o.tiles ? o.width : kTile * o.tiles;
  for (int64_t r = 0; r < height; ++r) {
    if (o.col_stride == 1) {
      store_planes<E>(o, r, width, sums[r]);
    } else {
      store_pixels<E>(o, r, width, sums[r]);
    }
  }
  return _mm512_cmp_ps_mask(nothing, _mm512_setzero_ps(), _CMP_EQ_OQ) == 0xffff;
}

bool output(const OutputArgs& o) {
  TN_BY_ELEMENT(o.element, output_of, o)
  return false;
}

}  // namespace

const Winograd* winograd_avx512() {
  static const Winograd table{&filter, &input, &multiply, &output};
  return gemm::host_has_avx512() ? &table : nullptr;
}

}  // namespace torch_neuronx::conv
