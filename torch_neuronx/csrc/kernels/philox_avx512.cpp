#define TN_ISA avx512
#include "kernels/philox_impl.h"
