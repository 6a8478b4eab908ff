/* AMX tiles: the configuration and the products of one register block.
 *
 * Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b. A tile of b is
 * 16 lines of a panel as they lie in memory (kernels/common/panel.h), a tile of
 * a is 64 bytes of 16 rows. A thread's tiles belong to its caller: every call
 * configures them and releases them.
 *
 * The tile loads of some compilers do not tell that they read memory; after
 * stores to what a tile is loaded from stands tile_fence. */
#ifndef QN_KERNELS_AMX_TILE_H
#define QN_KERNELS_AMX_TILE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/name.h"

#define TILE_ROWS 16
#define TILE_BYTES 1024

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} tile_config;

/* Tiles of sums and of a get `rows` lines, those of b sixteen. */
QN_INLINE void tile_begin(int64_t rows)
{
    tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.line_bytes[t] = 64;
        c.lines[t] = (uint8_t)(t < 6 ? rows : TILE_ROWS);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

QN_INLINE void tile_end(void)
{
    _tile_release();
}

QN_INLINE void tile_fence(void)
{
    __asm__ volatile("" : : : "memory");
}

/* What the products are: int8 by int32 sums, or pairs of bf16 by f32 sums. */
typedef enum tile_kind { TILE_I8, TILE_BF16 } tile_kind;

#define TILE_DOT(kind, c, a, b)                                                                                        \
    do {                                                                                                               \
        if ((kind) == TILE_I8) {                                                                                       \
            _tile_dpbssd(c, a, b);                                                                                     \
        } else {                                                                                                       \
            _tile_dpbf16ps(c, a, b);                                                                                   \
        }                                                                                                              \
    } while (0)

/* Sums, of up to 2 x 2 tiles, each 1024 bytes in memory: those of one group of rows one after the other,
 * groups `stride` bytes apart. */
QN_INLINE void sums_zero(int m, int n)
{
    _tile_zero(0);
    if (n > 1) {
        _tile_zero(1);
    }
    if (m > 1) {
        _tile_zero(2);
        if (n > 1) {
            _tile_zero(3);
        }
    }
}

QN_INLINE void sums_load(const char *sums, int64_t stride, int m, int n)
{
    _tile_loadd(0, sums, 64);
    if (n > 1) {
        _tile_loadd(1, sums + TILE_BYTES, 64);
    }
    if (m > 1) {
        _tile_loadd(2, sums + stride, 64);
        if (n > 1) {
            _tile_loadd(3, sums + stride + TILE_BYTES, 64);
        }
    }
}

#define SUMS_TURN(i, to, from, stays)                                                                                  \
    do {                                                                                                               \
        _tile_stored(i, to, 64);                                                                                       \
        if (!(from)) {                                                                                                 \
            _tile_zero(i);                                                                                             \
        } else if (stays) {                                                                                            \
            _tile_loadd(i, from, 64);                                                                                  \
        }                                                                                                              \
    } while (0)

/* Sums of m x n tiles go to memory, those of then_m x n tiles take their places one by one, so that the first are there
 * while the last products end: from memory, or zeros where `from` is NULL. */
QN_INLINE void sums_turn(char *to, int64_t to_stride, const char *from, int64_t from_stride, int m, int then_m, int n)
{
    SUMS_TURN(0, to, from, 1);
    if (n > 1) {
        SUMS_TURN(1, to + TILE_BYTES, from ? from + TILE_BYTES : NULL, 1);
    }
    if (m > 1) {
        SUMS_TURN(2, to + to_stride, from ? from + from_stride : NULL, then_m > 1);
    }
    if (m > 1 && n > 1) {
        SUMS_TURN(3, to + to_stride + TILE_BYTES, from ? from + from_stride + TILE_BYTES : NULL, then_m > 1);
    }
}

#endif
