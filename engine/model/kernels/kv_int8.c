/* Attention over KV in int8: a segment of one KV head is unpacked into blocks of bfloat16, and
 * attention.c reads those.
 *
 *   pool    block 7   block 2   block 9    ...     int8 and scales, one head of each
 *              |         |         |
 *   scratch [K0][V0]  [K1][V1]  [K2][V2]   ...     bfloat16; the page table says 0, 1, 2, ...
 *
 * The rounding from int8 times scale to bfloat16 adds a fiftieth to the variance of int8's error. A
 * tile pays for it once per segment and head, whatever its rows. */
#include "kernels.h"
#include "kv_int8.h"
#include "simd.h"

void KERNEL(attend)(const KvLayer *, const AttentionTile *, int, int, float *);

typedef struct {
    uint16_t blocks[SEGMENT_BLOCKS * 2 * MAX_HEAD_DIM * BLOCK_TOKENS];
    Entry entries[SEGMENT_BLOCKS];
    int32_t row_entries[MAX_VECTORS];
} __attribute__((aligned(64))) Scratch;

INLINE void unpack_keys(const uint8_t *head, int head_dim, uint16_t *out) {
    const int8_t *values = (const int8_t *)head;
    const float *slots = int8_scales(head, head_dim);
    float scales[2 * BLOCK_TOKENS];
    for (int i = 0; i < 2 * BLOCK_TOKENS; i++) scales[i] = slots[i / 2];
    const vf low = vf_load(scales), high = vf_load(scales + 16);
    for (int d = 0; d < head_dim; d += 2, values += 32, out += 32)
        vf_store_bfloats_twice(out, vf_mul(vf_from_bytes(values), low),
                               vf_mul(vf_from_bytes(values + 16), high));
}

INLINE void unpack_values(const uint8_t *head, int head_dim, uint16_t *out) {
    const int8_t *values = (const int8_t *)head;
    const float *slots = int8_scales(head, head_dim);
    for (int slot = 0; slot < BLOCK_TOKENS; slot += 2) {
        const vf scales = vf_from_pair(slots + slot);
        for (int d = 0; d < head_dim; d += 16, values += 32, out += 32)
            vf_store_bfloats_twice(out, vf_mul(vf_from_bytes(values), scales),
                                   vf_mul(vf_from_bytes(values + 16), scales));
    }
}

INLINE const uint8_t *int8_block(const KvLayer *kv, const Entry *entry, int head) {
    return kv->pool + (size_t)entry->block * kv->block_bytes + kv->layer_bytes +
           (size_t)head * kv_head_bytes(kv);
}

INLINE void fetch_head(const uint8_t *head, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) prefetch_l2(head + at);
}

INLINE void unpack_segment(const KvLayer *kv, const Entry *entries, int count, int head,
                           Scratch *scratch) {
    const size_t bytes = kv_head_bytes(kv), values = (size_t)kv->head_dim * BLOCK_TOKENS;
    for (int e = 0; e < count; e++) {
        if (e + 2 < count) {
            fetch_head(int8_block(kv, entries + e + 2, head), bytes);
            fetch_head(int8_block(kv, entries + e + 2, kv->kv_heads + head), bytes);
        }
        uint16_t *out = scratch->blocks + (size_t)e * 2 * values;
        unpack_keys(int8_block(kv, entries + e, head), kv->head_dim, out);
        unpack_values(int8_block(kv, entries + e, kv->kv_heads + head), kv->head_dim,
                      out + values);
    }
}

/* As attend; each head's vectors lie together in `partials`. */
void KERNEL(attend_int8)(const KvLayer *kv, const AttentionTile *tile, int first_entry,
                         int end_entry, float *partials) {
    Scratch scratch;
    const int count = end_entry - first_entry;
    const Entry *entries = tile->entries + first_entry;
    for (int e = 0; e < count; e++) {
        scratch.entries[e] = entries[e];
        scratch.entries[e].block = e;
    }
    for (int r = 0; r < tile->rows; r++)
        scratch.row_entries[r] = tile->row_entries[r] - first_entry;
    KvLayer unpacked = *kv;
    unpacked.pool = (uint8_t *)scratch.blocks;
    unpacked.block_bytes = (size_t)kv->head_dim * BLOCK_TOKENS * 2 * sizeof(uint16_t);
    unpacked.layer_bytes = 0;
    unpacked.kv_heads = 1;
    unpacked.is_int8 = 0;
    AttentionTile view = *tile;
    view.entries = scratch.entries;
    view.row_entries = scratch.row_entries;
    view.first_kv_head = 0;
    view.end_kv_head = 1;
    view.streaming = 0;
    const size_t vectors = (size_t)tile->rows * (size_t)kv->group;
    for (int h = tile->first_kv_head; h < tile->end_kv_head; h++) {
        unpack_segment(kv, entries, count, h, &scratch);
        view.queries = tile->queries + (size_t)h * (size_t)kv->group * (size_t)kv->head_dim;
        KERNEL(attend)(&unpacked, &view, 0, count, partials);
        partials += vectors * (PARTIAL_HEADER + (size_t)kv->head_dim);
    }
}
