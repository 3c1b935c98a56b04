#include "memory/overlap.h"

#include <algorithm>

namespace torch_neuronx {
namespace {

struct Extent {
  const c10::StorageImpl* storage;
  int64_t begin, end;  // bytes
  int64_t number;
};

}  // namespace

std::vector<std::pair<int64_t, int64_t>> overlapping(const std::vector<at::Tensor>& tensors) {
  std::vector<Extent> extents;
  extents.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& x = tensors[i];
    if (!x.defined() || x.layout() != c10::kStrided || !x.has_storage()) continue;
    if (x.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || x.numel() == 0) continue;
    int64_t last = x.storage_offset();
    for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
    const auto bytes = static_cast<int64_t>(x.element_size());
    extents.push_back({x.storage().unsafeGetStorageImpl(), x.storage_offset() * bytes,
                       (last + 1) * bytes, static_cast<int64_t>(i)});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.storage != b.storage ? a.storage < b.storage : a.begin < b.begin;
  });
  std::vector<std::pair<int64_t, int64_t>> found;
  for (size_t i = 0, next = 0; i < extents.size(); i = next) {
    int64_t end = extents[i].end, first = extents[i].number;
    for (next = i + 1; next < extents.size() && extents[next].storage == extents[i].storage &&
                       extents[next].begin < end;
         ++next) {
      end = std::max(end, extents[next].end);
      first = std::min(first, extents[next].number);
    }
    if (next == i + 1) continue;
    for (size_t j = i; j < next; ++j) found.emplace_back(extents[j].number, first);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace torch_neuronx
