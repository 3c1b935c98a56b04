#define TN_ISA portable
#include "kernels/philox_impl.h"
