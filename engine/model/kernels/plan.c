#include "plan.h"

#include <stdlib.h>

#define TILE_VECTORS 12 /* of several rows: what shares one read of K on AVX-512 */

static int grow(void *array, int *capacity, int needed, size_t width) {
    if (needed <= *capacity) return 1;
    const int size = needed + needed / 2;
    void *larger = realloc(*(void **)array, (size_t)size * width);
    if (!larger) return 0;
    *(void **)array = larger;
    *capacity = size;
    return 1;
}

/* Several arrays of one length. */
static int grow_all(void **arrays[], int count, int *capacity, int needed, size_t width) {
    int last = *capacity;
    for (int i = 0; i < count; i++) {
        last = *capacity;
        if (!grow(arrays[i], &last, needed, width)) return 0;
    }
    *capacity = last;
    return 1;
}

static int reserve(Plan *plan, const Model *model, const Step *step) {
    int entries = 0;
    for (int s = 0; s < step->sequences; s++) entries += step->entry_counts[s];
    void **rows[] = {(void **)&plan->positions, (void **)&plan->row_entries,
                     (void **)&plan->row_slots, (void **)&plan->row_blocks};
    return grow_all(rows, 4, &plan->rows_capacity, step->rows, sizeof(int32_t)) &&
           grow(&plan->segments, &plan->entries_capacity, entries, sizeof(int32_t)) &&
           grow(&plan->segment_starts, &plan->sequences_capacity, step->sequences + 1,
                sizeof(int32_t)) &&
           grow(&plan->tiles, &plan->tiles_capacity, step->rows * model->kv_heads, sizeof(Tile));
}

/* --- what a step may hold ------------------------------------------------------------------- */

static int check_shape(const Step *step) {
    if (step->sequences < 1 || step->row_starts[0] != 0) return EMPTY_SEQUENCE;
    for (int s = 0; s < step->sequences; s++)
        if (step->row_starts[s + 1] <= step->row_starts[s] || step->entry_counts[s] < 1)
            return EMPTY_SEQUENCE;
    return step->row_starts[step->sequences] == step->rows ? STEP_DONE : EMPTY_SEQUENCE;
}

static int check_tokens(const Model *model, const Step *step) {
    for (int r = 0; r < step->rows; r++)
        if (step->tokens[r] < 0 || step->tokens[r] >= model->vocab) return WRONG_TOKEN;
    for (int i = 0; i < step->outputs; i++)
        if (step->output_rows[i] < 0 || step->output_rows[i] >= step->rows) return WRONG_ROW;
    return STEP_DONE;
}

static int check_entries(const Model *model, const Step *step, int sequence) {
    int64_t next = 0;
    const Entry *entries = step->entries + step->entry_starts[sequence];
    for (int e = 0; e < step->entry_counts[sequence]; e++) {
        const Entry *entry = entries + e;
        if (entry->block < 0 || entry->block >= model->num_blocks || entry->first < 0 ||
            entry->first > entry->last || entry->last >= BLOCK_TOKENS)
            return WRONG_ENTRY;
        if ((int64_t)entry->base + entry->first < next) return WRONG_ENTRY;
        next = (int64_t)entry->base + entry->last + 1;
    }
    /* the largest angle: from the lowest base, which a first slot may make negative */
    return next + BLOCK_TOKENS <= model->rotation_rows ? STEP_DONE : WRONG_POSITION;
}

/* --- rows and segments ---------------------------------------------------------------------- */

static int place_rows(Plan *plan, const Step *step, int sequence) {
    const Entry *entries = step->entries + step->entry_starts[sequence];
    const int first_row = step->row_starts[sequence];
    int e = step->entry_counts[sequence] - 1;
    int slot = entries[e].last;
    for (int r = step->row_starts[sequence + 1] - 1; r >= first_row; r--, slot--) {
        if (slot < entries[e].first) {
            if (--e < 0) return TOO_FEW_SLOTS;
            slot = entries[e].last;
        }
        plan->positions[r] = entries[e].base + slot;
        if (plan->positions[r] != step->first_positions[sequence] + r - first_row)
            return WRONG_POSITION;
        plan->row_entries[r] = e;
        plan->row_slots[r] = slot;
        plan->row_blocks[r] = entries[e].block;
    }
    return STEP_DONE;
}

