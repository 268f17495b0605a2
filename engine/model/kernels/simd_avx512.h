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
typedef __m512i vp;

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
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a * b */
INLINE float vf_reduce_add(vf v) { return _mm512_reduce_add_ps(v); }
INLINE float vf_reduce_max(vf v) { return _mm512_reduce_max_ps(v); }
/* The largest of both; NaN where there is one: bits of magnitudes rise as they do, NaN's above. */
INLINE float vf_largest_magnitude(vf a, vf b) {
    const __m512i most = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a)),
                                          _mm512_castps_si512(_mm512_abs_ps(b)));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(most))));
}
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
INLINE vf vf_from_bytes(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Two floats, in all pairs of lanes. */
INLINE vf vf_from_pair(const float *p) {
    const __m128 pair = _mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)p);
    return _mm512_castpd_ps(_mm512_broadcastsd_pd(_mm_castps_pd(pair)));
}

INLINE vf vf_from_halves(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void vf_store_bfloats(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}
INLINE void vf_store_bfloats_twice(uint16_t *p, vf low, vf high) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}
INLINE vf vf_from_bfloats(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vb_store(void *p, vb v) { _mm512_storeu_si512(p, v); }
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
/* One pair of bfloat16 in all lanes. */
INLINE vp vp_load(const uint16_t *pair) { return _mm512_set1_epi32(*(const int32_t *)pair); }
/* acc + pairs of bfloat16 in `a` times one pair. */
INLINE vf dot_pairs(vf acc, vb a, vp pair) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)pair);
}
/* 2^x for x up to 0, 0 below -125 and for -inf. Relative error under 5e-5, an eightieth of what
   rounding to bfloat16 then loses: Taylor's series on [-0.5, 0.5], exact at 0. */
#define HAS_PROBABILITY
INLINE vf vf_probability(vf x) {
    const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLE_UQ);
    const __m512i whole = _mm512_cvtps_epi32(x);
    const __m512 rest = _mm512_sub_ps(x, _mm512_cvtepi32_ps(whole));
    __m512 sum = _mm512_set1_ps(9.6181291e-3f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.5504109e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.4022651e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.9314718e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    /* the whole part goes straight into the exponent */
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(
        seen, _mm512_castps_si512(sum), _mm512_slli_epi32(whole, 23)));
}

INLINE void prefetch_near(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INLINE void prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
