/* Paged attention over position-free blocks, one segment (up to 16 blocks) at a time.
 *
 *            block b     b+1    ...
 *   scores  [16 slots][16 slots] ...    per query vector (row, head); -inf where masked
 *   softmax over the segment            maximum, exponentials, their sum
 *   values  [head_dim]                  sum over slots of probability * V
 *
 * Each segment starts from nothing and is merged into the row's result in the order of the page
 * table (merge), wherever and by whomever it was computed. A row that shares a tile with later
 * rows meets blocks in which all slots are masked for it; those add exact zeros. So a row's result
 * has the same bits alone, in a batch, in any chunk, and split over threads. Online softmax:
 * Milakov and Gimelshein, arXiv 1805.02867.
 *
 * K is stored rotated by its slot: the query is rotated by its distance from the block's base. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "simd.h"

#define MASKED (-INFINITY)

typedef struct {
    float scores[MAX_VECTORS][SEGMENT_TOKENS]; /* then probabilities, for float32 KV */
    uint16_t probabilities[MAX_VECTORS][SEGMENT_TOKENS];
    float rotated[MAX_VECTORS][MAX_HEAD_DIM];
    uint16_t rounded[MAX_VECTORS][MAX_HEAD_DIM];
    float block[MAX_HEAD_DIM * BLOCK_TOKENS]; /* a V block without what lies in unused slots */
} __attribute__((aligned(64))) Work;

INLINE size_t head_bytes(const KvLayer *kv) {
    return (size_t)kv->head_dim * BLOCK_TOKENS * (kv->is_float ? 4 : 2);
}
INLINE const uint8_t *key_block(const KvLayer *kv, int block, int head) {
    return kv->pool + (size_t)block * kv->block_bytes + kv->layer_bytes +
           (size_t)head * head_bytes(kv);
}
INLINE const uint8_t *value_block(const KvLayer *kv, int block, int head) {
    return key_block(kv, block, kv->kv_heads + head);
}

/* --- queries ------------------------------------------------------------------------------ */

typedef struct {
    vf cosine, sine;
} Turn;

INLINE Turn load_turn(const float *rotation, int half) {
    return (Turn){.cosine = vf_load(rotation), .sine = vf_load(rotation + half)};
}

INLINE void turn_lanes(const float *query, int half, Turn turn, vf *first, vf *second) {
    const vf a = vf_load(query), b = vf_load(query + half);
    *first = vf_fnma(b, turn.sine, vf_mul(a, turn.cosine));
    *second = vf_fma(b, turn.cosine, vf_mul(a, turn.sine));
}

/* `count` neighbouring heads of one row, for halves of whole pairs of vectors (heads of 64, 128 and
   so on): cosines and sines are read once for all heads. */
INLINE void rotate_rounded(int count, int half, const float *queries, const float *rotation,
                           uint16_t *out) {
    for (int i = 0; i < half; i += 32) {
        const Turn low = load_turn(rotation + i, half), high = load_turn(rotation + i + 16, half);
        for (int h = 0; h < count; h++) {
            const float *query = queries + (size_t)h * 2 * half + i;
            uint16_t *place = out + (size_t)h * MAX_HEAD_DIM + i;
            vf first[2], second[2];
            turn_lanes(query, half, low, &first[0], &second[0]);
            turn_lanes(query + 16, half, high, &first[1], &second[1]);
            vf_store_bfloats_twice(place, first[0], first[1]);
            vf_store_bfloats_twice(place + half, second[0], second[1]);
        }
    }
}

/* Halves may be shorter than a vector. */
INLINE void rotate_one(const int is_float, int head_dim, const float *query,
                       const float *rotation, float *out, uint16_t *rounded) {
    const int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        out[i] = query[i] * rotation[i] - query[half + i] * rotation[half + i];
        out[half + i] = query[half + i] * rotation[i] + query[i] * rotation[half + i];
    }
    for (int i = 0; !is_float && i < head_dim; i += 16)
        vf_store_bfloats(rounded + i, vf_load(out + i));
}

