#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "step.h"

/* Large pages spare the address translation most of its misses: weights are read end to end. */
void *engine_allocate(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (memory == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: failure changes nothing but speed */
#endif
    return memory;
}

void engine_release(void *memory, size_t bytes) { munmap(memory, bytes); }
