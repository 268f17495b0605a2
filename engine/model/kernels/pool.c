/* Short waits spin, long waits yield the core: a step passes hundreds of barriers, microseconds
 * apart, but another process may hold a core meanwhile, and between steps the threads may be idle
 * for hours. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define SPINS_PER_LOOK 64 /* at the clock: how long a pause takes varies with the processor */
#define LATE_S 100e-6     /* a thread this late has lost its core; also covers the work of the
                           * caller between two steps */
#define THREADS_BITS 16

/* State of one thread, on a cache line of its own. */
typedef struct {
    _Alignas(64) pthread_cond_t wake;
    pthread_t handle;
    _Atomic int sleeping;
    double cpu, waiting; /* seconds of the last job, see Effort */
} WorkerSlot;

struct Pool {
    int threads, started;
    WorkerSlot *slots; /* [threads] */
    pthread_mutex_t lock;
    void (*job)(void *, int);
    void *argument;
    int active;  /* threads of the job that runs */
    double wall; /* seconds of the last job */
    /* Number of the job that runs, then its threads: one word, so that a thread that has no part
     * in it learns so without reading what the caller may be changing for the next one. */
    _Atomic uint64_t call;
    _Atomic int stopping;
    _Alignas(64) _Atomic unsigned busy;
    _Alignas(64) _Atomic unsigned arrived;
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

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A wait that spins: false when it has become too long for that. */
static inline int spin(int *spins, double *since) {
    relax();
    if (++*spins % SPINS_PER_LOOK) return 1;
    const double now = seconds(CLOCK_MONOTONIC);
    if (*spins == SPINS_PER_LOOK) *since = now;
    return now - *since < LATE_S;
}

static void wait_while(_Atomic unsigned *word, unsigned value, WorkerSlot *slot) {
    int spins = 0;
    double since = 0;
    while (atomic_load_explicit(word, memory_order_acquire) == value)
        if (!spin(&spins, &since)) break;
    if (atomic_load_explicit(word, memory_order_acquire) != value) return;
    const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    while (atomic_load_explicit(word, memory_order_acquire) == value) sched_yield();
    slot->waiting += LATE_S + seconds(CLOCK_THREAD_CPUTIME_ID) - before;
}

/* --- a worker ------------------------------------------------------------------------------- */

static uint64_t wait_for_call(Pool *pool, WorkerSlot *slot, uint64_t seen) {
    int spins = 0;
    double since = 0;
    uint64_t call;
    do {
        call = atomic_load_explicit(&pool->call, memory_order_acquire);
        if (call != seen) return call;
    } while (spin(&spins, &since));
    pthread_mutex_lock(&pool->lock);
    atomic_store(&slot->sleeping, 1); /* before the look: announce looks the other way round */
    while ((call = atomic_load(&pool->call)) == seen) pthread_cond_wait(&slot->wake, &pool->lock);
    atomic_store(&slot->sleeping, 0);
    pthread_mutex_unlock(&pool->lock);
    return call;
}

static void take_part(Pool *pool, int thread) {
    WorkerSlot *slot = pool->slots + thread;
    const double start = seconds(CLOCK_THREAD_CPUTIME_ID);
    slot->waiting = 0;
    pool->job(pool->argument, thread);
    slot->cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void *work(void *start) {
    Pool *pool = ((Start *)start)->pool;
    const int thread = ((Start *)start)->thread;
    free(start);
    for (uint64_t call = 0;;) {
        call = wait_for_call(pool, pool->slots + thread, call);
        if (atomic_load(&pool->stopping)) return NULL;
        if (thread >= (int)(call & ((1 << THREADS_BITS) - 1))) continue;
        take_part(pool, thread);
        atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_release);
    }
}

/* --- the caller ----------------------------------------------------------------------------- */

/* Those that have no part in the job are let sleep. */
static void announce(Pool *pool, int threads) {
    const uint64_t number = (atomic_load(&pool->call) >> THREADS_BITS) + 1;
    atomic_store(&pool->call, number << THREADS_BITS | (uint64_t)threads);
    for (int thread = 1; thread < threads; thread++) {
        if (!atomic_load(&pool->slots[thread].sleeping)) continue;
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->slots[thread].wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

static int start_thread(Pool *pool, int thread) {
    Start *start = malloc(sizeof *start);
    if (!start) return 0;
    *start = (Start){.pool = pool, .thread = thread};
    if (pthread_create(&pool->slots[thread].handle, NULL, work, start)) {
        free(start);
        return 0;
    }
    pool->started = thread;
    return 1;
}

Pool *pool_start(int threads) {
    if (threads >= 1 << THREADS_BITS) return NULL;
    Pool *pool = aligned_alloc(64, (sizeof(Pool) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (Pool){.threads = threads,
                   .slots = aligned_alloc(64, (size_t)threads * sizeof(WorkerSlot))};
    pthread_mutex_init(&pool->lock, NULL);
    int whole = pool->slots != NULL;
    for (int thread = 0; whole && thread < threads; thread++) {
        pool->slots[thread] = (WorkerSlot){0};
        pthread_cond_init(&pool->slots[thread].wake, NULL);
    }
    for (int thread = 1; whole && thread < threads; thread++) whole = start_thread(pool, thread);
    if (whole) return pool;
    pool_stop(pool);
    return NULL;
}

void pool_stop(Pool *pool) {
    atomic_store(&pool->stopping, 1);
    announce(pool, pool->started + 1);
    for (int thread = 1; thread <= pool->started; thread++)
        pthread_join(pool->slots[thread].handle, NULL);
    for (int thread = 0; pool->slots && thread < pool->threads; thread++)
        pthread_cond_destroy(&pool->slots[thread].wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->slots);
    free(pool);
}

int pool_threads(const Pool *pool) { return pool->threads; }

void pool_run(Pool *pool, int threads, void (*job)(void *, int), void *argument) {
    const double start = seconds(CLOCK_MONOTONIC);
    pool->job = job;
    pool->argument = argument;
    pool->active = threads;
    atomic_store_explicit(&pool->busy, (unsigned)threads - 1, memory_order_relaxed);
    if (threads > 1) announce(pool, threads);
    take_part(pool, 0);
    for (unsigned busy; (busy = atomic_load_explicit(&pool->busy, memory_order_acquire));)
        wait_while(&pool->busy, busy, pool->slots);
    pool->wall = seconds(CLOCK_MONOTONIC) - start;
}

Effort pool_effort(const Pool *pool) {
    Effort effort = {.wall = pool->wall};
    for (int thread = 0; thread < pool->active; thread++) {
        effort.cpu += pool->slots[thread].cpu;
        effort.waiting += pool->slots[thread].waiting;
    }
    return effort;
}

/* --- inside a job --------------------------------------------------------------------------- */

void pool_barrier(Pool *pool, int thread) {
    const unsigned others = (unsigned)pool->active - 1;
    if (!others) return;
    const unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == others) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->phase, phase + 1, memory_order_release);
        return;
    }
    wait_while(&pool->phase, phase, pool->slots + thread);
}
