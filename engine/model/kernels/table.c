/* The kernels of one instruction set, by name. */
#include "kernels.h"
#include "simd.h"

void KERNEL(normalize)(const float *, const float *, int, float, const Activations *, int);
void KERNEL(quantize)(const float *, const Activations *, int);
void KERNEL(swiglu)(const float *, int, int, int, const Activations *);
void KERNEL(linear_q4_1)(const Linear *, int, int, const Activations *, int, int, float *, size_t,
                         int);
void KERNEL(linear_q4_0)(const Linear *, int, int, const Activations *, int, int, float *, size_t,
                         int);
void KERNEL(linear_q8_0)(const Linear *, int, int, const Activations *, int, int, float *, size_t,
                         int);
void KERNEL(linear_bf16)(const Linear *, int, int, const Activations *, int, int, float *, size_t,
                         int);
void KERNEL(prepare_queries)(float *, int, int, const float *, float, float);
void KERNEL(write_kv)(const KvLayer *, int, int, float *, const float *, const float *, float);
void KERNEL(attend)(const KvLayer *, const AttentionTile *, int, int, float *);
void KERNEL(attend_int8)(const KvLayer *, const AttentionTile *, int, int, float *);
void KERNEL(merge)(float *, const float *, int, int);
void KERNEL(finish)(const float *, int, int, float *const *);
int32_t KERNEL(argmax)(const float *, int);
void KERNEL(unpack_row)(const Linear *, int, float *);

const Kernels KERNEL(kernels) = {
    .normalize = KERNEL(normalize),
    .quantize = KERNEL(quantize),
    .swiglu = KERNEL(swiglu),
    .linear = {[Q4_1] = KERNEL(linear_q4_1),
               [Q4_0] = KERNEL(linear_q4_0),
               [Q8_0] = KERNEL(linear_q8_0),
               [BF16] = KERNEL(linear_bf16)},
    .prepare_queries = KERNEL(prepare_queries),
    .write_kv = KERNEL(write_kv),
    .attend = KERNEL(attend),
    .attend_int8 = KERNEL(attend_int8),
    .merge = KERNEL(merge),
    .finish = KERNEL(finish),
    .argmax = KERNEL(argmax),
    .unpack_row = KERNEL(unpack_row),
};
