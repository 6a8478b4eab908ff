/* d = x b^T with weights of any format, few rows: a warp has COLUMNS rows of b, reads them once with wide loads, and
 * multiplies them by all rows of x, which lie in shared memory as floats (int8: as they are). Sums of a lane go
 * over its units in the order of K, lanes and warps are added in one fixed order. As fast as memory gives b.
 *
 * Host contract
 *   Parameters: those of mm_common.h, and
 *     ROWS     of x at most
 *     COLUMNS  of d a warp; SPLIT warps share a column, each with a part of K
 *     STEPS    units of a lane that are loaded at a time; a pass over K is 32 * STEPS * SPLIT units
 *     WHOLE    1: x is in shared memory as a whole; 0: a pass at a time
 *     CHAIN    1: one step of a chain (src/backend/cuda/chain.c): weights are constants and may be loaded before the
 *              kernels before are done; up to three weights; then also PRE, ROUND, QUANT, FLOORS (mm_before.h), and
 *              ADD 1: results are added to d
 *     and, for vectors, those of mm_vectors.h. Where STAGED all columns of a block are of one weight; of vptq a warp's
 *     columns are rows of one vector. Without a chain they are WHOLE, and there is a block for every ROWS rows of x
 *   Launch: block 256, grid {ceil(N / (COLUMNS * 8 / SPLIT)) or less, where WHOLE, ceil(M / ROWS) of vectors, else 1},
 *   dynamic shared memory QN_MM_FEW_SHARED below */
#include "mm_common.h"

#define THREADS 256
#define WARPS 8
#define PASS (32 * STEPS * SPLIT * UNIT) /* elements of K */
#if !VECTORS
#define STAGED 0
#define ACROSS 0
#endif
#define RAWS (ACROSS ? STEPS : COLUMNS * STEPS) /* units that a lane has at a time */
#define GAP (UNIT > 4 && !INT_SUMS ? 4 : 0) /* floats between units, so that lanes read different banks */
#define SPREAD(i) ((i) + (i) / UNIT * GAP)

#if CHAIN
#define JOINED (RAWS + ITEMS > 3 || __CUDA_ARCH__ < 900 ? 1 : 7) /* beside the weights, which are under way */
#include "mm_before.h"
#endif

/* The block's first row of x. */
#if VECTORS && !CHAIN
#define FIRST_ROW ((int)blockIdx.y * ROWS)
#else
#define FIRST_ROW 0
#endif

extern __shared__ __align__(16) char shared[];

#if INT_SUMS
typedef signed char item;
#else
typedef float item;
#endif

DEV void stage(const qn_cuda_mm &a, item *x, int pitch, int first, int count)
{
    for (int i = (int)threadIdx.x; i < ROWS * count; i += THREADS) {
        const int m = ROWS == 1 ? 0 : i / count, k = first + (ROWS == 1 ? i : i % count);
        item v = 0;
        if (FIRST_ROW + m < a.m && k < a.k) {
#if INT_SUMS
            v = (a.x + m * a.x_row)[k];
#else
            v = load_x(a, FIRST_ROW + m, k);
#endif
        }
        x[m * pitch + SPREAD(k - first)] = v;
    }
}

/* A unit of COLUMNS rows of b by all rows of x. */
DEV void multiply(const raw *r, const item *x, int pitch, sum_t sums[COLUMNS][ROWS])
{
#if INT_SUMS
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        const int4 v = *(const int4 *)(x + m * pitch);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            sums[c][m] = __dp4a(v.x, (int)r[c * STEPS].word[0], sums[c][m]);
            sums[c][m] = __dp4a(v.y, (int)r[c * STEPS].word[1], sums[c][m]);
            sums[c][m] = __dp4a(v.z, (int)r[c * STEPS].word[2], sums[c][m]);
            sums[c][m] = __dp4a(v.w, (int)r[c * STEPS].word[3], sums[c][m]);
        }
    }
#elif ACROSS
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        const float v = x[m * pitch + r->column];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            sums[c][m] = __fmaf_rn(v, r->v[c], sums[c][m]);
        }
    }
#else
    const int width = UNIT < 8 ? UNIT : 8;
#if SCALED_UNIT /* a scale once a unit: as many products as elements are what bounds this */
    float of_unit[COLUMNS][ROWS] = {};
