/* Panel kernels of 4-bit floats times rows of bytes: the template of kernels/cpu/fp4_integers.h for int8, and for twice
 * the values of e2m1 codes. Included by a level's file, which owns what that template asks for but for the rows, and
 *     vb_look(line, i)     bytes 2 v + 12 of the values v of the low (0) or high four bits
 *     vd_end(sums, x, s)   a span's sums as floats
 *     vf_scaled(a, x), vf_fma    a times *x
 *     row_block(code, from, coded, out)    a block of a row, but for its scales: elements k, k + 4, k + 1, k + 5 of
 *                          eight meet the low codes of a line, k + 2, k + 6, k + 3, k + 7 the high ones
 *
 * Dots of the unsigned bytes 2 v + 12 are less 12 times the sum of the span's elements of the row. A span's sum, twice
 * what it stands for, is multiplied by the row's scale of the group, of codes, and by the weights'. */
#define LOOKS 2
#define CHAIN_BLOCKS 8
#define AHEAD 32
#define AHEAD_TO 2 /* loads need the lines of the first cache */
#define FAR 0
#define RESTS 0

typedef xb xt;

QN_INLINE const int8_t *x_at(const xb *x, int64_t l, int i)
{
    return x->x + 8 * l + 4 * i;
}

QN_INLINE vf span_added(const int code, const int coded, vd sums, const xb *x, int s, vf scale, vf chain)
{
    (void)code;
    const vf v = vd_end(sums, x, s);
    return vf_fma(coded ? vf_scaled(v, &x->scale[s]) : v, scale, chain);
}

#include "kernels/cpu/fp4_integers.h"

static void mm_nvfp4(const qn_panel_call *call)
{
    if (call->coded) {
        fp4_mm(QN_PANEL_NVFP4, 1, call);
    } else {
        fp4_mm(QN_PANEL_NVFP4, 0, call);
    }
}

/* Half of what an e4m3 code stands for: its bits are those of a 256th as f16. */
static float half_scale(uint8_t code)
{
    const int size = code & 0x7f;
    const float value = size == 0x7f ? __builtin_nanf("") : _cvtsh_ss((unsigned short)(size << 7)) * 128.0f;
    return code & 0x80 ? -value : value;
}

static void fp4_bytes(const void *x, const uint8_t *scales, int64_t blocks, qn_panel_code code, qn_panel_bytes *out)
{
    const int64_t bytes = scales ? QN_PANEL_K / 2 : QN_PANEL_K;
    for (int64_t b = 0; b < blocks; b++) {
        row_block((int)code, (const char *)x + b * bytes, scales != NULL, &out[b]);
        for (int g = 0; g < 4; g++) {
            out[b].scale[g] = scales ? half_scale(scales[b * 4 + g]) : 1.0f;
        }
    }
}

const qn_panel_set QN_NAME(bytes) = {.rows_f = QN_PANEL_ROWS_BYTES,
                                     .row_group = 1,
                                     .row_multiple = 1,
                                     .mr = FEW_ROWS,
                                     .nr = QN_PANEL_COLS,
                                     .rows_block = ROWS_BLOCK,
                                     .panels_block = 32,
                                     .scratch_bytes = SCRATCH_BYTES,
                                     .unit = 0.5f,
                                     .bytes = fp4_bytes,
                                     .mm = {[QN_PANEL_NVFP4] = mm_nvfp4, [QN_PANEL_MXFP4] = mm_mxfp4}};
