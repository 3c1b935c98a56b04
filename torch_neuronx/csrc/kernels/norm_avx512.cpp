#define TN_ISA avx512
#include "kernels/norm_impl.h"
