/* Parts of products that were cut along K (mm_mma.cu, mm_digits.cu), or those of planes of x (fp4_mm.cu), added in
 * order, and what becomes of a sum.
 *
 * Host contract
 *   Parameters: those of mm_common.h, as the product has them
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / 256), M} */
#include "mm_common.h"
#if IS_GGUF
#include "mm_plain.h"
#endif

extern "C" __global__ void __launch_bounds__(256, 4)
    qn_mm_join(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_mm_cut cut)
{
    const qn_cuda_mm_part &p = a.part[0];
    const int n = (int)(blockIdx.x * 256 + threadIdx.x), m = (int)blockIdx.y;
    release_next();
    wait_before();
    if (n >= p.n) {
        return;
    }
    const sum_t *const from = (const sum_t *)cut.parts + (i64)m * p.n + n;
    sum_t sum = 0;
    for (int i = 0; i * cut.depth < a.k; i++) {
        sum += from[(i64)i * a.m * p.n];
    }
#if IS_GGUF
    if (!is_finite(sum)) {
        store_plain(a, m, n);
        return;
    }
#endif
    const float scale = A_FORMAT == QN_MM_A_BLOCK ? 1.0f : row_scale(a, m);
    store_float(p.d + m * p.d_row, n, finish(load_tail(p, n), sum, scale, row_azp(a, m), row_global(a)), OUT);
}
