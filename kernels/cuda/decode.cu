/* Attention of one new token over its cache, norms of heads and rotary positions included: rotates the query and the
 * new key, puts the key into the cache, and leaves the parts that parts.h puts together: in the product that follows,
 * or by qn_decode_join. Keys before this token's are read while the kernels before are still at work: nothing of this
 * pass changes them.
 *
 * Host contract
 *   Parameters: SIZE of a head, a multiple of 8, at most 128; NORM 1: heads are normalised first; those of turn.h
 *   qn_decode_attention   block 128, grid {parts of the whole cache, heads}, dynamic shared memory: 128 * SIZE * 4
 *   qn_decode_join        block 32, grid {heads} */
#include "cuda_activation.h"
#include "decode_part.h"

#define DIMS ((SIZE + 31) / 32)

extern __shared__ __align__(16) float rows[]; /* [PART_KEYS][SIZE]: the values */

extern "C" __global__ void __launch_bounds__(128) qn_decode_attention(const __grid_constant__ qn_cuda_decode a)
{
    __shared__ __align__(16) float q[SIZE], fresh[SIZE];
    __shared__ float weights[WARPS * 32], high[WARPS], all[WARPS], sums[WARPS][SIZE];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, shared_head = head / a.group, first = (int)blockIdx.x * PART_KEYS;
    release_next();
    const int position = *a.position; /* written before this pass's first kernel */
    const int key = first + (int)threadIdx.x, here = first <= position;
    char *const keys = a.keys + shared_head * (SIZE * 4);
    const char *const values = a.values + shared_head * (SIZE * 4);
    float4 k[SIZE / 4];
#pragma unroll
    for (int i = 0; i < SIZE / 4; i++) {
        k[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (key < position) {
            k[i] = *(const float4 *)(keys + key * a.row + i * 16);
        }
    }
    const int row0 = warp * 32; /* a warp copies the values of its own keys */
#pragma unroll 4
    for (int i = lane; i < 32 * (SIZE / 4); i += 32) {
        const int s = row0 + i / (SIZE / 4);
        if (first + s < position) {
            copy_async_16(shared_address(rows + s * SIZE + i % (SIZE / 4) * 4),
                          values + (first + s) * a.row + i % (SIZE / 4) * 16, 16);
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
    for (int i = (int)threadIdx.x; position < first + PART_KEYS && i < SIZE; i += 128) {
        rows[(position - first) * SIZE + i] = ((const float *)(values + position * a.row))[i];
    }
    const char *const new_q = a.q + head * (SIZE * 4), *const new_k = a.k + shared_head * (SIZE * 4);
    finish_norm(a.norms, new_q, new_k, &n);
    if (threadIdx.x < SIZE / 2) {
        const int i = (int)threadIdx.x, j = i + SIZE / 2;
        turn_new(new_q, new_k, n, a.scale, t, q, fresh);
        if (head % a.group == 0 && position < first + PART_KEYS) {
            float *const to = (float *)(keys + position * a.row);
            to[i] = fresh[i];
            to[j] = fresh[j];
        }
    }
    __syncthreads();
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < SIZE / 4; i++) {
        const float4 g = *(const float4 *)(q + 4 * i), f = key == position ? *(const float4 *)(fresh + 4 * i) : k[i];
        score = __fmaf_rn(f.x, g.x, score);
        score = __fmaf_rn(f.y, g.y, score);
        score = __fmaf_rn(f.z, g.z, score);
        score = __fmaf_rn(f.w, g.w, score);
    }
    score = key <= position ? score : NONE;
    const float most = weigh(score, weights, high, all, lane, warp);
    copy_async_wait();
    __syncwarp();
    const int left = position + 1 - (first + row0), count = left < 0 ? 0 : left < 32 ? left : 32;
    float sum[DIMS] = {};
#pragma unroll 8
    for (int s = 0; s < count; s++) {
        const float *const row = rows + (row0 + s) * SIZE;
#pragma unroll
        for (int j = 0; j < DIMS; j++) {
            if (lane + 32 * j < SIZE) {
                sum[j] = __fmaf_rn(weights[row0 + s], row[lane + 32 * j], sum[j]);
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
    leave_part(a.partials, a.heads, sums, most, all);
}

extern "C" __global__ void __launch_bounds__(32) qn_decode_join(const __grid_constant__ qn_cuda_decode a)
{
    release_next();
    wait_before();
    const int head = (int)blockIdx.x, i = (int)threadIdx.x * 4;
    if (i < SIZE) {
        *(float4 *)(a.out + head * SIZE + i) = join_parts(a.partials, a.heads, SIZE, head, i, *a.position + 1);
    }
}
