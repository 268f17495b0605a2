/* Vectors of 16 lanes in GNU C's vector types, for processors without the instructions above: the
 * compiler cuts them to what there is (SSE2, NEON). */
#ifndef SESSIOND_SIMD_PORTABLE_H
#define SESSIOND_SIMD_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define ISA_SUFFIX portable
#define SCORE_VECTORS 2
#define VALUE_VECTORS 1
#define LINEAR_ROWS 4

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vb __attribute__((vector_size(64))); /* 64 bytes, four to a lane */
typedef struct {
    float first, second;
} vp;

#define LANES for (int i = 0; i < 16; i++)

INLINE vf vf_set1(float x) { return x - (vf){0}; }
INLINE vf vf_zero(void) { return (vf){0}; }
INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf vf_add(vf a, vf b) { return a + b; }
INLINE vf vf_sub(vf a, vf b) { return a - b; }
INLINE vf vf_mul(vf a, vf b) { return a * b; }
INLINE vf vf_div(vf a, vf b) { return a / b; }
INLINE vf vf_choose(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf vf_max(vf a, vf b) { return vf_choose(a > b, a, b); }
INLINE vf vf_min(vf a, vf b) { return vf_choose(a < b, a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf vf_fnma(vf a, vf b, vf c) { return c - a * b; } /* c - a * b */
INLINE float vf_reduce_add(vf v) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}
INLINE float vf_reduce_max(vf v) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            if (v[i + half] > v[i]) v[i] = v[i + half];
    return v[0];
}
/* The largest of both; NaN where there is one: bits of magnitudes rise as they do, NaN's above. */
INLINE float vf_largest_magnitude(vf a, vf b) {
    const vi first = (vi)a & 0x7fffffff, second = (vi)b & 0x7fffffff;
    int32_t most = 0;
    LANES {
        if (first[i] > most) most = first[i];
        if (second[i] > most) most = second[i];
    }
    float largest;
    memcpy(&largest, &most, sizeof largest);
    return largest;
}
/* Lanes first..last keep their value, the others get `other`. */
INLINE vf vf_keep_lanes(vf v, int first, int last, float other) {
    const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vf_choose((lanes >= first) & (lanes <= last), v, vf_set1(other));
}

INLINE vi vi_set1(int32_t x) { return x - (vi){0}; }
INLINE vi vi_zero(void) { return (vi){0}; }
INLINE vi vi_add(vi a, vi b) { return a + b; }
INLINE vf vf_from_int(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi vi_round(vf a) { /* to nearest, ties to even; for |a| below 2^22 */
    return __builtin_convertvector((a + 12582912.0f) - 12582912.0f, vi);
}
INLINE int32_t vi_reduce_add(vi v) {
    int32_t sum = 0;
    LANES sum += v[i];
    return sum;
}
/* 2^n for n in -127 (gives 0) .. 127 */
INLINE vf vf_power_of_2(vi n) { return (vf)((n + 127) << 23); }
INLINE void vi_store_bytes(int8_t *p, vi v) { LANES p[i] = (int8_t)v[i]; }
INLINE vf vf_from_bytes(const int8_t *p) {
    vf v;
    LANES v[i] = p[i];
    return v;
}
/* Two floats, in all pairs of lanes. */
INLINE vf vf_from_pair(const float *p) {
    vf v;
    LANES v[i] = p[i % 2];
    return v;
}

INLINE vi vi_from_words(const uint16_t *p) {
    vi v;
    LANES v[i] = p[i];
    return v;
}
/* A half's exponent is 112 less than a float's: shift, then scale. Finite values only. */
INLINE vf vf_from_halves(const uint16_t *p) {
    const vi words = vi_from_words(p);
    const vf size = (vf)((words & 0x7fff) << 13) * 0x1p112f;
    return (vf)((vi)size | ((words & 0x8000) << 16));
}
INLINE void vf_store_bfloats(uint16_t *p, vf v) { /* rounded to nearest even */
    const vb bits = (vb)v;
    const vb rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    LANES p[i] = (uint16_t)rounded[i];
}
INLINE void vf_store_bfloats_twice(uint16_t *p, vf low, vf high) {
    vf_store_bfloats(p, low);
    vf_store_bfloats(p + 16, high);
}
INLINE vf vf_from_bfloats(const uint16_t *p) { return (vf)((vb)vi_from_words(p) << 16); }

INLINE vb vb_load(const void *p) {
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vb_store(void *p, vb v) { memcpy(p, &v, sizeof v); }
INLINE vb vb_low_nibbles(vb v) { return v & 0x0f0f0f0f; }
INLINE vb vb_high_nibbles(vb v) { return (v >> 4) & 0x0f0f0f0f; }

/* Four products per lane of unsigned bytes and the signed bytes at x. */
INLINE vi quad_products(vb w, const int8_t *x) {
#ifdef __SSE2__ /* what every x86-64 has, and no vector type says: pairs of 16-bit products */
    __m128i parts[4];
    memcpy(parts, &w, sizeof parts);
    const int32_t low = (int32_t)((uint32_t)(uint16_t)x[0] | (uint32_t)(uint16_t)x[2] << 16);
    const int32_t high = (int32_t)((uint32_t)(uint16_t)x[1] | (uint32_t)(uint16_t)x[3] << 16);
    for (int i = 0; i < 4; i++) {
        const __m128i even = _mm_and_si128(parts[i], _mm_set1_epi16(255));
        const __m128i odd = _mm_srli_epi16(parts[i], 8);
        parts[i] = _mm_add_epi32(_mm_madd_epi16(even, _mm_set1_epi32(low)),
                                 _mm_madd_epi16(odd, _mm_set1_epi32(high)));
    }
    vi sums;
    memcpy(&sums, parts, sizeof sums);
    return sums;
#else
    vi sums = {0};
    for (int k = 0; k < 4; k++) sums += (vi)((w >> (8 * k)) & 255) * x[k];
    return sums;
#endif
}
INLINE vi dot_unsigned(const vb *w, const int8_t *x, vi start) {
    for (int j = 0; j < 8; j++) start += quad_products(w[j], x + 4 * j);
    return start;
}
/* Sums of 32 products per lane. w[j], lane r, holds columns 4j..4j+3 of row r; x has 32 values. */
INLINE vi dot_nibbles(const vb *w, const int8_t *x) { return dot_unsigned(w, x, vi_zero()); }
/* Bytes are stored plus 128. `sum` is that of x. */
INLINE vi dot_bytes(const vb *w, const int8_t *x, int32_t sum) {
    return dot_unsigned(w, x, vi_set1(-128 * sum));
}
/* One pair of bfloat16 in all lanes. */
INLINE vp vp_load(const uint16_t *pair) {
    const uint32_t bits[2] = {(uint32_t)pair[0] << 16, (uint32_t)pair[1] << 16};
    vp v;
    memcpy(&v, bits, sizeof v);
    return v;
}
/* acc + pairs of bfloat16 in `a` times one pair. */
INLINE vf dot_pairs(vf acc, vb a, vp pair) {
    acc += (vf)(a << 16) * pair.first;
    return acc + (vf)(a & 0xffff0000u) * pair.second;
}

INLINE void prefetch_near(const void *p) { __builtin_prefetch(p, 0, 3); }
INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
