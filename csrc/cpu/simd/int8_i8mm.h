// What i8mm adds to the int8 vocabulary of NEON: products of matrices, two rows of a tile by 8
// columns with two rows of activations. Included inside namespace simd, behind int8_neon.h.

constexpr int kRowPairs = 8;

// The words of two quads side by side: element i has 8 columns of rows 2i and 2i + 1.
struct PairedCodes {
  int8x16_t v[kRowPairs];
};

PYVT_INLINE PairedCodes side_by_side(Words first, Words second) {
  PairedCodes codes;
  PYVT_UNROLL
  for (int i = 0; i < kRegs; ++i) {
    codes.v[2 * i] = vreinterpretq_s8_s32(vzip1q_s32(first.v[i], second.v[i]));
    codes.v[2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(first.v[i], second.v[i]));
  }
  return codes;
}

PYVT_INLINE PairedCodes load_paired(const uint8_t* p) {
  PairedCodes codes;
  PYVT_UNROLL
  for (int i = 0; i < kRowPairs; ++i) codes.v[i] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * i));
  return codes;
}
PYVT_INLINE void store_paired(uint8_t* p, PairedCodes codes) {
  PYVT_UNROLL
  for (int i = 0; i < kRowPairs; ++i) vst1q_u8(p + 16 * i, vreinterpretq_u8_s8(codes.v[i]));
}

// Sums of two rows of activations, m and n: element i is row 2i with m, with n, row 2i + 1 with m,
// with n.
struct PairedSums {
  int32x4_t v[kRowPairs];
};

PYVT_INLINE PairedSums start_paired(int32_t of_m, int32_t of_n) {
  const int32x4_t start = vzip1q_s32(vdupq_n_s32(of_m), vdupq_n_s32(of_n));
  PairedSums sums;
  PYVT_UNROLL
  for (int i = 0; i < kRowPairs; ++i) sums.v[i] = start;
  return sums;
}

// Adds the products of 8 columns.
PYVT_INLINE void add_paired(PairedSums& sums, const PairedCodes& codes, const int8_t* m,
                            const int8_t* n) {
  const int8x16_t x = vcombine_s8(vld1_s8(m), vld1_s8(n));
  PYVT_UNROLL
  for (int i = 0; i < kRowPairs; ++i) sums.v[i] = vmmlaq_s32(sums.v[i], codes.v[i], x);
}

// The sums of the first or the second row of activations.
PYVT_INLINE Words sums_of(const PairedSums& sums, int second) {
  return each<Words>([&](int i) {
    return second == 0 ? vuzp1q_s32(sums.v[2 * i], sums.v[2 * i + 1])
                       : vuzp2q_s32(sums.v[2 * i], sums.v[2 * i + 1]);
  });
}