/* Segments end where positions cross a multiple of SEGMENT_TOKENS, so that they are the same for
 * every step that sees these entries, whatever was freed before them. Edited tables may have
 * many short entries: then a segment ends after SEGMENT_BLOCKS. */
static int cut_segments(Plan *plan, const Step *step, int sequence, int count) {
    const Entry *entries = step->entries + step->entry_starts[sequence];
    int begun = 0, span = -1;
    plan->segment_starts[sequence] = count;
    for (int e = 0; e < step->entry_counts[sequence]; e++) {
        const int here = (entries[e].base + entries[e].first) / SEGMENT_TOKENS;
        if (here == span && e - begun < SEGMENT_BLOCKS) continue;
        plan->segments[count++] = e;
        begun = e;
        span = here;
    }
    return count;
}

/* --- tiles and items ------------------------------------------------------------------------ */

/* Segments that some row of the tile sees, all layers having the widest window. */
static void set_segments(Plan *plan, const Model *model, const Step *step, Tile *tile) {
    const int last_row = tile->first_row + tile->rows - 1;
    int window = model->layers[0].window;
    for (int i = 1; i < model->num_layers; i++)
        if (!model->layers[i].window || (window && model->layers[i].window > window))
            window = model->layers[i].window;
    const Entry *entries = step->entries + step->entry_starts[tile->sequence];
    const int oldest = window ? plan->positions[tile->first_row] - window + 1 : 0;
    int s = plan->segment_starts[tile->sequence];
    const int end = plan->segment_starts[tile->sequence + 1];
    while (s + 1 < end) { /* skip what lies before the window; the row's own segment stays */
        const Entry *last = entries + plan->segments[s + 1] - 1;
        if (last->base + last->last >= oldest) break;
        s++;
    }
    tile->first_segment = s;
    while (s < end && plan->segments[s] <= plan->row_entries[last_row]) s++;
    tile->end_segment = s;
}

/* A lone row's heads are shared out; rows of a sequence share reads of K and V, one head a tile;
 * single rows of many sequences take all heads, whose bytes lie together. */
static int heads_per_tile(const Model *model, const Step *step, int rows, int threads) {
    const int group = model->heads / model->kv_heads;
    if (rows > 1 || step->sequences < 4 * threads) return 1;
    const int most = MAX_VECTORS / group;
    return most < 1 ? 1 : most < model->kv_heads ? most : model->kv_heads;
}

static void cut_tiles(Plan *plan, const Model *model, const Step *step, int threads) {
    const int group = model->heads / model->kv_heads;
    const int most_rows = TILE_VECTORS / group > 1 ? TILE_VECTORS / group : 1;
    plan->num_tiles = 0;
    for (int s = 0; s < step->sequences; s++) {
        const int end_row = step->row_starts[s + 1];
        const int heads = heads_per_tile(model, step, end_row - step->row_starts[s], threads);
        for (int head = 0; head < model->kv_heads; head += heads)
            for (int row = step->row_starts[s]; row < end_row; row += most_rows) {
                Tile *tile = plan->tiles + plan->num_tiles++;
                *tile = (Tile){.sequence = s,
                               .first_row = row,
                               .rows = end_row - row < most_rows ? end_row - row : most_rows,
                               .first_kv_head = head,
                               .end_kv_head = head + heads < model->kv_heads ? head + heads
                                                                             : model->kv_heads,
                               .partials = -1};
                set_segments(plan, model, step, tile);
            }
    }
}

static int add_item(Plan *plan, Item item) {
    if (!grow(&plan->items, &plan->items_capacity, plan->num_items + 1, sizeof(Item))) return 0;
    plan->items[plan->num_items++] = item;
    return 1;
}

