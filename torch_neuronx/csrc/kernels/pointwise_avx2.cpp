#define TN_ISA avx2
#include "kernels/pointwise_impl.h"
