/* decode.cu and decode_scaled.cu for long heads: a block has PART_KEYS keys of a head and queries that share it, so
 * that keys are read once. A warp has eight of the keys and finds by itself what their weights and values give. Where
 * there is a place for results (out) the last block of a head joins its parts; one that is alone has the result itself.
 *
 * With few parts its blocks are all that runs, each on a multiprocessor of its own where none of this has been executed
 * for long: so warps are many and instructions few, loops in place of copies.
 *
 * Host contract
 *   Parameters: GROUP queries of a block, 2 to 8, by which those of a key head can be divided; SIZE 128, of a head; KV
 *     (decode_rows.h), NORM and those of turn.h as in decode.cu; with codes those of rows.h, 0
 *   Launch: block 512, grid {parts of the whole cache, heads / GROUP}, dynamic shared memory 512 * SIZE */
#include "decode_part.h"
#include "decode_rows.h"
#if KV == QN_CUDA_KV_FP8
#include "kv_scaled.h"
#endif

#define KEYS 8
#define OWNERS (32 / KEYS) /* neighbouring lanes that a key has, once its score is there */
#define BLOCK_WARPS (PART_KEYS / KEYS)
#define TURNS ((GROUP + OWNERS - 1) / OWNERS) /* of queries, one of each owner */
#define JOINED_AT_ONCE 4
#define ROW_BYTES (SIZE * (int)sizeof(kept)) /* of a value */

extern __shared__ __align__(16) float rows[]; /* [PART_KEYS][SIZE]; a warp's: values as they are kept, then its sums */

/* Of `count` keys that `width` lanes have shares of, the sum of the one that this lane owns: upper lanes keep the upper
 * half of the keys, as long as there are two; owners of a key all have its sum. */
template <int count, int width> DEV float add_shares(float *share)
{
    if constexpr (width == 1) {
        return share[0];
    } else if constexpr (count == 1) {
        share[0] += __shfl_xor_sync(0xffffffffu, share[0], width / 2);
        return add_shares<1, width / 2>(share);
    } else {
        const int upper = (int)threadIdx.x & (width / 2);
#pragma unroll
        for (int i = 0; i < count / 2; i++) {
            const float kept = upper ? share[i + count / 2] : share[i];
            const float sent = upper ? share[i] : share[i + count / 2];
            share[i] = kept + __shfl_xor_sync(0xffffffffu, sent, width / 2);
        }
        return add_shares<count / 2, width / 2>(share);
    }
}

/* By a warp: a head of this token's query or key, normalised if it is to be, turned and scaled. */
DEV void turn_head(const char *head, const float *gains, float eps, const turn *turns, float scale, float *to)
{
    const int lane = (int)threadIdx.x % 32;
    float v[PAIRS][2];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        v[j][0] = ((const float *)head)[lane + 32 * j];
        v[j][1] = ((const float *)head)[lane + 32 * j + SIZE / 2];
    }
#if NORM
    const float factor = norm_factor(head, eps);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        v[j][0] = v[j][0] * factor * gains[lane + 32 * j];
        v[j][1] = v[j][1] * factor * gains[lane + 32 * j + SIZE / 2];
    }
#endif
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int i = lane + 32 * j;
        const turn t = turns[i];
        to[i] = __fmaf_rn(v[j][0], t.c, -(v[j][1] * t.s)) * scale;
        to[i + SIZE / 2] = __fmaf_rn(v[j][1], t.c, v[j][0] * t.s) * scale;
    }
}

#if KV == QN_CUDA_KV_FP8
/* By a warp: this token's head of keys or of values as codes. */
DEV void keep_codes(const qn_cuda_kv_keep &scaled, int position, int head, const float *x)
{
    const int lane = (int)threadIdx.x % 32;
    const float4 of = *(const float4 *)(x + lane * 4);
    const float v[PER] = {of.x, of.y, of.z, of.w};
    put_scaled(v, scaled.y + position * scaled.y_row + head * SIZE,
               (float *)(scaled.scale + position * scaled.scale_row + head * 4),
               [&](int j) { return j < 4 ? lane * 4 + j : -1; });
}
#endif

/* Whether this block is the last of `parts` to have written its own: the others' can be read then. By all threads. */
DEV int is_last_part(int *arrived, int parts)
{
    __shared__ int last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = count_in(arrived) == parts - 1;
        if (last) {
            *arrived = 0; /* for the next launch */
        }
    }
    __syncthreads();
    return last;
}

/* The results of GROUP heads from `head` on: each warp joins every slice-th part of a head, which gives one part again,
 * and the first ones those. found: a part for each warp. */
