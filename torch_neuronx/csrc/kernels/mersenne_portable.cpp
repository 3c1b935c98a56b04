#define TN_ISA portable
#include "kernels/mersenne_impl.h"
