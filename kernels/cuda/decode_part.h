/* What kernels that leave parts of one token's attention (parts.h) share: a block of 128 threads has a part, a thread a
 * key for the scores, a warp the values of its own keys. */
#ifndef QN_CUDA_DECODE_PART_H
#define QN_CUDA_DECODE_PART_H

#include "formats.h"
#include "cuda_vq_kv.h"
#include "parts.h"
#include "sums.h"
#include "turn.h"

#define WARPS 4
#define PAIRS ((SIZE / 2 + 31) / 32) /* of elements, a lane */
#define NONE __int_as_float(0xff800000u)
#ifndef NORM
#define NORM 0 /* 1: heads of the query and of the key are normalised first */
#endif

/* Where heads are normalised before they are turned: the gains of elements i and i + SIZE / 2, by threads that have
 * such a pair each, and what the whole head of the query and of the key is multiplied by. */
struct head_norm {
    float q[2], k[2], q_factor, k_factor;
};

DEV head_norm load_gains(const qn_cuda_head_norms &a)
{
    head_norm n = {};
#if NORM
    if (threadIdx.x < SIZE / 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            n.q[h] = a.q[(int)threadIdx.x + h * (SIZE / 2)];
            n.k[h] = a.k[(int)threadIdx.x + h * (SIZE / 2)];
        }
    }
#endif
    return n;
}

/* By a warp: what rmsnorm makes of a head, but for its gains. */
DEV float norm_factor(const char *head, float eps)
{
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < (SIZE + 31) / 32; j++) {
        const int i = (int)threadIdx.x % 32 + 32 * j;
        const float v = i < SIZE ? ((const float *)head)[i] : 0.0f;
        squares = __fmaf_rn(v, v, squares);
    }
    return 1.0f / sqrtf(sum_warp(squares) / (float)SIZE + eps);
}

/* By whole warps. */
DEV void finish_norm(const qn_cuda_head_norms &a, const char *q, const char *k, head_norm *n)
{
#if NORM
    if (threadIdx.x / 32 * 32 < SIZE / 2) {
        n->q_factor = norm_factor(q, a.eps);
        n->k_factor = norm_factor(k, a.eps);
    }
#endif
}

/* This token's head of the query and of the key, turned, by threads that have a pair each. Scores are then in units of
 * log 2. */
DEV void turn_new(const char *q, const char *k, const head_norm &n, float scale, turn t, float *to_q, float *to_k)
{
    const int i = (int)threadIdx.x, j = i + SIZE / 2;
    float u = ((const float *)q)[i], v = ((const float *)q)[j], by = scale * 1.4426950408889634f;
    float x = ((const float *)k)[i], y = ((const float *)k)[j];
#if NORM
    u = u * n.q_factor * n.q[0];
    v = v * n.q_factor * n.q[1];
    x = x * n.k_factor * n.k[0];
    y = y * n.k_factor * n.k[1];
#endif
    to_q[i] = __fmaf_rn(u, t.c, -(v * t.s)) * by;
    to_q[j] = __fmaf_rn(v, t.c, u * t.s) * by;
    to_k[i] = __fmaf_rn(x, t.c, -(y * t.s));
    to_k[j] = __fmaf_rn(y, t.c, x * t.s);
}

/* A head of a token of the window, f16. */
DEV u16 *recent_head(const qn_cuda_kv_keep &recent, int token, int head)
{
    return (u16 *)(recent.y + (i64)(token % recent.ring) * recent.y_row) + head * SIZE;
}

DEV void load_recent(const qn_cuda_kv_keep &recent, int token, int head, u32 *k)
{
    const uint4 *const from = (const uint4 *)recent_head(recent, token, head);
#pragma unroll
    for (int i = 0; i < SIZE / 8; i++) {
        const uint4 w = from[i];
        k[4 * i] = w.x;
        k[4 * i + 1] = w.y;
        k[4 * i + 2] = w.z;
        k[4 * i + 3] = w.w;
    }
}

/* By a warp: of 32 tokens from `first` on those of the window, from `coded` to before `position`, to rows. */
template <int row_bytes>
DEV void copy_recent(const qn_cuda_kv_keep &recent, int first, int coded, int position, int head, char *rows)
{
    const int step = SIZE / 8; /* of 16 bytes */
    if (first + 31 < coded) {
        return;
    }
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32; i < 32 * step; i += 32) {
        const int s = i / step, at = i % step, token = first + s;
        if (token >= coded && token < position) {
            char *const to = rows + s * row_bytes + at * 16;
            copy_async_16(shared_address(to), recent_head(recent, token, head) + at * 8, 16);
        }
    }
}

/* Weights of the part's keys, beside its largest score, which is returned; all: their sums, a warp's each. */
DEV float weigh(float score, float *weights, float *high, float *all, int lane, int warp)
{
    float most = score;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    if (lane == 0) {
        high[warp] = most;
    }
    __syncthreads();
    most = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    const float weight = score == NONE ? 0.0f : exp_base2(score - most);
    weights[threadIdx.x] = weight;
    const float total = sum_warp(weight);
    if (lane == 0) {
        all[warp] = total;
    }
    return most;
}

/* By a warp: the values of its own keys, the first `count`, by their weights; pair(key of the part, pair of elements,
 * v) gives two elements. */
template <class pair_of_row> DEV void sum_values(const float *weights, int count, float *sums, pair_of_row pair)
{
    const int lane = (int)threadIdx.x % 32, row0 = (int)threadIdx.x / 32 * 32;
    float sum[PAIRS][2] = {};
#pragma unroll 8
    for (int s = 0; s < count; s++) {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            if (lane + 32 * j < SIZE / 2) {
                float v[2];
                pair(row0 + s, lane + 32 * j, v);
                sum[j][0] = __fmaf_rn(weights[row0 + s], v[0], sum[j][0]);
                sum[j][1] = __fmaf_rn(weights[row0 + s], v[1], sum[j][1]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        if (lane + 32 * j < SIZE / 2) {
            *(float2 *)&sums[2 * (lane + 32 * j)] = make_float2(sum[j][0], sum[j][1]);
        }
    }
}

/* The part of a head, from the warps' sums of values. */
DEV void leave_part(char *partials, int heads, int head, const float (*sums)[SIZE], float most, const float *all)
{
    float *const out = (float *)partials + ((i64)blockIdx.x * heads + head) * PART_PITCH(SIZE);
    for (int i = (int)threadIdx.x; i < SIZE; i += 128) {
        out[i] = sums[0][i] + sums[1][i] + sums[2][i] + sums[3][i];
    }
    if (threadIdx.x == 0) {
        out[SIZE] = most;
        out[SIZE + 1] = all[0] + all[1] + all[2] + all[3];
    }
}

#endif
