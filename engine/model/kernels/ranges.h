/* Sharing out a stage's units (tiles, rows) among the threads of a step. */
#ifndef SESSIOND_RANGES_H
#define SESSIOND_RANGES_H

#include <stdatomic.h>
#include <stdint.h>

#define MANY_ROWS 8 /* from here on sharing by counter costs less than it gains */

typedef struct {
    int begin, end;
} Range;

static inline Range share_evenly(int count, int thread, int threads) {
    return (Range){(int)((int64_t)count * thread / threads),
                   (int)((int64_t)count * (thread + 1) / threads)};
}

/* Calls for ranges of `count` units until all are taken. Static for few rows: a fetch of the
 * counter costs what a unit does. A range does not change what is computed for it. */
typedef struct {
    atomic_int *counter;
    Range left;
    int count, chunk;
} Ranges;

static inline Ranges ranges_of(int count, int rows, atomic_int *counter, int thread,
                               int threads) {
    if (rows < MANY_ROWS || threads == 1)
        return (Ranges){.left = share_evenly(count, thread, threads)};
    const int chunk = count / (8 * threads);
    return (Ranges){.counter = counter, .count = count, .chunk = chunk > 0 ? chunk : 1};
}

static inline int next_range(Ranges *ranges, Range *range) {
    if (!ranges->counter) {
        *range = ranges->left;
        ranges->left.begin = ranges->left.end;
        return range->begin < range->end;
    }
    const int begin =
        atomic_fetch_add_explicit(ranges->counter, ranges->chunk, memory_order_relaxed);
    const int end = begin + ranges->chunk;
    *range = (Range){begin, end < ranges->count ? end : ranges->count};
    return begin < ranges->count;
}

#endif
