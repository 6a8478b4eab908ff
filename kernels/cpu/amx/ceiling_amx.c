/* Ceiling loops of level amx: four sums in tiles, as the kernels have them. */
#define QN_ISA amx
#include "kernels/common/ceiling.h"
#include "kernels/cpu/amx/tile.h"

QN_INLINE float products(int64_t steps, tile_kind kind)
{
    tile_begin(TILE_ROWS);
    sums_zero(2, 2);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t s = 0; s < steps; s++) {
        TILE_DOT(kind, 0, 4, 6);
        TILE_DOT(kind, 1, 4, 7);
        TILE_DOT(kind, 2, 5, 6);
        TILE_DOT(kind, 3, 5, 7);
    }
    float sums[TILE_BYTES / sizeof(float)];
    _tile_stored(0, sums, 64);
    tile_end();
    return sums[0];
}

static float int8_loop(int64_t steps)
{
    return products(steps, TILE_I8);
}

static float bf16_loop(int64_t steps)
{
    return products(steps, TILE_BF16);
}

const qn_ceiling_loop qn_ceiling_int8__amx = {int8_loop, 4 * 2.0 * 16 * 16 * 64};
const qn_ceiling_loop qn_ceiling_bf16__amx = {bf16_loop, 4 * 2.0 * 16 * 16 * 32};
