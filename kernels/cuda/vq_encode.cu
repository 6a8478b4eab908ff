/* vq_encode: a warp has a group of a head and goes over the rows of x (vq_nearest.h).
 *
 * Host contract
 *   Parameters: those of vq_nearest.h
 *   Launch: block 128, grid {ceil(heads * groups / 4), strips of rows} */
#include "vq_nearest.h"

extern "C" __global__ void __launch_bounds__(128) qn_vq_encode(const __grid_constant__ qn_cuda_vq_encode a)
{
    const int task = (int)(blockIdx.x * 4 + threadIdx.x / 32), head = task / a.groups, group = task % a.groups;
    release_next();
    wait_before();
    if (head < a.heads) {
        held_entries held;
        hold_entries(a, head, group, &held);
        encode_rows(a, head, group, held, blockIdx.y, gridDim.y);
    }
}
