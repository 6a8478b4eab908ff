/* Attention of one new token over its cache, norms of heads and rotary positions included: rotates the queries and the
 * new key, puts the key into the cache, and leaves the parts that parts.h puts together: in the product that follows,
 * or by qn_decode_join. A block has PART_KEYS keys of a head and one query; decode_group.cu has the queries that share
 * long heads. Keys before this token's are read while the kernels before are still at work: nothing of this pass
 * changes them.
 *
 * Host contract
 *   Parameters: SIZE of a head, a multiple of 8, at most 128; KV 0 or 1 (decode_rows.h); NORM 1: heads are normalised
 *     first; those of turn.h
 *   qn_decode_attention   block 128, grid {parts of the whole cache, heads}, dynamic shared memory PART_KEYS * SIZE
 *     elements as they are kept
 *   qn_decode_join        block 32 * JOINERS, grid {heads} */
#include "decode_part.h"
#include "decode_rows.h"

#define DIMS ((SIZE + 31) / 32)
#define SPAN                                                                                                           \
    (SIZE <= 8    ? 2                                                                                                  \
     : SIZE <= 16 ? 4                                                                                                  \
     : SIZE <= 32 ? 8                                                                                                  \
     : SIZE <= 64 ? 16                                                                                                 \
                  : 32) /* lanes that have a key, four elements each */
#define JOINERS 8
#define ROW_BYTES (SIZE * (int)sizeof(kept))
#define PIECES (ROW_BYTES / 16) /* of a row */

extern __shared__ __align__(16) kept rows[]; /* [PART_KEYS][SIZE]: the values */

DEV kept keep_float(float v)
{
#if KV == QN_CUDA_KV_F32
    return v;
#else
    return (u16)pack_bf16(v, 0.0f);
#endif
}

DEV float float_of(kept v)
{
#if KV == QN_CUDA_KV_F32
    return v;
#else
    return __uint_as_float((u32)v << 16);
#endif
}

/* From SPAN lanes' shares of SPAN sums each the whole of one: lane i's is sum i. */
DEV float sum_across(float *share)
{
    const int lane = (int)threadIdx.x;
#pragma unroll
    for (int bit = 4; bit >= 0; bit--) {
        const int width = 1 << bit, upper = lane & width;
#pragma unroll
        for (int i = 0; i < SPAN / 2; i++) {
            if (i + width < SPAN && i < width) {
                const float kept = upper ? share[i + width] : share[i], sent = upper ? share[i] : share[i + width];
                share[i] = kept + __shfl_xor_sync(0xffffffffu, sent, width);
            }
        }
    }
    return share[0];
}

extern "C" __global__ void __launch_bounds__(128) qn_decode_attention(const __grid_constant__ qn_cuda_decode a)
{
    __shared__ __align__(16) float q[SIZE], fresh[SIZE];
    __shared__ float weights[PART_KEYS], high[WARPS], all[WARPS], sums[WARPS][SIZE];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, shared_head = head / a.group, first = (int)blockIdx.x * PART_KEYS;
    release_next();
    const int position = *a.position; /* written before this pass's first kernel */
    const int here = first <= position, newest = here && position < first + PART_KEYS;
    char *const keys = a.keys + shared_head * ROW_BYTES;
    char *const values = a.values + shared_head * ROW_BYTES;
    const int row0 = warp * 32; /* of a warp's own keys */
    const int from = lane % SPAN * 4,
              mine = first + row0 + lane / SPAN * SPAN; /* elements and first of SPAN keys of a lane */
    four k[SPAN];
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        k[i] = four{};
        if (mine + i < position && from < SIZE) {
            k[i] = *(const four *)(keys + (mine + i) * a.row + from * (int)sizeof(kept));
        }
    }
#pragma unroll 4
    for (int i = lane; i < 32 * PIECES; i += 32) {
        const int s = row0 + i / PIECES;
        if (first + s < position) {
            copy_async_16(shared_address(rows) + s * ROW_BYTES + i % PIECES * 16,
                          values + (first + s) * a.row + i % PIECES * 16, 16);
        }
    }
    turn t = {1.0f, 0.0f};
    if (here && threadIdx.x < SIZE / 2) {
        t = turn_of(position, (int)threadIdx.x, SIZE, a.log2_theta, a.factors);
    }
    head_norm n = load_gains(a.norms);
    wait_before();
    if (!here) {
        copy_async_wait();
        return;
    }
    const int at = (int)threadIdx.x, has_value = newest && at < SIZE, keeps = newest && head % a.group == 0;
    kept *const value = (kept *)(values + position * a.row) + at;