INLINE void rotate_queries(const int is_float, const KvLayer *kv, const AttentionTile *tile,
                           const Entry *entry, Work *work) {
    const size_t dim = (size_t)kv->head_dim;
    for (int r = 0; r < tile->rows; r++) {
        const int distance = tile->positions[r] - entry->base;
        /* a block that lies wholly after the row: masked, any angle will do */
        const float *rotation = kv->rotation + (size_t)(distance > 0 ? distance : 0) * dim;
        const float *row = tile->queries + (size_t)r * tile->query_stride;
        if (!tile->streaming && distance > BLOCK_TOKENS) /* the next block's, on another page */
            for (size_t i = 0; i < dim; i += 16) prefetch_near(rotation - BLOCK_TOKENS * dim + i);
        for (int k = 0; k < tile->end_kv_head - tile->first_kv_head; k++) {
            const int v = (k * tile->rows + r) * kv->group;
            const float *queries = row + (size_t)(tile->first_kv_head + k) * kv->group * dim;
            if (!is_float && kv->head_dim % 64 == 0)
                rotate_rounded(kv->group, kv->head_dim / 2, queries, rotation, work->rounded[v]);
            else
                for (int g = 0; g < kv->group; g++)
                    rotate_one(is_float, kv->head_dim, queries + (size_t)g * dim, rotation,
                               work->rotated[v + g], work->rounded[v + g]);
        }
    }
}

/* --- scores ------------------------------------------------------------------------------- */

/* Two chains per vector hide the latency; their order is the same for every `count`. */
INLINE void score_vectors(int count, int is_float, int head_dim, const uint8_t *keys, Work *work,
                          int v, int column) {
    vf even[SCORE_VECTORS], odd[SCORE_VECTORS];
    const float *floats = work->rotated[v];
    const uint16_t *rounded = work->rounded[v];
    UNROLLED for (int i = 0; i < count; i++) even[i] = odd[i] = vf_zero();
    if (is_float) {
        for (int d = 0; d < head_dim; d += 2, keys += 2 * BLOCK_TOKENS * sizeof(float)) {
            const vf first = vf_load((const float *)keys);
            const vf second = vf_load((const float *)keys + BLOCK_TOKENS);
            UNROLLED for (int i = 0; i < count; i++) {
                even[i] = vf_fma(first, vf_set1(floats[i * MAX_HEAD_DIM + d]), even[i]);
                odd[i] = vf_fma(second, vf_set1(floats[i * MAX_HEAD_DIM + d + 1]), odd[i]);
            }
        }
    } else {
        for (int d = 0; d < head_dim; d += 4, keys += 128) {
            const vb first = vb_load(keys), second = vb_load(keys + 64);
            UNROLLED for (int i = 0; i < count; i++) {
                const uint16_t *pairs = rounded + i * MAX_HEAD_DIM + d;
                even[i] = dot_pairs(even[i], first, vp_load(pairs));
                odd[i] = dot_pairs(odd[i], second, vp_load(pairs + 2));
            }
        }
    }
    UNROLLED for (int i = 0; i < count; i++)
        vf_store(&work->scores[v + i][column], vf_add(even[i], odd[i]));
}

#define VECTORS_AT_ONCE(count)                                                        \
    if (SCORE_VECTORS >= (count))                                                     \
        for (; end - v >= (count); v += (count))                                      \
            score_vectors((count) <= SCORE_VECTORS ? (count) : 1, is_float, head_dim, \
                          keys, work, v, column);

INLINE void score_block(int is_float, int head_dim, const uint8_t *keys, Work *work, int v,
                        int end, int column) {
    VECTORS_AT_ONCE(12)
    VECTORS_AT_ONCE(6)
    VECTORS_AT_ONCE(4)
    VECTORS_AT_ONCE(3)
    VECTORS_AT_ONCE(2)
    VECTORS_AT_ONCE(1)
}

