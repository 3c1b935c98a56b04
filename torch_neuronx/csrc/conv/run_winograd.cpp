#include "conv/run_winograd.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "gemm/methods.h"
#include "gemm/scratch.h"

namespace torch_neuronx::conv {
namespace {

using gemm::for_tasks;
using gemm::Slot;

// Tiles handled together: their values and sums (9 KiB each per tile and 64 channels) should stay
// in a second cache of 1 MiB, beside the filters of a frequency.
constexpr int64_t kBlock = 7 * kRowTiles;
// Filters up to this size are read again for every block of tiles by the thread that made the
// block's values; larger ones would come from memory every time, so then all values are made first
// and a thread takes a panel of filters through as many blocks as it can.
constexpr size_t kSmallFilters = size_t(4) << 20;
constexpr size_t kMaxValues = size_t(16) << 20;  // of all blocks whose values are made first

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

float* scratch(Slot slot, int64_t floats) {
  return reinterpret_cast<float*>(gemm::scratch(slot, size_t(floats) * sizeof(float)));
}

struct Driver {
  const Winograd& steps;
  const Problem& p;
  int64_t size;                     // bytes of an element
  int64_t tiles_h, tiles_w, tiles;  // tiles of an image, and of all images
  int64_t groups, panels;           // of input channels, of output channels
  int64_t row;                      // floats from a tile's values to the next one's
  bool by_blocks;                   // see run_by_blocks and run_by_panels
  int64_t block;                    // tiles of a block
  int64_t blocks;
  bool parallel;

  explicit Driver(const Problem& problem)
      : steps(*winograd()),
        p(problem),
        size(gemm::element_size(p.element)),
        tiles_h(ceil_div(p.out_height, kTile)),
        tiles_w(ceil_div(p.out_width, kTile)),
        tiles(p.images * tiles_h * tiles_w),
        groups(ceil_div(p.channels, kLanes)),
        panels(ceil_div(p.outs, kPanel)),
        row(groups * kLanes % 256 == 0 ? groups * kLanes + kLanes : groups * kLanes),
        by_blocks(Filters::bytes_of(p.outs, p.channels) <= kSmallFilters &&
                  tiles >= 2 * at::get_num_threads() * kBlock),
        block(round_up(ceil_div(tiles, wanted_blocks()), kRowTiles)),
        blocks(ceil_div(tiles, block)),
        parallel(
            gemm::worth_threads(double(kFrequencies * tiles) * double(p.channels * p.outs), 0)) {}

  // Blocks of about equal size. Where panels do not give work to all threads, blocks must.
  int64_t wanted_blocks() const {
    const int64_t least = ceil_div(tiles, kBlock);
    return by_blocks ? least : std::max(least, ceil_div(2 * at::get_num_threads(), panels));
  }

  int64_t first(int64_t b) const { return b * block; }
  int64_t last(int64_t b) const { return std::min(tiles, (b + 1) * block); }
  int64_t values_frequency() const { return block * row + kLanes; }
  int64_t values_block() const { return kFrequencies * values_frequency(); }
  int64_t sums_frequency() const { return block * kPanel + kLanes; }

  // fn(image, row of tiles, first tile in it, count, first tile in the block) for each run of
  // neighbouring tiles of block `b`.
  template <class Fn>
  void for_runs(int64_t b, const Fn& fn) const {
    for (int64_t t = first(b); t < last(b);) {
      const int64_t strip = t / tiles_w, x = t % tiles_w;
      const int64_t count = std::min({kRun, tiles_w - x, last(b) - t});
      fn(strip / tiles_h, strip % tiles_h, x, count, t - first(b));
      t += count;
    }
  }

  void filter(int64_t panel, int64_t c0, int64_t c1, float* dst) const {
    const int64_t o = panel * kPanel;
    steps.filter({.element = p.element,
                  .src = p.weight + (o * p.filter.image + c0 * p.filter.channel) * size,
                  .out_stride = p.filter.image,
                  .in_stride = p.filter.channel,
                  .row_stride = p.filter.row,
                  .col_stride = p.filter.col,
                  .outs = std::min(kPanel, p.outs - o),
                  .channels = c1 - c0,
                  .dst = dst + c0 * kPanel,
                  .frequency_stride = Filters::frequency_stride(p.channels)});
  }

  // All filters, on all threads.
  void filter_all(float* dst) const {
    for_tasks(panels * groups, parallel, [&](int64_t t) {
      const int64_t panel = t / groups, c = t % groups * kLanes;
      filter(panel, c, std::min(c + kLanes, p.channels),
             dst + panel * Filters::panel_stride(p.channels));
    });
  }

  void input(int64_t b, int64_t group, float* values) const {
    const int64_t c = group * kLanes;
    for_runs(b, [&](int64_t n, int64_t ty, int64_t tx, int64_t count, int64_t at) {
      const int64_t top = ty * kTile - p.pad_h, left = tx * kTile - p.pad_w;
      const int64_t from = n * p.in.image + c * p.in.channel + top * p.in.row + left * p.in.col;
      steps.input({.element = p.element,
                   .src = p.input + from * size,
                   .channel_stride = p.in.channel,
                   .row_stride = p.in.row,
                   .col_stride = p.in.col,
                   .top = top,
                   .left = left,
                   .height = p.height,
                   .width = p.width,
                   .channels = std::min(kLanes, p.channels - c),
                   .tiles = count,
                   .dst = values + at * row + c,
                   .frequency_stride = values_frequency(),
                   .tile_stride = row});
    });
  }

