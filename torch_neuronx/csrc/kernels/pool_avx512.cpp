#define TN_ISA avx512
#include "kernels/pool_impl.h"
