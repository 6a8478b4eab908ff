/* Rows of d that belong to no group of a grouped product. */
#ifndef QN_KERNELS_CUDA_GROUPS_H
#define QN_KERNELS_CUDA_GROUPS_H

#include "ptx.h"

/* What becomes of them: the launch before takes care of it, and waits for what is ahead; zeros; nothing. */
#define TAIL_BEFORE 0
#define TAIL_ZEROS 1
#define TAIL_KEEP 2

/* Rows [from, to) of d; strides and n in elements of `bytes`, 2 or 4. Rows go to `workers` warps in turn, over all
 * calls: *turn is how many came before. */
DEV void zero_rows(char *d, i64 d_row, int bytes, int from, int to, int n, int worker, int workers, int *turn, u32 lane)
{
    const int first = worker - *turn < 0 ? worker - *turn + workers : worker - *turn;
#pragma unroll 1
    for (int row = from + first; row < to; row += workers) {
        char *const at = d + row * d_row * bytes, *const end = at + (i64)n * bytes;
        char *const wide = (u64)at % 16 == 0 ? end - (u64)end % 16 : at;
#pragma unroll 1
        for (char *i = at + 16 * lane; i < wide; i += 512) {
            *(uint4 *)i = make_uint4(0, 0, 0, 0);
        }
#pragma unroll 1
        for (char *i = wide + 2 * lane; i < end; i += 64) {
            *(u16 *)i = 0;
        }
    }
    *turn = to > from ? (*turn + to - from) % workers : *turn;
}

/* All of them: masked 1: rows from groups[e] on of each of the experts' m rows; 0: those before groups[0] and from
 * groups[experts] on of m. `worker` of `workers` warps. */
DEV void zero_rest(char *d, i64 d_row, i64 d_group, int bytes, int masked, const int *groups, int experts, int m,
                   int n, int worker, int workers, u32 lane)
{
    int turn = 0;
#pragma unroll 1
    for (int e = 0; e < (masked ? experts : 2); e++) {
        const int from = masked ? __ldg(groups + e) : e ? __ldg(groups + experts) : 0;
        zero_rows(masked ? d + e * d_group * bytes : d, d_row, bytes, from, masked || e ? m : __ldg(groups), n, worker,
                  workers, &turn, lane);
    }
}

#endif
