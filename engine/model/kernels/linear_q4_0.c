/* Linear layer on GGUF's Q4_0: weight = scale * (q - 8), q in 0..15, groups of 32 columns.
 *
 * Two groups of a tile, 576 bytes:
 *
 *   0    16 scales of the first group, half precision; at 32 those of the second
 *   64   first group: 4 vectors of nibbles, as in linear_q4_1.c
 *   320  second group
 */
#include "linear.h"

#define PAIR_BYTES 576
#define AHEAD (4 * PAIR_BYTES)

INLINE void tile_times_rows(int rows, const Linear *weights, const uint8_t *tile,
                            const Activations *x, int first_row, vf *acc) {
    const int columns = x->columns, groups = columns / GROUP;
    (void)weights;
    const int8_t *values = (const int8_t *)x->values + (size_t)first_row * columns;
    const float *scales = x->scales + (size_t)first_row * groups;
    const int32_t *sums = x->sums + (size_t)first_row * groups;
    for (int i = 0; i < rows; i++) acc[i] = vf_zero();
    for (int g = 0; g < groups; g++) {
        const uint8_t *pair = tile + (size_t)(g / 2) * PAIR_BYTES;
        const uint8_t *nibbles = pair + 64 + 256 * (g % 2);
        for (int line = 0; line < 320; line += 64) prefetch_near(nibbles + AHEAD + line);
        const vf scale = vf_from_halves((const uint16_t *)(pair + 32 * (g % 2)));
        vb w[8];
        UNROLLED for (int p = 0; p < 4; p++) {
            const vb both = vb_load(nibbles + 64 * p);
            w[2 * p] = vb_low_nibbles(both);
            w[2 * p + 1] = vb_high_nibbles(both);
        }
        UNROLLED for (int i = 0; i < rows; i++) {
            const vi raw = dot_nibbles(w, values + (size_t)i * columns + g * GROUP);
            const vi sum = vi_add(raw, vi_set1(-8 * sums[i * groups + g]));
            const vf factor = vf_mul(scale, vf_set1(scales[i * groups + g]));
            acc[i] = vf_fma(vf_from_int(sum), factor, acc[i]);
        }
    }
}

DEFINE_LINEAR(linear_q4_0, (size_t)(weights->columns / GROUP / 2) * PAIR_BYTES)
