/* KV in int8: what a head holds in a block (see KvLayer), and how a token's values get there.
 *
 *   K  [head_dim / 2][16 slots][2]  int8       V  [8 slot pairs][head_dim][2]  int8
 *      [16 slots] float, the scales               [16 slots] float
 *
 * Bytes lie as bfloat16's values do. Each slot has a scale of its own, max |x| / 127 over the head:
 * a token's bits depend on nothing but the token. What is not finite makes the scale so. */
#ifndef SESSIOND_KV_INT8_H
#define SESSIOND_KV_INT8_H

#include "kernels.h"
#include "simd.h"

INLINE float *int8_scales(const uint8_t *head, int head_dim) {
    return (float *)(head + (size_t)head_dim * BLOCK_TOKENS);
}

/* Rounds [count] to `out`; returns the scale. */
INLINE float round_to_int8(const float *x, int count, int8_t *out) {
    float largest = 0.0f;
    for (int i = 0; i < count; i += 16) {
        const vf v = vf_load(x + i);
        const float magnitude = vf_largest_magnitude(v, v);
        if (largest == largest && !(magnitude <= largest)) largest = magnitude;
    }
    const vf inverse = vf_set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    for (int i = 0; i < count; i += 16)
        vi_store_bytes(out + i, vi_round(vf_mul(vf_load(x + i), inverse)));
    return largest / 127.0f;
}

INLINE void write_int8_key(uint8_t *head, int slot, const float *key, int head_dim) {
    int8_t rounded[MAX_HEAD_DIM], *values = (int8_t *)head + 2 * slot;
    int8_scales(head, head_dim)[slot] = round_to_int8(key, head_dim, rounded);
    for (int d = 0; d < head_dim; d++) values[d / 2 * 2 * BLOCK_TOKENS + d % 2] = rounded[d];
}

INLINE void write_int8_value(uint8_t *head, int slot, const float *value, int head_dim) {
    int8_t rounded[MAX_HEAD_DIM];
    int8_t *values = (int8_t *)head + (size_t)(slot / 2) * 2 * head_dim + slot % 2;
    int8_scales(head, head_dim)[slot] = round_to_int8(value, head_dim, rounded);
    for (int d = 0; d < head_dim; d++) values[2 * d] = rounded[d];
}

#endif
