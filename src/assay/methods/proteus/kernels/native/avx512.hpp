// AVX-512 with VBMI and VNNI (Ice Lake, Zen 4 and later): the 16 rows of a column are the lanes of one register.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include "format.hpp"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))

namespace avx512 {

template <int BITS, bool MIXES>
struct Decoder {
  __m512i control, mask, multiplier, addend;
  __m128i shift;

  AVX512 explicit Decoder(const Code& code) {
    alignas(64) uint8_t offsets[64] = {};
    for (int row = 0; row < SIDE; ++row) {
      const int bit = BITS * (BITS == 4 ? row % 8 : row);
      offsets[4 * row] = uint8_t(bit);
      offsets[4 * row + 1] = uint8_t(bit + 8);
    }
    control = _mm512_load_si512(offsets);
    mask = _mm512_set1_epi32(int(code.mask));
    multiplier = _mm512_set1_epi32(int(code.multiplier));
    addend = _mm512_set1_epi32(int(code.addend));
    shift = _mm_cvtsi32_si128(code.shift);
  }

  // The 16 states of a column. Their windows lie in 16 + 15 BITS bits: in one quadword, or in two for 4 bits a weight.
  AVX512 INLINE __m512i states(const uint8_t* tile, int column) const {
    __m512i stream = _mm512_set1_epi64((long long)(load<uint64_t, 32 * BITS>(tile, 2 * BITS * column)));
    if (BITS == 4)
      stream = _mm512_mask_set1_epi64(stream, 0xF0, (long long)(load<uint64_t, 32 * BITS>(tile, 2 * BITS * column + BITS)));
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(control, stream), mask);
  }

  // Their words u.
  AVX512 INLINE __m512i words(const uint8_t* tile, int column) const {
    const __m512i word = _mm512_add_epi32(_mm512_mullo_epi32(states(tile, column), multiplier), addend);
    return MIXES ? _mm512_xor_si512(word, _mm512_srl_epi32(word, shift)) : word;
  }
};

AVX512 INLINE __m512i packed_signs(const Code& code) {
  int32_t signs;
  std::memcpy(&signs, code.signs, 4);
  return _mm512_set1_epi32(signs);
}

// A single row would wait for its one chain of additions: it gets two.
constexpr int chains(int rows) { return rows == 1 ? 2 : 1; }

template <int BITS, bool MIXES, int ROWS>
struct WithFloat {
  AVX512 static void run(const Product& product, int64_t begin, int64_t end) {
    const Decoder<BITS, MIXES> decoder(product.code);
    const __m512i signs = packed_signs(product.code);
    constexpr int CHAINS = chains(ROWS);
    for (int64_t i = begin; i < end; ++i) {
      __m512 sum[ROWS * CHAINS];
      for (int k = 0; k < ROWS * CHAINS; ++k) sum[k] = _mm512_setzero_ps();
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const float* x = product.x;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS, x += SIDE * ROWS) {
#pragma GCC unroll 16
        for (int column = 0; column < SIDE; ++column) {
          const __m512i word = decoder.words(tile, column);
          const __m512 z = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), word, signs));
#pragma GCC unroll 8
          for (int row = 0; row < ROWS; ++row) {
            __m512& target = sum[row * CHAINS + column % CHAINS];
            target = _mm512_fmadd_ps(z, _mm512_set1_ps(x[column * ROWS + row]), target);
          }
        }
      }
      for (int row = 0; row < product.rows; ++row) {
        __m512 total = sum[row * CHAINS];
        if (CHAINS == 2) total = _mm512_add_ps(total, sum[row * CHAINS + 1]);
        _mm512_storeu_ps(product.out + (row * product.row_tiles + i) * SIDE, total);
      }
    }
  }
};

// The activation, with the signs of the generator, is the signed operand of the byte dot product.
template <int BITS, bool MIXES, int ROWS>
struct WithInt8 {
  AVX512 static void run(const Product& product, int64_t begin, int64_t end) {
    const Decoder<BITS, MIXES> decoder(product.code);
    constexpr int CHAINS = chains(ROWS);
    for (int64_t i = begin; i < end; ++i) {
      __m512 sum[ROWS];
      for (int row = 0; row < ROWS; ++row) sum[row] = _mm512_setzero_ps();
      const uint8_t* tile = product.tiles + i * product.column_tiles * 32 * BITS;
      const uint32_t* x = product.first;
      for (int64_t j = 0; j < product.column_tiles; ++j, tile += 32 * BITS, x += SIDE * ROWS) {
        __m512i inner[ROWS * CHAINS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
          inner[row * CHAINS] = _mm512_set1_epi32(product.start[j * ROWS + row]);
          if (CHAINS == 2) inner[row * CHAINS + 1] = _mm512_setzero_si512();
        }
#pragma GCC unroll 16
        for (int column = 0; column < SIDE; ++column) {
          const __m512i word = decoder.words(tile, column);
#pragma GCC unroll 8
          for (int row = 0; row < ROWS; ++row) {
            __m512i& target = inner[row * CHAINS + column % CHAINS];
            target = _mm512_dpbusd_epi32(target, word, _mm512_set1_epi32(int(x[column * ROWS + row])));
          }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
          __m512i total = inner[row * CHAINS];
          if (CHAINS == 2) total = _mm512_add_epi32(total, inner[row * CHAINS + 1]);
          const __m512 scale = _mm512_set1_ps(product.scale[j * ROWS + row]);
          sum[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, sum[row]);
        }
      }
      for (int row = 0; row < product.rows; ++row)
        _mm512_storeu_ps(product.out + (row * product.row_tiles + i) * SIDE, sum[row]);
    }
  }
};

template <int BITS, bool MIXES, int>
struct Decode {
  AVX512 static void run(const Code& code, const uint8_t* tile, int32_t* values) {
    const Decoder<BITS, MIXES> decoder(code);
    const __m512i signs = packed_signs(code);
#pragma GCC unroll 16
    for (int column = 0; column < SIDE; ++column) {
      const __m512i z = _mm512_dpbusd_epi32(_mm512_setzero_si512(), decoder.words(tile, column), signs);
      _mm512_storeu_si512(values + SIDE * column, z);
    }
  }
};

inline bool available() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vnni");
}

constexpr InstructionSet SET = {8, false, instance_for_rows<WithFloat, 8>, instance_for_rows<WithInt8, 8>,
                                instance<Decode, Tile, 1>};

}  // namespace avx512
#endif
