// Included once per instruction set with TN_ISA defined.
#include "nki/gather_impl.h"
#include "nki/lanes.h"
#include "nki/random_impl.h"
#include "nki/scan_impl.h"
#include "nki/search_impl.h"
#include "nki/topk_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

const NkiTable& nki_table() {
  static const NkiTable table = {&max8,     &find_index8, &match_replace8, &scan,
                                 &cumulate, &xorwow,      &gather,         &select_largest};
  return table;
}

}  // namespace torch_neuronx::kernels::TN_ISA
