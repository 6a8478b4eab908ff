/* Sums of products in parts: of K cut into slabs, or of the spans of K of all blocks of rows dealt to a number of
 * blocks in order, so that a block of rows has as many parts as blocks met it. Parts are added in order. */
#ifndef QN_CUDA_VQ_PARTS_H
#define QN_CUDA_VQ_PARTS_H

#include "formats.h"
#include "cuda_vq.h"

#define PARTS_AHEAD 16

/* v / by, where inverse is ~0u / by: rounded down, so that the product may be one less. */
DEV u32 quotient_by(u32 v, u32 by, u32 inverse)
{
    const u32 q = __umulhi(v, inverse);
    return q + (v - q * by >= by);
}

/* Of all blocks of rows; the host deals no more than 2^31. */
DEV int all_spans(const qn_cuda_vq &a)
{
    return (a.n + QN_VQ_BLOCK_ROWS - 1) / QN_VQ_BLOCK_ROWS * a.spans;
}

/* Of so many, dealt to at most 2^16 parts, the first that one has: total * part / parts, by divisions of 32 bits. */
DEV int first_dealt(int total, int part, int parts)
{
    const u32 each = (u32)total / (u32)parts, left = (u32)total % (u32)parts;
    return (int)(each * (u32)part + left * (u32)part / (u32)parts);
}

/* The span that block b starts with, and the block that span u is dealt to. */
DEV int first_span(const qn_cuda_vq &a, int total, int b)
{
    return first_dealt(total, b, a.blocks);
}

DEV int block_of_span(const qn_cuda_vq &a, int total, i64 u)
{
    const i64 product = (u + 1) * a.blocks - 1;
    return product >> 32 ? (int)(product / total) : (int)((u32)product / (u32)total);
}

DEV float sum_parts(const qn_cuda_vq &a, int m, int n)
{
    int count = a.slabs > 0 ? a.slabs : 1;
    if (a.blocks > 0) {
        const int total = all_spans(a), first = n / QN_VQ_BLOCK_ROWS * a.spans;
        count = block_of_span(a, total, first + a.spans - 1) - block_of_span(a, total, first) + 1;
        count *= a.slices > 1 ? a.slices : 1;
    }
    const float *const at = a.parts + (i64)m * a.n + n;
    const i64 step = (i64)a.m * a.n;
    float sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < count; first += PARTS_AHEAD) { /* all on their way at once */
        float part[PARTS_AHEAD];
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; i++) {
            part[i] = first + i < count ? at[(first + i) * step] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; i++) {
            sum += part[i];
        }
    }
    return a.row_scale ? sum * a.row_scale[m] : sum;
}

#endif
