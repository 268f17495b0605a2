/* The loop that all formats of weights share. A format defines the inline function
 *
 *   tile_times_rows(rows, tile, x, first_row, acc)    acc[i] = the 16 outputs of row first_row + i
 *
 * whose sum over groups has one order whatever `rows` is, so that a row's result does not depend
 * on the rows beside it. `rows` is a constant where it is inlined. */
#ifndef SESSIOND_LINEAR_H
#define SESSIOND_LINEAR_H

#include "kernels.h"
#include "simd.h"

INLINE void tile_times_rows(int rows, const Linear *weights, const uint8_t *tile,
                            const Activations *x, int first_row, vf *acc);

INLINE void store_rows(int rows, const vf *acc, const float *bias, float *out, size_t stride,
                       int add) {
    for (int i = 0; i < rows; i++, out += stride) {
        vf sum = acc[i];
        if (bias) sum = vf_add(sum, vf_load(bias));
        vf_store(out, add ? vf_add(vf_load(out), sum) : sum);
    }
}

#define ROWS_AT_ONCE(count)                                                                      \
    for (; end_row - row >= (count); row += (count)) {                                           \
        vf acc[count];                                                                           \
        tile_times_rows(count, weights, tile, x, row, acc);                                      \
        store_rows(count, acc, bias, out_tile + (size_t)(row - first_row) * stride, stride, add);   \
    }

#define DEFINE_LINEAR(name, tile_bytes)                                                          \
    void KERNEL(name)(const Linear *weights, int first_tile, int end_tile,                       \
                      const Activations *x, int first_row, int end_row, float *out,              \
                      size_t stride, int add) {                                                  \
        for (int t = first_tile; t < end_tile; t++) {                                            \
            const uint8_t *tile = weights->tiles + (size_t)t * (tile_bytes);                     \
            const float *bias = weights->bias ? weights->bias + t * TILE_ROWS : NULL;            \
            float *out_tile = out + (size_t)(t - first_tile) * TILE_ROWS;                        \
            int row = first_row;                                                                 \
            ROWS_AT_ONCE(LINEAR_ROWS)                                                            \
            ROWS_AT_ONCE(4)                                                                      \
            ROWS_AT_ONCE(2)                                                                      \
            ROWS_AT_ONCE(1)                                                                      \
        }                                                                                        \
    }

#endif
