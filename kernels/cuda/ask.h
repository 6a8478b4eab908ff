/* Products of one row of tiles ask the L2 cache for what all blocks read of the kernel ahead, before that has ended:
 * rows of a and their scales, shared out over the grid, and the block's own scales of b. Weights that are read that
 * early are bounded: a comes behind them, and nothing is multiplied before. */
#ifndef QN_KERNELS_CUDA_ASK_H
#define QN_KERNELS_CUDA_ASK_H

#include "ptx.h"

#define EARLY_BYTES 49152 /* of weights, in a multiprocessor: what memory gives until the kernel ahead has ended */

/* One thread: the first box of rows of a, by k-blocks. */
DEV void ask_for_rows(const tensor_map *a_map, int blocks)
{
    for (int kb = (int)blockIdx.x; kb < blocks; kb += (int)gridDim.x) {
        tensor_ask_3d(a_map, kb * 128, 0, 0);
    }
}

/* `count` floats, by a warp. */
DEV void ask_for_floats(const float *from, int count, u32 lane)
{
    for (int i = 32 * (int)lane; i < count; i += 1024) {
        ask_for(from + i);
    }
    if (lane == 0 && count > 0) {
        ask_for(from + count - 1);
    }
}

/* A warp: scales of `rows` rows of a, and of `own` rows of b from `b` on. */
DEV void ask_for_scales(const float *a, i64 a_row, i64 a_block, int rows, const float *b, i64 b_row, int own,
                        int blocks, u32 lane)
{
    const int across = a_block == 1, lines = across ? rows : blocks;
    for (int i = (int)blockIdx.x; i < lines; i += (int)gridDim.x) {
        ask_for_floats(a + i * (across ? a_row : a_block), across ? blocks : rows, lane);
    }
    for (int i = 0; i < own; i++) {
        ask_for_floats(b + i * b_row, blocks, lane);
    }
}

#endif