  bool output(int64_t b, int64_t panel, const float* values, const float* filters) const {
    const int64_t o0 = panel * kPanel, outs = std::min(kPanel, p.outs - o0);
    float* sums = scratch(Slot::kConvSums, kFrequencies * sums_frequency());
    for (int64_t f = 0; f < kFrequencies; ++f) {
      steps.multiply({values + f * values_frequency(), row,
                      filters + f * Filters::frequency_stride(p.channels),
                      sums + f * sums_frequency(), last(b) - first(b), outs, p.channels});
    }
    bool finite = true;
    for_runs(b, [&](int64_t n, int64_t ty, int64_t tx, int64_t count, int64_t at) {
      const int64_t y = ty * kTile, x = tx * kTile;
      for (int64_t l = 0; l < outs; l += kLanes) {
        const int64_t o = o0 + l;
        const int64_t to = n * p.to.image + o * p.to.channel + y * p.to.row + x * p.to.col;
        finite &=
            steps.output({.src = sums + at * kPanel + l,
                          .frequency_stride = sums_frequency(),
                          .channels = std::min(kLanes, outs - l),
                          .tiles = count,
                          .height = p.out_height - y,
                          .width = p.out_width - x,
                          .element = p.element,
                          .dst = p.out == nullptr ? nullptr : p.out + to * size,
                          .channel_stride = p.to.channel,
                          .row_stride = p.to.row,
                          .col_stride = p.to.col,
                          .scale = p.scale == nullptr ? nullptr : p.scale + o,
                          .shift = p.shift == nullptr ? nullptr : p.shift + o,
                          .residual = p.residual == nullptr ? nullptr : p.residual + to * size,
                          .relu = p.relu,
                          .function = p.function,
                          .buffers = p.buffers,
                          .image = n,
                          .out_channel = o,
                          .pixel = y * p.out_width + x,
                          .image_width = p.out_width});
      }
    });
    return finite;
  }

  // A thread makes the values of a block and uses them at once.
  bool run_by_blocks(const float* filters) const {
    std::atomic<bool> finite{true};
    for_tasks(blocks, parallel, [&](int64_t b) {
      float* values = scratch(Slot::kConvValues, values_block());
      for (int64_t g = 0; g < groups; ++g) input(b, g, values);
      for (int64_t j = 0; j < panels; ++j) {
        if (!output(b, j, values, filters + j * Filters::panel_stride(p.channels))) finite = false;
      }
    });
    return finite;
  }

  // The values of blocks [b0, b1) first, then panel by panel. Without filters each thread
  // transforms the panel it works on.
  bool run_by_panels(int64_t b0, int64_t b1, const float* filters) const {
    float* values = scratch(Slot::kConvValues, (b1 - b0) * values_block());
    for_tasks((b1 - b0) * groups, parallel, [&](int64_t t) {
      const int64_t b = t / groups;
      input(b0 + b, t % groups, values + b * values_block());
    });
    std::atomic<bool> finite{true};
    const auto one = [&](int64_t b, int64_t j, const float* panel) {
      if (!output(b0 + b, j, values + b * values_block(), panel)) finite = false;
    };
    const int64_t stride = Filters::panel_stride(p.channels);
    if (filters != nullptr) {
      for_tasks((b1 - b0) * panels, parallel, [&](int64_t t) {
        const int64_t j = t / (b1 - b0);
        one(t % (b1 - b0), j, filters + j * stride);
      });
    } else {
      for_tasks(panels, parallel, [&](int64_t j) {
        float* panel = scratch(Slot::kConvFilters, stride);
        filter(j, 0, p.channels, panel);
        for (int64_t b = 0; b < b1 - b0; ++b) one(b, j, panel);
      });
    }
    return finite;
  }
};

}  // namespace

size_t Filters::bytes_of(int64_t outs, int64_t channels) {
  return size_t(ceil_div(outs, kPanel) * panel_stride(channels)) * sizeof(float);
}

Filters::Filters(int64_t outs, int64_t channels)
    : bytes_(bytes_of(outs, channels)), data_(static_cast<float*>(std::aligned_alloc(64, bytes_))) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Filters::~Filters() { std::free(data_); }

std::shared_ptr<const Filters> transform_filters(const Problem& p) {
  auto filters = std::make_shared<Filters>(p.outs, p.channels);
  Driver(p).filter_all(filters->data());
  return filters;
}

bool run_winograd(const Problem& p, const Filters* kept) {
  const Driver d(p);
  const int64_t threads = at::get_num_threads();
  const float* filters = kept == nullptr ? nullptr : kept->data();
  if (filters == nullptr && (d.by_blocks || d.panels < 2 * threads)) {
    float* own = scratch(Slot::kConvFilters, d.panels * Filters::panel_stride(p.channels));
    d.filter_all(own);
    filters = own;
  }
  if (d.by_blocks) return d.run_by_blocks(filters);
  const int64_t batch =
      std::clamp<int64_t>(int64_t(kMaxValues / sizeof(float)) / d.values_block(), 1, d.blocks);
  bool finite = true;
  for (int64_t b = 0; b < d.blocks; b += batch) {
    finite &= d.run_by_panels(b, std::min(d.blocks, b + batch), filters);
  }
  return finite;
}

}  // namespace torch_neuronx::conv
