#define TN_ISA avx512
#include "nki/lanes_impl.h"
