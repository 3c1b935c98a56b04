#define TN_ISA avx2
#include "distributed/reduce_impl.h"