/* Slots of an entry that a row sees: valid, not after its own, inside the window. */
INLINE void mask_block(const KvLayer *kv, const AttentionTile *tile, int index, Work *work,
                       int column) {
    const Entry *entry = tile->entries + index;
    for (int r = 0; r < tile->rows; r++) {
        int first = entry->first, last = entry->last;
        if (index > tile->row_entries[r])
            last = -1;
        else if (index == tile->row_entries[r])
            last = tile->row_slots[r];
        if (kv->window) {
            const int oldest = tile->positions[r] - kv->window + 1 - entry->base;
            if (oldest > first) first = oldest;
        }
        if (first == 0 && last == BLOCK_TOKENS - 1) continue;
        for (int k = 0; k < tile->end_kv_head - tile->first_kv_head; k++)
            for (int g = 0; g < kv->group; g++) {
                float *scores = &work->scores[(k * tile->rows + r) * kv->group + g][column];
                vf_store(scores, first > last ? vf_set1(MASKED)
                                              : vf_keep_lanes(vf_load(scores), first, last, MASKED));
            }
    }
}

/* A tile that is alone reads each block once, from memory: two blocks ahead into L2, V while K is
   scored. Tiles that share blocks find them in L2. */
INLINE void fetch_ahead(const KvLayer *kv, const AttentionTile *tile, int index, int end) {
    const size_t bytes = (size_t)(tile->end_kv_head - tile->first_kv_head) * head_bytes(kv);
    const Entry *entry = tile->entries + index;
    if (!tile->streaming) return;
    if (index + 2 < end) {
        const uint8_t *keys = key_block(kv, entry[2].block, tile->first_kv_head);
        for (size_t at = 0; at < bytes; at += 64) prefetch_l2(keys + at);
    }
    const uint8_t *values = value_block(kv, entry->block, tile->first_kv_head);
    for (size_t at = 0; at < bytes; at += 64) prefetch_l2(values + at);
}

INLINE void score_segment(const int is_float, const KvLayer *kv, const AttentionTile *tile,
                          int first_entry, int end_entry, Work *work) {
    const int per_head = tile->rows * kv->group;
    for (int e = first_entry; e < end_entry; e++) {
        const int column = (e - first_entry) * BLOCK_TOKENS;
        fetch_ahead(kv, tile, e, end_entry);
        rotate_queries(is_float, kv, tile, tile->entries + e, work);
        for (int h = tile->first_kv_head; h < tile->end_kv_head; h++) {
            const int v = (h - tile->first_kv_head) * per_head;
            score_block(is_float, kv->head_dim, key_block(kv, tile->entries[e].block, h), work, v,
                        v + per_head, column);
        }
        mask_block(kv, tile, e, work, column);
    }
}

/* --- softmax ------------------------------------------------------------------------------ */

/* Scores become the probabilities that values will use (rounded, that is), and their sum. */
INLINE void exponentiate(const int is_float, Work *work, int v, int columns, float *partial) {
    static const uint16_t ones[2] = {0x3f80, 0x3f80}; /* 1 and 1 in bfloat16 */
    float *scores = work->scores[v];
    if (columns % 32) vf_store(scores + columns, vf_set1(MASKED)); /* two blocks at a time */
    vf largest = vf_set1(MASKED), sum = vf_zero();
    for (int c = 0; c < columns; c += 16) largest = vf_max(largest, vf_load(scores + c));
    const float maximum = vf_reduce_max(largest);
    const vf shift = vf_set1(maximum == MASKED ? 0.0f : maximum);
    for (int c = 0; c < columns; c += 32) {
        const vf low = vf_sub(vf_load(scores + c), shift);
        const vf high = vf_sub(vf_load(scores + c + 16), shift);
        if (is_float) {
            const vf first = vf_exp2(low), second = vf_exp2(high);
            vf_store(scores + c, first);
            vf_store(scores + c + 16, second);
            sum = vf_add(vf_add(sum, first), second);
        } else {
            uint16_t *rounded = work->probabilities[v] + c;
            vf_store_bfloats_twice(rounded, vf_probability(low), vf_probability(high));
            sum = dot_pairs(sum, vb_load(rounded), vp_load(ones));
        }
    }
    partial[0] = maximum;
    partial[1] = vf_reduce_add(sum);
}

