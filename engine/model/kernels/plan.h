/* A step's plan: which row stands where, and how attention is cut into tiles and items. */
#ifndef SESSIOND_PLAN_H
#define SESSIOND_PLAN_H

#include "step.h"

/* Rows of one sequence and a range of KV heads. `partials` is where its segments are kept apart
 * when several threads may share it; -1 when one thread does it all. */
typedef struct {
    int32_t sequence, first_row, rows, first_kv_head, end_kv_head;
    int32_t first_segment, end_segment; /* among the plan's segments */
    int32_t partials;
} Tile;

/* What a thread takes at once: tiles of the same heads of one sequence, which then find each
 * segment's K and V in its cache. */
typedef struct {
    int32_t first_tile, end_tile, first_segment, end_segment;
} Item;

#define ITEM_TILES 8 /* at most; few enough to share out, and for their rotations to stay cached */

typedef struct {
    int32_t *positions, *row_entries, *row_slots, *row_blocks; /* [rows] */
    int32_t *segments;       /* first entry of each, counted inside its sequence */
    int32_t *segment_starts; /* [sequences + 1] */
    Tile *tiles;
    Item *items;
    int num_tiles, num_items, num_partials; /* partials: slots of MAX_VECTORS vectors */
    int rows_capacity, sequences_capacity, entries_capacity, tiles_capacity, items_capacity;
} Plan;

/* Checks the step and fills the plan. Returns STEP_DONE or why not. */
int plan_step(Plan *plan, const Model *model, const Step *step, int threads);
/* What the attention kernel needs to know of a tile, but for the queries. */
AttentionTile plan_view(const Plan *plan, const Step *step, const Tile *tile);
/* The entry after the last of a segment that some row of the tile sees. */
int plan_segment_end(const Plan *plan, const Tile *tile, int segment);
void plan_free(Plan *plan);

#endif
