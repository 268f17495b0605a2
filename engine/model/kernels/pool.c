/* Waiting for a moment is done by spinning, for longer by giving the core away: a step passes
 * hundreds of barriers, microseconds apart, but another process may hold a core meanwhile, and
 * between steps there may be nothing to do for hours. */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS_BEFORE_YIELD 4000
#define SPINS_BEFORE_SLEEP 4000 /* covers what the caller does between two steps */

struct Pool {
    int threads, started;
    pthread_t *handles;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    void (*job)(void *, int);
    void *argument;
    _Atomic unsigned generation; /* number of the job that runs */
    _Atomic int sleeping, busy, stopping;
    _Alignas(64) _Atomic int arrived;
    _Alignas(64) _Atomic unsigned phase; /* number of the barrier that was passed last */
};

typedef struct {
    Pool *pool;
    int thread;
} Start;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void wait_a_little(int *spins) {
    if (++*spins < SPINS_BEFORE_YIELD)
        relax();
    else
        sched_yield();
}

static void wait_for_job(Pool *pool, unsigned seen) {
    for (int spins = 0; spins < SPINS_BEFORE_SLEEP; spins++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1); /* before the look: pool_run looks the other way round */
    while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void announce(Pool *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (!atomic_load(&pool->sleeping)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *start) {
    Pool *pool = ((Start *)start)->pool;
    const int thread = ((Start *)start)->thread;
    free(start);
    for (unsigned seen = 0;; seen++) {
        wait_for_job(pool, seen);
        if (atomic_load(&pool->stopping)) return NULL;
        pool->job(pool->argument, thread);
        atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_release);
    }
}

static int start_thread(Pool *pool, int thread) {
    Start *start = malloc(sizeof *start);
    if (!start) return 0;
    *start = (Start){.pool = pool, .thread = thread};
    if (pthread_create(&pool->handles[thread], NULL, work, start)) {
        free(start);
        return 0;
    }
    pool->started = thread;
    return 1;
}

Pool *pool_start(int threads) {
    Pool *pool = aligned_alloc(64, (sizeof(Pool) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (Pool){.threads = threads, .handles = calloc((size_t)threads, sizeof(pthread_t))};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    int whole = pool->handles != NULL;
    for (int thread = 1; whole && thread < threads; thread++) whole = start_thread(pool, thread);
    if (whole) return pool;
    pool_stop(pool);
    return NULL;
}

void pool_stop(Pool *pool) {
    atomic_store(&pool->stopping, 1);
    announce(pool);
    for (int thread = 1; thread <= pool->started; thread++)
        pthread_join(pool->handles[thread], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool);
}

int pool_threads(const Pool *pool) { return pool->threads; }

void pool_run(Pool *pool, void (*job)(void *, int), void *argument) {
    pool->job = job;
    pool->argument = argument;
    atomic_store_explicit(&pool->busy, pool->threads - 1, memory_order_relaxed);
    announce(pool);
    job(argument, 0);
    int spins = 0;
    while (atomic_load_explicit(&pool->busy, memory_order_acquire)) wait_a_little(&spins);
}

void pool_barrier(Pool *pool) {
    if (pool->threads == 1) return;
    const unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->phase, phase + 1, memory_order_release);
        return;
    }
    int spins = 0;
    while (atomic_load_explicit(&pool->phase, memory_order_acquire) == phase)
        wait_a_little(&spins);
}
