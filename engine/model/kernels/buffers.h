/* What a step computes in: rows shared by all threads, and what each thread keeps for itself. */
#ifndef SESSIOND_BUFFERS_H
#define SESSIOND_BUFFERS_H

#include "plan.h"

#define UNIT 64       /* rows of gate_up that make 32 values */
#define PANEL_ROWS 64 /* rows of gate_up that a thread keeps before SiLU */

/* One thread's. A lone row is rounded by each thread for itself, into `hidden` and `attended`. */
typedef struct {
    Activations hidden, attended; /* [1] */
    float *attended_row;
    float *partials; /* [ITEM_TILES][MAX_VECTORS] of the tiles of an item */
    float *segment;  /* [MAX_VECTORS] of a tile's next segment */
    float *panel;    /* [PANEL_ROWS][UNIT] */
} Own;

/* All threads'. Grows to the largest step, never shrinks. */
typedef struct {
    float *x, *qkv, *attended_rows;    /* [rows][...] */
    Activations hidden, attended, mlp; /* [rows] */
    float *partials;                   /* the plan's, MAX_VECTORS each */
    int rows_capacity, partials_capacity;
} Buffers;

static inline size_t padded(int columns) { return ((size_t)columns + 63) / 64 * 64; }
static inline size_t partial_floats(const Model *model) {
    return (size_t)MAX_VECTORS * (PARTIAL_HEADER + (size_t)model->head_dim);
}
static inline int qkv_rows(const Model *model) { return model->layers[0].qkv.rows; }

/* Makes room for a step. 0 without memory: what there was may be gone, buffers_free still works. */
int buffers_reserve(Buffers *buffers, const Model *model, int rows, int partials);
void buffers_free(Buffers *buffers);

/* `own` is zero before. 0 without memory: own_free takes what was made. */
int own_make(Own *own, const Model *model);
void own_free(Own *own);

#endif
