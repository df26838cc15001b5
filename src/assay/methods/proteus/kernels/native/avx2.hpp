// AVX2: a column is two registers of 8 rows, done one after the other within a tile, which keeps 16 registers enough.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include "format.hpp"

#define AVX2 __attribute__((target("avx2,fma")))

namespace avx2 {

template <int BITS, bool MIXES>
struct Decoder {
  __m256i shifts, mask, multiplier, addend;
  __m128i shift;
  // With 3 and 4 bits the windows of 8 rows are wider than 32 bits: the upper four rows read a word that starts later.
  static constexpr int LATER = BITS == 2 ? 0 : BITS / 2;

  AVX2 explicit Decoder(const Code& code) {
    alignas(32) int32_t offsets[8];
    for (int row = 0; row < 8; ++row) offsets[row] = BITS * row - (row < 4 ? 0 : 8 * LATER);
    shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(offsets));
    mask = _mm256_set1_epi32(int(code.mask));
    multiplier = _mm256_set1_epi32(int(code.multiplier));
    addend = _mm256_set1_epi32(int(code.addend));
    shift = _mm_cvtsi32_si128(code.shift);
  }

  // The states of 8 rows of a column.
  AVX2 INLINE __m256i states(const uint8_t* tile, int column, int half) const {
    const int offset = 2 * BITS * column + BITS * half;
    __m256i stream = _mm256_set1_epi32(int(load<uint32_t, 32 * BITS>(tile, offset)));
    if (LATER) {
      const __m256i later = _mm256_set1_epi32(int(load<uint32_t, 32 * BITS>(tile, offset + LATER)));
      stream = _mm256_blend_epi32(stream, later, 0xF0);
    }
    return _mm256_and_si256(_mm256_srlv_epi32(stream, shifts), mask);
  }

  // Their words u.
  AVX2 INLINE __m256i words(const uint8_t* tile, int column, int half) const {
    const __m256i word = _mm256_add_epi32(_mm256_mullo_epi32(states(tile, column, half), multiplier), addend);
    return MIXES ? _mm256_xor_si256(word, _mm256_srl_epi32(word, shift)) : word;
  }
};

AVX2 INLINE __m256i packed_signs(const Code& code) {
  int32_t signs;
  std::memcpy(&signs, code.signs, 4);
  return _mm256_set1_epi32(signs);
}

AVX2 INLINE __m256i byte_sums(__m256i word, __m256i signs) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(word, signs), _mm256_set1_epi16(1));
}

template <int BITS, bool MIXES, int ROWS>
struct WithFloat {
  AVX2 static void run(const Product& product, int64_t begin, int64_t end) {
    const Decoder<BITS, MIXES> decoder(product.code);
    const __m256i signs = packed_signs(product.code);
    for (int64_t i = begin; i < end; ++i) {
      __m256 sum[2][ROWS];
      for (int row = 0; row < ROWS; ++row) sum[0][row] = sum[1][row] = _mm256_setzero_ps();
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const float* x = product.x;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS, x += SIDE * ROWS) {
#pragma GCC unroll 16
        for (int column = 0; column < SIDE; ++column) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const __m256 z = _mm256_cvtepi32_ps(byte_sums(decoder.words(tile, column, half), signs));
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; ++row)
              sum[half][row] = _mm256_fmadd_ps(z, _mm256_set1_ps(x[column * ROWS + row]), sum[half][row]);
          }
        }
      }
      for (int row = 0; row < product.rows; ++row) {
        float* out = product.out + (row * product.row_tiles + i) * SIDE;
        _mm256_storeu_ps(out, sum[0][row]);
        _mm256_storeu_ps(out + 8, sum[1][row]);
      }
    }
  }
};

// The byte product of AVX2 adds two products in int16, where 2 * 255 * 127 does not fit. So its unsigned operand is
// the activation's magnitude, and the signed one the byte less 128 or, for a negative activation, its complement:
// 2 * 127 * 128 fits. `start` holds what that adds to a sum.
template <int BITS, bool MIXES, int ROWS>
struct WithInt8 {
  AVX2 static void run(const Product& product, int64_t begin, int64_t end) {
    const Decoder<BITS, MIXES> decoder(product.code);
    for (int64_t i = begin; i < end; ++i) {
      __m256 sum[2][ROWS];
      for (int row = 0; row < ROWS; ++row) sum[0][row] = sum[1][row] = _mm256_setzero_ps();
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const uint32_t* magnitude = product.first;
      const uint32_t* flip = product.second;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          __m256i inner[ROWS];
#pragma GCC unroll 4
          for (int row = 0; row < ROWS; ++row) inner[row] = _mm256_set1_epi32(product.start[j * ROWS + row]);
#pragma GCC unroll 16
          for (int column = 0; column < SIDE; ++column) {
            const __m256i word = decoder.words(tile, column, half);
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; ++row) {
              const __m256i bytes = _mm256_xor_si256(word, _mm256_set1_epi32(int(flip[column * ROWS + row])));
              const __m256i weights = _mm256_set1_epi32(int(magnitude[column * ROWS + row]));
              inner[row] = _mm256_add_epi32(inner[row], byte_sums(weights, bytes));
            }
          }
#pragma GCC unroll 4
          for (int row = 0; row < ROWS; ++row) {
            const __m256 scale = _mm256_set1_ps(product.scale[j * ROWS + row]);
            sum[half][row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(inner[row]), scale, sum[half][row]);
          }
        }
        magnitude += SIDE * ROWS;
        flip += SIDE * ROWS;
      }
      for (int row = 0; row < product.rows; ++row) {
        float* out = product.out + (row * product.row_tiles + i) * SIDE;
        _mm256_storeu_ps(out, sum[0][row]);
        _mm256_storeu_ps(out + 8, sum[1][row]);
      }
    }
  }
};

template <int BITS, bool MIXES, int>
struct Decode {
  AVX2 static void run(const Code& code, const uint8_t* tile, int32_t* values) {
    const Decoder<BITS, MIXES> decoder(code);
    const __m256i signs = packed_signs(code);
#pragma GCC unroll 16
    for (int column = 0; column < SIDE; ++column) {
      for (int half = 0; half < 2; ++half) {
        const __m256i z = byte_sums(decoder.words(tile, column, half), signs);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + SIDE * column + 8 * half), z);
      }
    }
  }
};

inline bool available() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

constexpr InstructionSet SET = {4, true, instance_for_rows<WithFloat, 4>, instance_for_rows<WithInt8, 4>,
                                instance<Decode, Tile, 1>};

}  // namespace avx2
#endif
