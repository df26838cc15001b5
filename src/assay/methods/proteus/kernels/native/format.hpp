// What all instruction sets share: the code, the packed tile, and the work that one call hands out.
#pragma once

#include <cstdint>
#include <cstring>

constexpr int SIDE = 16;            // a tile is 16 x 16 weights
constexpr int BLOCK = SIDE * SIDE;  // weights of a tile

#define INLINE inline __attribute__((always_inline))

// z(s): u = multiplier * s + addend mod 2^32, u ^= u >> shift unless shift is 0, z = sum of signs[i] * byte_i(u).
struct Code {
  uint32_t multiplier;
  uint32_t addend;
  uint32_t mask;  // 2^window - 1
  int shift;
  int8_t signs[4];
};

// One product, as the kernels see it. Activations of `B` rows lie side by side: entry (column, row) at column * B + row.
// A tile's integer sums start at `start`, (tile column, row), and count `scale` each.
struct Product {
  Code code;
  const uint8_t* tiles;
  int64_t row_tiles, column_tiles;
  const float* x;            // float activations
  const uint32_t* first;     // int8 activations, four bytes a column; what they hold is the instruction set's choice
  const uint32_t* second;    // (AVX2 needs two words)
  const int32_t* start;
  const float* scale;
  int64_t rows;              // of the B rows, those that are wanted
  float* out;                // [rows, 16 * row_tiles]
};

using Rows = void (*)(const Product&, int64_t begin, int64_t end);
using Tile = void (*)(const Code&, const uint8_t* tile, int32_t* values);

// What an instruction set offers. `values` of a tile are column-major, as the tile itself.
struct InstructionSet {
  int most_rows;
  bool magnitudes;  // int8 activations come as magnitudes and flips
  Rows (*with_float)(int bits, bool mixes, int rows);
  Rows (*with_int8)(int bits, bool mixes, int rows);
  Tile (*decode)(int bits, bool mixes);
};

// The little-endian word at a byte offset of a circular tile of BYTES bytes.
template <typename Word, int BYTES>
INLINE Word load(const uint8_t* tile, int offset) {
  Word word;
  const int beyond = offset + int(sizeof(Word)) - BYTES;
  if (beyond <= 0) {
    std::memcpy(&word, tile + offset, sizeof(Word));
    return word;
  }
  Word end, begin;
  std::memcpy(&end, tile + BYTES - sizeof(Word), sizeof(Word));
  std::memcpy(&begin, tile, sizeof(Word));
  // 0 < beyond < sizeof(Word): no kernel asks for a word that starts beyond the tile.
  return Word(end >> (8 * beyond)) | Word(begin << (8 * (int(sizeof(Word)) - beyond)));
}

// The instance of a kernel template for run-time parameters; null for a number of bits that the format lacks.
template <template <int, bool, int> class Kernel, typename Function, int ROWS>
Function instance(int bits, bool mixes) {
  switch (bits * 2 + mixes) {
    case 4: return Kernel<2, false, ROWS>::run;
    case 5: return Kernel<2, true, ROWS>::run;
    case 6: return Kernel<3, false, ROWS>::run;
    case 7: return Kernel<3, true, ROWS>::run;
    case 8: return Kernel<4, false, ROWS>::run;
    case 9: return Kernel<4, true, ROWS>::run;
  }
  return nullptr;
}

template <template <int, bool, int> class Kernel, int MOST>
Rows instance_for_rows(int bits, bool mixes, int rows) {
  switch (rows) {
    case 1: return instance<Kernel, Rows, 1>(bits, mixes);
    case 4: return instance<Kernel, Rows, 4>(bits, mixes);
  }
  return instance<Kernel, Rows, MOST>(bits, mixes);
}
