#define TN_ISA avx2
#include "kernels/pool_impl.h"
