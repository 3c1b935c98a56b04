// Loop kernels: machine code over a range of items, split in small chunks over ATen's threads.
#include <c10/util/SmallVector.h>

#include <cstring>

#include "gemm/scratch.h"
#include "kernels/parallel.h"
#include "program/steps.h"

namespace torch_neuronx::program {

void resolve(const Frame& frame, const Operands& operands, void** pointers) {
  for (const Operand& operand : operands) *pointers++ = frame.at(operand.buffer, operand.offset);
}

void LoopStep::run(Frame& frame) const {
  for (const Operand& operand : operands) {
    if (operand.written) frame.ensure(operand.buffer);
  }
  c10::SmallVector<void*, 16> pointers(operands.size());
  resolve(frame, operands, pointers.data());
  for (const Note& note : notes) {
    std::memset(static_cast<char*>(pointers[note.operand]) + note.offset, 0,
                static_cast<size_t>(note.bytes));
  }
  kernels::parallel_chunks(items, grain, [&](int64_t begin, int64_t end) {
    void* scratch = scratch_bytes == 0 ? nullptr
                                       : gemm::scratch(gemm::Slot::kLoopKernel,
                                                       static_cast<size_t>(scratch_bytes));
    function(pointers.data(), begin, end, scratch);
  });
}

}  // namespace torch_neuronx::program
