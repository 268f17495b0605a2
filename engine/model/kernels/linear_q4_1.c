/* Linear layer on GGUF's Q4_1: weight = scale * q + minimum, q in 0..15, groups of 32 columns.
 *
 * One group of a tile, 320 bytes:
 *
 *   0    16 scales, half precision, one per row
 *   32   16 minima
 *   64   4 vectors of 64 bytes; vector p holds in its low nibbles columns 8p..8p+3, in its high
 *        nibbles columns 8p+4..8p+7, four bytes per row:  [row 0: c c c c][row 1: c c c c] ...
 */
#include "linear.h"

#define GROUP_BYTES 320
#define AHEAD (8 * GROUP_BYTES)

INLINE void tile_times_rows(int rows, const Linear *weights, const uint8_t *tile,
                            const Activations *x, int first_row, vf *acc) {
    const int columns = x->columns, groups = columns / GROUP;
    (void)weights;
    const int8_t *values = (const int8_t *)x->values + (size_t)first_row * columns;
    const float *scales = x->scales + (size_t)first_row * groups;
    const float *offsets = x->offsets + (size_t)first_row * groups;
    for (int i = 0; i < rows; i++) acc[i] = vf_zero();
    for (int g = 0; g < groups; g++, tile += GROUP_BYTES) {
        for (int line = 0; line < GROUP_BYTES; line += 64) prefetch_near(tile + AHEAD + line);
        const vf scale = vf_from_halves((const uint16_t *)tile);
        const vf minimum = vf_from_halves((const uint16_t *)(tile + 32));
        vb w[8];
        UNROLLED for (int p = 0; p < 4; p++) {
            const vb both = vb_load(tile + 64 + 64 * p);
            w[2 * p] = vb_low_nibbles(both);
            w[2 * p + 1] = vb_high_nibbles(both);
        }
        UNROLLED for (int i = 0; i < rows; i++) {
            const vi sum = dot_nibbles(w, values + (size_t)i * columns + g * GROUP);
            const vf factor = vf_mul(scale, vf_set1(scales[i * groups + g]));
            acc[i] = vf_fma(vf_from_int(sum), factor, acc[i]);
            acc[i] = vf_fma(minimum, vf_set1(offsets[i * groups + g]), acc[i]);
        }
    }
}

DEFINE_LINEAR(linear_q4_1, (size_t)(weights->columns / GROUP) * GROUP_BYTES)
