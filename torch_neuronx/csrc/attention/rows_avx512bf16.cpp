// Row kernels whose results are operands of bfloat16 pairs. The conversion instruction counts
// subnormals as zero, as the product that follows does.
#define TN_ISA avx512bf16
#include "attention/rows_impl.h"
#include "gemm/kernels.h"

namespace torch_neuronx::attention {
namespace {

TN_INLINE __m256i narrow(vf x) { return (__m256i)_mm512_cvtneps_pbh(x); }

struct OperandPairs {
  static constexpr int kRows = 2;
  static TN_INLINE vf exp2(vf x) { return exp2_rough<BF16>(max2(splat(-155.0f), x)); }
  static TN_INLINE void store_row(float* row, int64_t col, vf x) {
    _mm256_storeu_si256((__m256i*)((char*)row + 2 * col), narrow(x));
  }
  // Lanes of the first row in the low halves, as gemm's pack_b of row-major pairs has them.
  static TN_INLINE __m512i interleaved(__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
  static TN_INLINE void store_pairs(const GradientArgs& args, int64_t row, int64_t col, Pair first,
                                    Pair second, bool paired) {
    const int64_t to = row / 2 * args.block.row + col;
    _mm512_store_si512(args.p_pairs + to, interleaved(narrow(first.a), narrow(second.a)));
    const __m256i low = narrow(first.b), high = narrow(second.b);
    _mm512_store_si512(args.ds_pairs + to, interleaved(low, high));
    uint32_t* rows = args.ds_rows + row * args.pairs_row + col / 2;
    _mm256_storeu_si256((__m256i*)rows, low);
    if (paired) _mm256_storeu_si256((__m256i*)(rows + args.pairs_row), high);
  }
};

}  // namespace

const RowKernels* rows_avx512bf16() {
  const RowKernels* base = rows_avx512();
  if (base == nullptr || !gemm::host_has_avx512bf16()) return nullptr;
  static const RowKernels kernels{&softmax<OperandPairs>,
                                  &gradient<OperandPairs>,
                                  base->scale,
                                  base->finish,
                                  base->dots,
                                  base->outer,
                                  base->store};
  return &kernels;
}

}  // namespace torch_neuronx::attention
