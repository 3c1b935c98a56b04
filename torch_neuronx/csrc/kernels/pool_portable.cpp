#define TN_ISA portable
#include "kernels/pool_impl.h"
