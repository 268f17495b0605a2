/* Vectors of 16 lanes in GNU C alone, for processors without the instructions above. */
#ifndef SESSIOND_SIMD_PORTABLE_H
#define SESSIOND_SIMD_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ISA_SUFFIX portable
#define SCORE_VECTORS 2
#define VALUE_VECTORS 1
#define LINEAR_ROWS 4

typedef struct {
    float lane[16];
} vf;
typedef struct {
    int32_t lane[16];
} vi;
typedef struct {
    uint8_t byte[64];
} vb;
typedef struct {
    float first, second;
} vp;

#define LANES for (int i = 0; i < 16; i++)

INLINE vf vf_set1(float x) {
    vf v;
    LANES v.lane[i] = x;
    return v;
}
INLINE vf vf_zero(void) { return vf_set1(0.0f); }
INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
#define BINARY(name, expression)            \
    INLINE vf name(vf a, vf b) {            \
        vf v;                               \
        LANES {                             \
            const float x = a.lane[i];      \
            const float y = b.lane[i];      \
            v.lane[i] = (expression);       \
        }                                   \
        return v;                           \
    }
BINARY(vf_add, x + y)
BINARY(vf_sub, x - y)
BINARY(vf_mul, x *y)
BINARY(vf_div, x / y)
BINARY(vf_max, x > y ? x : y)
BINARY(vf_min, x < y ? x : y)
#undef BINARY
INLINE vf vf_abs(vf a) {
    LANES a.lane[i] = fabsf(a.lane[i]);
    return a;
}
INLINE vf vf_fma(vf a, vf b, vf c) { return vf_add(vf_mul(a, b), c); }
INLINE vf vf_fnma(vf a, vf b, vf c) { return vf_sub(c, vf_mul(a, b)); } /* c - a * b */
INLINE float vf_reduce_add(vf v) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) v.lane[i] += v.lane[i + half];
    return v.lane[0];
}
INLINE float vf_reduce_max(vf v) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            if (v.lane[i + half] > v.lane[i]) v.lane[i] = v.lane[i + half];
    return v.lane[0];
}
/* Lanes first..last keep their value, the others get `other`. */
INLINE vf vf_keep_lanes(vf v, int first, int last, float other) {
    LANES v.lane[i] = i >= first && i <= last ? v.lane[i] : other;
    return v;
}

INLINE vi vi_set1(int32_t x) {
    vi v;
    LANES v.lane[i] = x;
    return v;
}
INLINE vi vi_zero(void) { return vi_set1(0); }
INLINE vi vi_add(vi a, vi b) {
    LANES a.lane[i] += b.lane[i];
    return a;
}
INLINE vf vf_from_int(vi a) {
    vf v;
    LANES v.lane[i] = (float)a.lane[i];
    return v;
}
INLINE vi vi_round(vf a) { /* to nearest, ties to even; for |a| below 2^22 */
    vi v;
    LANES v.lane[i] = (int32_t)((a.lane[i] + 12582912.0f) - 12582912.0f);
    return v;
}
INLINE int32_t vi_reduce_add(vi v) {
    int32_t sum = 0;
    LANES sum += v.lane[i];
    return sum;
}
/* 2^n for n in -127 (gives 0) .. 127 */
INLINE vf vf_power_of_2(vi n) {
    LANES n.lane[i] = (n.lane[i] + 127) << 23;
    vf v;
    memcpy(&v, &n, sizeof v);
    return v;
}
INLINE void vi_store_bytes(int8_t *p, vi v) { LANES p[i] = (int8_t)v.lane[i]; }

INLINE float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* A half's exponent is 112 less than a float's: shift, then scale. Finite values only. */
INLINE vf vf_from_halves(const uint16_t *p) {
    vf v;
    LANES {
        const float size = float_of_bits((uint32_t)(p[i] & 0x7fff) << 13) * 0x1p112f;
        v.lane[i] = p[i] & 0x8000 ? -size : size;
    }
    return v;
}
INLINE void vf_store_bfloats(uint16_t *p, vf v) { /* rounded to nearest even */
    uint32_t bits[16];
    memcpy(bits, &v, sizeof bits);
    LANES p[i] = (uint16_t)((bits[i] + 0x7fff + ((bits[i] >> 16) & 1)) >> 16);
}
INLINE void vf_store_bfloats_twice(uint16_t *p, vf low, vf high) {
    vf_store_bfloats(p, low);
    vf_store_bfloats(p + 16, high);
}
INLINE vf vf_from_bfloats(const uint16_t *p) {
    vf v;
    LANES v.lane[i] = float_of_bits((uint32_t)p[i] << 16);
    return v;
}

INLINE vb vb_load(const void *p) {
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vb_store(void *p, vb v) { memcpy(p, &v, sizeof v); }
INLINE vb vb_and(vb a, vb b) {
    for (int i = 0; i < 64; i++) a.byte[i] &= b.byte[i];
    return a;
}
INLINE vb vb_low_nibbles(vb v) {
    for (int i = 0; i < 64; i++) v.byte[i] &= 15;
    return v;
}
INLINE vb vb_high_nibbles(vb v) {
    for (int i = 0; i < 64; i++) v.byte[i] >>= 4;
    return v;
}

INLINE vi dot_quads(const vb *w, const int8_t *x, int offset) {
    vi acc = vi_zero();
    for (int j = 0; j < 8; j++)
        LANES for (int k = 0; k < 4; k++)
            acc.lane[i] += (int16_t)(w[j].byte[4 * i + k] - offset) * (int16_t)x[4 * j + k];
    return acc;
}
/* Sums of 32 products per lane. w[j], lane r, holds columns 4j..4j+3 of row r; x has 32 values. */
INLINE vi dot_nibbles(const vb *w, const int8_t *x) { return dot_quads(w, x, 0); }
/* Bytes are stored plus 128. */
INLINE vi dot_bytes(const vb *w, const int8_t *x, int32_t sum) {
    (void)sum;
    return dot_quads(w, x, 128);
}
/* One pair of bfloat16 in all lanes. */
INLINE vp vp_load(const uint16_t *pair) {
    return (vp){.first = float_of_bits((uint32_t)pair[0] << 16),
                .second = float_of_bits((uint32_t)pair[1] << 16)};
}
/* acc + pairs of bfloat16 in `a` times one pair. */
INLINE vf dot_pairs(vf acc, vb a, vp pair) {
    uint32_t both[16];
    memcpy(both, &a, sizeof both);
    LANES {
        const float sum = acc.lane[i] + float_of_bits(both[i] << 16) * pair.first;
        acc.lane[i] = sum + float_of_bits(both[i] & 0xffff0000u) * pair.second;
    }
    return acc;
}

INLINE void prefetch_near(const void *p) { __builtin_prefetch(p, 0, 3); }
INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
