/* The parts that vq_points_cut.cu leaves, added in order, and what is left of the transform of y: the slow axis, of
 * which an element is QN_VQ_CUT_ROWS rows, so many levels of Sylvester's and the base's matrix.
 * y = SV . Wscale Hout(total) + bias.
 *
 * A block has COLUMNS of those rows and all of the slow axis, a thread one element. It asks for all the shared memory
 * that a block of the launch before leaves, and uses little of it: each multiprocessor then has one beside its block of
 * that launch, waiting. Without that the first multiprocessors which are done take eight each, whose loads wait for each
 * other.
 *
 * Host contract
 *   Parameters: COLUMNS; SV_FORMAT; WSCALE_FORMAT, BIAS (format + 1, 0: none); OUT
 *   Launch: block 256, grid {QN_VQ_CUT_ROWS / COLUMNS}; a.n / QN_VQ_CUT_ROWS * COLUMNS at most 256; QN_VQ_JOIN_SHARED
 *   of shared memory or more */
#include "vq_parts.h"

#define THREADS 256
#define RESIDENT (__CUDA_ARCH__ < 1200 ? 2048 / THREADS : 1536 / THREADS) /* blocks: few registers each */
#define ROWS_OF_X 2
#define AHEAD 8 /* parts that a thread asks for at a time */

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    qn_vq_points_join(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_slow out)
{
    extern __shared__ __align__(16) float memory[];
    float(*const sums)[THREADS] = (float(*)[THREADS])memory, (*const level)[THREADS] = sums + ROWS_OF_X;
    const int i = (int)threadIdx.x, row = i / COLUMNS, column = i % COLUMNS;
    const int n = row * QN_VQ_CUT_ROWS + (int)blockIdx.x * COLUMNS + column, mine = n < a.n;
    const int within = row & (out.levels - 1), at = i - within * COLUMNS; /* those that its levels join begin there */
    const int of_base = row >> (31 - __clz(out.levels));
    const int first = row * a.spans / a.tiles, last = (row * a.spans + a.spans - 1) / a.tiles;
    const u32 bits = mine ? out.rows[of_base] : 0;
    const i64 step = (i64)a.m * a.n;
    release_next();
    if (a.early && mine) { /* all that is waited for now would be late */
        ask_for(a.sv + (i64)n * (SV_FORMAT == QN_MM_F32 + 1 ? 4 : 2));
    }
    wait_before();
    float by = mine ? out.scale * load_float(a.sv, n, SV_FORMAT - 1) : 0.0f;
#if WSCALE_FORMAT
    by *= load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#endif
#pragma unroll 1
    for (int m = 0; m < a.m; m++) {
        const float *const from = a.parts + (i64)m * a.n + n;
        float sum = 0.0f;
#pragma unroll 1
        for (int done = first; done <= last && mine; done += AHEAD) {
            float part[AHEAD];
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                part[p] = done + p <= last ? from[(done + p - first) * step] : 0.0f;
            }
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                sum += part[p];
            }
        }
        sums[m][i] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < a.m; m++) {
        float sum = 0.0f;
#pragma unroll 4
        for (int p = 0; p < out.levels; p++) {
            sum = __fmaf_rn(sums[m][(at + p * COLUMNS) % THREADS], __popc(within & p) & 1 ? -1.0f : 1.0f, sum);
        }
        level[m][i] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < a.m && mine; m++) {
        const float *const from = level[m] + within * COLUMNS + column;
        float sum = 0.0f;
#pragma unroll 14
        for (int r = 0; r < out.base; r++) {
            sum = __fmaf_rn(from[r * out.levels * COLUMNS], bits >> r & 1 ? -1.0f : 1.0f, sum);
        }
        sum *= by;
#if BIAS
        sum += load_float(a.bias, n, BIAS - 1);
#endif
        store_float(a.y + (i64)m * a.y_row, n, sum, OUT);
    }
}