#if KV == QN_CUDA_KV_F32
    const kept own = has_value ? *value : 0;
#else
    const kept own = keep_float(has_value ? ((const float *)a.v)[shared_head * SIZE + at] : 0.0f);
#endif
    const char *const new_q = a.q + head * (SIZE * 4), *const new_k = a.k + shared_head * (SIZE * 4);
    finish_norm(a.norms, new_q, new_k, &n);
    if (threadIdx.x < SIZE / 2) {
        turn_new(new_q, new_k, n, a.scale, t, q, fresh);
    }
    if (keeps && at < SIZE / 2) {
        kept *const to = (kept *)(keys + position * a.row);
        to[at] = keep_float(fresh[at]);
        to[at + SIZE / 2] = keep_float(fresh[at + SIZE / 2]);
    }
    if (has_value) {
        rows[(position - first) * SIZE + at] = own;
        if (KV != QN_CUDA_KV_F32 && keeps) {
            *value = own;
        }
    }
    __syncthreads();
    if (newest && from < SIZE) {
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            k[i] = mine + i == position ? keep_four(*(const float4 *)(fresh + from)) : k[i];
        }
    }
    const float4 f = from < SIZE ? *(const float4 *)(q + from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float share[SPAN];
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        const float4 of = floats_of(k[i], 0);
        share[i] = __fmaf_rn(of.w, f.w, __fmaf_rn(of.z, f.z, __fmaf_rn(of.y, f.y, of.x * f.x)));
    }
    const float score = sum_across(share); /* of key threadIdx.x */
    const float most = weigh(first + (int)threadIdx.x <= position ? score : NONE, weights, high, all, lane, warp);
    copy_async_wait();
    __syncwarp();
    const int left = position + 1 - (first + row0), count = left < 0 ? 0 : left < 32 ? left : 32;
    float sum[DIMS] = {};
#pragma unroll 8
    for (int s = 0; s < count; s++) {
        const kept *const row = rows + (row0 + s) * SIZE;
#pragma unroll
        for (int j = 0; j < DIMS; j++) {
            if (lane + 32 * j < SIZE) {
                sum[j] = __fmaf_rn(weights[row0 + s], float_of(row[lane + 32 * j]), sum[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < DIMS; j++) {
        if (lane + 32 * j < SIZE) {
            sums[warp][lane + 32 * j] = sum[j];
        }
    }
    __syncthreads();
    leave_part(a.partials, a.heads, head, sums, most, all);
}

/* A warp joins every JOINERS-th part, which gives one part again, and the first one those. */
extern "C" __global__ void __launch_bounds__(32 * JOINERS) qn_decode_join(const __grid_constant__ qn_cuda_decode a)
{
    __shared__ __align__(16) float found[JOINERS][PART_PITCH(SIZE)];
    release_next();
    wait_before();
    const int head = (int)blockIdx.x, warp = (int)threadIdx.x / 32, i = (int)threadIdx.x % 32 * 4;
    const int count = *a.position / PART_KEYS + 1, step = a.heads * PART_PITCH(SIZE);
    const float *const p = (const float *)a.partials + (i64)warp * step + head * PART_PITCH(SIZE);
    if (i < SIZE) {
        const joined of = join_some<JOINED>(p, JOINERS * step, SIZE, i, (count - warp + JOINERS - 1) / JOINERS);
        *(float4 *)(found[warp] + i) = of.sum;
        if (i == 0) {
            *(float2 *)(found[warp] + SIZE) = make_float2(of.most, of.total);
        }
    }
    __syncthreads();
    if (warp == 0 && i < SIZE) {
        const joined of = join_some<JOINERS>(found[0], PART_PITCH(SIZE), SIZE, i, JOINERS);
        *(float4 *)(a.out + head * SIZE + i) = result_of(of);
    }
}
