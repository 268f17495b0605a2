/* The ends of the model: rows of the embedding out of packed tiles, the largest logit. */
#include "kernels.h"
#include "simd.h"

/* Lowest index among the largest. Not a number is never the largest. */
int32_t KERNEL(argmax)(const float *logits, int count) {
    vf largest = vf_set1(-3.4e38f);
    int i = 0;
    for (; i + 16 <= count; i += 16) largest = vf_max(vf_load(logits + i), largest);
    float maximum = vf_reduce_max(largest);
    for (; i < count; i++)
        if (logits[i] > maximum) maximum = logits[i];
    for (i = 0; i < count; i++)
        if (logits[i] == maximum) return i;
    return 0;
}

INLINE float scale_at(const uint8_t *halves, int lane) {
    float wide[16];
    vf_store(wide, vf_from_halves((const uint16_t *)halves));
    return wide[lane];
}

/* Byte of column c (of a group) and row `lane` among vectors of quads. */
INLINE uint8_t quad_byte(const uint8_t *vectors, int lane, int c) {
    return vectors[64 * (c / 4) + 4 * lane + c % 4];
}

INLINE int nibble(const uint8_t *vectors, int lane, int c) {
    const uint8_t both = quad_byte(vectors, lane, c % 4 + c / 8 * 4);
    return c % 8 < 4 ? both & 15 : both >> 4;
}

/* One group of one row; the layouts are drawn in linear_*.c. */
INLINE void unpack_group(const Linear *weights, const uint8_t *tile, int g, int lane, float *out) {
    const uint8_t *at;
    switch ((Format)weights->format) {
    case Q4_1:
        at = tile + (size_t)g * 320;
        for (int c = 0; c < GROUP; c++)
            out[c] = scale_at(at, lane) * (float)nibble(at + 64, lane, c) + scale_at(at + 32, lane);
        return;
    case Q4_0:
        at = tile + (size_t)(g / 2) * 576;
        for (int c = 0; c < GROUP; c++)
            out[c] = scale_at(at + 32 * (g % 2), lane) *
                     (float)(nibble(at + 64 + 256 * (g % 2), lane, c) - 8);
        return;
    case Q8_0:
        at = tile + (size_t)(g / 2) * 1088;
        for (int c = 0; c < GROUP; c++)
            out[c] = scale_at(at + 32 * (g % 2), lane) *
                     (float)(quad_byte(at + 64 + 512 * (g % 2), lane, c) - 128);
        return;
    case BF16:
        for (int c = 0; c < GROUP; c++) {
            uint16_t value;
            float wide[16];
            const uint8_t *pair = tile + (size_t)g * 1024 + 64 * (c / 2) + 4 * lane;
            __builtin_memcpy(&value, pair + 2 * (c % 2), sizeof value);
            uint16_t copies[16] = {value};
            vf_store(wide, vf_from_bfloats(copies));
            out[c] = wide[0];
        }
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
        unpack_group(weights, tile, g, row % TILE_ROWS, out + (size_t)g * GROUP);
}