#define SUMS of_unit
#define DECODE codes8
#else
#define SUMS sums
#define DECODE decode8
#endif
#pragma unroll
    for (int j = 0; j < UNIT / width; j++) {
        float w[COLUMNS][8];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            DECODE(r[c * STEPS], j, w[c]);
        }
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            float v[8];
#pragma unroll
            for (int i = 0; i < width; i += 4) {
                const float4 four = *(const float4 *)(x + m * pitch + 8 * j + i);
                v[i] = four.x;
                v[i + 1] = four.y;
                v[i + 2] = four.z;
                v[i + 3] = four.w;
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (int i = 0; i < width; i++) {
                    SUMS[c][m] = __fmaf_rn(v[i], w[c][i], SUMS[c][m]);
                }
            }
        }
    }
#if SCALED_UNIT
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            sums[c][m] += scale_sum(r[c * STEPS], of_unit[c][m]);
        }
    }
#endif
#endif
}

/* Where a warp's columns lie, and what they are finished with. */
struct columns {
    const u8 *rows[COLUMNS], *scales[COLUMNS];
#if VECTORS
    const qn_cuda_mm_part *part; /* of the first column */
    books tables[COLUMNS];
    int first; /* which row of its vector that is */
#endif
    tail end; /* of this lane's result: column lane / ROWS */
    char *d;
    int n; /* -1: this lane has none */
    float old;
};

DEV columns find_columns(const qn_cuda_mm &a, int column0, int lane)
{
    columns w;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        int n = column0 + c < a.n ? column0 + c : a.n - 1;
        const qn_cuda_mm_part &p = a.part[part_of(a, &n)];
#if VECTORS
        w.rows[c] = codes_of(p, n);
        if (c == 0) {
            w.part = &p;
            w.first = n % 8 / COLUMNS * COLUMNS;
        }
#else
        w.rows[c] = (const u8 *)p.b + n * p.b_row;
#endif
        w.scales[c] = scales_of(p, n);
#if STAGED
        w.tables[c].at = shared_address(shared);
#elif VECTORS
        w.tables[c].at = books_of(p, n);
        w.tables[c].step = p.books_step;
#endif
    }
    w.n = column0 + lane / ROWS;
    if (lane >= COLUMNS * ROWS || FIRST_ROW + lane % ROWS >= a.m || w.n >= a.n) {
        w.n = -1;
        return w;
    }
    const qn_cuda_mm_part &p = a.part[part_of(a, &w.n)];
    w.d = p.d + (FIRST_ROW + lane % ROWS) * p.d_row;
    if (CHAIN && p.d_position) {
        w.d += *a.position * p.d_position;
    }
    w.end = load_tail(p, w.n);
    return w;
}

#if STAGED
/* Begin to copy a row's codebooks into shared memory. */
DEV void stage_books(const u8 *from, i64 step)
{
#pragma unroll
    for (int j = 0; j < (STAGED + THREADS * 16 - 1) / (THREADS * 16); j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 16;
        if (i < STAGED) {
            const int book = ACROSS ? i >= BOOK_BYTES : i / BOOK_BYTES;
            copy_async_16(shared_address(shared) + (u32)i, from + book * step + (i - book * BOOK_BYTES), 16);
        }
    }
}
#endif

/* Units of a warp's columns from `first` on. staged: codebooks are on their way to shared memory. */
DEV void load_pass(const qn_cuda_mm &a, const columns &w, int first, int staged, raw *r)
{
    const int units = (a.k + UNIT - 1) / UNIT;
#if VECTORS
    codes code[RAWS];
#pragma unroll
    for (int i = 0; i < RAWS; i++) {
        const int unit = first + i % STEPS * 32, c = i / STEPS;
        code[i] = load_codes(*w.part, w.rows[c], w.scales[c], unit < units ? unit : units - 1);
    }
#pragma unroll
    for (int i = 0; i < RAWS; i++) {
        load_column(*w.part, a.k, &code[i]);
    }
#if STAGED
    if (staged) {
        copy_async_wait();
        __syncthreads();
    }
#endif
#pragma unroll
    for (int i = 0; i < RAWS; i++) {
        const int unit = first + i % STEPS * 32;
        r[i] = look_up(code[i], w.tables[i / STEPS], unit < units ? unit : units - 1, w.first);
    }
#else
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int unit = first + s * 32;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            r[c * STEPS + s] = raw();
            if (unit < units) {
                r[c * STEPS + s] = load_raw(w.rows[c], w.scales[c], unit, a.k);
            }
        }
    }
#endif
}

/* Lane c * ROWS + m gets the sum of column c and row m over all lanes, and over the warps that share the columns. */
DEV sum_t reduce(sum_t sums[COLUMNS][ROWS], int lane, int warp)
{
    sum_t sum = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                sums[c][m] += __shfl_xor_sync(0xffffffffu, sums[c][m], step);
            }
            sum = lane == c * ROWS + m ? sums[c][m] : sum;
        }
    }
