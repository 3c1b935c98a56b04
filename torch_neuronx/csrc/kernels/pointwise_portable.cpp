#define TN_ISA portable
#include "kernels/pointwise_impl.h"
