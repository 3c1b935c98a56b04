#define TN_ISA avx512
#include "kernels/mersenne_impl.h"
