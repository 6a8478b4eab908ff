/* What the panel runner (src/backend/cpu/run_panel.c) and the panel kernels
 * (kernels/cpu/<isa>/panel_*.c) agree on: matmuls d[M,N] = a[M,K] b[N,K]^T on
 * weights packed once.
 *
 * Packed weights. Sixteen columns (rows of b) make a panel; a panel is a run of
 * blocks of 64 elements of K, both padded with zeros, so a panel streams from
 * front to back. One layout a code, the same for every instruction set and
 * machine. In a block, k counts from 0 to 63, c is the column, lines are 64 bytes:
 *
 *   bf16    2048 bytes: line j holds (w[2j][c], w[2j+1][c]) in 32-bit lane c
 *   e4m3    1024 bytes: line i holds the pairs j = 2i and 2i+1. The 16 bytes of quarter q (columns
 *   e5m2              4q..4q+3) are (w[2j][c], w[2j+1][c]) of four columns for j = 2i, then for j = 2i+1
 *   nvfp4    576 bytes: 8 lines of codes, line i: lane c has two 16-bit words h = 0, 1; bits 4p..4p+3 of
 *                     word h are the code of k = 8i + 2p + h. Then a line of e4m3 scales: byte
 *                     16q + 4g + r is the scale of group g (k in 16g..16g+15) of column 4q + r
 *   mxfp4    544 bytes: codes as nvfp4, then 32 bytes of e8m0 scales: byte 16g + c, group g of 32
 *   int8    1024 bytes: line i holds w[4i..4i+3][c] in the four bytes of lane c (the tile order of AMX)
 *   f32     4096 bytes: line k holds w[k][c]
 *
 * Lines j of bf16 are what two-way bf16 dot instructions and AMX tiles take
 * (16 lines: one tile of K = 32); every other float code is unpacked to them.
 *
 * Exactness. e4m3, e5m2 and fp4-times-scale values are exact in bf16, up to a power of
 * two that keeps unpacking to bit moves: a kernel's weights are value / qn_panel_factor(code).
 * Instructions that flush subnormals never meet one: weights whose values leave the
 * safe range, NaN and infinities are not given to kernels (the runner computes
 * such panels another way).
 *
 * Order. Each output is one chain over K in an order that depends on nothing but the
 * instruction set: rows, columns, panels of a call and threads never change its bits. */
#ifndef QN_KERNELS_PANEL_H
#define QN_KERNELS_PANEL_H

#include <stddef.h>
#include <stdint.h>

#define QN_PANEL_COLS 16
#define QN_PANEL_K 64
#define QN_PANEL_LINE 64
#define QN_PANEL_SCALE_K 128 /* elements a block scale covers: two blocks */

typedef enum qn_panel_code {
    QN_PANEL_BF16 = 0,
    QN_PANEL_E4M3,
    QN_PANEL_E5M2,
    QN_PANEL_NVFP4,
    QN_PANEL_MXFP4,
    QN_PANEL_F32,
    QN_PANEL_I8,
    QN_PANEL_CODES
} qn_panel_code;

/* Bytes of a block, and what kernels' sums are multiplied with. */
#define QN_PANEL_CODE_LIST(X)          \
    X(QN_PANEL_BF16, 2048, 1.0f)       \
    X(QN_PANEL_E4M3, 1024, 256.0f)     \
    X(QN_PANEL_E5M2, 1024, 65536.0f)   \
    X(QN_PANEL_NVFP4, 576, 256.0f)     \
    X(QN_PANEL_MXFP4, 544, 1.0f)       \
    X(QN_PANEL_F32, 4096, 1.0f)        \
    X(QN_PANEL_I8, 1024, 1.0f)

/* How a level wants the rows of a: K padded with zeros to a multiple of 64. Lines of 64 bytes of the rows of a
 * group alternate: line i of row r is at a + r / group * a_stride + (i * group + r % group) * 64. A group of 16
 * is tiles of AMX, one after the other; a group of 1 a plain row. */
typedef enum qn_panel_rows {
    QN_PANEL_ROWS_F32 = 0, /* [K] floats */
    QN_PANEL_ROWS_BF16,    /* [K/64][terms][64] bf16: x as the exact sum of 1, 2 or 3 terms */
    QN_PANEL_ROWS_I8,      /* [K] int8 */
    QN_PANEL_ROWS_I16      /* [K/4][4] int16 in the order k, k+2, k+1, k+3: pairs for even and odd bytes */
} qn_panel_rows;

/* One call: rows [0, rows) times panels [0, panels) along the whole of K. */
typedef struct qn_panel_call {
    const char *w;             /* blocks of panel p begin at w + p * panel_bytes */
    int64_t panel_bytes;
    int64_t panels, blocks;    /* blocks of 64 along K; may be 0 */
    const char *a;             /* group g begins at a + g * a_stride; 64-byte aligned, stride a multiple of 64 */
    int64_t a_stride;
    int64_t rows;              /* at least 1; memory is readable up to the level's row multiple */
    int32_t terms;             /* QN_PANEL_ROWS_BF16 */
    /* scales of blocks of 128 along K; sa NULL: none. The temporary chain of such a block starts at 0 and
     * sum = fma(temporary, sa[r][kb] * sb[p][kb], sum). Codes with scales of groups have none. */
    const float *sa;           /* sa[r * sa_stride + kb]; row_group > 1: sa[kb * sa_stride + r], whole groups */
    const float *sb;           /* sb[p * sb_stride + kb] */
    int64_t sa_stride, sb_stride;
    /* float or int32, 64-byte aligned, room for whole groups of rows: with a row_group of G, the sum of row r, column
     * c of panel p is at r / G * G * sums_stride + p * 16 * G + r % G * 16 + c. G of 1: plain rows; 16: tiles. */
    void *sums;
    int64_t sums_stride;       /* elements a row of a group, a multiple of 16 */
    char *scratch;             /* the set's scratch_bytes, 64-byte aligned, private to the calling thread */
} qn_panel_call;

typedef void (*qn_panel_fn)(const qn_panel_call *call);

/* Everything of one instruction set. A code without a function has no kernel at that level. */
typedef struct qn_panel_set {
    qn_panel_rows rows_f;      /* rows for the float codes */
    qn_panel_rows rows_i8;     /* rows for QN_PANEL_I8 */
    int32_t row_group;         /* rows whose lines alternate: 1, 2, 4, 8 or 16 */
    int32_t row_multiple;      /* rows of a are readable up to a multiple of this */
    int32_t mr, nr;            /* register tile: rows, columns */
    int32_t rows_block, panels_block; /* what the set likes best in one call when there are many rows */
    size_t scratch_bytes;
    qn_panel_fn mm[QN_PANEL_CODES];
} qn_panel_set;

extern const qn_panel_set qn_panel__scalar, qn_panel__avx2, qn_panel__avx512, qn_panel__avx512vnni,
    qn_panel__avx512bf16, qn_panel__amx;

#endif
