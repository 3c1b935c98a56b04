#define TN_ISA portable
#include "kernels/multi_tensor_impl.h"
