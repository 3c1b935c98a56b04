#define TN_ISA avx2
#include "kernels/mersenne_impl.h"
