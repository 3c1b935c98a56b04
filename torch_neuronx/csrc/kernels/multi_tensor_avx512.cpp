#define TN_ISA avx512
#include "kernels/multi_tensor_impl.h"
