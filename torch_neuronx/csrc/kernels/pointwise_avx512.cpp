#define TN_ISA avx512
#include "kernels/pointwise_impl.h"
