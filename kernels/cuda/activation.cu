/* rmsnorm, silu_mul, rope, and the sum that a residual stream takes.
 *
 * Host contract
 *   Parameters: X_FORMAT, OUT of x and y; W_FORMAT of the norm's weight; STYLE of rope, 0 halves, 1 neighbours;
 *     THREADS of a block of qn_rmsnorm and qn_add_rmsnorm, ITEMS of four elements a thread of the latter; of turn.h
 *   Launch: qn_rmsnorm a block a row (rows are walked); qn_add_rmsnorm one block, K a multiple of 4, rows at multiples
 *   of 16; the others block 256, grid {blocks of a row, rows} */
#include "formats.h"
#include "cuda_activation.h"
#include "silu.h"
#include "turn.h"

extern "C" __global__ void __launch_bounds__(THREADS) qn_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float parts[THREADS / 32];
    release_next();
    wait_before();
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        const char *const x = a.x + row * a.x_row;
        float squares = 0.0f;
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT);
            squares = __fmaf_rn(v, v, squares);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, step);
        }
        if (threadIdx.x % 32 == 0) {
            parts[threadIdx.x / 32] = squares;
        }
        __syncthreads();
        squares = 0.0f;
#pragma unroll
        for (int i = 0; i < THREADS / 32; i++) {
            squares += parts[i];
        }
        const float factor = 1.0f / sqrtf(squares / (float)a.k + a.eps);
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT) * factor * load_float(a.w, i, W_FORMAT);
            store_float(a.y + row * a.y_row, i, v, OUT);
        }
        __syncthreads(); /* the next row uses parts again */
    }
}

extern "C" __global__ void __launch_bounds__(256) qn_silu_mul(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    for (i64 row = blockIdx.y; row < a.m; row += gridDim.y) {
        const char *const x = a.x + row * a.x_row;
        for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < a.k; i += (i64)gridDim.x * 256) {
            const float v = silu_mul(load_float(x, i, X_FORMAT), load_float(x, a.k + i, X_FORMAT));
            store_float(a.y + row * a.y_row, i, v, OUT);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) qn_rope(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    const int half = (int)a.k / 2;
    for (i64 row = blockIdx.y; row < a.m; row += gridDim.y) {
        const int pos = ((const int *)a.w)[row];
        for (int at = (int)blockIdx.x * 256 + (int)threadIdx.x; at < half * a.heads; at += (int)gridDim.x * 256) {
            const int head = at / half, i = at % half;
            const int first = STYLE ? 2 * i : i, second = STYLE ? 2 * i + 1 : i + half;
            const char *const x = a.x + row * a.x_row + head * a.x_head;
            float *const y = (float *)(a.y + row * a.y_row + head * a.y_head);
            const turn t = turn_of(pos, i, (int)a.k, a.log2_theta, a.factors);
            const float u = load_float(x, first, X_FORMAT), v = load_float(x, second, X_FORMAT);
            y[first] = __fmaf_rn(u, t.c, -(v * t.s));
            y[second] = __fmaf_rn(v, t.c, u * t.s);
        }
    }
}

/* x += y, y being w; both f32. */
extern "C" __global__ void __launch_bounds__(256) qn_add(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    for (i64 row = blockIdx.y; row < a.m; row += gridDim.y) {
        float *const y = (float *)(a.y + row * a.y_row);
        const float *const w = (const float *)(a.w + row * a.w_row);
        for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < a.k; i += (i64)gridDim.x * 256) {
            y[i] += w[i];
        }
    }
}

#ifdef ITEMS
/* x += added, and the norm of that, one row: x, added and the norm's weight f32. The weight is a constant. */
extern "C" __global__ void __launch_bounds__(THREADS) qn_add_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float parts[THREADS / 32];
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
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = squares;
    }
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        squares += parts[i];
    }
    const float factor = 1.0f / sqrtf(squares / (float)a.k + a.eps);
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
#endif
