/* Panel kernels of level amx: int8 by tdpbssd, every float code by tdpbf16ps, for
 * any number of rows: the order in which a tile instruction adds its pairs is
 * its own, and a row's bits may not depend on how many rows come with it. */
#define QN_ISA amx
#include "kernels/cpu/amx/panel_tile.h"
#include "kernels/cpu/amx/panel_rows.h"
#include "kernels/cpu/amx/unpack.h"

_Static_assert(ROWS_SCRATCH <= SCRATCH_BYTES, "rows as floats");

static void panel_i8(const qn_panel_call *call)
{
    const panel_kind kind = {TILE_I8, 1024, NULL};
    if (call->rows > PASS_ROWS) {
        many_rows(call, kind);
    } else if (call->rows > TILE_ROWS) {
        pass_rows(call, kind);
    } else {
        few_rows(call, kind);
    }
}

/* most: rows up to which FMAs beat tiles. */
#define PANEL_MM(name, code, bytes, unpack, most)                                                                      \
    static void panel_##name(const qn_panel_call *call)                                                                \
    {                                                                                                                  \
        const panel_kind kind = {TILE_BF16, (bytes), (unpack)};                                                        \
        if (call->rows > PASS_ROWS) {                                                                                  \
            many_rows(call, kind);                                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
        const unsigned control = _mm_getcsr();                                                                         \
        _mm_setcsr(control | FLUSH);                                                                                   \
        if (call->rows > TILE_ROWS) {                                                                                  \
            pass_rows(call, kind);                                                                                     \
        } else if (!few_rows_by_fma(code, most, call)) {                                                               \
            few_rows(call, kind);                                                                                      \
        }                                                                                                              \
        _mm_setcsr(control);                                                                                           \
    }

PANEL_MM(bf16, QN_PANEL_BF16, 2048, NULL, 4)
PANEL_MM(e4m3, QN_PANEL_E4M3, 1024, unpack_e4m3, 2)
PANEL_MM(e5m2, QN_PANEL_E5M2, 1024, unpack_e5m2, 2)
PANEL_MM(nvfp4, QN_PANEL_NVFP4, 576, unpack_nvfp4, 1)
PANEL_MM(mxfp4, QN_PANEL_MXFP4, 544, unpack_mxfp4, 1)

const qn_panel_set QN_NAME(panel) = {.rows_f = QN_PANEL_ROWS_BF16,
                                     .rows_i8 = QN_PANEL_ROWS_I8,
                                     .row_group = TILE_ROWS,
                                     .row_multiple = TILE_ROWS,
                                     .mr = 2 * TILE_ROWS,
                                     .nr = 2 * QN_PANEL_COLS,
                                     .rows_block = 512,
                                     .panels_block = 28,
                                     .scratch_bytes = SCRATCH_BYTES,
                                     .mm = {[QN_PANEL_BF16] = panel_bf16,
                                            [QN_PANEL_E4M3] = panel_e4m3,
                                            [QN_PANEL_E5M2] = panel_e5m2,
                                            [QN_PANEL_NVFP4] = panel_nvfp4,
                                            [QN_PANEL_MXFP4] = panel_mxfp4,
                                            [QN_PANEL_I8] = panel_i8}};
