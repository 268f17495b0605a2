/* Threads that run one job together, again and again. */
#ifndef SESSIOND_POOL_H
#define SESSIOND_POOL_H

typedef struct Pool Pool;

/* `threads` includes the caller of pool_run. NULL when there is no memory or no thread. */
Pool *pool_start(int threads);
void pool_stop(Pool *pool);
int pool_threads(const Pool *pool);

/* Calls job(argument, thread) on every thread, 0 being the caller; returns when all are done. */
void pool_run(Pool *pool, void (*job)(void *argument, int thread), void *argument);

/* Inside a job: waits until all threads are here. */
void pool_barrier(Pool *pool);

#endif
