/* From the projections of a token to its query and its slot in a KV block. */
#include <math.h>

#include "kernels.h"
#include "kv_int8.h"
#include "simd.h"

INLINE vf norm_factor(const float *x, int head_dim, float epsilon) {
    vf squares = vf_zero();
    for (int i = 0; i < head_dim; i += 16) squares = vf_fma(vf_load(x + i), vf_load(x + i), squares);
    return vf_set1(1.0f / sqrtf(vf_reduce_add(squares) / (float)head_dim + epsilon));
}

/* In place: per-head RMS norm where the model has one, then `scale`. The rotation is left to
   attention, which knows each block's base. */
void KERNEL(prepare_queries)(float *queries, int heads, int head_dim, const float *norm,
                             float epsilon, float scale) {
    for (int h = 0; h < heads; h++, queries += head_dim) {
        const vf factor = norm ? norm_factor(queries, head_dim, epsilon) : vf_set1(1.0f);
        for (int i = 0; i < head_dim; i += 16) {
            vf q = vf_load(queries + i);
            if (norm) q = vf_mul(vf_mul(q, factor), vf_load(norm + i));
            vf_store(queries + i, vf_mul(q, vf_set1(scale)));
        }
    }
}

INLINE void rotate_by_slot(float *key, const float *rotation, int head_dim) {
    const int half = head_dim / 2;
    for (int i = 0; i < half; i++) { /* halves may be shorter than a vector */
        const float a = key[i], b = key[i + half];
        const float cosine = rotation[i], sine = rotation[half + i];
        key[i] = a * cosine - b * sine;
        key[i + half] = b * cosine + a * sine;
    }
}

INLINE void store_bfloats_apart(const float *x, int count, uint16_t *out, int stride) {
    uint16_t rounded[16];
    for (int i = 0; i < count; i += 16) {
        vf_store_bfloats(rounded, vf_load(x + i));
        for (int j = 0; j < 16; j++) out[(size_t)(i + j) * stride] = rounded[j];
    }
}

INLINE void write_key(const KvLayer *kv, uint8_t *head, int slot, const float *key) {
    if (kv->is_float) {
        for (int d = 0; d < kv->head_dim; d++) ((float *)head)[d * BLOCK_TOKENS + slot] = key[d];
        return;
    }
    if (kv->is_int8) {
        write_int8_key(head, slot, key, kv->head_dim);
        return;
    }
    uint16_t rounded[16];
    uint32_t pair;
    for (int d = 0; d < kv->head_dim; d += 16) {
        vf_store_bfloats(rounded, vf_load(key + d));
        for (int j = 0; j < 8; j++) {
            __builtin_memcpy(&pair, rounded + 2 * j, sizeof pair);
            ((uint32_t *)head)[(d / 2 + j) * BLOCK_TOKENS + slot] = pair;
        }
    }
}

INLINE void write_value(const KvLayer *kv, uint8_t *head, int slot, const float *value) {
    if (kv->is_float) {
        __builtin_memcpy((float *)head + (size_t)slot * kv->head_dim, value,
                         (size_t)kv->head_dim * sizeof(float));
        return;
    }
    if (kv->is_int8) {
        write_int8_value(head, slot, value, kv->head_dim);
        return;
    }
    uint16_t *pair = (uint16_t *)head + (size_t)(slot / 2) * kv->head_dim * 2 + slot % 2;
    store_bfloats_apart(value, kv->head_dim, pair, 2);
}

/* Stores a token's K (normed where the model does so, rotated by its slot) and V. Changes `keys`. */
void KERNEL(write_kv)(const KvLayer *kv, int block, int slot, float *keys, const float *values,
                      const float *norm, float epsilon) {
    const size_t head_bytes = kv_head_bytes(kv);
    uint8_t *head = kv->pool + (size_t)block * kv->block_bytes + kv->layer_bytes;
    if (norm) KERNEL(prepare_queries)(keys, kv->kv_heads, kv->head_dim, norm, epsilon, 1.0f);
    for (int h = 0; h < kv->kv_heads; h++, head += head_bytes) {
        float *key = keys + (size_t)h * kv->head_dim;
        rotate_by_slot(key, kv->rotation + (size_t)slot * kv->head_dim, kv->head_dim);
        write_key(kv, head, slot, key);
        write_value(kv, head + (size_t)kv->kv_heads * head_bytes, slot,
                    values + (size_t)h * kv->head_dim);
    }
}