/* --- values ------------------------------------------------------------------------------- */

/* What lies in unused slots may be anything, NaN included, which times zero is not zero. */
INLINE const uint8_t *clean_values(const int is_float, const KvLayer *kv, const Entry *entry,
                                   const uint8_t *values, Work *work) {
    if (entry->first == 0 && entry->last == BLOCK_TOKENS - 1) return values;
    memcpy(work->block, values, head_bytes(kv));
    for (int slot = 0; slot < BLOCK_TOKENS; slot++) {
        if (slot >= entry->first && slot <= entry->last) continue;
        if (is_float) {
            memset(work->block + (size_t)slot * kv->head_dim, 0, (size_t)kv->head_dim * 4);
            continue;
        }
        uint16_t *pairs = (uint16_t *)work->block + (size_t)(slot / 2) * kv->head_dim * 2;
        for (int d = 0; d < kv->head_dim; d++) pairs[2 * d + slot % 2] = 0;
    }
    return (const uint8_t *)work->block;
}

/* `count` vectors times `width` vectors of 16 dimensions of one V block. */
INLINE void add_values(int count, int width, int is_float, int head_dim, const uint8_t *values,
                       const Work *work, int v, int column, vf acc[VALUE_VECTORS][4]) {
    const size_t stride = (size_t)head_dim * 4; /* bytes of a slot in float32, of two in bfloat16 */
    const float *floats = work->scores[v] + column;
    const uint16_t *rounded = work->probabilities[v] + column;
    if (is_float) {
        for (int t = 0; t < BLOCK_TOKENS; t++, values += stride) {
            vf row[4];
            UNROLLED for (int c = 0; c < width; c++) row[c] = vf_load((const float *)values + 16 * c);
            UNROLLED for (int i = 0; i < count; i++) {
                const vf p = vf_set1(floats[i * SEGMENT_TOKENS + t]);
                UNROLLED for (int c = 0; c < width; c++) acc[i][c] = vf_fma(row[c], p, acc[i][c]);
            }
        }
        return;
    }
    for (int t = 0; t < BLOCK_TOKENS; t += 2, values += stride) {
        vb row[4];
        UNROLLED for (int c = 0; c < width; c++) row[c] = vb_load(values + 64 * c);
        UNROLLED for (int i = 0; i < count; i++) {
            const vp pair = vp_load(rounded + i * SEGMENT_TOKENS + t);
            UNROLLED for (int c = 0; c < width; c++) acc[i][c] = dot_pairs(acc[i][c], row[c], pair);
        }
    }
}

INLINE void value_vectors(int count, int width, int is_float, const KvLayer *kv,
                          const AttentionTile *tile, int head, int first_entry, int end_entry,
                          Work *work, int v, int dimension, float *partials) {
    vf acc[VALUE_VECTORS][4];
    const size_t stride = PARTIAL_HEADER + (size_t)kv->head_dim;
    const size_t offset = (size_t)dimension * 4; /* float32, or pairs of bfloat16 */
    UNROLLED for (int i = 0; i < count; i++)
        UNROLLED for (int c = 0; c < width; c++) acc[i][c] = vf_zero();
    for (int e = first_entry; e < end_entry; e++) {
        const Entry *entry = tile->entries + e;
        const uint8_t *values =
            clean_values(is_float, kv, entry, value_block(kv, entry->block, head), work);
        add_values(count, width, is_float, kv->head_dim, values + offset, work, v,
                   (e - first_entry) * BLOCK_TOKENS, acc);
    }
    UNROLLED for (int i = 0; i < count; i++)
        UNROLLED for (int c = 0; c < width; c++)
            vf_store(partials + (size_t)(v + i) * stride + PARTIAL_HEADER + dimension + 16 * c,
                     acc[i][c]);
}

