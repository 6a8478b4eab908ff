/* Ceiling loops of level amx: four sums in tiles, as the kernels have them, of operands whose bits are as mixed as
 * theirs. Zeros take less power, and the processor runs faster. */
#define QN_ISA amx
#include "kernels/common/ceiling.h"
#include "kernels/cpu/amx/tile.h"

#define OPERANDS 4 /* tiles 4 to 7 */

/* Any bytes, or bf16 from 1 to below 2 of either sign. */
QN_INLINE void load_mixed(tile_kind kind)
{
    _Alignas(64) uint16_t mixed[OPERANDS * TILE_BYTES / 2];
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        state = state * 1664525u + 1013904223u;
        mixed[i] = (uint16_t)(kind == TILE_I8 ? state >> 16 : (state >> 16 & 0x807f) | 0x3f80);
    }
    const char *const at = (const char *)mixed;
    tile_fence();
    _tile_loadd(4, at, 64);
    _tile_loadd(5, at + TILE_BYTES, 64);
    _tile_loadd(6, at + 2 * TILE_BYTES, 64);
    _tile_loadd(7, at + 3 * TILE_BYTES, 64);
}

QN_INLINE float products(int64_t steps, tile_kind kind)
{
    tile_begin(TILE_ROWS);
    sums_zero(2, 2);
    load_mixed(kind);
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
