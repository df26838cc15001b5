// The decoder that MUL-BAL replaces: the same trellis and tiles, but values come from a table of 2^window floats.
// In three ways of looking up, because none is best on every processor: one load a weight, and gathers of 8 and of 16.
#include "avx2.hpp"
#include "avx512.hpp"
#include "format.hpp"
#include "pool.hpp"

namespace {

template <int BITS>
AVX2 void with_loads(const Code& code, const float* table, const uint8_t* tile, int64_t column_tiles, const float* x,
                     float* out) {
  const avx2::Decoder<BITS, false> decoder(code);
  float sum[SIDE] = {};
  for (int64_t j = 0; j < column_tiles; ++j, tile += 32 * BITS, x += SIDE) {
#pragma GCC unroll 16
    for (int column = 0; column < SIDE; ++column) {
      alignas(32) uint32_t states[SIDE];
      for (int half = 0; half < 2; ++half)
        _mm256_store_si256(reinterpret_cast<__m256i*>(states + 8 * half), decoder.states(tile, column, half));
      for (int row = 0; row < SIDE; ++row) sum[row] += table[states[row]] * x[column];
    }
  }
  std::memcpy(out, sum, sizeof sum);
}

template <int BITS>
AVX2 void with_gather8(const Code& code, const float* table, const uint8_t* tile, int64_t column_tiles, const float* x,
                       float* out) {
  const avx2::Decoder<BITS, false> decoder(code);
  __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t j = 0; j < column_tiles; ++j, tile += 32 * BITS, x += SIDE) {
#pragma GCC unroll 16
    for (int column = 0; column < SIDE; ++column)
      for (int half = 0; half < 2; ++half)
        sum[half] = _mm256_fmadd_ps(_mm256_i32gather_ps(table, decoder.states(tile, column, half), 4),
                                    _mm256_set1_ps(x[column]), sum[half]);
  }
  _mm256_storeu_ps(out, sum[0]);
  _mm256_storeu_ps(out + 8, sum[1]);
}

template <int BITS>
AVX512 void with_gather16(const Code& code, const float* table, const uint8_t* tile, int64_t column_tiles,
                          const float* x, float* out) {
  const avx512::Decoder<BITS, false> decoder(code);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t j = 0; j < column_tiles; ++j, tile += 32 * BITS, x += SIDE) {
#pragma GCC unroll 16
    for (int column = 0; column < SIDE; ++column)
      sum[column % 2] = _mm512_fmadd_ps(_mm512_i32gather_ps(decoder.states(tile, column), table, 4),
                                        _mm512_set1_ps(x[column]), sum[column % 2]);
  }
  _mm512_storeu_ps(out, _mm512_add_ps(sum[0], sum[1]));
}

}  // namespace

// How many of the ways this processor has: 0, 2 or 3.
extern "C" int table_ways() {
  __builtin_cpu_init();
  return avx512::available() ? 3 : avx2::available() ? 2 : 0;
}

// out[16 row_tiles] = (values of the table) x, with 2 bits a weight.
extern "C" void table_matvec(const uint8_t* tiles, int64_t row_tiles, int64_t column_tiles, int window, const float* table,
                             const float* x, float* out, int way, int threads) {
  const Code code{0, 0, (1u << window) - 1, 0, {}};
  const auto kernel = way == 0 ? with_loads<2> : way == 1 ? with_gather8<2> : with_gather16<2>;
  over_row_tiles(row_tiles, column_tiles, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      kernel(code, table, tiles + i * column_tiles * 64, column_tiles, x, out + i * SIDE);
  });
}
