/* A whole step, run by all threads at once: each stage is shared out by tiles or rows, and a
 * barrier stands where a stage reads what other threads wrote. A lone row (one session decoding)
 * needs fewer barriers: each thread rounds the row for itself. */
#define _GNU_SOURCE
#include "step.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "buffers.h"
#include "plan.h"
#include "ranges.h"

#define STAGES 5 /* that share out by counter in a layer */

struct Engine {
    Model model;
    const Kernels *kernels;
    Pool *pool;
    Plan plan;
    const Step *step;
    Own *own; /* [threads] */
    Buffers buffers;
    int threads; /* that run a step: some or all of the pool's */
    atomic_int *counters; /* [layers + 1][STAGES] */
    double seconds[PHASES], since;
};

/* --- sharing out ---------------------------------------------------------------------------- */

typedef struct {
    Engine *engine;
    Own *own;
    int thread, threads, solo;
} Worker;

static Range share(int count, const Worker *worker) {
    return share_evenly(count, worker->thread, worker->threads);
}

/* The rows that a stage before a linear layer is computed for: a lone row by every thread. */
static Range share_rows(int rows, const Worker *worker) {
    return worker->solo ? (Range){0, rows} : share(rows, worker);
}

static void meet(const Worker *worker) { pool_barrier(worker->engine->pool, worker->thread); }

static void meet_unless_solo(const Worker *worker) {
    if (!worker->solo) meet(worker);
}

static Ranges share_units(int count, int rows, atomic_int *counter, const Worker *worker) {
    return ranges_of(count, rows, counter, worker->thread, worker->threads);
}

static void lap(const Worker *worker, int phase) {
    if (worker->thread) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (phase >= 0) worker->engine->seconds[phase] += seconds - worker->engine->since;
    worker->engine->since = seconds;
}

/* --- stages --------------------------------------------------------------------------------- */

static void embed(const Worker *worker) {
    const Engine *engine = worker->engine;
    const size_t stride = padded(engine->model.hidden);
    const Range rows = share(engine->step->rows, worker);
    for (int r = rows.begin; r < rows.end; r++)
        engine->kernels->unpack_row(&engine->model.embedding, engine->step->tokens[r],
                                    engine->buffers.x + (size_t)r * stride);
    meet(worker);
}

static const Activations *norm(const Worker *worker, const float *weight, int count,
                               const int32_t *rows) {
    const Engine *engine = worker->engine;
    const Model *model = &engine->model;
    const Activations *out = worker->solo ? &worker->own->hidden : &engine->buffers.hidden;
    const Range range = share_rows(count, worker);
    for (int i = range.begin; i < range.end; i++) {
        const float *x = engine->buffers.x + (size_t)(rows ? rows[i] : i) * padded(model->hidden);
        engine->kernels->normalize(x, weight, model->hidden, model->epsilon, out, i);
    }
    meet_unless_solo(worker);
    return out;
}

static void linear(const Worker *worker, const Linear *weights, const Activations *x, int rows,
                   float *out, size_t stride, int add, atomic_int *counter) {
    Ranges ranges = share_units(weights->rows / TILE_ROWS, rows, counter, worker);
    Range tiles;
    while (next_range(&ranges, &tiles))
        worker->engine->kernels->linear[weights->format](weights, tiles.begin, tiles.end, x, 0,
                                                         rows, out + (size_t)tiles.begin * TILE_ROWS,
                                                         stride, add);
    meet(worker);
}

static KvLayer kv_of(const Model *model, int layer) {
    KvLayer kv = {.pool = model->pool,
                  .block_bytes = model->block_bytes,
                  .kv_heads = model->kv_heads,
                  .group = model->heads / model->kv_heads,
                  .head_dim = model->head_dim,
                  .window = model->layers[layer].window,
                  .is_float = model->kv_is_float,
                  .is_int8 = model->kv_is_int8,
                  .rotation = model->rotation};
    kv.layer_bytes = (size_t)layer * 2 * (size_t)model->kv_heads * kv_head_bytes(&kv);
    return kv;
}

