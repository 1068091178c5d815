// What the int8 vocabularies of AVX2 and AVX-512 share. Included inside namespace simd.

// Words 0 to 3 at `offset` of 8 rows: word j of all of them to `to` + j · `stride` bytes.
inline void transpose_four_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                                 int64_t stride) {
  // Four words of rows i and i + 4.
  const auto pair = [&](int i) {
    const auto load = [&](const uint8_t* row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset));
    };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load(rows[i])), load(rows[i + 4]), 1);
  };
  const auto put = [&](int j, __m256i word) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j * stride), word);
  };
  const __m256i a = pair(0), b = pair(1), c = pair(2), d = pair(3);
  const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
  put(0, _mm256_unpacklo_epi64(ab, cd));
  put(1, _mm256_unpackhi_epi64(ab, cd));
  const __m256i ab2 = _mm256_unpackhi_epi32(a, b), cd2 = _mm256_unpackhi_epi32(c, d);
  put(2, _mm256_unpacklo_epi64(ab2, cd2));
  put(3, _mm256_unpackhi_epi64(ab2, cd2));
}

// The cache line at p. The compiler moves the intrinsic, and 36 prefetches at the top of a
// superblock are more than the core has buffers for: Q4_K fell to 70 % of the read limit.
PYVT_INLINE void prefetch_line(const uint8_t* p) { asm volatile("prefetcht0 %0" : : "m"(*p)); }

inline int32_t add_lanes(__m128i a) {
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
  return _mm_cvtsi128_si32(a);
}

inline uint32_t max_lane(__m128i a) {
  a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
  a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(a));
}
