/* Threads that run one job together, again and again. */
#ifndef SESSIOND_POOL_H
#define SESSIOND_POOL_H

typedef struct Pool Pool;

/* Timings of the last job, in seconds. */
typedef struct {
    double wall;
    double cpu;     /* of all its threads together */
    double waiting; /* the part of `cpu` spent waiting for late threads */
} Effort;

/* `threads` includes the caller of pool_run. NULL when there is no memory or no thread. */
Pool *pool_start(int threads);
void pool_stop(Pool *pool);
int pool_threads(const Pool *pool);

/* Calls job(argument, thread) on the first `threads` of them, 0 being the caller; returns when
 * all are done. */
void pool_run(Pool *pool, int threads, void (*job)(void *argument, int thread), void *argument);

/* Inside a job: waits until all its threads are here. */
void pool_barrier(Pool *pool, int thread);

Effort pool_effort(const Pool *pool);

#endif