DEV void join_heads(const qn_cuda_decode &a, int head, int parts, float *found)
{
    constexpr int slices = BLOCK_WARPS / GROUP, least = slices < JOINED_AT_ONCE ? slices : JOINED_AT_ONCE;
    const int warp = (int)threadIdx.x / 32, g = warp % GROUP, slice = warp / GROUP, i = (int)threadIdx.x % 32 * 4;
    const int step = a.heads * PART_PITCH(SIZE);
    if (slice < slices) {
        const float *const p = (const float *)a.partials + (i64)slice * step + (head + g) * PART_PITCH(SIZE);
        const joined of = join_some<JOINED_AT_ONCE>(p, slices * step, SIZE, i, (parts - slice + slices - 1) / slices);
        float *const own = found + warp * PART_PITCH(SIZE);
        *(float4 *)(own + i) = of.sum;
        if (i == 0) {
            *(float2 *)(own + SIZE) = make_float2(of.most, of.total);
        }
    }
    __syncthreads();
    if (warp < GROUP) {
        const joined of = join_some<least>(found + warp * PART_PITCH(SIZE), GROUP * PART_PITCH(SIZE), SIZE, i, slices);
        *(float4 *)(a.out + (head + warp) * SIZE + i) = result_of(of);
    }
}

extern "C" __global__ void __launch_bounds__(32 * BLOCK_WARPS, 2)
    qn_decode_group(const __grid_constant__ qn_cuda_decode a)
{
    __shared__ __align__(16) float q[GROUP][SIZE], fresh[2][SIZE], weights[PART_KEYS][GROUP];
    __shared__ turn turns[SIZE / 2];
    __shared__ float high[GROUP][BLOCK_WARPS], all[GROUP][BLOCK_WARPS]; /* a warp's largest score, sum of weights */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y * GROUP, shared_head = head / a.group, first = (int)blockIdx.x * PART_KEYS;
    release_next();
    const int position = *a.position;    /* written before this pass's first kernel */
    if (first > 0 && first > position) { /* the first part is always there */
        return;
    }
    const int newest = position < first + PART_KEYS, row0 = warp * KEYS;
    const int mine = first + row0, before = min(position - mine, KEYS); /* the warp's keys, those of earlier tokens */
    const int coded = KV == QN_CUDA_KV_FP8 && mine < position / 32 * 32 - a.window; /* all of them, or none */
    char *const kept_values = (char *)(rows + row0 * SIZE);
    const run keys = run_of(a, 0, mine, shared_head, coded), values = run_of(a, 1, mine, shared_head, coded);
#pragma unroll 2
    for (int i = 0; i < before; i++) {
        copy_four(kept_values + i * ROW_BYTES, row_of(values, i), lane, coded);
    }
    four kept_keys[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        kept_keys[i] = four{};
        if (i < before) {
            kept_keys[i] = load_four(row_of(keys, i), lane, coded);
        }
    }
#if KV == QN_CUDA_KV_FP8
    float scale[2] = {1.0f, 1.0f}; /* of the key and the value that this lane owns */
    for (int i = 0; coded && i < 2; i++) {
        const qn_cuda_kv_keep &scaled = a.scaled[i];
        scale[i] = *(const float *)(scaled.scale + (mine + lane / OWNERS) * scaled.scale_row + shared_head * 4);
    }
#else
    const float scale[2] = {1.0f, 1.0f};
#endif
    if (threadIdx.x < SIZE / 2) {
        turns[threadIdx.x] = turn_of(position, (int)threadIdx.x, SIZE, a.log2_theta, a.factors);
    }
    __syncthreads();
    wait_before();
    if (warp < GROUP) { /* scores are then in units of log 2 */
        turn_head(a.q + (head + warp) * (SIZE * 4), a.norms.q, a.norms.eps, turns, a.scale * 1.4426950408889634f,
                  q[warp]);
    } else if (warp == GROUP && newest) { /* every block by itself; the first of a key head keeps it */
        turn_head(a.k + shared_head * (SIZE * 4), a.norms.k, a.norms.eps, turns, 1.0f, fresh[0]);
        __syncwarp();
        if (head % a.group == 0) {
            char *const to = row_of(run_of(a, 0, position, shared_head, 0), 0);
            ((four *)to)[lane] = keep_four(*(const float4 *)(fresh[0] + lane * 4));
        }
    } else if (warp == GROUP + 1 && newest) {
        char *const to = row_of(run_of(a, 1, position, shared_head, 0), 0);
#if KV == QN_CUDA_KV_F32
        const four own = ((const four *)to)[lane];
#else
        const float4 v = ((const float4 *)(a.v + shared_head * (SIZE * 4)))[lane];
        const four own = keep_four(v);
        *(float4 *)(fresh[1] + lane * 4) = v;
        if (head % a.group == 0) {
            ((four *)to)[lane] = own;
        }
#endif
        const int row = position - first;
        ((four *)((char *)(rows + row / KEYS * (KEYS * SIZE)) + row % KEYS * ROW_BYTES))[lane] = own;
    }
    __syncthreads();
    if (newest) {
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            kept_keys[i] = mine + i == position ? keep_four(*(const float4 *)(fresh[0] + lane * 4)) : kept_keys[i];
        }
    }
    float4 k[KEYS];
    floats_of_all(kept_keys, k, coded);
    const int key = row0 + lane / OWNERS;
