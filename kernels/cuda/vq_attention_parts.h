/* Results of vq_attention, whole or in parts: sums of weighted values, the largest score in units of log 2, the sum of
 * weights; weights are 2^(score - largest + 15). Part p of head h of sequence b: floats [b][h][p][size + 2]. */
#ifndef QN_CUDA_VQ_ATTENTION_PARTS_H
#define QN_CUDA_VQ_ATTENTION_PARTS_H

#include "cuda_vq_kv.h"
#include "parts.h"

#define NONE __int_as_float(0xff800000u)
#define WEIGHT_SHIFT 15.0f
#ifndef OUT
#define OUT QN_MM_F32 /* format of the result */
#endif
#ifndef LENS
#define LENS 1 /* lengths are given */
#endif

/* Tokens that a query sees. */
DEV int length_of(const qn_cuda_vq_attention &a, int sequence)
{
#if LENS
    const int length = a.lens[sequence];
#else
    const int all = a.position ? *a.position + 1 : a.room;
    const int length = a.causal ? all - a.batch + sequence + 1 : all;
#endif
    return length < 0 ? 0 : length < a.room ? length : a.room;
}

/* Of those the first that are read as codes (qn_window_first of src/ref/slots.h). */
DEV int coded_of(const qn_cuda_vq_attention &a, int length)
{
    const int first = (length - 1) / 32 * 32 - a.window;
    return a.window == 0 ? length : max(first, 0);
}

/* sum / all, correctly rounded: `all`, of weights of which one is 2^15, is far from what overflows or is subnormal. */
DEV float quotient_of_sums(float sum, float all)
{
    float by;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(all));
    by = __fmaf_rn(by, __fmaf_rn(-all, by, 1.0f), by);
    const float near = sum * by;
    return __fmaf_rn(by, __fmaf_rn(-all, near, sum), near);
}

DEV void put_result(const qn_cuda_vq_attention &a, int sequence, int head, int d, int length, float most, float all,
                    float sum)
{
    store_float(a.o + sequence * a.o_row + head * a.o_head, d, length > 0 ? quotient_of_sums(sum, all) : 0.0f, OUT);
    if (d == 0 && a.lse) {
        ((float *)(a.lse + sequence * a.lse_row))[head] =
            length > 0 ? (most - WEIGHT_SHIFT + log2f(all)) * 0.69314718f : NONE;
    }
}

DEV float *part_of(const qn_cuda_vq_attention &a, int sequence, int head, int part)
{
    return (float *)a.partials + (((i64)sequence * a.heads + head) * a.all_parts + part) * (a.size + 2);
}

DEV void put_part(const qn_cuda_vq_attention &a, int sequence, int head, int part, int d, float most, float all,
                  float sum)
{
    float *const to = part_of(a, sequence, head, part);
    to[d] = sum;
    if (d == 0) {
        to[a.size] = most;
        to[a.size + 1] = all;
    }
}

/* Parts that hold any codes: the first ones. */
DEV int used_parts(const qn_cuda_vq_attention &a, int length)
{
    const int coded = coded_of(a, length);
    return a.part_tokens > 0 ? min((coded + a.part_tokens - 1) / a.part_tokens, a.parts) : 0;
}

/* What a part with that largest score counts for beside the largest of all. */
DEV float part_weight(float most, float of_all)
{
    return most == NONE ? 0.0f : exp_base2(most - of_all);
}

#endif
