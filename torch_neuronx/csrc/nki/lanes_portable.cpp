#define TN_ISA portable
#include "nki/lanes_impl.h"
