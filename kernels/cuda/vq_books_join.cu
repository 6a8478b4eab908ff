/* The parts that vq_books.cu leaves of sums, added in order. A block has as few registers as one of that launch leaves
 * on its multiprocessor, and so waits there beside it.
 *
 * Host contract
 *   Parameters: OUT, BIAS (format + 1, 0: none)
 *   Launch: block QN_VQ_BOOKS_JOIN, grid {ceil(N / QN_VQ_BOOKS_JOIN)} */
#include "vq_parts.h"

#define THREADS QN_VQ_BOOKS_JOIN
#define SPANS 4 /* of a unit */
#define AHEAD 8 /* parts that a thread asks for at a time */

extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS)
    qn_vq_books_join(const __grid_constant__ qn_cuda_vq a)
{
    const int n = (int)(blockIdx.x * THREADS + threadIdx.x), groups = (a.spans + SPANS - 1) / SPANS;
    const int unit = n / QN_VQ_BLOCK_ROWS * groups, count = (unit + groups - 1) / a.units - unit / a.units + 1;
    const i64 step = (i64)a.m * a.n;
    release_next();
    wait_before();
    for (int m = 0; m < a.m && n < a.n; m++) {
        const float *const from = a.parts + (i64)m * a.n + n;
        float sum = 0.0f;
#pragma unroll 1
        for (int done = 0; done < count; done += AHEAD) {
            float part[AHEAD];
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                part[p] = done + p < count ? from[(done + p) * step] : 0.0f;
            }
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                sum += part[p];
            }
        }
#if BIAS
        sum += load_float(a.bias, n, BIAS - 1);
#endif
        store_float(a.y + (i64)m * a.y_row, n, sum, OUT);
    }
}
