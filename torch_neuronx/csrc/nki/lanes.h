// The natives that run many partitions at once in the lanes of a vector.
#pragma once

#include "kernels/isa.h"
#include "nki/rows.h"

namespace torch_neuronx::kernels {

struct NkiTable {
  nki::RowsFunction max8, find_index8, match_replace8, scan, cumulate, xorwow, gather;
  // See topk_impl.h.
  void (*select_largest)(uint16_t* keys, int64_t n, int64_t k, uint32_t* chosen);
};

TN_DECLARE_TABLES(NkiTable, nki_table)

}  // namespace torch_neuronx::kernels
