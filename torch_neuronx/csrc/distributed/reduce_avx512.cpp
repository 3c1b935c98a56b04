#define TN_ISA avx512
#include "distributed/reduce_impl.h"
