/* Panel kernels of level amx: int8 by tdpbssd, every float code by tdpbf16ps, for
 * any number of rows: the order in which a tile instruction adds its pairs is
 * its own, and a row's bits may not depend on how many rows come with it. */
#define QN_ISA amx
#include "kernels/cpu/amx/panel_tile.h"

static void panel_i8(const qn_panel_call *call)
{
    panels_of_tiles(call, TILE_I8);
}

const qn_panel_set QN_NAME(panel) = {.rows_f = QN_PANEL_ROWS_BF16,
                                     .rows_i8 = QN_PANEL_ROWS_I8,
                                     .row_multiple = 2 * TILE_ROWS,
                                     .mr = 2 * TILE_ROWS,
                                     .nr = 2 * QN_PANEL_COLS,
                                     .rows_block = 512,
                                     .panels_block = 32,
                                     .scratch_bytes = SCRATCH_SUMS,
                                     .mm = {[QN_PANEL_I8] = panel_i8}};
