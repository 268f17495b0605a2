/* Which kernels this processor can run. */
#include <string.h>

#include "step.h"

static int has_avx2(void) {
#ifdef SESSIOND_X86
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

static int has_avx512(void) {
#ifdef SESSIOND_X86
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

const Kernels *engine_kernels(const char *isa) {
    if (!strcmp(isa, "portable")) return &kernels_portable;
#ifdef SESSIOND_X86
    if (!strcmp(isa, "avx2") && has_avx2()) return &kernels_avx2;
    if (!strcmp(isa, "avx512") && has_avx512()) return &kernels_avx512;
#endif
    return NULL;
}

int engine_supports(const char *isa) { return engine_kernels(isa) != NULL; }