#pragma unroll 1
    for (int g = 0; g < GROUP; g++) {
        const float4 f = *(const float4 *)(q[g] + lane * 4);
        float share[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            share[i] = __fmaf_rn(k[i].w, f.w, __fmaf_rn(k[i].z, f.z, __fmaf_rn(k[i].y, f.y, k[i].x * f.x)));
        }
        const float score = add_shares<KEYS, 32>(share) * scale[0];
        if (lane % OWNERS == g % OWNERS) {
            weights[key][g] = score;
        }
    }
#pragma unroll 1
    for (int g = lane % OWNERS; g < OWNERS * TURNS; g += OWNERS) { /* the key's scores that this lane has kept */
        const float own = first + key <= position && g < GROUP ? weights[key][g] : NONE;
        float most = own;
#pragma unroll
        for (int step = 16; step >= OWNERS; step /= 2) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        }
        const float weight = own == NONE ? 0.0f : exp_base2(own - most);
        float total = weight;
#pragma unroll
        for (int step = 16; step >= OWNERS; step /= 2) {
            total += __shfl_xor_sync(0xffffffffu, total, step);
        }
        if (g < GROUP) {
            weights[key][g] = weight * scale[1];
            if (lane < OWNERS) {
                high[g][warp] = most;
                all[g][warp] = total;
            }
        }
    }
    copy_async_wait();
    __syncwarp();
    const int count = min(position + 1 - mine, KEYS);
    float4 sum[GROUP] = {};
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const float4 v = floats_of(((const four *)(kept_values + i * ROW_BYTES))[lane], coded);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            const float weight = weights[row0 + i][g];
            sum[g].x = __fmaf_rn(weight, v.x, sum[g].x);
            sum[g].y = __fmaf_rn(weight, v.y, sum[g].y);
            sum[g].z = __fmaf_rn(weight, v.z, sum[g].z);
            sum[g].w = __fmaf_rn(weight, v.w, sum[g].w);
        }
    }
    __syncwarp();
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        *(float4 *)(rows + (row0 + g) * SIZE + lane * 4) = sum[g];
    }
    __syncthreads();
#if KV == QN_CUDA_KV_FP8
    if (newest && head % a.group == 0 && warp < 2) {
        keep_codes(a.scaled[warp], position, shared_head, fresh[warp]);
    }
#endif
    const int parts = position / PART_KEYS + 1, whole = a.out && parts == 1;
    for (int at = warp * 32; at < GROUP * SIZE; at += 32 * BLOCK_WARPS) { /* of a head, an element a lane */
        const int g = at / SIZE, i = at % SIZE + lane, w = lane % BLOCK_WARPS;
        float most = high[g][w];
#pragma unroll
        for (int step = BLOCK_WARPS / 2; step > 0; step /= 2) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        }
        const float by = exp_base2(high[g][w] - most);
        float total = all[g][w] * by, result = 0.0f;
#pragma unroll
        for (int step = BLOCK_WARPS / 2; step > 0; step /= 2) {
            total += __shfl_xor_sync(0xffffffffu, total, step);
        }
#pragma unroll 4
        for (int other = 0; other < BLOCK_WARPS; other++) {
            result = __fmaf_rn(rows[(other * KEYS + g) * SIZE + i], __shfl_sync(0xffffffffu, by, other), result);
        }
        float *const out = whole ? a.out + (head + g) * SIZE
                                 : (float *)a.partials + ((i64)blockIdx.x * a.heads + head + g) * PART_PITCH(SIZE);
        out[i] = whole ? result / total : result;
        if (!whole && i == 0) {
            *(float2 *)(out + SIZE) = make_float2(most, total);
        }
    }
    if (a.out && !whole && is_last_part(a.arrived + head, parts)) {
        join_heads(a, head, parts, rows);
    }
}
