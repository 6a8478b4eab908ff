/* The transforms of vq_turn.cu of many rows: a block has whole ones, one after the other.
 *
 * Host contract
 *   Parameters: THREADS; those of vq_turn.cu but PARTS
 *   Launch: block THREADS, grid {any}; shared memory for two times a row and the signs of the base
 *   (qn_cuda_vq_turn_bytes). Rows of a multiple of 8 elements, fast at least 8 */
#define TURN_ROWS 4
#include "vq_turn.h"
#include "runs.h"

#define RESIDENT (1024 / THREADS) /* blocks of a multiprocessor */

/* v[i] times, or divided by, elements of a vector of weights from `at` on. */
DEV void scale_run(const char *p, int at, int format, bool divided, float *v)
{
    u32 w[PER];
    load_run(p + (i64)at * BYTES_OF(format), PER, PER, format, w);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = divided ? v[i] / run_float(w, i, format) : v[i] * run_float(w, i, format);
    }
}

DEV void load_in(const qn_cuda_vq &a, int m, int at, float *v)
{
    const int format = INPUT ? X_FORMAT : QN_MM_F32;
    const char *const row = INPUT ? a.x + m * a.x_row : (const char *)(a.total + (i64)m * a.n);
    u32 w[PER];
    load_run(row + (i64)at * BYTES_OF(format), PER, PER, format, w);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = run_float(w, i, format);
    }
#if INPUT
    scale_run(a.su, at, SU_FORMAT - 1, false, v);
#if WH_FORMAT
    scale_run(a.scale_wh, at, WH_FORMAT - 1, true, v);
#endif
#endif
}

DEV void store_out(const qn_cuda_vq &a, int m, int at, float *v)
{
#if INPUT
    store_run((char *)(a.turned + (i64)m * a.k + at), PER, PER, QN_MM_F32, v);
#else
    scale_run(a.sv, at, SV_FORMAT - 1, false, v);
#if WSCALE_FORMAT
    const float wscale = load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] *= wscale;
    }
#endif
#if BIAS
    u32 w[PER];
    load_run(a.bias + (i64)at * BYTES_OF(BIAS - 1), PER, PER, BIAS - 1, w);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] += run_float(w, i, BIAS - 1);
    }
#endif
    store_run(a.y + m * a.y_row + (i64)at * BYTES_OF(OUT), PER, PER, OUT, v);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    qn_vq_turn_rows(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_turn turn)
{
    extern __shared__ __align__(16) float memory[];
    const int length = turn.base * turn.fast;
    float *const before = memory, *const after = memory + length;
    u32 *const signs = (u32 *)(memory + 2 * length);
    release_next();
    if (turn.base > 1) {
        turn_signs(turn, signs);
    }
    wait_before();
    for (int m = (int)blockIdx.x; m < a.m; m += (int)gridDim.x) {
#pragma unroll 2
        for (int i = (int)threadIdx.x * PER; i < length; i += THREADS * PER) {
            float v[PER];
            load_in(a, m, i, v);
            *(float4 *)(before + i) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(before + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        __syncthreads();
        turn_row(turn, before, after, turn.fast, signs);
        __syncthreads();
#pragma unroll 2
        for (int i = (int)threadIdx.x * PER; i < length; i += THREADS * PER) {
            const float4 low = *(const float4 *)(after + i), high = *(const float4 *)(after + i + 4);
            float v[PER] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int j = 0; j < PER; j++) {
                v[j] *= turn.scale;
            }
            store_out(a, m, i, v);
        }
    }
}
