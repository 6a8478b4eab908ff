/* silu_mul.
 *
 * Host contract
 *   Parameters: X_FORMAT, OUT; SINGLE 1: for few rows
 *   Launch: any block and grid of two dimensions; SINGLE block 256, grid {blocks of a row, rows} */
#include "runs.h"
#include "cuda_activation.h"
#include "silu.h"

#if SINGLE
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
#else
extern "C" __global__ void __launch_bounds__(256) qn_silu_mul(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    EACH_RUN(a, row, at)
    {
        const char *const x = a.x + row * a.x_row;
        const int count = run_length(a.k, at);
        u32 gate[WORDS_OF(PER, X_FORMAT)], up[WORDS_OF(PER, X_FORMAT)];
        float v[PER];
        load_run(x + at * BYTES_OF(X_FORMAT), PER, count, X_FORMAT, gate);
        load_run(x + (a.k + at) * BYTES_OF(X_FORMAT), PER, count, X_FORMAT, up);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = silu_mul(run_float(gate, i, X_FORMAT), run_float(up, i, X_FORMAT));
        }
        store_run(a.y + row * a.y_row + at * BYTES_OF(OUT), PER, count, OUT, v);
    }
}
#endif
