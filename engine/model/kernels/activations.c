/* What stands between linear layers: RMS norm, SiLU times up, and rounding to what they read.
 *
 * int8 per group of 32: scale = max |x| / 127. Coarser scales break models whose activations have
 * a few large values. What is not finite makes its group's scale so: a row that damaged weights
 * spoilt must not come out of the rounding as numbers. */
#include <math.h>

#include "kernels.h"
#include "simd.h"

INLINE void store_group(vf low, vf high, const Activations *out, int row, int group) {
    const size_t at = (size_t)row * out->columns + (size_t)group * GROUP;
    if (out->is_bfloat) {
        uint16_t *values = (uint16_t *)out->values + at;
        vf_store_bfloats(values, low);
        vf_store_bfloats(values + 16, high);
        return;
    }
    const float largest = vf_largest_magnitude(low, high);
    const vf inverse = vf_set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    const vi first = vi_round(vf_mul(low, inverse)), second = vi_round(vf_mul(high, inverse));
    int8_t *values = (int8_t *)out->values + at;
    vi_store_bytes(values, first);
    vi_store_bytes(values + 16, second);
    const size_t index = (size_t)row * (out->columns / GROUP) + group;
    const float scale = largest / 127.0f;
    const int32_t sum = vi_reduce_add(vi_add(first, second));
    out->scales[index] = scale;
    out->sums[index] = sum;
    out->offsets[index] = scale * (float)sum;
}

void KERNEL(quantize)(const float *x, const Activations *out, int row) {
    for (int g = 0; g < out->columns / GROUP; g++)
        store_group(vf_load(x + g * GROUP), vf_load(x + g * GROUP + 16), out, row, g);
}

void KERNEL(normalize)(const float *x, const float *weight, int width, float epsilon,
                       const Activations *out, int row) {
    vf even = vf_zero(), odd = vf_zero();
    for (int i = 0; i < out->columns; i += GROUP) {
        const vf low = vf_load(x + i), high = vf_load(x + i + 16);
        even = vf_fma(low, low, even);
        odd = vf_fma(high, high, odd);
    }
    const float mean = vf_reduce_add(vf_add(even, odd)) / (float)width;
    const vf factor = vf_set1(1.0f / sqrtf(mean + epsilon));
    for (int g = 0; g < out->columns / GROUP; g++) {
        const float *values = x + g * GROUP, *weights = weight + g * GROUP;
        const vf low = vf_mul(vf_mul(vf_load(values), factor), vf_load(weights));
        const vf high = vf_mul(vf_mul(vf_load(values + 16), factor), vf_load(weights + 16));
        store_group(low, high, out, row, g);
    }
}

INLINE vf silu_times(vf gate, vf up) { /* gate / (1 + e^-gate) * up */
    const vf power = vf_exp2(vf_mul(gate, vf_set1(-1.44269504f)));
    return vf_mul(vf_div(gate, vf_add(power, vf_set1(1.0f))), up);
}

void KERNEL(swiglu)(const float *gate_up, int first_row, int end_row, int unit,
                    const Activations *out) {
    for (int row = first_row; row < end_row; row++, gate_up += 2 * GROUP) {
        const vf low = silu_times(vf_load(gate_up), vf_load(gate_up + GROUP));
        const vf high = silu_times(vf_load(gate_up + 16), vf_load(gate_up + GROUP + 16));
        store_group(low, high, out, row, unit);
    }
}
