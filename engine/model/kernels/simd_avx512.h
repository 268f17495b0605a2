/* Vectors of 16 lanes on AVX-512 with VNNI and BF16 (Zen 4, Sapphire Rapids and later). */
#ifndef SESSIOND_SIMD_AVX512_H
#define SESSIOND_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define ISA_SUFFIX avx512
/* 32 registers: this many query vectors share one read of K, two chains of sums each. */
#define SCORE_VECTORS 12
#define VALUE_VECTORS 6
#define LINEAR_ROWS 8

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb; /* 64 bytes */

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE float vf_reduce_add(vf v) { return _mm512_reduce_add_ps(v); }
INLINE float vf_reduce_max(vf v) { return _mm512_reduce_max_ps(v); }
/* Lanes first..last keep their value, the others get `other`. */
INLINE vf vf_keep_lanes(vf v, int first, int last, float other) {
    const __mmask16 kept = (__mmask16)((0xffffu << first) & (0xffffu >> (15 - last)));
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), kept, v);
}

INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vf vf_from_int(vi v) { return _mm512_cvtepi32_ps(v); }
INLINE vi vi_round(vf v) { return _mm512_cvtps_epi32(v); } /* to nearest, ties to even */
INLINE int32_t vi_reduce_add(vi v) { return _mm512_reduce_add_epi32(v); }
/* 2^n for n in -127 (gives 0) .. 127 */
INLINE vf vf_power_of_2(vi n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
INLINE void vi_store_bytes(int8_t *p, vi v) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v));
}

INLINE vf vf_from_halves(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void vf_store_bfloats(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}
INLINE vf vf_from_bfloats(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vb_store(void *p, vb v) { _mm512_storeu_si512(p, v); }
INLINE vb vb_and(vb a, vb b) { return _mm512_and_si512(a, b); }
INLINE vb vb_low_nibbles(vb v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE vb vb_high_nibbles(vb v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

/* Sums of 32 products per lane. w[j], lane r, holds columns 4j..4j+3 of row r; x has 32 values.
   Two chains hide the latency; integers make the order of no consequence. */
INLINE vi dot_unsigned(const vb *w, const int8_t *x, vi start) {
    const int32_t *quads = (const int32_t *)x;
    vi even = start, odd = _mm512_setzero_si512();
    UNROLLED for (int j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, w[j], _mm512_set1_epi32(quads[j]));
        odd = _mm512_dpbusd_epi32(odd, w[j + 1], _mm512_set1_epi32(quads[j + 1]));
    }
    return _mm512_add_epi32(even, odd);
}
INLINE vi dot_nibbles(const vb *w, const int8_t *x) {
    return dot_unsigned(w, x, _mm512_setzero_si512());
}
/* Bytes are stored plus 128: the instruction wants one side unsigned. `sum` is that of x. */
INLINE vi dot_bytes(const vb *w, const int8_t *x, int32_t sum) {
    return dot_unsigned(w, x, _mm512_set1_epi32(-128 * sum));
}
/* acc + pairs of bfloat16 in `a` times the one pair at `pair`. */
INLINE vf dot_bfloat_pair(vf acc, vb a, const uint16_t *pair) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)_mm512_set1_epi32(*(const int32_t *)pair));
}

INLINE void prefetch_near(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INLINE void prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
