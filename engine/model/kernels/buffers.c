#define _GNU_SOURCE
#include "buffers.h"

#include <stdlib.h>
#include <string.h>

static void *zeroed(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static void free_activations(Activations *x) {
    free(x->values);
    free(x->scales);
    free(x->offsets);
    free(x->sums);
}

static int make_activations(Activations *x, const Model *model, int columns, int rows) {
    const size_t values = (size_t)rows * padded(columns), groups = values / GROUP;
    *x = (Activations){.values = zeroed(values * 2),
                       .scales = zeroed(groups * sizeof(float)),
                       .offsets = zeroed(groups * sizeof(float)),
                       .sums = zeroed(groups * sizeof(int32_t)),
                       .columns = (int32_t)padded(columns),
                       .is_bfloat = model->activations_are_bfloat};
    return x->values && x->scales && x->offsets && x->sums;
}

static void free_rows(Buffers *buffers) {
    free(buffers->x);
    free(buffers->qkv);
    free(buffers->attended_rows);
    free_activations(&buffers->hidden);
    free_activations(&buffers->attended);
    free_activations(&buffers->mlp);
    buffers->x = buffers->qkv = buffers->attended_rows = NULL;
    buffers->hidden = buffers->attended = buffers->mlp = (Activations){0};
    buffers->rows_capacity = 0;
}

static int reserve_rows(Buffers *buffers, const Model *model, int rows) {
    if (rows <= buffers->rows_capacity) return 1;
    const int width = model->heads * model->head_dim;
    rows = (rows + 63) / 64 * 64;
    free_rows(buffers);
    buffers->x = zeroed((size_t)rows * padded(model->hidden) * sizeof(float));
    buffers->qkv = zeroed((size_t)rows * (size_t)qkv_rows(model) * sizeof(float));
    buffers->attended_rows = zeroed((size_t)rows * padded(width) * sizeof(float));
    const int whole =
        make_activations(&buffers->hidden, model, model->hidden, rows) &&
        make_activations(&buffers->attended, model, width, rows) &&
        make_activations(&buffers->mlp, model, model->layers[0].down.columns, rows) && buffers->x &&
        buffers->qkv && buffers->attended_rows;
    if (whole) buffers->rows_capacity = rows;
    return whole;
}

static int reserve_partials(Buffers *buffers, const Model *model, int count) {
    if (count <= buffers->partials_capacity) return 1;
    free(buffers->partials);
    buffers->partials = zeroed((size_t)count * partial_floats(model) * sizeof(float));
    buffers->partials_capacity = buffers->partials ? count : 0;
    return buffers->partials != NULL;
}

int buffers_reserve(Buffers *buffers, const Model *model, int rows, int partials) {
    return reserve_rows(buffers, model, rows) && reserve_partials(buffers, model, partials);
}

void buffers_free(Buffers *buffers) {
    free_rows(buffers);
    free(buffers->partials);
    buffers->partials = NULL;
    buffers->partials_capacity = 0;
}

void own_free(Own *own) {
    free_activations(&own->hidden);
    free_activations(&own->attended);
    free(own->attended_row);
    free(own->partials);
    free(own->segment);
    free(own->panel);
}

int own_make(Own *own, const Model *model) {
    const int width = model->heads * model->head_dim;
    const size_t partial = partial_floats(model) * sizeof(float);
    own->attended_row = zeroed(padded(width) * sizeof(float));
    own->partials = zeroed(ITEM_TILES * partial);
    own->segment = zeroed(partial);
    own->panel = zeroed((size_t)PANEL_ROWS * UNIT * sizeof(float));
    return make_activations(&own->hidden, model, model->hidden, 1) &&
           make_activations(&own->attended, model, width, 1) && own->attended_row &&
           own->partials && own->segment && own->panel;
}
