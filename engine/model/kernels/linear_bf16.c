/* Linear layer on bfloat16 weights and activations, sums in float32.
 *
 * One group (32 columns) of a tile, 1,024 bytes: 16 vectors of 64 bytes; vector j holds the pair
 * of columns 2j, 2j+1 of all 16 rows:  [row 0: c c][row 1: c c] ...
 */
#include "linear.h"

#define GROUP_BYTES 1024
#define AHEAD (3 * GROUP_BYTES)

INLINE void tile_times_rows(int rows, const Linear *weights, const uint8_t *tile,
                            const Activations *x, int first_row, vf *acc) {
    const int columns = x->columns, groups = columns / GROUP;
    (void)weights;
    const uint16_t *values = (const uint16_t *)x->values + (size_t)first_row * columns;
    vf odd[LINEAR_ROWS];
    for (int i = 0; i < rows; i++) acc[i] = odd[i] = vf_zero();
    for (int g = 0; g < groups; g++, tile += GROUP_BYTES) {
        for (int line = 0; line < GROUP_BYTES; line += 64) prefetch_near(tile + AHEAD + line);
        for (int j = 0; j < 16; j += 2) {
            const vb first = vb_load(tile + 64 * j), second = vb_load(tile + 64 * j + 64);
            UNROLLED for (int i = 0; i < rows; i++) {
                const uint16_t *pairs = values + (size_t)i * columns + g * GROUP + 2 * j;
                acc[i] = dot_pairs(acc[i], first, vp_load(pairs));
                odd[i] = dot_pairs(odd[i], second, vp_load(pairs + 2));
            }
        }
    }
    for (int i = 0; i < rows; i++) acc[i] = vf_add(acc[i], odd[i]);
}

DEFINE_LINEAR(linear_bf16, (size_t)(weights->columns / GROUP) * GROUP_BYTES)
