/* Digits of sixteen rows of x times decoded tiles of vector-quantised weights, for vq_amx.c and vq_lattice_amx.c. */
#ifndef QN_KERNELS_AMX_VQ_PLANES_H
#define QN_KERNELS_AMX_VQ_PLANES_H

#include "kernels/cpu/amx/tile.h"

/* sums[3][16 rows][16]: the three planes of digits by `count` tiles that follow each other. */
QN_INLINE void planes_by_tiles(const char *tiles, int64_t count, const int8_t *digits, int64_t stride, int32_t *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
#pragma GCC unroll 4
    for (int64_t l = 0; l < count; l++) {
        _tile_loadd(6, tiles + l * TILE_BYTES, 64);
        _tile_loadd(3, digits + l * 64, stride);
        _tile_dpbsud(0, 3, 6);
        _tile_loadd(3, digits + QN_VQ_TILE_K + l * 64, stride);
        _tile_dpbsud(1, 3, 6);
        _tile_loadd(3, digits + 2 * QN_VQ_TILE_K + l * 64, stride);
        _tile_dpbsud(2, 3, 6);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    tile_fence();
}

/* Row r of them. */
QN_INLINE void planes_of_row(const int32_t *sums, int64_t r, __m512i s[QN_VQ_PLANES])
{
    for (int i = 0; i < QN_VQ_PLANES; i++) {
        s[i] = _mm512_load_si512(sums + i * 256 + r * 16);
    }
}

#endif
