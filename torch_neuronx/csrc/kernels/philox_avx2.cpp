#define TN_ISA avx2
#include "kernels/philox_impl.h"
