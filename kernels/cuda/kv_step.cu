/* What a decoding step does with a new token before its attention, where keys and values are kept as codes: the query
 * and the key are turned by the token's position, the turned key and the value become rows of f16 of the recent ones,
 * and both are coded into the cache. The device knows the position. A warp has a head, or a group of a head to encode.
 *
 * Host contract
 *   Parameters: SCALED 1: codes are e4m3 with a scale a head, those of turned keys (kv_scaled.h, its parameters 0);
 *     0: those of vectors, of keys as they came (vq_nearest.h and its parameters); those of turn.h
 *   Heads side by side, of at most 256 elements, an even number; books do not change
 *   Launch: block 128, grid {ceil(tasks / 4)}: heads + 2 kv_heads, and 2 kv_heads * groups where they are vectors */
#include "formats.h"
#if SCALED
#include "kv_scaled.h"
#else
#include "vq_nearest.h"
#define PER 8
#endif
#include "turn.h"

/* A head as pairs i and i + size / 2, i being the lane + 32 n: v[2 n] and v[2 n + 1]. */
DEV int element_of(const qn_cuda_kv_step &a, int j)
{
    const int i = (int)threadIdx.x % 32 + j / 2 * 32;
    return i >= a.size / 2 ? -1 : i + j % 2 * (a.size / 2);
}

DEV void load_head(const qn_cuda_kv_step &a, const char *row, int head, float *v)
{
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int at = element_of(a, j);
        v[j] = at < 0 ? 0.0f : ((const float *)row)[head * a.size + at];
    }
}

DEV void turn_head(const qn_cuda_kv_step &a, int position, float *v, char *to, int head)
{
#pragma unroll
    for (int j = 0; j < PER; j += 2) {
        const int at = element_of(a, j);
        if (at >= 0) {
            const turn t = turn_of(position, at, a.size, a.log2_theta, a.factors);
            const float x = v[j], y = v[j + 1];
            float *const out = (float *)to + head * a.size;
            v[j] = out[at] = __fmaf_rn(x, t.c, -(y * t.s));
            v[j + 1] = out[at + a.size / 2] = __fmaf_rn(y, t.c, x * t.s);
        }
    }
}

DEV void keep_head(const qn_cuda_kv_step &a, int values, int position, int head, const float *v)
{
    const qn_cuda_kv_keep &recent = a.recent[values];
    u16 *const row = (u16 *)(recent.y + (i64)(position % recent.ring) * recent.y_row) + head * a.size;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int at = element_of(a, j);
        if (at >= 0) {
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(row[at]) : "f"(v[j]));
        }
    }
#if SCALED
    const qn_cuda_kv_keep &to = a.scaled[values];
    put_scaled(v, to.y + position * to.y_row + head * a.size, (float *)(to.scale + position * to.scale_row + head * 4),
               [&](int j) { return element_of(a, j); });
#endif
}

extern "C" __global__ void __launch_bounds__(128) qn_kv_step(const __grid_constant__ qn_cuda_kv_step a)
{
    int task = (int)(blockIdx.x * 4 + threadIdx.x / 32);
    release_next();
    if (task >= a.heads + 2 * a.kv_heads) {
#if !SCALED
        task -= a.heads + 2 * a.kv_heads;
        const int all = a.kv_heads * a.coded[0].groups, values = task >= all;
        const qn_cuda_vq_encode &coded = a.coded[values];
        const int head = (task - values * all) / coded.groups, group = task % coded.groups;
        if (task < 2 * all) {
            held_entries held;
            hold_entries(coded, head, group, &held);
            wait_before();
            encode_rows(coded, head, group, held, 0, 1);
        }
#endif
        return;
    }
    wait_before();
    const int position = *a.position;
    float v[PER];
    if (task < a.heads) {
        load_head(a, a.q, task, v);
        turn_head(a, position, v, a.turned_q, task);
        return;
    }
    const int values = task >= a.heads + a.kv_heads, head = task - a.heads - values * a.kv_heads;
    load_head(a, values ? a.v : a.k, head, v);
    if (!values) {
        turn_head(a, position, v, a.turned_k, head);
    }
    keep_head(a, values, position, head, v);
}