static void write_kv(const Worker *worker, const KvLayer *kv, const Layer *layer) {
    const Engine *engine = worker->engine;
    const Model *model = &engine->model;
    /* exponentials are to base 2 */
    const float scale = 1.44269504f / sqrtf((float)model->head_dim);
    const Range rows = share(engine->step->rows, worker);
    for (int r = rows.begin; r < rows.end; r++) {
        float *queries = engine->buffers.qkv + (size_t)r * (size_t)qkv_rows(model);
        float *keys = queries + (size_t)model->heads * model->head_dim;
        engine->kernels->prepare_queries(queries, model->heads, model->head_dim,
                                         layer->query_norm, model->epsilon, scale);
        engine->kernels->write_kv(kv, engine->plan.row_blocks[r], engine->plan.row_slots[r], keys,
                                  keys + (size_t)model->kv_heads * model->head_dim,
                                  layer->key_norm, model->epsilon);
    }
    meet(worker);
}

static int vectors_of(const Model *model, const Tile *tile) {
    return tile->rows * (tile->end_kv_head - tile->first_kv_head) * model->heads / model->kv_heads;
}

/* Divides by the sums and puts each vector where its row's head belongs. */
static void finish_tile(const Worker *worker, const Tile *tile, const float *partial, float *out) {
    const Model *model = &worker->engine->model;
    const int group = model->heads / model->kv_heads;
    const size_t stride = padded(model->heads * model->head_dim);
    float *places[MAX_VECTORS];
    int v = 0;
    for (int k = tile->first_kv_head; k < tile->end_kv_head; k++)
        for (int r = 0; r < tile->rows; r++)
            for (int g = 0; g < group; g++)
                places[v++] = out + (size_t)(tile->first_row + r) * stride +
                              ((size_t)k * group + g) * model->head_dim;
    worker->engine->kernels->finish(partial, v, model->head_dim, places);
}

static void attend_segment(const Worker *worker, const KvLayer *kv, const Tile *tile, int segment,
                           float *partial) {
    const Engine *engine = worker->engine;
    AttentionTile view = plan_view(&engine->plan, engine->step, tile);
    view.query_stride = (size_t)qkv_rows(&engine->model);
    view.queries = engine->buffers.qkv + (size_t)tile->first_row * view.query_stride;
    (kv->is_int8 ? engine->kernels->attend_int8 : engine->kernels->attend)(
        kv, &view, engine->plan.segments[segment], plan_segment_end(&engine->plan, tile, segment),
        partial);
}

/* The next segment of a tile, merged into what those before it came to. */
static void add_segment(const Worker *worker, const KvLayer *kv, const Tile *tile, int segment,
                        float *into) {
    const Model *model = &worker->engine->model;
    if (segment < tile->first_segment || segment >= tile->end_segment) return;
    float *here = segment == tile->first_segment ? into : worker->own->segment;
    attend_segment(worker, kv, tile, segment, here);
    if (here == into) return;
    worker->engine->kernels->merge(into, here, vectors_of(model, tile), kv->head_dim);
}

static void attend_item(const Worker *worker, const KvLayer *kv, const Item *item) {
    const Engine *engine = worker->engine;
    const Tile *tile = engine->plan.tiles + item->first_tile;
    const int tiles = item->end_tile - item->first_tile;
    const size_t stride = partial_floats(&engine->model);
    if (tile->partials >= 0) { /* a segment to be kept apart */
        const int s = item->first_segment, place = tile->partials + s - tile->first_segment;
        attend_segment(worker, kv, tile, s, engine->buffers.partials + (size_t)place * stride);
        return;
    }
    float *partials = worker->own->partials;
    for (int s = item->first_segment; s < item->end_segment; s++)
        for (int t = 0; t < tiles; t++)
            add_segment(worker, kv, tile + t, s, partials + (size_t)t * stride);
    for (int t = 0; t < tiles; t++)
        finish_tile(worker, tile + t, partials + (size_t)t * stride, engine->buffers.attended_rows);
}

