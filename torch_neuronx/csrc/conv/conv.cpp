#include "conv/conv.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include "conv/call.h"
#include "conv/run_winograd.h"
#include "gemm/aten_gemm.h"
#include "gemm/methods.h"
#include "gemm/probe.h"
#include "kernels/isa.h"

namespace torch_neuronx::conv {
namespace {

bool enabled() {
  static const bool enabled = [] {
    const char* text = std::getenv("TORCH_NEURONX_CONV_KERNELS");
    if (text == nullptr || *text == '\0' || std::strcmp(text, "auto") == 0) return true;
    TORCH_CHECK(std::strcmp(text, "none") == 0,
                "TORCH_NEURONX_CONV_KERNELS must be auto or none, got \"", text, "\"");
    return false;
  }();
  return enabled;
}

bool readable(const at::Tensor& t, int64_t dims, at::ScalarType dtype) {
  return t.dim() == dims && t.layout() == at::kStrided && t.scalar_type() == dtype && !t.is_neg() &&
         t.has_storage() && t.numel() > 0;
}

// Absent, or one number per channel.
bool per_channel(const at::Tensor& t, int64_t channels, at::ScalarType dtype) {
  return !t.defined() || (readable(t, 1, dtype) && t.size(0) == channels && t.is_contiguous());
}

bool same_storage(const at::Tensor& x, const at::Tensor& y) {
  return x.defined() && x.storage().unsafeGetStorageImpl() == y.storage().unsafeGetStorageImpl();
}

bool columns_or_channels_are_neighbours(const at::Tensor& t) {
  return t.size(3) == 1 || t.stride(3) == 1 || t.size(1) == 1 || t.stride(1) == 1;
}

bool has_values_of_ours(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// A convolution over images that slides by one.
bool plain(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
           at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  const at::ScalarType dtype = input.scalar_type();
  return has_values_of_ours(dtype) && readable(input, 4, dtype) && readable(weight, 4, dtype) &&
         groups == 1 && stride.equals({1, 1}) && dilation.equals({1, 1}) && padding.size() == 2 &&
         padding[0] >= 0 && padding[1] >= 0 && weight.size(1) == input.size(1);
}

// Operands that fit together, without gaps that our methods have no code for.
bool usable(const Call& c) {
  const at::ScalarType dtype = c.input.scalar_type();
  if (!plain(c.input, c.weight, c.stride, c.padding, c.dilation, c.groups) ||
      !readable(c.out, 4, dtype)) {
    return false;
  }
  const int64_t outs = c.weight.size(0);
  if (c.out.size(0) != c.input.size(0) || c.out.size(1) != outs) return false;
  for (const int64_t d : {0, 1}) {
    if (c.out.size(2 + d) != c.input.size(2 + d) + 2 * c.padding[d] - c.weight.size(2 + d) + 1) {
      return false;
    }
  }
  // An affine epilogue may be more precise than the tensors.
  const at::Tensor& scale = c.epilogue.scale;
  const bool affine = scale.defined() && per_channel(scale, outs, at::kFloat) &&
                      per_channel(c.bias, outs, at::kFloat);
  if (!affine && (!per_channel(c.bias, outs, dtype) || !per_channel(scale, outs, dtype))) {
    return false;
  }
  const at::Tensor& residual = c.epilogue.residual;
  if (residual.defined() && (!readable(residual, 4, dtype) || residual.sizes() != c.out.sizes() ||
                             residual.strides() != c.out.strides())) {
    return false;
  }
  for (const at::Tensor* t : {&c.input, &c.weight, &c.bias, &c.epilogue.scale, &residual}) {
    if (same_storage(*t, c.out)) return false;
  }
  return c.out.is_non_overlapping_and_dense() && columns_or_channels_are_neighbours(c.out) &&
         columns_or_channels_are_neighbours(c.input);
}

// Rows and columns of the images are as good as one dimension.
bool pixels_in_a_row(const at::Tensor& t) {
  return (t.size(3) == 1 || t.stride(3) == 1) && (t.size(2) == 1 || t.stride(2) == t.size(3));
}

// A convolution with 1 x 1 filters as a matrix product: for every image, filters times planes; or,
// if channels are last, pixels of all images times filters.
std::optional<gemm::Problem> product_of(const Call& c) {
  const int64_t images = c.input.size(0), channels = c.input.size(1), outs = c.out.size(1);
  const int64_t pixels = c.out.size(2) * c.out.size(3);
  const int64_t by_out = c.weight.stride(0), by_channel = c.weight.stride(1);
  const auto beta = c.bias.defined() ? 1 : 0;
  // First, since it also holds for images of one pixel, which then are rows of one product.
  const auto channels_last = [](const at::Tensor& t) {
    return t.is_contiguous(at::MemoryFormat::ChannelsLast);
  };
  if (channels_last(c.input) && channels_last(c.out)) {
    const auto rows = [&](const at::Tensor& t) {
      return view(t, {images * pixels, t.size(1)}, {t.size(1), 1});
    };
    return gemm::problem_of(rows(c.out), host(c.bias), rows(c.input),
                            view(c.weight, {channels, outs}, {by_channel, by_out}), beta, 1);
  }
  if (!pixels_in_a_row(c.input) || !pixels_in_a_row(c.out)) return {};
  const auto planes = [&](const at::Tensor& t) {
    return view(t, {images, t.size(1), pixels}, {t.stride(0), t.stride(1), 1});
  };
  return gemm::problem_of(planes(c.out), beta == 0 ? c.bias : view(c.bias, {outs, 1}, {1, 1}),
                          view(c.weight, {images, outs, channels}, {0, by_out, by_channel}),
                          planes(c.input), beta, 1);
}

// The same where a function of the caller's takes the results, in whichever order it wants them.
std::optional<gemm::Problem> product_for_function(const Call& c) {
  const at::Tensor& x = c.input;
  const int64_t height = x.size(2), width = x.size(3);
  if (height > 1 && width > 1 && x.stride(2) != width * x.stride(3)) return {};
  const int64_t channels = x.size(1), outs = c.out.size(1), pixels = height * width;
  const int64_t by_pixel = x.stride(width > 1 ? 3 : 2);
  const int64_t by_out = c.weight.stride(0), by_channel = c.weight.stride(1);
  gemm::Problem p;
  p.dtype = x.scalar_type();
  p.batch = x.size(0);
  p.k = channels;
  if (c.epilogue.last) {
    p.m = pixels;
    p.n = outs;
    p.a = {x.const_data_ptr(), pixels, channels, by_pixel, x.stride(1)};
    p.b = {c.weight.const_data_ptr(), channels, outs, by_channel, by_out};
    p.a_batch_stride = x.stride(0);
  } else {
    p.m = outs;
    p.n = pixels;
    p.a = {c.weight.const_data_ptr(), outs, channels, by_out, by_channel};
    p.b = {x.const_data_ptr(), channels, pixels, x.stride(1), by_pixel};
    p.b_batch_stride = x.stride(0);
  }
  p.epilogue.function = c.epilogue.function;
  p.epilogue.buffers = c.epilogue.buffers;
  return p;
}

bool filters_are(const at::Tensor& weight, int64_t side) {
  return weight.size(2) == side && weight.size(3) == side;
}

bool applicable(Method method, const Call& c) {
  if (!usable(c)) return false;
  switch (method) {
    case Method::kWinograd:
      return filters_are(c.weight, 3) && winograd() != nullptr;
    case Method::kProduct:
      return filters_are(c.weight, 1) && c.padding[0] == 0 && c.padding[1] == 0 &&
             gemm::has_kernels(c.out.scalar_type()) &&
             (c.epilogue.only_function() && !c.bias.defined()
                  ? product_for_function(c).has_value()
                  : c.epilogue.empty() && product_of(c).has_value());
    case Method::kAten:
      break;
  }
  return false;
}

// `scale` and `bias`: those of the call as float32.
Problem winograd_problem(const Call& c, const at::Tensor& scale, const at::Tensor& bias) {
  const Epilogue& e = c.epilogue;
  const auto bytes = [](const at::Tensor& t) {
    return t.defined() ? static_cast<const char*>(t.const_data_ptr()) : nullptr;
  };
  const auto floats = [](const at::Tensor& t) {
    return t.defined() ? t.const_data_ptr<float>() : nullptr;
  };
  const bool stores = e.function == nullptr;
  Problem p;
  p.element = gemm::element_of(c.out.scalar_type());
  p.images = c.input.size(0);
  p.channels = c.input.size(1);
  p.height = c.input.size(2);
  p.width = c.input.size(3);
  p.outs = c.out.size(1);
  p.out_height = c.out.size(2);
  p.out_width = c.out.size(3);
  p.pad_h = c.padding[0];
  p.pad_w = c.padding[1];
  p.input = bytes(c.input);
  p.in = strides_of(c.input);
  p.weight = bytes(c.weight);
  p.filter = {c.weight.stride(0), c.weight.stride(1), c.weight.stride(2), c.weight.stride(3)};
  p.out = stores ? static_cast<char*>(c.out.mutable_data_ptr()) : nullptr;
  p.to = stores ? strides_of(c.out) : e.strides(p.outs, p.out_height, p.out_width);
  p.scale = floats(scale);
  p.shift = floats(bias);
  p.residual = bytes(e.residual);
  p.relu = e.relu;
  p.function = e.function;
  p.buffers = e.buffers;
  return p;
}

gemm::PackedKey key_of(const at::Tensor& weight) {
  gemm::PackedKey key;
  key.kind = gemm::PackedKey::Kind::kWinograd;
  key.dtype = weight.scalar_type();
  key.data = weight.const_data_ptr();
  std::copy_n(weight.sizes().begin(), 4, key.sizes);
  std::copy_n(weight.strides().begin(), 4, key.strides);
  return key;
}

void run_winograd(const Call& c, uint64_t generation) {
  const at::Tensor scale = as_float(c.epilogue.scale), bias = as_float(c.bias);
  const Problem p = winograd_problem(c, scale, bias);
  std::shared_ptr<const gemm::Packed> kept;
  gemm::PackedCache& cache = gemm::PackedCache::instance();
  if (generation != 0 && Filters::bytes_of(p.outs, p.channels) <= cache.byte_limit()) {
    kept = cache.find(key_of(c.weight), generation, [&] { return transform_filters(p); });
  }
  // A number that is not finite spreads over a whole tile, which it does not in a plain sum.
  if (!run_winograd(p, static_cast<const Filters*>(kept.get()))) run_aten(c);
}

// With more rows than this, rearranging the filters anew costs next to nothing.
constexpr int64_t kMaxRowsForCache = 1024;

bool run_product(const Call& c, uint64_t generation, bool only_if_faster) {
  if (c.epilogue.function != nullptr) {
    const gemm::Problem p = *product_for_function(c);
    return gemm::run_if_faster(p, c.epilogue.last ? generation : 0);
  }
  gemm::Problem p = *product_of(c);
  const gemm::Method method = gemm::choose(gemm::normalised(p));
  if (method == gemm::Method::kAten && only_if_faster) return false;
  if (generation != 0 && method == gemm::Method::kPanel && p.batch == 1 && p.n > 1 &&
      p.b.data == c.weight.const_data_ptr() && p.m <= kMaxRowsForCache) {
    p.packed_b = gemm::PackedCache::instance().find(p, generation);
  }
  gemm::run_with(p, method == gemm::Method::kAten ? gemm::Method::kPanel : method);
  return true;
}

// The processor multiplies twice as many numbers of this dtype at once as float32, so that ATen's
// kernels are faster than those for float32, and we have less to gain.
bool twice_as_fast(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return kernels::may_use_avx512bf16();
  return dtype == at::kHalf && kernels::may_use_avx512fp16();
}

// Whether Winograd's method is faster even if the filters must be transformed in every call. The
// numbers come from benchmarks/conv.py; see docs/convolution.md.
bool winograd_pays(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef padding) {
  constexpr int64_t kLeastChannels = 16;  // fewer leave lanes empty
  const at::ScalarType dtype = input.scalar_type();
  // Nothing beats matrix tiles, ours for bfloat16 and ATen's.
  if (kernels::may_use_amx() && dtype != at::kFloat) return false;
  const bool fast_rival = twice_as_fast(dtype);
  const int64_t least_tiles =
      fast_rival ? 64 : 4;  // fewer do not repay the filters' transformation
  const double least_saving = fast_rival ? 3.0 : 1.5;
  const int64_t height = input.size(2) + 2 * padding[0] - 2;
  const int64_t width = input.size(3) + 2 * padding[1] - 2;
  if (input.size(1) < kLeastChannels || weight.size(0) < kLeastChannels || height < 1 ||
      width < 1) {
    return false;
  }
  const int64_t tiles = ((height + kTile - 1) / kTile) * ((width + kTile - 1) / kTile);
  // Multiplications of a plain sum over ours, where tiles overhang the image.
  const double saving = 9.0 * double(height * width) / double(kFrequencies * tiles);
  return saving >= least_saving && input.size(0) * tiles >= least_tiles;
}

Method choose(const Call& c) {
  if (!enabled()) return Method::kAten;
  if (applicable(Method::kWinograd, c) && winograd_pays(c.input, c.weight, c.padding)) {
    return Method::kWinograd;
  }
  if (applicable(Method::kProduct, c) &&
      (c.epilogue.function != nullptr || gemm::supported(*product_of(c)))) {
    return Method::kProduct;
  }
  return Method::kAten;
}

}  // namespace

const char* method_name(Method method) {
  switch (method) {
    case Method::kAten:
      return "aten";
    case Method::kWinograd:
      return "winograd";
    case Method::kProduct:
      return "product";
  }
  return "?";
}

bool worth_trying(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  return enabled() && plain(input, weight, stride, padding, dilation, groups) &&
         (filters_are(weight, 1) ||
          (filters_are(weight, 3) && winograd_pays(input, weight, padding)));
}

Method choose_conv2d(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                     const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue) {
  return choose({out, input, weight, bias, stride, padding, dilation, groups, epilogue});
}

bool try_conv2d(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue,
                uint64_t generation) {
  const Call c{out, input, weight, bias, stride, padding, dilation, groups, epilogue};
  switch (choose(c)) {
    case Method::kAten:
      return false;
    case Method::kWinograd:
      run_winograd(c, generation);
      return true;
    case Method::kProduct:
      return run_product(c, generation, true);
  }
  return false;
}

void conv2d_by_aten(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                    at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue) {
  run_aten({out, input, weight, bias, stride, padding, dilation, groups, epilogue});
}

bool conv2d_with(Method method, const at::Tensor& out, const at::Tensor& input,
                 const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                 const Epilogue& epilogue, uint64_t generation) {
  const Call c{out, input, weight, bias, stride, padding, dilation, groups, epilogue};
  if (!applicable(method, c)) return false;
  if (method == Method::kProduct) return run_product(c, generation, false);
  run_winograd(c, generation);
  return true;
}

}  // namespace torch_neuronx::conv
