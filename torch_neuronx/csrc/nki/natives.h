// The natives that are not in the table of lanes.h.
#pragma once

#include "nki/native.h"

namespace torch_neuronx::nki {

bool shuffle(char* const* slots, const int64_t* params, Fault& fault);
bool sequence_bounds(char* const* slots, const int64_t* params, Fault& fault);
bool nonzero_with_count(char* const* slots, const int64_t* params, Fault& fault);
bool topk(char* const* slots, const int64_t* params, Fault& fault);
bool seed(char* const* slots, const int64_t* params, Fault& fault);

}  // namespace torch_neuronx::nki
