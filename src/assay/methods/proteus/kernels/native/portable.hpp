// Plain C++ for every other processor; compilers vectorise what they can.
#pragma once

#include "format.hpp"

namespace portable {

template <int BITS, bool MIXES>
INLINE void column_values(const Code& code, const uint8_t* tile, int column, int32_t* values) {
  for (int half = 0; half < 2; ++half) {
    // The windows of 8 rows lie in 16 + 7 BITS <= 44 bits; from a 4-byte word and the one after it, around the end.
    const int offset = 2 * BITS * column + BITS * half;
    const uint64_t low = load<uint32_t, 32 * BITS>(tile, offset);
    const uint64_t high = load<uint32_t, 32 * BITS>(tile, (offset + 4) % (32 * BITS));
    const uint64_t stream = low | high << 32;
    for (int row = 0; row < 8; ++row) {
      uint32_t word = code.multiplier * (uint32_t(stream >> (BITS * row)) & code.mask) + code.addend;
      if (MIXES) word ^= word >> code.shift;
      values[8 * half + row] = code.signs[0] * int32_t(word & 255) + code.signs[1] * int32_t(word >> 8 & 255) +
                               code.signs[2] * int32_t(word >> 16 & 255) + code.signs[3] * int32_t(word >> 24);
    }
  }
}

template <int BITS, bool MIXES, int ROWS>
struct WithFloat {
  static void run(const Product& product, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float sum[ROWS][SIDE] = {};
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const float* x = product.x;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS) {
        for (int column = 0; column < SIDE; ++column, x += ROWS) {
          int32_t values[SIDE];
          column_values<BITS, MIXES>(product.code, tile, column, values);
          for (int row = 0; row < ROWS; ++row)
            for (int k = 0; k < SIDE; ++k) sum[row][k] += float(values[k]) * x[row];
        }
      }
      for (int row = 0; row < product.rows; ++row)
        std::memcpy(product.out + (row * product.row_tiles + i) * SIDE, sum[row], sizeof sum[row]);
    }
  }
};

// An int8 activation comes with the signs of the generator; its own sign is what byte 0 got, times signs[0].
template <int BITS, bool MIXES, int ROWS>
struct WithInt8 {
  static void run(const Product& product, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float sum[ROWS][SIDE] = {};
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const uint32_t* x = product.first;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS) {
        int32_t inner[ROWS][SIDE];
        for (int row = 0; row < ROWS; ++row)
          for (int k = 0; k < SIDE; ++k) inner[row][k] = product.start[j * ROWS + row];
        for (int column = 0; column < SIDE; ++column, x += ROWS) {
          int32_t values[SIDE];
          column_values<BITS, MIXES>(product.code, tile, column, values);
          for (int row = 0; row < ROWS; ++row) {
            const int32_t activation = product.code.signs[0] * int8_t(x[row] & 255);
            for (int k = 0; k < SIDE; ++k) inner[row][k] += values[k] * activation;
          }
        }
        for (int row = 0; row < ROWS; ++row)
          for (int k = 0; k < SIDE; ++k) sum[row][k] += float(inner[row][k]) * product.scale[j * ROWS + row];
      }
      for (int row = 0; row < product.rows; ++row)
        std::memcpy(product.out + (row * product.row_tiles + i) * SIDE, sum[row], sizeof sum[row]);
    }
  }
};

template <int BITS, bool MIXES, int>
struct Decode {
  static void run(const Code& code, const uint8_t* tile, int32_t* values) {
    for (int column = 0; column < SIDE; ++column) column_values<BITS, MIXES>(code, tile, column, values + SIDE * column);
  }
};

constexpr InstructionSet SET = {4, false, instance_for_rows<WithFloat, 4>, instance_for_rows<WithInt8, 4>,
                                instance<Decode, Tile, 1>};

}  // namespace portable
