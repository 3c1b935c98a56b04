#define TN_ISA portable
#include "kernels/norm_impl.h"
