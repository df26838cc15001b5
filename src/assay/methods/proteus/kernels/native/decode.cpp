// Products and values of packed MUL-BAL tiles, for ctypes. No table: a value is computed from its window of the bits.
//
// Every entry point returns 0, or 1 for a number of bits that the format lacks.
// `instructions` is 0 portable, 1 AVX2, 2 AVX-512; `proteus_instructions` says what this processor has.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "avx2.hpp"
#include "avx512.hpp"
#include "format.hpp"
#include "pool.hpp"
#include "portable.hpp"

namespace {

constexpr float LARGEST = 127.0f;
constexpr float SMALLEST_MAXIMUM = 1e-30f;  // below it 127 / maximum leaves float32, and the block is nothing

const InstructionSet& instruction_set(int instructions) {
#if defined(__x86_64__)
  if (instructions == 2) return avx512::SET;
  if (instructions == 1) return avx2::SET;
#endif
  return portable::SET;
}

Code code_of(int window, uint32_t multiplier, uint32_t addend, int shift, uint32_t minus) {
  Code code{multiplier, addend, (1u << window) - 1, shift, {}};
  for (int byte = 0; byte < 4; ++byte) code.signs[byte] = minus >> byte & 1 ? -1 : 1;
  return code;
}

// The rows that a kernel takes at once: 1, 4 or, where it can, 8; the last ones are zeros.
int padded(int64_t rows, int most) {
  int padded = 1;
  while (padded < rows && padded < most) padded *= padded == 1 ? 4 : 2;
  return padded;
}

// Activations of `rows` rows as signed bytes with a scale for each tile column, in the order of the kernels.
struct Int8Activations {
  std::vector<uint32_t> first, second;
  std::vector<int32_t> start;
  std::vector<float> scale;
  std::vector<float> common;  // center * sum(x), for every row

  Int8Activations(const float* x, int64_t rows, int64_t column_tiles, int stride, const Code& code, bool magnitudes)
      : first(column_tiles * SIDE * stride),
        second(magnitudes ? first.size() : 0),
        start(column_tiles * stride),
        scale(column_tiles * stride),
        common(rows) {
    const int balance = code.signs[0] + code.signs[1] + code.signs[2] + code.signs[3];
    for (int64_t row = 0; row < rows; ++row) {
      double total = 0.0;
      for (int64_t j = 0; j < column_tiles; ++j) {
        const float* block = x + (row * column_tiles + j) * SIDE;
        int8_t quantized[SIDE];
        scale[j * stride + row] = quantize(block, quantized);
        int32_t sum = 0, correction = 0;
        for (int k = 0; k < SIDE; ++k) {
          total += block[k];
          sum += quantized[k];
          const int64_t at = (j * SIDE + k) * stride + row;
          if (magnitudes)
            correction += as_magnitude(quantized[k], code, first[at], second[at]);
          else
            first[at] = with_signs(quantized[k], code);
        }
        // Values are counted from the middle of their range, 127.5 a byte, so that what the rounding of activations
        // does to their sum isn't multiplied by a mean that `common` carries exactly.
        start[j * stride + row] = correction - balance * sum * 255 / 2;
      }
      common[row] = float(total * (127.5 * balance));
    }
  }

  static float quantize(const float* block, int8_t* quantized) {
    float largest = 0.0f;
    bool finite = true;
    for (int k = 0; k < SIDE; ++k) {
      const float magnitude = std::fabs(block[k]);
      finite &= magnitude <= std::numeric_limits<float>::max();
      largest = std::max(largest, magnitude);
    }
    const bool some = finite && largest >= SMALLEST_MAXIMUM;
    const float inverse = some ? LARGEST / largest : 0.0f;
    for (int k = 0; k < SIDE; ++k) quantized[k] = some ? int8_t(std::nearbyint(block[k] * inverse)) : int8_t(0);
    if (!finite) return std::numeric_limits<float>::quiet_NaN();
    return some ? largest / LARGEST : 0.0f;
  }

  static uint32_t with_signs(int8_t value, const Code& code) {
    uint32_t packed = 0;
    for (int byte = 0; byte < 4; ++byte) packed |= uint32_t(uint8_t(code.signs[byte] * value)) << (8 * byte);
    return packed;
  }

  static int32_t as_magnitude(int8_t value, const Code& code, uint32_t& magnitude, uint32_t& flip) {
    const int absolute = std::abs(int(value));
    int32_t correction = 0;
    magnitude = 0x01010101u * uint32_t(absolute);
    flip = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const bool negative = code.signs[byte] * value < 0;
      flip |= (negative ? 0x7Fu : 0x80u) << (8 * byte);
      correction += negative ? -127 * absolute : 128 * absolute;
    }
    return correction;
  }
};

}  // namespace

