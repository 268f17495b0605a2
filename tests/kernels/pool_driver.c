/* Jobs of changing numbers of threads that read what the others wrote before a barrier. Run under
 * the thread sanitizer by test_sanitizers.py: exit status 0 when every sum was right. */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

#include "pool.h"

#define THREADS 4
#define JOBS 200
#define MEETINGS 6

typedef struct {
    Pool *pool;
    int threads;
    long slots[THREADS];
    long wrong[THREADS];
} Job;

static void job(void *argument, int thread) {
    Job *job = argument;
    for (int meeting = 0; meeting < MEETINGS; meeting++) {
        job->slots[thread] = (thread + 1) * (meeting + 1);
        pool_barrier(job->pool, thread);
        long sum = 0;
        for (int other = 0; other < job->threads; other++) sum += job->slots[other];
        job->wrong[thread] += sum != job->threads * (job->threads + 1) / 2 * (meeting + 1);
        pool_barrier(job->pool, thread);
    }
}

int main(void) {
    Pool *pool = pool_start(THREADS);
    if (!pool) return 2;
    long wrong = 0;
    for (int number = 0; number < JOBS; number++) {
        Job now = {.pool = pool, .threads = number * 7 % THREADS + 1};
        pool_run(pool, now.threads, job, &now);
        for (int thread = 0; thread < THREADS; thread++) wrong += now.wrong[thread];
        const Effort effort = pool_effort(pool);
        wrong += effort.wall <= 0 || effort.cpu <= 0 || effort.waiting < 0;
        /* long enough for the workers to fall asleep, now and then */
        if (number % 10 == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    pool_stop(pool);
    printf("%ld wrong\n", wrong);
    return wrong != 0;
}
