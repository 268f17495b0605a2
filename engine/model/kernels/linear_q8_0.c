/* Linear layer on GGUF's Q8_0: weight = scale * q, q in -128..127, groups of 32 columns.
 *
 * Two groups of a tile, 1,088 bytes:
 *
 *   0    16 scales of the first group, half precision; at 32 those of the second
 *   64   first group: 8 vectors of 64 bytes; vector j holds columns 4j..4j+3, four bytes per row,
 *        each q + 128:  [row 0: c c c c][row 1: c c c c] ...
 *   576  second group
 */
#include "linear.h"

#define PAIR_BYTES 1088
#define AHEAD (3 * PAIR_BYTES)

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
        const uint8_t *bytes = pair + 64 + 512 * (g % 2);
        for (int line = 0; line < 576; line += 64) prefetch_near(bytes + AHEAD + line);
        const vf scale = vf_from_halves((const uint16_t *)(pair + 32 * (g % 2)));
        vb w[8];
        UNROLLED for (int j = 0; j < 8; j++) w[j] = vb_load(bytes + 64 * j);
        UNROLLED for (int i = 0; i < rows; i++) {
            const vi sum = dot_bytes(w, values + (size_t)i * columns + g * GROUP,
                                     sums[i * groups + g]);
            const vf factor = vf_mul(scale, vf_set1(scales[i * groups + g]));
            acc[i] = vf_fma(vf_from_int(sum), factor, acc[i]);
        }
    }
}

DEFINE_LINEAR(linear_q8_0, (size_t)(weights->columns / GROUP / 2) * PAIR_BYTES)
