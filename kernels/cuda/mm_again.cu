/* Results of products of planes (dense_mm.cu) that are not finite, once more as floats, where there is one at all: an
 * infinity meets planes of both signs there.
 *
 * Host contract
 *   Parameters: those of mm_common.h, of f32, f16 and bf16
 *   Arguments: odd: not 0 where a result was not finite
 *   Launch: block 256, no dynamic shared memory, any grid */
#include "mm_plain.h"

extern "C" __global__ void __launch_bounds__(256)
    qn_mm_again(const __grid_constant__ qn_cuda_mm a, const int *odd)
{
    release_next();
    wait_before();
    if (*odd == 0) {
        return;
    }
    const qn_cuda_mm_part &p = a.part[0];
    const i64 all = (i64)a.m * p.n, step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        const int m = (int)(i / p.n), n = (int)(i % p.n);
        const float v = load_float(p.d + m * p.d_row, n, OUT);
        if (!is_finite(v)) {
            store_plain(a, m, n);
        }
    }
}
