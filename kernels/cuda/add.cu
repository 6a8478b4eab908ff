/* x += y, y being w: the sum that a residual stream takes. Both f32. Any block and grid of two dimensions. */
#include "runs.h"
#include "cuda_activation.h"

extern "C" __global__ void __launch_bounds__(256) qn_add(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    EACH_RUN(a, row, at)
    {
        char *const y = a.y + row * a.y_row + at * 4;
        const int count = run_length(a.k, at);
        u32 to[PER], by[PER];
        float v[PER];
        load_run(y, PER, count, QN_MM_F32, to);
        load_run(a.w + row * a.w_row + at * 4, PER, count, QN_MM_F32, by);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = __uint_as_float(to[i]) + __uint_as_float(by[i]);
        }
        store_run(y, PER, count, QN_MM_F32, v);
    }
}