/* Merges the segments of a tile that were kept apart, in their order. */
static void merge_tile(const Worker *worker, const Tile *tile, float *out) {
    const Engine *engine = worker->engine;
    const Model *model = &engine->model;
    const float *segments =
        engine->buffers.partials + (size_t)tile->partials * partial_floats(model);
    const int vectors = vectors_of(model, tile);
    float *into = worker->own->partials;
    memcpy(into, segments,
           (size_t)vectors * (PARTIAL_HEADER + (size_t)model->head_dim) * sizeof(float));
    for (int s = 1; s < tile->end_segment - tile->first_segment; s++)
        engine->kernels->merge(into, segments + (size_t)s * partial_floats(model), vectors,
                               model->head_dim);
    finish_tile(worker, tile, into, out);
}

static void attend(const Worker *worker, const KvLayer *kv, atomic_int *counter) {
    const Plan *plan = &worker->engine->plan;
    int item;
    while ((item = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed)) < plan->num_items)
        attend_item(worker, kv, plan->items + item);
    meet(worker);
}

/* The attended rows, rounded for the output projection. */
static const Activations *collect(const Worker *worker) {
    const Engine *engine = worker->engine;
    const Plan *plan = &engine->plan;
    float *rows = worker->solo ? worker->own->attended_row : engine->buffers.attended_rows;
    const Activations *out = worker->solo ? &worker->own->attended : &engine->buffers.attended;
    if (plan->num_partials) {
        for (int t = 0; t < plan->num_tiles; t++)
            if (plan->tiles[t].partials >= 0 &&
                (worker->solo || t % worker->threads == worker->thread))
                merge_tile(worker, plan->tiles + t, rows);
        meet_unless_solo(worker);
    }
    const Range range = share_rows(engine->step->rows, worker);
    for (int r = range.begin; r < range.end; r++)
        engine->kernels->quantize(rows + (size_t)r * (size_t)out->columns, out, r);
    meet_unless_solo(worker);
    return out;
}

static void gate_up(const Worker *worker, const Linear *weights, const Activations *x,
                    atomic_int *counter) {
    const Engine *engine = worker->engine;
    const int rows = engine->step->rows, tiles = UNIT / TILE_ROWS;
    Ranges ranges = share_units(weights->rows / UNIT, rows, counter, worker);
    Range units;
    while (next_range(&ranges, &units))
        for (int u = units.begin; u < units.end; u++)
            for (int first = 0; first < rows; first += PANEL_ROWS) {
                const int end = first + PANEL_ROWS < rows ? first + PANEL_ROWS : rows;
                engine->kernels->linear[weights->format](weights, u * tiles, (u + 1) * tiles, x,
                                                         first, end, worker->own->panel, UNIT, 0);
                engine->kernels->swiglu(worker->own->panel, first, end, u, &engine->buffers.mlp);
            }
    meet(worker);
}

static void run_layer(const Worker *worker, int index) {
    Engine *engine = worker->engine;
    const Model *model = &engine->model;
    const Layer *layer = model->layers + index;
    const int rows = engine->step->rows;
    const size_t stride = padded(model->hidden);
    atomic_int *counters = engine->counters + (size_t)index * STAGES;
    const KvLayer kv = kv_of(model, index);
    const Activations *x = norm(worker, layer->attention_norm, rows, NULL);
    lap(worker, NORM);
    linear(worker, &layer->qkv, x, rows, engine->buffers.qkv, (size_t)qkv_rows(model), 0, counters);
    lap(worker, QKV);
    write_kv(worker, &kv, layer);
    lap(worker, KV_WRITE);
    attend(worker, &kv, counters + 1);
    lap(worker, ATTEND);
    x = collect(worker);
    lap(worker, MERGE);
    linear(worker, &layer->output, x, rows, engine->buffers.x, stride, 1, counters + 2);
    lap(worker, OUTPUT);
    x = norm(worker, layer->mlp_norm, rows, NULL);
    lap(worker, NORM);
    gate_up(worker, &layer->gate_up, x, counters + 3);
    lap(worker, GATE_UP);
    linear(worker, &layer->down, &engine->buffers.mlp, rows, engine->buffers.x, stride, 1,
           counters + 4);
    lap(worker, DOWN);
}

