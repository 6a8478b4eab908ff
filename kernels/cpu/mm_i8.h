/* Exact int8 tiles: K in the lanes, int32 sums modulo 2^32. Included after a
 * folder's i8.h, which gives the types and
 *     va  vector of A elements, va_load(const void *); VI_STEP elements a step
 *     vb  vector of B elements, vb_load(const int8_t *)
 *     vi  int32 sums, vi_load, vi_store, vi_dot(acc, va, vb), vi_sum
 * B is read as it is stored; A is widened (int16) or offset (uint8) once. */
#include "kernels/common/mm.h"
#include "kernels/cpu/name.h"

#define I8_LANES(base, r, c) ((int32_t *)(base) + ((r) * QN_MM_COLS + (c)) * VI_LANES)

QN_INLINE void i8_tile(const int mr, const int nr, const char *a, int64_t a_stride, const char *b, int64_t b_stride,
                       int64_t count, void *lanes, int64_t r0, int64_t c0)
{
    vi acc[QN_MR][QN_NR];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            acc[r][c] = vi_load(I8_LANES(lanes, r0 + r, c0 + c));
        }
    }
    for (int64_t k = 0; k < count; k += VI_STEP) {
        vb bv[QN_NR];
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            bv[c] = vb_load((const int8_t *)(b + c * b_stride + k));
        }
#pragma GCC unroll 8
        for (int r = 0; r < mr; r++) {
            const va av = va_load(a + r * a_stride + k * VI_A_BYTES);
#pragma GCC unroll 8
            for (int c = 0; c < nr; c++) {
                acc[r][c] = vi_dot(acc[r][c], av, bv[c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            vi_store(I8_LANES(lanes, r0 + r, c0 + c), acc[r][c]);
        }
    }
}

static void mm_i8_tile(const void *a, int64_t a_stride, const void *b, int64_t b_stride, int64_t rows, int64_t cols,
                       int64_t count, void *lanes)
{
#define I8_TILE(mr, nr, r, c)                                                                                 \
    i8_tile(mr, nr, (const char *)a + (r) * a_stride, a_stride, (const char *)b + (c) * b_stride, b_stride,   \
            count, lanes, r, c)
#define I8_COLS(mr, r)                                                \
    do {                                                              \
        int64_t c = 0;                                                \
        for (; c + QN_NR <= cols; c += QN_NR) {                       \
            I8_TILE(mr, QN_NR, r, c);                                 \
        }                                                             \
        for (; c < cols; c++) {                                       \
            I8_TILE(mr, 1, r, c);                                     \
        }                                                             \
    } while (0)
    int64_t r = 0;
    for (; r + QN_MR <= rows; r += QN_MR) {
        I8_COLS(QN_MR, r);
    }
    for (; r < rows; r++) {
        I8_COLS(1, r);
    }
#undef I8_COLS
#undef I8_TILE
}

static void mm_i8_sum(const void *lanes, void *sums)
{
    for (int c = 0; c < QN_MM_COLS; c++) {
        ((int32_t *)sums)[c] = vi_sum(vi_load(I8_LANES(lanes, 0, c)));
    }
}

/* A row of A's panel: int16, or uint8 with 128 added; the padding meets zeros of B. */
static void unpack_a_i8(const qn_mm_operand *o, int64_t row, int64_t k, int64_t count, void *panel)
{
    const int8_t *const src = (const int8_t *)o->data + row * o->stride + k;
    const int64_t end = (count + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
#if VI_A_BYTES == 1
    uint8_t *const p = panel;
    for (int64_t i = 0; i < count; i++) {
        p[i] = (uint8_t)((uint8_t)src[i] ^ 0x80);
    }
#else
    int16_t *const p = panel;
    for (int64_t i = 0; i < count; i++) {
        p[i] = src[i];
    }
#endif
    for (int64_t i = count; i < end; i++) {
        p[i] = 0;
    }
}

const qn_mm_i8_set QN_NAME(mm_i8) = {.lanes = VI_LANES,
                                     .mr = QN_MR,
                                     .nr = QN_NR,
                                     .a_bytes = VI_A_BYTES,
                                     .tile = mm_i8_tile,
                                     .sum = mm_i8_sum,
                                     .unpack_a = unpack_a_i8};
