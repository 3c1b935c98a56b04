#define TN_ISA avx2
#include "kernels/multi_tensor_impl.h"
