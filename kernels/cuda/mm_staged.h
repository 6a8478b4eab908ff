/* How tiles of weights of any format come: units of a step of K that a thread loads ahead (mm_tile.cu, mm_mma.cu, which
 * define before: TILE rows of b, STEP of K, THREADS). */
#ifndef QN_CUDA_MM_STAGED_H
#define QN_CUDA_MM_STAGED_H

#include "mm_common.h"

#define ROW_UNITS (STEP / UNIT)
#define TILE_UNITS (TILE * ROW_UNITS)
#define MINE ((TILE_UNITS + THREADS - 1) / THREADS) /* units of b a thread */

/* Unit i of this thread: row index / ROW_UNITS of the tile, unit index % ROW_UNITS of the step. */
DEV int unit_index(int i)
{
    return (int)threadIdx.x + i * THREADS;
}

DEV void fetch_units(const qn_cuda_mm &a, int column0, int k0, raw b[MINE])
{
    const qn_cuda_mm_part &p = a.part[0];
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int index = unit_index(i), n = column0 + index / ROW_UNITS;
        const int unit = k0 / UNIT + index % ROW_UNITS;
        b[i] = raw();
        if (index < TILE_UNITS && n < p.n && unit * UNIT < a.k) {
            b[i] = load_raw((const u8 *)p.b + n * p.b_row, scales_of(p, n), unit, a.k);
        }
    }
}

#endif
