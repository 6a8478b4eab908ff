/* The parts that mm_digits.cu leaves, added in order, and what becomes of a sum.
 *
 * Host contract
 *   Parameters: those of mm_common.h, as mm_digits.cu has them
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / 256), M} */
#include "mm_plain.h"

extern "C" __global__ void __launch_bounds__(256, 4)
    qn_mm_digits_join(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_digits by)
{
    const qn_cuda_mm_part &p = a.part[0];
    const int n = (int)(blockIdx.x * 256 + threadIdx.x), m = (int)blockIdx.y;
    release_next();
    wait_before();
    if (n >= p.n) {
        return;
    }
    const float *const from = by.parts + (i64)m * p.n + n;
    float sum = 0.0f;
    for (int i = 0; i * by.cut < by.steps; i++) {
        sum += from[(i64)i * a.m * p.n];
    }
    if (is_finite(sum)) {
        store_float(p.d + m * p.d_row, n, finish(load_tail(p, n), sum, 1.0f, 0, 1.0f), OUT);
    } else {
        store_plain(a, m, n);
    }
}
