/* What the kernels work on, and the table of functions that one instruction set fills.
 *
 * Everything is padded so that kernels meet no ragged ends: columns of weights and activations to
 * a multiple of 64, rows of weights to a multiple of 16, all of the padding zero. */
#ifndef SESSIOND_KERNELS_H
#define SESSIOND_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define TILE_ROWS 16
#define GROUP 32          /* columns that share a scale */
#define BLOCK_TOKENS 16   /* slots of a KV block: the lanes of a vector */
#define SEGMENT_BLOCKS 16 /* blocks at most in one softmax before it is merged */
#define SEGMENT_TOKENS (SEGMENT_BLOCKS * BLOCK_TOKENS)
#define MAX_VECTORS 16    /* query vectors (row, head) in one attention tile */
#define MAX_HEAD_DIM 256
#define PARTIAL_HEADER 16 /* floats before the values of a partial: maximum, sum, padding */

/* Weights. A tile is 16 rows over all columns, group after group; see linear_*.c for the bytes. */
typedef enum { Q4_1, Q4_0, Q8_0, BF16, FORMATS } Format;

typedef struct {
    const uint8_t *tiles;
    const float *bias; /* [rows] or NULL */
    int32_t format;
    int32_t rows;    /* of the output, padded */
    int32_t columns; /* of the input, padded */
    int32_t padding;
} Linear;

/* Rows of activations as linear layers read them: int8 with a scale per group, or bfloat16. */
typedef struct {
    void *values;      /* [rows][columns] int8 or bfloat16 */
    float *scales;     /* [rows][groups] */
    float *offsets;    /* [rows][groups] scale times sum: what a weight's minimum is multiplied by */
    int32_t *sums;     /* [rows][groups] of the int8 values */
    int32_t columns;
    int32_t is_bfloat; /* then only `values` is used */
} Activations;

/* One block in a session's page table: slot s in first..last holds position base + s. */
typedef struct {
    int32_t block, first, last, base;
} Entry;

/* The KV of one layer. A block holds all layers, [layer][K, V][kv_head]; inside a head:
 *
 *   bfloat16:  K [head_dim / 2][16 slots][2]   pairs of dimensions of all slots in one vector
 *              V [8 slot pairs][head_dim][2]   pairs of slots
 *   float32:   K [head_dim][16 slots]   V [16 slots][head_dim]
 *   int8:      see kv_int8.h
 *
 * so that scores and values both come out of lanes without a sum across. K is rotated by its slot
 * only. Rotation pairs dimension i with i + head_dim / 2. */
typedef struct {
    uint8_t *pool;
    size_t block_bytes;
    size_t layer_bytes; /* offset of this layer's K in a block */
    int32_t kv_heads, group, head_dim;
    int32_t window;         /* tokens that a token sees, itself included; 0: all */
    int32_t is_float, is_int8; /* neither: bfloat16 */
    const float *rotation; /* [angle in tokens][head_dim]: cosines, then sines */
} KvLayer;

/* Bytes of K, or of V, of one head in a block. */
static inline size_t kv_head_bytes(const KvLayer *kv) {
    const size_t values = (size_t)kv->head_dim * BLOCK_TOKENS;
    if (kv->is_int8) return values + BLOCK_TOKENS * sizeof(float);
    return values * (kv->is_float ? sizeof(float) : sizeof(uint16_t));
}

/* Rows of one sequence and heads of a range of KV heads, attended to together. Vector
 * v = ((kv_head - first_kv_head) * rows + row) * group + head in group. */
typedef struct {
    const Entry *entries; /* the sequence's page table */
    const float *queries; /* row r, head h at r * query_stride + h * head_dim; scaled, unrotated */
    const int32_t *positions, *row_entries, *row_slots; /* [rows] */
    size_t query_stride;
    int32_t rows, first_kv_head, end_kv_head;
    int32_t streaming; /* no other tile reads these K and V: fetch ahead */
} AttentionTile;

typedef struct {
    /* x / rms(x) * weight; `width` is the true number of columns that the mean is over */
    void (*normalize)(const float *x, const float *weight, int width, float epsilon,
                      const Activations *out, int row);
    void (*quantize)(const float *x, const Activations *out, int row);
    /* silu(gate) * up of one unit: [rows][32 gates, 32 ups] into columns 32 * unit ... */
    void (*swiglu)(const float *gate_up, int first_row, int end_row, int unit,
                   const Activations *out);
    /* out = (or +=, when `add`) rows first_row..end_row of x times tiles first_tile..end_tile;
       out points at the first row's output of the first tile */
    void (*linear[FORMATS])(const Linear *weights, int first_tile, int end_tile,
                            const Activations *x, int first_row, int end_row, float *out,
                            size_t stride, int add);
    void (*prepare_queries)(float *queries, int heads, int head_dim, const float *norm,
                            float epsilon, float scale);
    void (*write_kv)(const KvLayer *kv, int block, int slot, float *keys, const float *values,
                     const float *norm, float epsilon);
    /* one segment: entries first..end; partials [vectors][PARTIAL_HEADER + head_dim] */
    void (*attend)(const KvLayer *kv, const AttentionTile *tile, int first_entry, int end_entry,
                   float *partials);
    void (*attend_int8)(const KvLayer *kv, const AttentionTile *tile, int first_entry,
                        int end_entry, float *partials); /* for is_int8 */
    void (*merge)(float *into, const float *segment, int vectors, int head_dim);
    void (*finish)(const float *partials, int vectors, int head_dim, float *const *out);
    int32_t (*argmax)(const float *logits, int count);
    void (*unpack_row)(const Linear *weights, int row, float *out);
} Kernels;

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512;

#endif