extern "C" {

int proteus_instructions() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (avx512::available()) return 2;
  if (avx2::available()) return 1;
#endif
  return 0;
}

// out[batch, 16 row_tiles] = x[batch, 16 column_tiles] Z^T.
int proteus_matvec(const uint8_t* tiles, int64_t row_tiles, int64_t column_tiles, int bits, int window,
                   uint32_t multiplier, uint32_t addend, int shift, uint32_t minus, const float* x, int64_t batch,
                   int int8, float* out, int threads, int instructions) {
  const InstructionSet& set = instruction_set(instructions);
  const int64_t columns = column_tiles * SIDE;
  Product product{};
  product.code = code_of(window, multiplier, addend, shift, minus);
  product.tiles = tiles;
  product.row_tiles = row_tiles;
  product.column_tiles = column_tiles;
  for (int64_t done = 0; done < batch; done += set.most_rows) {
    product.rows = std::min<int64_t>(batch - done, set.most_rows);
    product.out = out + done * row_tiles * SIDE;
    const float* from = x + done * columns;
    const int stride = padded(product.rows, set.most_rows);
    const Rows kernel = (int8 ? set.with_int8 : set.with_float)(bits, shift != 0, stride);
    if (!kernel) return 1;
    const auto work = [&](int64_t begin, int64_t end) { kernel(product, begin, end); };
    if (int8) {
      const Int8Activations activations(from, product.rows, column_tiles, stride, product.code, set.magnitudes);
      product.first = activations.first.data();
      product.second = activations.second.data();
      product.start = activations.start.data();
      product.scale = activations.scale.data();
      over_row_tiles(row_tiles, column_tiles, threads, work);
      for (int64_t row = 0; row < product.rows; ++row)
        for (int64_t i = 0; i < row_tiles * SIDE; ++i) product.out[row * row_tiles * SIDE + i] += activations.common[row];
    } else {
      std::vector<float> side_by_side(stride > 1 ? columns * stride : 0);
      if (stride > 1)
        for (int64_t row = 0; row < product.rows; ++row)
          for (int64_t column = 0; column < columns; ++column)
            side_by_side[column * stride + row] = from[row * columns + column];
      product.x = stride > 1 ? side_by_side.data() : from;
      over_row_tiles(row_tiles, column_tiles, threads, work);
    }
  }
  return 0;
}

// The int8 activations of a kernel, for tests and other backends: quantized[columns] and a scale for every 16.
void proteus_quantize(const float* x, int64_t blocks, int8_t* quantized, float* scale) {
  for (int64_t j = 0; j < blocks; ++j) scale[j] = Int8Activations::quantize(x + j * SIDE, quantized + j * SIDE);
}

// out[16 row_tiles, 16 column_tiles] = Z.
int proteus_unpack(const uint8_t* tiles, int64_t row_tiles, int64_t column_tiles, int bits, int window,
                   uint32_t multiplier, uint32_t addend, int shift, uint32_t minus, int32_t* out, int threads,
                   int instructions) {
  const Code code = code_of(window, multiplier, addend, shift, minus);
  const Tile decode = instruction_set(instructions).decode(bits, shift != 0);
  if (!decode) return 1;
  over_row_tiles(row_tiles, column_tiles, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < column_tiles; ++j) {
        alignas(64) int32_t values[BLOCK];
        decode(code, tiles + (i * column_tiles + j) * 32 * bits, values);
        int32_t* corner = out + (i * column_tiles * SIDE + j) * SIDE;
        for (int row = 0; row < SIDE; ++row)
          for (int column = 0; column < SIDE; ++column)
            corner[row * column_tiles * SIDE + column] = values[column * SIDE + row];
      }
  });
  return 0;
}

// out[16 column_tiles, 16 row_tiles] = Z^T in float32, the right-hand side of a matrix product with activations.
int proteus_unpack_transposed(const uint8_t* tiles, int64_t row_tiles, int64_t column_tiles, int bits, int window,
                              uint32_t multiplier, uint32_t addend, int shift, uint32_t minus, float* out, int threads,
                              int instructions) {
  const Code code = code_of(window, multiplier, addend, shift, minus);
  const Tile decode = instruction_set(instructions).decode(bits, shift != 0);
  if (!decode) return 1;
  over_row_tiles(row_tiles, column_tiles, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < column_tiles; ++j) {
        alignas(64) int32_t values[BLOCK];
        decode(code, tiles + (i * column_tiles + j) * 32 * bits, values);
        for (int column = 0; column < SIDE; ++column) {
          float* target = out + (j * SIDE + column) * row_tiles * SIDE + i * SIDE;
          for (int row = 0; row < SIDE; ++row) target[row] = float(values[column * SIDE + row]);
        }
      }
  });
  return 0;
}

}  // extern "C"