/* A tile whose segments are kept apart, one item each. */
static int split_tile(Plan *plan, int t) {
    Tile *tile = plan->tiles + t;
    tile->partials = plan->num_partials;
    plan->num_partials += tile->end_segment - tile->first_segment;
    for (int s = tile->first_segment; s < tile->end_segment; s++)
        if (!add_item(plan, (Item){t, t + 1, s, s + 1})) return 0;
    return 1;
}

/* Up to `most` tiles that end before `end`, of the same heads of one sequence. */
static Item join_tiles(const Plan *plan, int end, int most) {
    const Tile *last = plan->tiles + end - 1;
    Item item = {end - 1, end, last->first_segment, last->end_segment};
    while (item.first_tile > 0 && end - item.first_tile < most) {
        const Tile *tile = plan->tiles + item.first_tile - 1;
        if (tile->sequence != last->sequence || tile->first_kv_head != last->first_kv_head) break;
        item.first_tile--;
        item.first_segment = tile->first_segment; /* earlier rows see no later segments */
    }
    return item;
}

static int cut_items(Plan *plan, const Step *step, int threads) {
    /* a lone row's tiles are kept apart even on one segment: each thread finishes them for itself */
    const int apart = step->rows == 1 || plan->num_tiles < 4 * threads;
    const int fair = plan->num_tiles / (4 * threads);
    const int most = fair < 1 ? 1 : fair < ITEM_TILES ? fair : ITEM_TILES;
    plan->num_items = plan->num_partials = 0;
    for (int end = plan->num_tiles; end > 0;) { /* the last rows see most: begin with them */
        const Tile *tile = plan->tiles + end - 1;
        if (apart && (tile->end_segment - tile->first_segment > 1 || step->rows == 1)) {
            if (!split_tile(plan, --end)) return NO_MEMORY;
            continue;
        }
        const Item item = join_tiles(plan, end, apart ? 1 : most);
        if (!add_item(plan, item)) return NO_MEMORY;
        end = item.first_tile;
    }
    return STEP_DONE;
}

int plan_step(Plan *plan, const Model *model, const Step *step, int threads) {
    int outcome = check_shape(step);
    if (outcome == STEP_DONE) outcome = check_tokens(model, step);
    if (outcome != STEP_DONE) return outcome;
    if (!reserve(plan, model, step)) return NO_MEMORY;
    int segments = 0;
    for (int s = 0; s < step->sequences; s++) {
        outcome = check_entries(model, step, s);
        if (outcome == STEP_DONE) outcome = place_rows(plan, step, s);
        if (outcome != STEP_DONE) return outcome;
        segments = cut_segments(plan, step, s, segments);
    }
    plan->segment_starts[step->sequences] = segments;
    cut_tiles(plan, model, step, threads);
    return cut_items(plan, step, threads);
}

AttentionTile plan_view(const Plan *plan, const Step *step, const Tile *tile) {
    const int32_t *rows = step->row_starts + tile->sequence;
    return (AttentionTile){.entries = step->entries + step->entry_starts[tile->sequence],
                           .positions = plan->positions + tile->first_row,
                           .row_entries = plan->row_entries + tile->first_row,
                           .row_slots = plan->row_slots + tile->first_row,
                           .rows = tile->rows,
                           .first_kv_head = tile->first_kv_head,
                           .end_kv_head = tile->end_kv_head,
                           .streaming = tile->rows == rows[1] - rows[0]};
}

int plan_segment_end(const Plan *plan, const Tile *tile, int segment) {
    const int seen = plan->row_entries[tile->first_row + tile->rows - 1] + 1;
    if (segment + 1 == plan->segment_starts[tile->sequence + 1]) return seen;
    const int end = plan->segments[segment + 1];
    return end < seen ? end : seen;
}

void plan_free(Plan *plan) {
    free(plan->positions);
    free(plan->row_entries);
    free(plan->row_slots);
    free(plan->row_blocks);
    free(plan->segments);
    free(plan->segment_starts);
    free(plan->tiles);
    free(plan->items);
}
