#define TN_ISA portable
#include "distributed/reduce_impl.h"
