/* Float tiles: QN_MR rows by QN_NR columns of accumulators with K in the lanes.
 * Included once by mm.c of each folder, after its vec.h. */
#include "kernels/common/mm.h"
#include "kernels/cpu/name.h"

#define LANES(base, r, c) ((float *)(base) + ((r) * QN_MM_COLS + (c)) * VL)

QN_INLINE void tile_zero(vf acc[QN_MR][QN_NR], const int mr, const int nr)
{
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            acc[r][c] = vf_set(0.0f);
        }
    }
}

QN_INLINE void tile_add(vf acc[QN_MR][QN_NR], const int mr, const int nr, void *lanes, int64_t r0, int64_t c0)
{
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            float *const to = LANES(lanes, r0 + r, c0 + c);
            vf_store(to, vf_add(vf_load(to), acc[r][c]));
        }
    }
}

/* acc[r][c] continues with elements [first, last) of mr rows of a and nr rows of b. */
QN_INLINE void tile_accumulate(vf acc[QN_MR][QN_NR], const int mr, const int nr, const float *a, int64_t a_stride,
                               const float *b, int64_t b_stride, int64_t first, int64_t last)
{
    for (int64_t k = first; k < last; k += VL) {
        vf bv[QN_NR];
#pragma GCC unroll 8
        for (int c = 0; c < nr; c++) {
            bv[c] = vf_load((const float *)((const char *)b + c * b_stride) + k);
        }
#pragma GCC unroll 8
        for (int r = 0; r < mr; r++) {
            const vf av = vf_load((const float *)((const char *)a + r * a_stride) + k);
#pragma GCC unroll 8
            for (int c = 0; c < nr; c++) {
                acc[r][c] = vf_fma(av, bv[c], acc[r][c]);
            }
        }
    }
}

QN_INLINE void tile_plain(const int mr, const int nr, const float *a, int64_t a_stride, const float *b,
                          int64_t b_stride, int64_t count, void *lanes, int64_t r0, int64_t c0)
{
    for (int64_t k = 0; k < count; k += QN_MM_CHAIN) {
        vf acc[QN_MR][QN_NR];
        tile_zero(acc, mr, nr);
        tile_accumulate(acc, mr, nr, a, a_stride, b, b_stride, k, k + QN_MM_CHAIN < count ? k + QN_MM_CHAIN : count);
        tile_add(acc, mr, nr, lanes, r0, c0);
    }
}

/* Cover rows x cols with tiles of constant size. */
#define COVER_COLS(TILE, mr, r)                                       \
    do {                                                              \
        int64_t c = 0;                                                \
        for (; c + QN_NR <= cols; c += QN_NR) {                       \
            TILE(mr, QN_NR, r, c);                                    \
        }                                                             \
        for (; c < cols; c++) {                                       \
            TILE(mr, 1, r, c);                                        \
        }                                                             \
    } while (0)

#define COVER(TILE)                                                   \
    do {                                                              \
        int64_t r = 0;                                                \
        for (; r + QN_MR <= rows; r += QN_MR) {                       \
            COVER_COLS(TILE, QN_MR, r);                               \
        }                                                             \
        for (; QN_MR > 2 && r + 2 <= rows; r += 2) {                  \
            COVER_COLS(TILE, 2, r);                                   \
        }                                                             \
        for (; r < rows; r++) {                                       \
            COVER_COLS(TILE, 1, r);                                   \
        }                                                             \
    } while (0)

#define AT_ROW(base, stride, i) ((const float *)((const char *)(base) + (i) * (stride)))

static void mm_f32_tile(const void *a, int64_t a_stride, const void *b, int64_t b_stride, int64_t rows, int64_t cols,
                        int64_t count, void *lanes)
{
#define TILE_PLAIN(mr, nr, r, c) \
    tile_plain(mr, nr, AT_ROW(a, a_stride, r), a_stride, AT_ROW(b, b_stride, c), b_stride, count, lanes, r, c)
    COVER(TILE_PLAIN);
#undef TILE_PLAIN
}

static void mm_f32_sum(const void *lanes, void *sums)
{
    float *const out = sums;
    for (int c = 0; c < QN_MM_COLS; c++) {
        out[c] = vf_sum(vf_load(LANES(lanes, 0, c)));
    }
}
