/* Nearest entries and products in place (kernels/common/fit.h). Included once by a
 * folder's fit_<isa>.c after its vec.h. Rows go a few at a time, so that a book's
 * or a matrix' registers are loaded once for all of them, and books by BLOCK entries, which
 * stay in the first cache for all rows; no result depends on which rows or entries go together. */
#include <math.h>

#include "kernels/common/fit.h"
#include "kernels/cpu/name.h"

#define PARTS (QN_FIT_LANES / VL) /* registers of a line of entries */
#define BLOCK 512
#define NEAREST_ROWS (VL == 16 ? 4 : 2)
#define PRODUCT_ROWS 4
#define PRODUCT_WIDTH (VL == 16 ? 4 : 2)

static void weigh(const float *book, int64_t entries, int32_t vector, const float *weights, float *norms)
{
    for (int64_t e = 0; e < entries; e += VL) {
        vf norm = vf_set(0);
        for (int32_t j = 0; j < vector; j++) {
            const vf line = vf_load(book + j * entries + e);
            norm = vf_add(norm, vf_mul(weights ? vf_mul(vf_set(weights[j]), line) : line, line));
        }
        vf_store(norms + e, norm);
    }
}

/* Entries [from, to), after those before; entries[] are without their lanes. */
QN_INLINE void nearest_rows(const qn_fit_book *b, int64_t from, int64_t to, const float *targets, const int rows,
                            const int vector, float *scores, int32_t *entries)
{
    vf best[NEAREST_ROWS][PARTS], at[NEAREST_ROWS][PARTS];
    for (int r = 0; r < rows; r++) {
        for (int p = 0; p < PARTS; p++) {
            best[r][p] = vf_load(scores + r * QN_FIT_LANES + p * VL);
            at[r][p] = vf_bits(vi_load(entries + r * QN_FIT_LANES + p * VL));
        }
    }
    for (int64_t e = from; e < to; e += QN_FIT_LANES) {
        const vf here = vf_bits(vi_set((uint32_t)e));
        for (int p = 0; p < PARTS; p++) {
            const vf norm = vf_load(b->norms + e + p * VL);
            vf score[NEAREST_ROWS];
            for (int r = 0; r < rows; r++) {
                score[r] = norm;
            }
            for (int j = 0; j < vector; j++) {
                const vf line = vf_load(b->book + j * b->entries + e + p * VL);
                for (int r = 0; r < rows; r++) {
                    score[r] = vf_fma(vf_set(targets[r * vector + j]), line, score[r]);
                }
            }
            for (int r = 0; r < rows; r++) {
                at[r][p] = vf_where_negative(vf_sub(score[r], best[r][p]), here, at[r][p]);
                best[r][p] = vf_min(score[r], best[r][p]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int p = 0; p < PARTS; p++) {
            vf_store(scores + r * QN_FIT_LANES + p * VL, best[r][p]);
            vi_store(entries + r * QN_FIT_LANES + p * VL, vi_bits(at[r][p]));
        }
    }
}

QN_INLINE void nearest_of(const qn_fit_book *b, const float *targets, int64_t rows, const int vector, float *scores,
                          int32_t *entries)
{
    for (int64_t i = 0; i < rows * QN_FIT_LANES; i++) {
        scores[i] = INFINITY;
        entries[i] = 0;
    }
    for (int64_t from = 0; from < b->entries; from += BLOCK) {
        const int64_t to = from + BLOCK < b->entries ? from + BLOCK : b->entries;
        int64_t r = 0;
        for (; r + NEAREST_ROWS <= rows; r += NEAREST_ROWS) {
            nearest_rows(b, from, to, targets + r * vector, NEAREST_ROWS, vector, scores + r * QN_FIT_LANES,
                         entries + r * QN_FIT_LANES);
        }
        for (; r < rows; r++) {
            nearest_rows(b, from, to, targets + r * vector, 1, vector, scores + r * QN_FIT_LANES,
                         entries + r * QN_FIT_LANES);
        }
    }
    for (int64_t i = 0; i < rows * QN_FIT_LANES; i++) {
        entries[i] += (int32_t)(i % QN_FIT_LANES);
    }
}

static void nearest(const qn_fit_book *b, const float *targets, int64_t rows, float *scores, int32_t *entries)
{
    switch (b->vector) {
    case 2: nearest_of(b, targets, rows, 2, scores, entries); break;
    case 4: nearest_of(b, targets, rows, 4, scores, entries); break;
    case 8: nearest_of(b, targets, rows, 8, scores, entries); break;
    default: nearest_of(b, targets, rows, b->vector, scores, entries); break;
    }
}

/* Magnitudes and signs are chosen apart: y = x - shift is nearest with y's own signs, which the lattice allows when
 * their number of minuses is as odd as the sum of the magnitudes; else the coordinate that costs least turns round. */
static void nearest_e8p(const qn_fit_lattice *lattice, const float *x, int64_t rows, float *scores, int32_t *entries)
{
    for (int64_t r = 0; r < rows; r++) {
        float size[2][8], squares[2] = {0, 0};
        int odd[2] = {0, 0};
        for (int s = 0; s < 2; s++) {
            for (int j = 0; j < 8; j++) {
                const float y = x[r * 8 + j] - (s ? -0.25f : 0.25f);
                size[s][j] = y < 0 ? -y : y;
                squares[s] += y * y;
                odd[s] ^= y < 0;
            }
        }
        vf best[PARTS], at[PARTS];
        for (int p = 0; p < PARTS; p++) {
            best[p] = vf_set(INFINITY);
            at[p] = vf_bits(vi_set(0));
        }
        for (int a = 0; a < 256; a += VL) {
            const int p = a / VL % PARTS;
            const vf norm = vf_load(lattice->norms + a), odds = vf_load(lattice->odd + a);
            for (int s = 0; s < 2; s++) {
                const vf line = vf_load(lattice->magnitudes + a);
                vf sum = vf_mul(line, vf_set(size[s][0])), least = sum;
                for (int j = 1; j < 8; j++) {
                    const vf term = vf_mul(vf_load(lattice->magnitudes + j * 256 + a), vf_set(size[s][j]));
                    sum = vf_add(sum, term);
                    least = vf_min(least, term);
                }
                const vf turns = odd[s] ? vf_sub(vf_set(1), odds) : odds;
                vf score = vf_add(norm, vf_set(squares[s]));
                score = vf_fma(vf_set(-2), sum, score);
                score = vf_fma(vf_mul(turns, vf_set(4)), least, score);
                const vf here = vf_bits(vi_set((uint32_t)(a - p * VL + 256 * s)));
                at[p] = vf_where_negative(vf_sub(score, best[p]), here, at[p]);
                best[p] = vf_min(score, best[p]);
            }
        }
        for (int p = 0; p < PARTS; p++) {
            vf_store(scores + r * QN_FIT_LANES + p * VL, best[p]);
            vi_store(entries + r * QN_FIT_LANES + p * VL, vi_bits(at[p]));
        }
        for (int l = 0; l < QN_FIT_LANES; l++) {
            entries[r * QN_FIT_LANES + l] += l;
        }
    }
}

QN_INLINE void product_tile(float *out, int64_t out_stride, const float *a, int64_t a_stride, const int rows,
                            const float *b, int64_t b_stride, int64_t depth, const int width)
{
    vf sum[PRODUCT_ROWS][PRODUCT_WIDTH];
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < width; c++) {
            sum[r][c] = vf_load(out + r * out_stride + c * VL);
        }
    }
    for (int64_t d = 0; d < depth; d++) {
        if (d % QN_FIT_LANES == 0) { /* the rows that come next: short runs, which nothing else foretells */
            for (int r = 0; r < rows; r++) {
                __builtin_prefetch(a + (r + rows) * a_stride + d);
            }
        }
        vf line[PRODUCT_WIDTH];
        for (int c = 0; c < width; c++) {
            line[c] = vf_load(b + d * b_stride + c * VL);
        }
        for (int r = 0; r < rows; r++) {
            const vf factor = vf_set(a[r * a_stride + d]);
            for (int c = 0; c < width; c++) {
                sum[r][c] = vf_fma(factor, line[c], sum[r][c]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < width; c++) {
            vf_store(out + r * out_stride + c * VL, sum[r][c]);
        }
    }
}

static void add_product(float *out, int64_t out_stride, const float *a, int64_t a_stride, int64_t rows, const float *b,
                        int64_t b_stride, int64_t depth, int64_t columns)
{
    for (int64_t c = 0; c < columns;) {
        const int wide = c + PRODUCT_WIDTH * VL <= columns;
        for (int64_t r = 0; r < rows;) {
            const int tall = r + PRODUCT_ROWS <= rows;
            float *to = out + r * out_stride + c;
            const float *from = a + r * a_stride;
            if (wide && tall) {
                product_tile(to, out_stride, from, a_stride, PRODUCT_ROWS, b + c, b_stride, depth, PRODUCT_WIDTH);
            } else if (wide) {
                product_tile(to, out_stride, from, a_stride, 1, b + c, b_stride, depth, PRODUCT_WIDTH);
            } else if (tall) {
                product_tile(to, out_stride, from, a_stride, PRODUCT_ROWS, b + c, b_stride, depth, 1);
            } else {
                product_tile(to, out_stride, from, a_stride, 1, b + c, b_stride, depth, 1);
            }
            r += tall ? PRODUCT_ROWS : 1;
        }
        c += wide ? PRODUCT_WIDTH * VL : VL;
    }
}

const qn_fit_set QN_NAME(fit) = {weigh, nearest, nearest_e8p, add_product};