#if SPLIT > 1
    __shared__ sum_t parts[WARPS][COLUMNS * ROWS];
    if (lane < COLUMNS * ROWS) {
        parts[warp][lane] = sum;
    }
    __syncthreads();
    if (warp % SPLIT == 0 && lane < COLUMNS * ROWS) {
#pragma unroll
        for (int i = 1; i < SPLIT; i++) {
            sum += parts[warp + i][lane];
        }
    }
#endif
    return sum;
}

/* Blocks of a multiprocessor that the registers must allow. */
#define RESIDENT (CHAIN && VECTORS && RAWS * (ACROSS ? COLUMNS : 8) > 32 ? 2 : CHAIN ? 3 : ROWS * COLUMNS >= 8 ? 1 : 2)

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) qn_mm_few(const __grid_constant__ qn_cuda_mm a)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int units = (a.k + UNIT - 1) / UNIT, mine_first = warp % SPLIT * (32 * STEPS) + lane;
    const int length = WHOLE ? units * UNIT : PASS, pitch = SPREAD(length), block_columns = WARPS / SPLIT * COLUMNS;
    item *const x = (item *)(shared + STAGED);
    release_next();
#if !CHAIN
    wait_before();
#endif
#if CHAIN
    float scale = 1.0f, global = 1.0f;
    int azp = 0;
#endif
#if STAGED
    const u8 *kept = 0;
#endif
    for (int start = (int)blockIdx.x * block_columns; start < a.n; start += (int)gridDim.x * block_columns) {
#if STAGED
        int row = start;
        const qn_cuda_mm_part &p = a.part[part_of(a, &row)];
        const int fresh = kept != books_of(p, row);
        if (fresh) {
            kept = books_of(p, row);
            __syncthreads();
            stage_books(kept, p.books_step);
        }
#else
        const int fresh = 0;
#endif
        columns w = find_columns(a, start + warp / SPLIT * COLUMNS, lane);
        raw r[RAWS];
        sum_t sums[COLUMNS][ROWS] = {};
        load_pass(a, w, mine_first, fresh, r);
#if CHAIN
        if (start == (int)blockIdx.x * block_columns) {
            mine row;
            const constants c = load_constants(a);
            wait_before();
            make_row(a, c, &row);
            const before how = quantise_row(c, &row);
            global = c.global;
            scale = how.scale;
            azp = how.azp;
#pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                const int i = first_of(j);
                if (i < a.k) {
#if INT_SUMS
                    *(char4 *)(x + i) = make_char4((signed char)row.v[j][0], (signed char)row.v[j][1],
                                                   (signed char)row.v[j][2], (signed char)row.v[j][3]);
#else
                    *(float4 *)(x + SPREAD(i)) = make_float4(row.v[j][0], row.v[j][1], row.v[j][2], row.v[j][3]);
#endif
                }
            }
            __syncthreads();
        }
#if ADD
        w.old = w.n >= 0 ? ((const float *)w.d)[w.n] : 0.0f;
#endif
#endif
        for (int base = 0; base < units; base += 32 * STEPS * SPLIT) {
            if (base) {
                load_pass(a, w, base + mine_first, 0, r);
            }
            if (!CHAIN && (!WHOLE || (base == 0 && start == (int)blockIdx.x * block_columns))) {
                const int first = base * UNIT, left = units * UNIT - first;
                stage(a, x, pitch, first, length < left ? length : left);
                __syncthreads();
            }
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int unit = mine_first + s * 32;
                if (base + unit < units) {
                    multiply(r + s, ACROSS ? x : x + (WHOLE ? base + unit : unit) * (UNIT + GAP), pitch, sums);
                }
            }
            if (!WHOLE) {
                __syncthreads();
            }
        }
        const sum_t sum = reduce(sums, lane, warp);
        if (warp % SPLIT == 0 && w.n >= 0) {
#if CHAIN
            const float v = finish(w.end, sum, scale, azp, global);
#if ADD
            ((float *)w.d)[w.n] = w.old + v;
#else
            store_float(w.d, w.n, v, OUT);
#endif
#else
            const int m = lane % ROWS;
            store_float(w.d, w.n, finish(w.end, sum, row_scale(a, m), row_azp(a, m), row_global(a)), OUT);
#endif
        }
        if (SPLIT > 1) {
            __syncthreads(); /* the next columns' sums go through the same memory */
        }
    }
}
