#define TN_ISA avx2
#include "kernels/norm_impl.h"