static void run_head(const Worker *worker) {
    Engine *engine = worker->engine;
    const Step *step = engine->step;
    if (!step->outputs) return;
    const Activations *x =
        norm(worker, engine->model.final_norm, step->outputs, step->output_rows);
    lap(worker, NORM);
    linear(worker, &engine->model.head, x, step->outputs, step->logits,
           (size_t)step->logits_stride, 0,
           engine->counters + (size_t)engine->model.num_layers * STAGES);
    lap(worker, HEAD);
    const Range outputs = share(step->outputs, worker);
    for (int i = outputs.begin; i < outputs.end; i++)
        step->choices[i] = engine->kernels->argmax(
            step->logits + (size_t)i * (size_t)step->logits_stride, engine->model.vocab);
    lap(worker, CHOOSE);
}

static void run_step(void *argument, int thread) {
    Engine *engine = argument;
    const Worker worker = {.engine = engine,
                           .own = engine->own + thread,
                           .thread = thread,
                           .threads = engine->threads,
                           .solo = engine->step->rows == 1};
    lap(&worker, -1);
    embed(&worker);
    lap(&worker, EMBED);
    for (int layer = 0; layer < engine->model.num_layers; layer++) run_layer(&worker, layer);
    run_head(&worker);
}

/* --- interface ------------------------------------------------------------------------------ */

Engine *engine_new(const Model *model, const char *isa, int threads) {
    const Kernels *kernels = engine_kernels(isa);
    if (!kernels || threads < 1) return NULL;
    Engine *engine = calloc(1, sizeof *engine);
    if (!engine) return NULL;
    engine->model = *model;
    engine->kernels = kernels;
    engine->counters =
        calloc((size_t)(model->num_layers + 1) * STAGES, sizeof *engine->counters);
    engine->own = calloc((size_t)threads, sizeof *engine->own);
    engine->pool = pool_start(threads);
    engine->threads = threads;
    int whole = engine->counters && engine->own && engine->pool;
    for (int thread = 0; whole && thread < threads; thread++)
        whole = own_make(engine->own + thread, &engine->model);
    if (whole) return engine;
    engine_free(engine);
    return NULL;
}

void engine_free(Engine *engine) {
    const int threads = engine->pool ? pool_threads(engine->pool) : 0;
    if (engine->own)
        for (int thread = 0; thread < threads; thread++) own_free(engine->own + thread);
    if (engine->pool) pool_stop(engine->pool);
    buffers_free(&engine->buffers);
    plan_free(&engine->plan);
    free(engine->own);
    free(engine->counters);
    free(engine);
}

int engine_step(Engine *engine, const Step *step) {
    const int outcome = plan_step(&engine->plan, &engine->model, step, engine->threads);
    if (outcome != STEP_DONE) return outcome;
    if (!buffers_reserve(&engine->buffers, &engine->model, step->rows, engine->plan.num_partials))
        return NO_MEMORY;
    memset(engine->counters, 0,
           (size_t)(engine->model.num_layers + 1) * STAGES * sizeof *engine->counters);
    engine->step = step;
    pool_run(engine->pool, engine->threads, run_step, engine);
    return STEP_DONE;
}

void engine_set_rotation(Engine *engine, const float *rotation, int rows) {
    engine->model.rotation = rotation;
    engine->model.rotation_rows = rows;
}

void engine_set_threads(Engine *engine, int threads) { engine->threads = threads; }
void engine_effort(const Engine *engine, Effort *effort) { *effort = pool_effort(engine->pool); }

void engine_profile(Engine *engine, double *seconds) {
    memcpy(seconds, engine->seconds, sizeof engine->seconds);
    memset(engine->seconds, 0, sizeof engine->seconds);
}
