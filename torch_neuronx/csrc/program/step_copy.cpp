#include <ATen/ops/copy.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "kernels/parallel.h"
#include "program/steps.h"

namespace torch_neuronx::program {
namespace {

constexpr int64_t kCopyChunk = 256 << 10;  // bytes

// Bits are copied, so any type of the same size does; integers keep every bit.
at::ScalarType bits_of(int64_t itemsize) {
  switch (itemsize) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    case 8:
      return at::kLong;
    default:
      return at::kComplexDouble;
  }
}

// Both sides visit one dense range of memory in the same order.
bool same_dense(const Geometry& a, const Geometry& b) {
  if (a.contiguous && b.contiguous) return true;
  if (!a.dense || !b.dense || a.low != 0 || b.low != 0) return false;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

}  // namespace

void copy_view(char* out, const Geometry& to, const char* src, const Geometry& from) {
  if (to.numel == 0 || (out == src && to.strides == from.strides)) return;
  if (same_dense(to, from)) {
    const int64_t bytes = to.numel * to.itemsize();
    kernels::parallel_chunks(bytes, kCopyChunk, [&](int64_t begin, int64_t end) {
      // Views may overlap; chunks of one view never do.
      std::memmove(out + begin, src + begin, static_cast<size_t>(end - begin));
    });
    return;
  }
  const auto options = at::TensorOptions().dtype(bits_of(to.itemsize()));
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor target = at::from_blob(out, to.sizes, to.strides, options);
  target.copy_(at::from_blob(const_cast<char*>(src), from.sizes, from.strides, options));
}

void CopyStep::run(Frame& frame) const {
  frame.ensure(out.buffer);
  copy_view(frame.at(out), out.geometry, frame.at(src), src.geometry);
}

}  // namespace torch_neuronx::program