#define VALUES_AT_ONCE(count, width)                                                         \
    if (VALUE_VECTORS >= (count))                                                            \
        for (; end - v >= (count); v += (count))                                             \
            value_vectors((count) <= VALUE_VECTORS ? (count) : 1, width, is_float, kv, tile, \
                          head, first_entry, end_entry, work, v, dimension, partials);

#define DIMENSIONS_AT_ONCE(width)                                            \
    for (; kv->head_dim - dimension >= 16 * (width); dimension += 16 * (width)) { \
        int v = first_vector;                                                \
        VALUES_AT_ONCE(6, width)                                             \
        VALUES_AT_ONCE(3, width)                                             \
        VALUES_AT_ONCE(1, width)                                             \
    }

INLINE void value_segment(const int is_float, const KvLayer *kv, const AttentionTile *tile,
                          int head, int first_entry, int end_entry, Work *work, float *partials) {
    const int first_vector = (head - tile->first_kv_head) * tile->rows * kv->group;
    const int end = first_vector + tile->rows * kv->group;
    int dimension = 0;
    DIMENSIONS_AT_ONCE(4)
    DIMENSIONS_AT_ONCE(1)
}

/* --- a segment, and what becomes of it ------------------------------------------------------ */

INLINE void attend_segment(const int is_float, const KvLayer *kv, const AttentionTile *tile,
                           int first_entry, int end_entry, float *partials) {
    Work work;
    const int heads = tile->end_kv_head - tile->first_kv_head;
    const int vectors = heads * tile->rows * kv->group;
    const int columns = (end_entry - first_entry) * BLOCK_TOKENS;
    score_segment(is_float, kv, tile, first_entry, end_entry, &work);
    for (int v = 0; v < vectors; v++)
        exponentiate(is_float, &work, v, columns,
                     partials + (size_t)v * (PARTIAL_HEADER + kv->head_dim));
    for (int h = tile->first_kv_head; h < tile->end_kv_head; h++)
        value_segment(is_float, kv, tile, h, first_entry, end_entry, &work, partials);
}

void KERNEL(attend)(const KvLayer *kv, const AttentionTile *tile, int first_entry, int end_entry,
                    float *partials) {
    if (kv->is_float)
        attend_segment(1, kv, tile, first_entry, end_entry, partials);
    else
        attend_segment(0, kv, tile, first_entry, end_entry, partials);
}

INLINE void merge_vector(float *into, const float *segment, int head_dim) {
    const float before = into[0], added = segment[0];
    const float maximum = before > added ? before : added;
    const vf keep = vf_exp2(vf_set1(before - maximum)), weight = vf_exp2(vf_set1(added - maximum));
    float sum[16];
    vf_store(sum, vf_fma(vf_set1(into[1]), keep, vf_mul(vf_set1(segment[1]), weight)));
    into[0] = maximum;
    into[1] = sum[0];
    for (int d = PARTIAL_HEADER; d < PARTIAL_HEADER + head_dim; d += 16) {
        const vf new = vf_mul(vf_load(segment + d), weight);
        vf_store(into + d, vf_fma(vf_load(into + d), keep, new));
    }
}

/* Adds the next segment of the page table to what came before it. */
void KERNEL(merge)(float *into, const float *segment, int vectors, int head_dim) {
    const size_t stride = PARTIAL_HEADER + (size_t)head_dim;
    for (int v = 0; v < vectors; v++, into += stride, segment += stride) {
        if (segment[1] == 0.0f) continue; /* nothing visible in it */
        if (into[1] == 0.0f)
            memcpy(into, segment, stride * sizeof(float));
        else
            merge_vector(into, segment, head_dim);
    }
}

void KERNEL(finish)(const float *partials, int vectors, int head_dim, float *const *out) {
    for (int v = 0; v < vectors; v++, partials += PARTIAL_HEADER + head_dim) {
        const vf sum = vf_set1(partials[1]);
        for (int d = 0; d < head_dim; d += 16)
            vf_store(out[v] + d, vf_div(vf_load(partials + PARTIAL_HEADER + d), sum));
    }
}
