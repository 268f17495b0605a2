/* Vectors of 16 lanes as two halves, on AVX2 with FMA and F16C (Haswell, Zen 1 and later). */
#ifndef SESSIOND_SIMD_AVX2_H
#define SESSIOND_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define ISA_SUFFIX avx2
/* 16 registers of half a vector each. */
#define SCORE_VECTORS 2
#define VALUE_VECTORS 1
#define LINEAR_ROWS 4

typedef struct {
    __m256 low, high;
} vf;
typedef struct {
    __m256i low, high;
} vi;
typedef vi vb; /* 64 bytes */
typedef struct {
    __m256 first, second;
} vp;

#define EACH_HALF(type, expression_low, expression_high) \
    ((type){.low = (expression_low), .high = (expression_high)})

INLINE vf vf_zero(void) { return EACH_HALF(vf, _mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE vf vf_set1(float x) { return EACH_HALF(vf, _mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE vf vf_load(const float *p) {
    return EACH_HALF(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
INLINE void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}
#define BINARY(name, instruction)                                                         \
    INLINE vf name(vf a, vf b) {                                                          \
        return EACH_HALF(vf, instruction(a.low, b.low), instruction(a.high, b.high));     \
    }
BINARY(vf_add, _mm256_add_ps)
BINARY(vf_sub, _mm256_sub_ps)
BINARY(vf_mul, _mm256_mul_ps)
BINARY(vf_div, _mm256_div_ps)
BINARY(vf_max, _mm256_max_ps)
BINARY(vf_min, _mm256_min_ps)
#undef BINARY
INLINE vf vf_fma(vf a, vf b, vf c) {
    return EACH_HALF(vf, _mm256_fmadd_ps(a.low, b.low, c.low),
                     _mm256_fmadd_ps(a.high, b.high, c.high));
}
INLINE vf vf_fnma(vf a, vf b, vf c) { /* c - a * b */
    return EACH_HALF(vf, _mm256_fnmadd_ps(a.low, b.low, c.low),
                     _mm256_fnmadd_ps(a.high, b.high, c.high));
}
INLINE float vf_reduce_add(vf v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
INLINE float vf_reduce_max(vf v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE __m256i magnitude_bits(__m256 half) {
    return _mm256_and_si256(_mm256_castps_si256(half), _mm256_set1_epi32(0x7fffffff));
}
/* The largest of both; NaN where there is one: bits of magnitudes rise as they do, NaN's above. */
INLINE float vf_largest_magnitude(vf a, vf b) {
    const __m256i eight = _mm256_max_epi32(
        _mm256_max_epi32(magnitude_bits(a.low), magnitude_bits(a.high)),
        _mm256_max_epi32(magnitude_bits(b.low), magnitude_bits(b.high)));
    __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
}
INLINE __m256 keep_half(__m256 v, int offset, int first, int last, float other) {
    const __m256i lanes =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(offset));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes),
                                            _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(last)));
    return _mm256_blendv_ps(v, _mm256_set1_ps(other), _mm256_castsi256_ps(outside));
}
/* Lanes first..last keep their value, the others get `other`. */
INLINE vf vf_keep_lanes(vf v, int first, int last, float other) {
    return EACH_HALF(vf, keep_half(v.low, 0, first, last, other),
                     keep_half(v.high, 8, first, last, other));
}

INLINE vi vi_zero(void) { return EACH_HALF(vi, _mm256_setzero_si256(), _mm256_setzero_si256()); }
INLINE vi vi_set1(int32_t x) { return EACH_HALF(vi, _mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
INLINE vi vi_add(vi a, vi b) {
    return EACH_HALF(vi, _mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high));
}
INLINE vf vf_from_int(vi v) {
    return EACH_HALF(vf, _mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high));
}
INLINE vi vi_round(vf v) { /* to nearest, ties to even */
    return EACH_HALF(vi, _mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
}
INLINE int32_t vi_reduce_add(vi v) {
    const __m256i eight = _mm256_add_epi32(v.low, v.high);
    __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE __m256 power_half(__m256i n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* 2^n for n in -127 (gives 0) .. 127 */
INLINE vf vf_power_of_2(vi n) { return EACH_HALF(vf, power_half(n.low), power_half(n.high)); }
INLINE void vi_store_bytes(int8_t *p, vi v) {
    const __m256i words = /* lanes come out as 0-3, 8-11, 4-7, 12-15: put them in order */
        _mm256_permute4x64_epi64(_mm256_packs_epi32(v.low, v.high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}
INLINE __m256 widen_bytes(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf vf_from_bytes(const int8_t *p) {
    return EACH_HALF(vf, widen_bytes(p), widen_bytes(p + 8));
}
/* Two floats, in all pairs of lanes. */
INLINE vf vf_from_pair(const float *p) {
    const __m256d pair =
        _mm256_broadcastsd_pd(_mm_castps_pd(_mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)p)));
    return EACH_HALF(vf, _mm256_castpd_ps(pair), _mm256_castpd_ps(pair));
}

INLINE vf vf_from_halves(const uint16_t *p) {
    return EACH_HALF(vf, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INLINE __m256i bfloats_of_half(__m256 v) { /* in the upper 16 bits, rounded to nearest even */
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
INLINE void vf_store_bfloats(uint16_t *p, vf v) {
    const __m256i low = _mm256_srli_epi32(bfloats_of_half(v.low), 16);
    const __m256i high = _mm256_srli_epi32(bfloats_of_half(v.high), 16);
    _mm256_storeu_si256((__m256i *)p,
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}
INLINE __m256 widen_bfloats(const uint16_t *p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE void vf_store_bfloats_twice(uint16_t *p, vf low, vf high) {
    vf_store_bfloats(p, low);
    vf_store_bfloats(p + 16, high);
}
INLINE vf vf_from_bfloats(const uint16_t *p) {
    return EACH_HALF(vf, widen_bfloats(p), widen_bfloats(p + 8));
}

INLINE vb vb_load(const void *p) {
    return EACH_HALF(vb, _mm256_loadu_si256((const __m256i *)p),
                     _mm256_loadu_si256((const __m256i *)p + 1));
}
INLINE void vb_store(void *p, vb v) {
    _mm256_storeu_si256((__m256i *)p, v.low);
    _mm256_storeu_si256((__m256i *)p + 1, v.high);
}
INLINE vb vb_and(vb a, vb b) {
    return EACH_HALF(vb, _mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high));
}
INLINE vb vb_low_nibbles(vb v) { return vb_and(v, EACH_HALF(vb, _mm256_set1_epi8(15),
                                                           _mm256_set1_epi8(15))); }
INLINE vb vb_high_nibbles(vb v) {
    return vb_low_nibbles(
        EACH_HALF(vb, _mm256_srli_epi16(v.low, 4), _mm256_srli_epi16(v.high, 4)));
}

INLINE __m256i sums_of_pairs(__m256i words) {
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}
/* Sums of 32 products per lane. w[j], lane r, holds columns 4j..4j+3 of row r; x has 32 values.
   Eight pairs of products stay below 2^15 (8 * 2 * 15 * 127), so they are added in 16 bits. */
INLINE vi dot_nibbles(const vb *w, const int8_t *x) {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    UNROLLED for (int j = 0; j < 8; j++) {
        const __m256i quad = _mm256_set1_epi32(((const int32_t *)x)[j]);
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w[j].low, quad));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w[j].high, quad));
    }
    return EACH_HALF(vi, sums_of_pairs(low), sums_of_pairs(high));
}
/* Bytes are stored plus 128. The instruction wants one side unsigned and saturates at 2^15: the
   sign of w moves to x, and 2 * 128 * 127 fits. */
INLINE __m256i quad_products(__m256i stored, __m256i quad) {
    const __m256i w = _mm256_xor_si256(stored, _mm256_set1_epi8((char)0x80));
    return sums_of_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(quad, w)));
}
INLINE vi dot_bytes(const vb *w, const int8_t *x, int32_t sum) {
    (void)sum;
    vi acc = vi_zero();
    UNROLLED for (int j = 0; j < 8; j++) {
        const __m256i quad = _mm256_set1_epi32(((const int32_t *)x)[j]);
        acc.low = _mm256_add_epi32(acc.low, quad_products(w[j].low, quad));
        acc.high = _mm256_add_epi32(acc.high, quad_products(w[j].high, quad));
    }
    return acc;
}
/* One pair of bfloat16 in all lanes. */
INLINE vp vp_load(const uint16_t *pair) {
    const uint32_t both = *(const uint32_t *)pair;
    return (vp){.first = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)(both << 16))),
                .second = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)(both & 0xffff0000u)))};
}
INLINE __m256 dot_pairs_of_half(__m256 acc, __m256i a, vp pair) {
    const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    const __m256 odd =
        _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000)));
    return _mm256_fmadd_ps(odd, pair.second, _mm256_fmadd_ps(even, pair.first, acc));
}
/* acc + pairs of bfloat16 in `a` times one pair. */
INLINE vf dot_pairs(vf acc, vb a, vp pair) {
    return EACH_HALF(vf, dot_pairs_of_half(acc.low, a.low, pair),
                     dot_pairs_of_half(acc.high, a.high, pair));
}

INLINE void prefetch_near(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INLINE void prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
