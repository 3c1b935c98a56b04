#define TN_ISA avx2
#include "nki/lanes_impl.h"
