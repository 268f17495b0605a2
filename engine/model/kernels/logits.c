/* The ends of the model: rows of the embedding out of packed tiles, the largest logit. */
#include <math.h>

#include "kernels.h"
#include "simd.h"

/* Lowest index among the largest; -1 when some logit is not a finite number. */
int32_t KERNEL(argmax)(const float *logits, int count) {
    vf largest = vf_set1(-INFINITY), zeros = vf_zero(); /* what is not finite, times 0, is NaN */
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const vf x = vf_load(logits + i);
        largest = vf_max(largest, x);
        zeros = vf_fma(x, vf_zero(), zeros);
    }
    float maximum = vf_reduce_max(largest), zero = vf_reduce_add(zeros);
    for (; i < count; i++) {
        if (logits[i] > maximum) maximum = logits[i];
        zero += logits[i] * 0.0f;
    }
    if (zero != 0.0f) return -1;
    for (i = 0; i < count; i++)
        if (logits[i] == maximum) return i;
    return -1;
}

/* --- one row of a packed matrix; the layouts are drawn in linear_*.c ------------------------ */

INLINE float half_at(const uint8_t *halves, int lane) {
    float wide[16];
    vf_store(wide, vf_from_halves((const uint16_t *)halves));
    return wide[lane];
}

/* Quads of columns 0..31 of row `lane`, each byte - 128, times scale. */
INLINE void unpack_bytes(const uint8_t *vectors, int lane, float scale, float *out) {
    for (int c = 0; c < GROUP; c++)
        out[c] = scale * (float)(vectors[64 * (c / 4) + 4 * lane + c % 4] - 128);
}

/* Nibbles of columns 0..31 of row `lane`, times scale, plus minimum. */
INLINE void unpack_nibbles(const uint8_t *vectors, int lane, float scale, float minimum,
                           float *out) {
    for (int p = 0; p < 4; p++)
        for (int c = 0; c < 4; c++) {
            const uint8_t both = vectors[64 * p + 4 * lane + c];
            out[8 * p + c] = scale * (float)(both & 15) + minimum;
            out[8 * p + c + 4] = scale * (float)(both >> 4) + minimum;
        }
}

INLINE void unpack_bfloats(const uint8_t *vectors, int lane, float *out) {
    uint16_t values[GROUP];
    for (int j = 0; j < GROUP / 2; j++)
        __builtin_memcpy(values + 2 * j, vectors + 64 * j + 4 * lane, 2 * sizeof *values);
    vf_store(out, vf_from_bfloats(values));
    vf_store(out + 16, vf_from_bfloats(values + 16));
}

INLINE void unpack_group(Format format, const uint8_t *tile, int g, int lane, float *out) {
    const uint8_t *at;
    float scale;
    switch (format) {
    case Q4_1:
        at = tile + (size_t)g * 320;
        unpack_nibbles(at + 64, lane, half_at(at, lane), half_at(at + 32, lane), out);
        return;
    case Q4_0:
        at = tile + (size_t)(g / 2) * 576;
        scale = half_at(at + 32 * (g % 2), lane);
        unpack_nibbles(at + 64 + 256 * (g % 2), lane, scale, -8.0f * scale, out);
        return;
    case Q8_0:
        at = tile + (size_t)(g / 2) * 1088;
        unpack_bytes(at + 64 + 512 * (g % 2), lane, half_at(at + 32 * (g % 2), lane), out);
        return;
    case BF16:
        unpack_bfloats(tile + (size_t)g * 1024, lane, out);
        return;
    case FORMATS:
        return;
    }
}

void KERNEL(unpack_row)(const Linear *weights, int row, float *out) {
    static const size_t bytes_per_group[FORMATS] = {320, 288, 544, 1024};
    const int groups = weights->columns / GROUP;
    const size_t tile_bytes = (size_t)groups * bytes_per_group[weights->format];
    const uint8_t *tile = weights->tiles + (size_t)(row / TILE_ROWS) * tile_bytes;
    for (int g = 0; g < groups; g++)
        unpack_group((Format)weights->format, tile, g, row % TILE_ROWS, out + (size_t)g * GROUP);
}
