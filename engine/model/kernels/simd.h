/* Sixteen lanes, whatever the processor: each kernel is written once on these few functions and
 * compiled once per instruction set (build.py passes SESSIOND_AVX512, SESSIOND_AVX2 or neither).
 *
 *   vf  16 floats    vi  16 int32    vb  64 bytes    vp  one pair of bfloat16
 *
 * Fused or not, in halves or whole: the result of a function may differ between instruction sets,
 * but never between two calls on one of them. So batch invariance is a matter of calling order. */
#ifndef SESSIOND_SIMD_H
#define SESSIOND_SIMD_H

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef SESSIOND_SANITIZED /* a checked loop is long enough */
#define UNROLLED
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

#if defined(SESSIOND_AVX512)
#include "simd_avx512.h"
#elif defined(SESSIOND_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

#define JOIN_(name, suffix) name##_##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)
/* The name of a kernel in this compilation: KERNEL(attend) is attend_avx2, say. */
#define KERNEL(name) JOIN(name, ISA_SUFFIX)

/* 2^x, 0 below -126.5. Relative error under 2e-7: Taylor's series on [-0.5, 0.5], exact at 0. */
INLINE vf vf_exp2(vf x) {
    /* the second operand is what comes out where one is NaN */
    x = vf_min(vf_set1(127.0f), vf_max(vf_set1(-127.0f), x));
    const vi whole = vi_round(x);
    const vf rest = vf_sub(x, vf_from_int(whole));
    vf sum = vf_set1(1.5403530e-4f);
    sum = vf_fma(sum, rest, vf_set1(1.3333558e-3f));
    sum = vf_fma(sum, rest, vf_set1(9.6181291e-3f));
    sum = vf_fma(sum, rest, vf_set1(5.5504109e-2f));
    sum = vf_fma(sum, rest, vf_set1(2.4022651e-1f));
    sum = vf_fma(sum, rest, vf_set1(6.9314718e-1f));
    sum = vf_fma(sum, rest, vf_set1(1.0f));
    return vf_mul(sum, vf_power_of_2(whole));
}

#ifndef HAS_PROBABILITY
/* 2^x for x up to 0, 0 far below and for -inf. */
INLINE vf vf_probability(vf x) { return vf_exp2(x); }
#endif

#endif
