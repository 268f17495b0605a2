/* The interface that Python sees: a model over one KV pool, run step by step. */
#ifndef SESSIOND_STEP_H
#define SESSIOND_STEP_H

#include "kernels.h"
#include "pool.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    Linear qkv, output; /* qkv: rows of all query heads, then K's, then V's */
    Linear gate_up;     /* units of 64 rows: 32 of the gate, then the same 32 of up */
    Linear down;
    const float *attention_norm, *mlp_norm; /* [hidden, padded] */
    const float *query_norm, *key_norm;     /* [head_dim] or NULL */
    int32_t window;                         /* see KvLayer */
    int32_t padding;
} Layer;

typedef struct {
    const Layer *layers;
    Linear embedding, head;
    const float *final_norm;
    const float *rotation; /* [rotation_rows][head_dim] */
    uint8_t *pool;
    size_t block_bytes;
    int32_t num_layers, num_blocks, rotation_rows, hidden, heads, kv_heads, head_dim, vocab;
    float epsilon;
    int32_t activations_are_bfloat, kv_is_float, kv_is_int8;
} Model;

typedef struct {
    int32_t rows, sequences, outputs;
    int32_t logits_stride;
    const int32_t *tokens;          /* [rows] */
    const int32_t *row_starts;      /* [sequences + 1] */
    const int32_t *first_positions; /* [sequences] */
    const int32_t *entry_starts, *entry_counts; /* [sequences] in `entries`, gaps allowed */
    const Entry *entries;           /* new tokens are the last valid slots of each sequence */
    const int32_t *output_rows;     /* [outputs] rows whose logits are wanted */
    float *logits;                  /* [outputs][logits_stride], the vocabulary padded to 16 */
    int32_t *choices; /* [outputs] largest logit, the lower id at a tie; -1: not all are finite */
} Step;

/* What engine_step refuses, having written nothing. */
enum {
    STEP_DONE = 0,
    NO_MEMORY = -1,
    EMPTY_SEQUENCE = -2, /* no new token, or no page-table entry */
    WRONG_TOKEN = -3,    /* outside the vocabulary */
    WRONG_ENTRY = -4,    /* a block or slot that the pool lacks, or positions not ascending */
    TOO_FEW_SLOTS = -5,  /* fewer valid slots than new tokens */
    WRONG_POSITION = -6, /* the table places a new token elsewhere than first_positions says */
    WRONG_ROW = -7,      /* an output row that does not exist */
};

/* Where thread 0 spends a step. */
enum { EMBED, NORM, QKV, KV_WRITE, ATTEND, MERGE, OUTPUT, GATE_UP, DOWN, HEAD, CHOOSE, PHASES };

typedef struct Engine Engine;

/* The instruction sets that this processor has, best last: "portable", "avx2", "avx512". */
EXPORT int engine_supports(const char *isa);
/* NULL without memory or threads, or when `isa` is not supported. `model` is copied, what it
 * points at is not. */
EXPORT Engine *engine_new(const Model *model, const char *isa, int threads);
EXPORT void engine_free(Engine *engine);
EXPORT int engine_step(Engine *engine, const Step *step);
/* The table of rotations moves when it grows. */
EXPORT void engine_set_rotation(Engine *engine, const float *rotation, int rows);
/* Threads that run the next steps: 1 to those of engine_new. No bit of a result depends on it. */
EXPORT void engine_set_threads(Engine *engine, int threads);
/* Of the last step. */
EXPORT void engine_effort(const Engine *engine, Effort *effort);
/* Seconds per phase since the last call, [PHASES]. */
EXPORT void engine_profile(Engine *engine, double *seconds);
/* Bytes on large pages, zero, committed when touched; NULL when there are none. */
EXPORT void *engine_allocate(size_t bytes);
EXPORT void engine_release(void *memory, size_t bytes);
/* One kernel table, for tests. NULL when the processor lacks it. */
EXPORT const Kernels *engine_kernels(const char *isa);

#endif
