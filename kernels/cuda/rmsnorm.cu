/* rmsnorm, and of one row the sum before it.
 *
 * Host contract
 *   Parameters: X_FORMAT, W_FORMAT, OUT; THREADS of a block; of qn_rmsnorm NORM_ITEMS of PER elements a thread, the
 *     first NORM_WHOLE of which all threads have whole, TEAM threads a row, all THREADS or one item each of a part of a
 *     warp, WEIGHTS_EARLY 1: registers hold the weight, too; ITEMS of four elements a thread of qn_add_rmsnorm
 *   Launch: qn_rmsnorm K up to TEAM * NORM_ITEMS * PER, a block for THREADS / TEAM rows; qn_rmsnorm_long, without
 *     NORM_ITEMS, any K, a block a row (rows are walked); qn_add_rmsnorm, with ITEMS, one block, K a multiple of 4, rows
 *     at multiples of 16 */
#include "runs.h"
#include "cuda_activation.h"
#include "sums.h"

#ifdef ITEMS
/* x += added, and the norm of that, one row: x, added and the norm's weight f32. The weight is a constant. */
extern "C" __global__ void __launch_bounds__(THREADS) qn_add_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    float4 gain[ITEMS], v[ITEMS];
    float squares = 0.0f;
    release_next();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        gain[j] = i < a.k ? *(const float4 *)(a.w + i * 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    wait_before();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < a.k) {
            const float4 of = *(const float4 *)(a.x + i * 4), by = *(const float4 *)(a.added + i * 4);
            v[j] = make_float4(of.x + by.x, of.y + by.y, of.z + by.z, of.w + by.w);
            *(float4 *)(a.sum + i * 4) = v[j];
        }
        squares = __fmaf_rn(v[j].x, v[j].x, squares);
        squares = __fmaf_rn(v[j].y, v[j].y, squares);
        squares = __fmaf_rn(v[j].z, v[j].z, squares);
        squares = __fmaf_rn(v[j].w, v[j].w, squares);
    }
    const float factor = 1.0f / sqrtf(sum_block<THREADS>(squares) / (float)a.k + a.eps);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        if (i < a.k) {
            store_float(a.y, i, v[j].x * factor * gain[j].x, OUT);
            store_float(a.y, i + 1, v[j].y * factor * gain[j].y, OUT);
            store_float(a.y, i + 2, v[j].z * factor * gain[j].z, OUT);
            store_float(a.y, i + 3, v[j].w * factor * gain[j].w, OUT);
        }
    }
}
#elif defined NORM_ITEMS
#define ITEM_COUNT(j, left) ((j) < NORM_WHOLE ? PER : (left)) /* of a run's elements those that the row has */

/* Squares are added in an order that follows from K alone: 8 neighbouring elements one after the other, 32 such sums in
 * a warp's tree, then sums of 256 elements. */
extern "C" __global__ void __launch_bounds__(THREADS) qn_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    const i64 row = (i64)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    const int place = (int)threadIdx.x % TEAM, k = (int)a.k, there = TEAM == THREADS || row < a.m;
    const char *const x = a.x + (there ? row : a.m - 1) * a.x_row;
    u32 of[NORM_ITEMS][WORDS_OF(PER, X_FORMAT)], by[NORM_ITEMS][WORDS_OF(PER, W_FORMAT)];
    float squares[NORM_ITEMS];
    release_next();
    wait_before();
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        const int i = (j * TEAM + place) * PER;
        load_run(x + (i64)i * BYTES_OF(X_FORMAT), PER, ITEM_COUNT(j, k - i), X_FORMAT, of[j]);
    }
    if (WEIGHTS_EARLY) {
#pragma unroll
        for (int j = 0; j < NORM_ITEMS; j++) {
            const int i = (j * TEAM + place) * PER;
            load_run(a.w + (i64)i * BYTES_OF(W_FORMAT), PER, ITEM_COUNT(j, k - i), W_FORMAT, by[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        squares[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const float v = run_float(of[j], e, X_FORMAT);
            squares[j] = __fmaf_rn(v, v, squares[j]);
        }
    }
#if TEAM <= 32
    float sum = squares[0];
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
#else
    __shared__ float parts[NORM_ITEMS * THREADS / 32];
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        squares[j] = sum_warp(squares[j]);
        if (lane == 0) {
            parts[(j * THREADS + threadIdx.x) / 32] = squares[j];
        }
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_ITEMS * THREADS / 32; i += 32) {
        sum += i + lane < NORM_ITEMS * THREADS / 32 ? parts[i + lane] : 0.0f;
    }
    sum = sum_warp(sum);
#endif
    const float factor = 1.0f / sqrtf(sum / (float)a.k + a.eps);
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        const int i = (j * TEAM + place) * PER;
        float v[PER];
        if (!WEIGHTS_EARLY) {
            load_run(a.w + (i64)i * BYTES_OF(W_FORMAT), PER, ITEM_COUNT(j, k - i), W_FORMAT, by[j]);
        }
#pragma unroll
        for (int e = 0; e < PER; e++) {
            v[e] = run_float(of[j], e, X_FORMAT) * factor * run_float(by[j], e, W_FORMAT);
        }
        if (there) {
            store_run(a.y + row * a.y_row + (i64)i * BYTES_OF(OUT), PER, ITEM_COUNT(j, k - i), OUT, v);
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) qn_rmsnorm_long(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        const char *const x = a.x + row * a.x_row;
        float squares = 0.0f;
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT);
            squares = __fmaf_rn(v, v, squares);
        }
        const float factor = 1.0f / sqrtf(sum_block<THREADS>(squares) / (float)a.k + a.eps);
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT) * factor * load_float(a.w, i, W_FORMAT);
            store_float(a.y + row * a.y_row, i, v, OUT);
        }
        __syncthreads(); /* before the next row's sum */
    }
}
#endif
