/* y = x w^T for vector-quantised weights of every format as checkpoints store them, any strides and alignment: the
 * kernel that is always right. A warp a row of w; lanes take vectors along K, decode them in f32 and multiply ROWS rows
 * of x. The order of a sum depends on K alone.
 *
 * Host contract
 *   Parameters: FORMAT; X_FORMAT, OUT, BIAS (format + 1, 0: none); ROWS rows of x a pass
 *     aqlm   BOOKS, BITS, CODE_BYTES (0: a stream of BITS bits), VECTOR, OUT_GROUP, BOOK_FORMAT, SCALE_FORMAT
 *     quip   CODEBOOK 1 E8P12, 2 E8P12RVQ3B, 3 E8P12RVQ4B; WSCALE_FORMAT
 *     vptq   VECTOR, ENTRIES, RES_ENTRIES and OUTLIER_ENTRIES (codes and columns beyond are taken for the last, so that
 *            no operand is left), BITS, RES_BITS, OUTLIER_VECTOR, BOOK_FORMAT, RES_FORMAT, OUTLIER_FORMAT, IN_SCALE and
 * IN_SHIFT (format + 1, 0: none)
 *     RAW 1: sums to total, without scales and bias
 *     UNPACK 1: qn_vq_unpack instead, rows of w as f16 to y (rows of a multiple of 16 bytes; vptq's columns in the
 *            order of their codes) and what their products are to be multiplied by to column_scale; MEASURED 1: with a
 *            power of two for each row that brings its largest element to 2^13; of vptq UNPACK_THREADS of a block, KEPT
 *            runs of columns that a thread keeps in shared memory, RES_FAR 1: with their residuals (a large book)
 *   Launch: block 256, grid {ceil(N / 8), ceil(M / ROWS)}; qn_vq_unpack grid {ceil(N / 8)}, of vptq block
 *     UNPACK_THREADS, grid {ceil(N / VECTOR)}, shared memory of KEPT * UNPACK_THREADS * 64 bytes, or twice that */
#include "formats.h"
#include "cuda_vq.h"
#include "vq_lattice.h"

#define WARPS 8

#if FORMAT == QN_CUDA_AQLM

#define STEP VECTOR
#define COUNT(a) ((a).groups)

DEV u32 code_of(const qn_cuda_vq &a, int row, int g, int c)
{
    const char *const codes = a.codes + (i64)row * a.codes_row;
#if CODE_BYTES == 0
    const i64 bit = ((i64)g * BOOKS + c) * BITS, at = bit / 8;
    u32 word = 0;
    for (int i = 0; i < 3 && at + i < a.code_bytes; i++) {
        word |= (u32)((const u8 *)codes)[at + i] << 8 * i;
    }
    return word >> (bit % 8) & ((1u << BITS) - 1);
#elif CODE_BYTES == 1
    return ((const u8 *)(codes + (i64)g * a.codes_group))[c] & ((1u << BITS) - 1);
#else
    return ((const u16 *)(codes + (i64)g * a.codes_group))[c] & ((1u << BITS) - 1);
#endif
}

/* Elements [j, j + 8) of vector g of row n, f32; those past the vector are 0. */
DEV void decode(const qn_cuda_vq &a, int n, int g, int j, float *w)
{
    const int row = n / OUT_GROUP, within = n % OUT_GROUP;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[i] = 0.0f;
    }
    for (int c = 0; c < BOOKS; c++) {
        const char *const entry =
            a.books + (i64)c * a.book_step + (i64)code_of(a, row, g, c) * a.entry_step + (i64)within * a.within_step;
#if BOOK_FORMAT == QN_MM_F16 && VECTOR % 8 == 0
        if (((u64)entry & 15) == 0) { /* eight at a time */
            const uint4 v = *(const uint4 *)(entry + j * 2);
            const u32 pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                w[i] += half_float(pair[i / 2] >> i % 2 * 16);
            }
            continue;
        }
#endif
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (j + i < VECTOR) {
                w[i] += load_float(entry, j + i, BOOK_FORMAT);
            }
        }
    }
}

#elif FORMAT == QN_CUDA_QUIP

#define VECTOR 8
#define STEP 8
#define COUNT(a) ((a).k / 8)

DEV void e8p(u32 abs, u32 signs, float scale, float *w)
{
    u32 low;
    const u32 word = e8p_signed(e8p_words[abs], signs, &low);
    const float shift = low ? -0.25f : 0.25f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float v = (float)(int)(word >> (i / 2 * 4 + i % 2 * 16) & 15) * 0.5f - 4.0f + shift;
        w[i] = __fmaf_rn(v, scale, w[i]);
    }
}

DEV void decode_part(const qn_cuda_vq &a, int n, int g, int first, float scale, float *w)
{
    const i64 columns = a.k / 32, word = ((i64)(n / 16 * (a.k / 64) + g / 8) * 8 + n / 2 % 8) * 4 + g / 2 % 4;
    const u32 *const at = (const u32 *)(a.codes + word / columns * a.codes_row) + (first + word % columns) * 2;
    const int i = n % 2 + g % 2 * 2;
    e8p(at[0] >> 8 * i & 255, at[1] >> i & 0x11111111u, scale, w);
}

DEV void decode(const qn_cuda_vq &a, int n, int g, int j, float *w)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[i] = 0.0f;
    }
    decode_part(a, n, g, 0, 1.0f, w);
#if CODEBOOK == 3
    decode_part(a, n, g, a.k / 32, a.resid_inverse, w);
#elif CODEBOOK == 2
    const u32 word = e8_words[((const u8 *)a.codes)[(i64)n * a.codes_row + a.k / 4 + g]];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float v = (float)(int)(word >> (i / 2 * 4 + i % 2 * 16) & 15) * 0.5f - 4.0f;
        w[i] = __fmaf_rn(v, a.resid_inverse, w[i]);
    }
#endif
}

#elif FORMAT == QN_CUDA_VPTQ

#define STEP 1
#define COUNT(a) ((a).k)

/* Decoded column p: its place among the columns of x, and its value in `rows` rows from n on, at most VECTOR: those of
 * one vector, or a single one. */
DEV int decode_rows(const qn_cuda_vq &a, int n, int rows, int p, float *w)
{
    const int column = a.perm ? min((int)((const u16 *)a.perm)[p], a.k - 1) : p;
    if (p < a.outliers) {
#pragma unroll
        for (int r = 0; r < VECTOR; r++) {
            const int row = n + (r < rows ? r : 0);
            const u32 code = ((const u16 *)(a.outlier_codes + (i64)(row / OUTLIER_VECTOR) * a.outlier_row))[p];
            const u32 entry = min(code, OUTLIER_ENTRIES - 1u);
            w[r] = load_float(a.outlier_books, (i64)entry * OUTLIER_VECTOR + row % OUTLIER_VECTOR, OUTLIER_FORMAT);
        }
    } else {
        const int g = (p - a.outliers) / a.group_size, i = (p - a.outliers) % a.group_size;
        const char *const row = a.codes + (i64)g * a.codes_group + (i64)(n / VECTOR) * a.codes_row;
        const i64 bit = (i64)i * (BITS + RES_BITS);
        u32 words[2];
        words[0] = ((const u32 *)row)[bit / 32];
        words[1] = bit / 32 * 4 + 4 < a.code_bytes ? ((const u32 *)row)[bit / 32 + 1] : 0;
        const u64 word = ((u64)words[1] << 32 | words[0]) >> (bit % 32);
        const i64 entry = (i64)min((u32)word & ((1u << BITS) - 1), ENTRIES - 1u) * VECTOR + n % VECTOR;
#if RES_BITS
        const i64 more = (i64)min((u32)(word >> BITS) & ((1u << RES_BITS) - 1), RES_ENTRIES - 1u) * VECTOR + n % VECTOR;
#endif
#pragma unroll
        for (int r = 0; r < VECTOR; r++) {
            const int within = r < rows ? r : 0;
            w[r] = load_float(a.books + (i64)g * a.book_step, entry + within, BOOK_FORMAT);
#if RES_BITS
            w[r] += load_float(a.res_books + (i64)g * a.res_book_step, more + within, RES_FORMAT);
#endif
        }
    }
#pragma unroll
    for (int r = 0; r < VECTOR; r++) {
#if IN_SCALE
        w[r] *= load_float(a.in_scale, column, IN_SCALE - 1);
#endif
#if IN_SHIFT
        w[r] += load_float(a.in_shift, column, IN_SHIFT - 1);
#endif
    }
    return column;
}

DEV int decode(const qn_cuda_vq &a, int n, int p, float *w)
{
    float v[VECTOR];
    const int column = decode_rows(a, n, 1, p, v);
    *w = v[0];
    return column;
}

#else

#define VECTOR 4
#define STEP 4
#define COUNT(a) ((a).k / 4)

DEV void decode(const qn_cuda_vq &a, int n, int g, int j, float *w)
{
    const u32 code = ((const u8 *)a.codes)[(i64)n * a.codes_row + g];
    const int column = g / 64;
    const float scale = ((const float *)(a.scales + (i64)(n / 256) * a.scales_row))[column];
    const char *const entry =
        a.books + (i64)(n / 256) * a.book_step + (i64)column * a.entry_step + (i64)code * a.within_step;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[i] = i < 4 ? scale * (float)((const signed char *)entry)[i] : 0.0f;
    }
}

#endif

#if UNPACK
/* A power of two that brings a row's largest magnitude to 2^13; of zeros, infinities and what cannot be brought
 * there: 1.
 */
DEV float unit_of(float most)
{
    const int exponent = (int)(__float_as_uint(most) >> 23);
    return exponent > 20 && exponent < 255 ? __uint_as_float((u32)(267 - exponent) << 23) : 1.0f;
}

/* Of magnitudes, whose bits are in their order. */
DEV float lanes_max(float v)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(v)));
}

/* Scales behind the last row's, which the product reads with it. */
DEV void pad_scales(const qn_cuda_vq &a)
{
    for (int i = (int)threadIdx.x; blockIdx.x == 0 && i < QN_VQ_PAD; i += WARPS * 32) {
        a.column_scale[a.n + i] = 1.0f;
    }
}

#if FORMAT == QN_CUDA_VPTQ

/* RUN: columns that a thread decodes at a time, where entries are whole words of 16 bytes. */
#define WORDS (VECTOR / 8)
#if (VECTOR == 8 || VECTOR == 16) && BOOK_FORMAT != QN_MM_F32 && (RES_BITS == 0 || RES_FORMAT != QN_MM_F32)
#define RUN (32 / VECTOR)
#define KEPT_WORDS (RES_FAR ? 2 * WORDS : WORDS)
#define SECOND_WORDS (RES_BITS ? WORDS : 1)

/* Entries of a run's columns, as they are. */
struct entries {
    uint4 book[RUN][WORDS], res[RUN][SECOND_WORDS];
};

/* A run of one group whose entries may be loaded by words. */
DEV int is_whole(const qn_cuda_vq &a, int p)
{
    const u64 books = (u64)a.books | (u64)a.book_step | (RES_BITS ? (u64)a.res_books | (u64)a.res_book_step : 0);
    const int i = p - a.outliers;
    return books % 16 == 0 && i >= 0 && p + RUN <= a.k &&
           (i + RUN <= a.group_size || i / a.group_size == (i + RUN - 1) / a.group_size);
}

/* kept: from where the thread put those that are far. */
DEV void load_entries(const qn_cuda_vq &a, int n, int p, const uint4 *kept, entries *e)
{
    const int i0 = p - a.outliers, g = i0 < a.group_size ? 0 : i0 / a.group_size;
    const char *const codes = a.codes + (i64)g * a.codes_group + (i64)(n / VECTOR) * a.codes_row;
    const char *const books = a.books + (i64)g * a.book_step, *const res = a.res_books + (i64)g * a.res_book_step;
    if (kept) {
#pragma unroll
        for (int i = 0; i < RUN; i++) {
#pragma unroll
            for (int j = 0; j < WORDS; j++) {
                e->book[i][j] = kept[(i * KEPT_WORDS + j) * UNPACK_THREADS];
#if RES_FAR
                e->res[i][j] = kept[(i * KEPT_WORDS + WORDS + j) * UNPACK_THREADS];
#endif
            }
        }
        if (RES_FAR || RES_BITS == 0) {
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const i64 bit = (i64)(i0 - g * a.group_size + i) * (BITS + RES_BITS);
        const u32 low = ((const u32 *)codes)[bit / 32];
        const u32 high = bit / 32 * 4 + 4 < a.code_bytes ? ((const u32 *)codes)[bit / 32 + 1] : 0;
        const u32 word = __funnelshift_r(low, high, (u32)bit % 32);
        if (!kept) {
            const uint4 *const from =
                (const uint4 *)(books + (i64)min(word & (u32)((1ull << BITS) - 1), ENTRIES - 1u) * (VECTOR * 2));
#pragma unroll
            for (int j = 0; j < WORDS; j++) {
                e->book[i][j] = __ldg(from + j);
            }
        }
#if RES_BITS
        const uint4 *const from =
            (const uint4 *)(res + (i64)min(word >> BITS & ((1u << RES_BITS) - 1), RES_ENTRIES - 1u) * (VECTOR * 2));
#pragma unroll
        for (int j = 0; j < WORDS; j++) {
            e->res[i][j] = __ldg(from + j);
        }
#endif
    }
}

DEV void keep_entries(const entries &e, uint4 *kept)
{
#pragma unroll
    for (int i = 0; i < RUN; i++) {
#pragma unroll
        for (int j = 0; j < WORDS; j++) {
            kept[(i * KEPT_WORDS + j) * UNPACK_THREADS] = e.book[i][j];
#if RES_FAR
            kept[(i * KEPT_WORDS + WORDS + j) * UNPACK_THREADS] = e.res[i][j];
#endif
        }
    }
}

DEV float entry_float(const uint4 *words, int r, int format)
{
    const uint4 w = words[r / 8];
    const u32 pair = r % 8 < 2 ? w.x : r % 8 < 4 ? w.y : r % 8 < 6 ? w.z : w.w;
    const u32 bits = r % 2 ? pair >> 16 : pair & 0xffffu;
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

/* Scales and shifts of a run's columns, and element r of one of them. */
struct affine {
    float scale[RUN], shift[RUN];
};

DEV affine affine_of(const qn_cuda_vq &a, int p)
{
    affine by;
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const int column = a.perm ? min((int)((const u16 *)a.perm)[p + i], a.k - 1) : p + i;
        by.scale[i] = IN_SCALE ? load_float(a.in_scale, column, IN_SCALE - 1) : 1.0f;
        by.shift[i] = IN_SHIFT ? load_float(a.in_shift, column, IN_SHIFT - 1) : 0.0f;
    }
    return by;
}

DEV float element_of(const entries &e, const affine &by, int i, int r)
{
    float w = entry_float(e.book[i], r, BOOK_FORMAT);
    w = RES_BITS ? w + entry_float(e.res[i], r, RES_FORMAT) : w;
    w = IN_SCALE ? w * by.scale[i] : w;
    return IN_SHIFT ? w + by.shift[i] : w;
}

/* A run of each row. */
DEV void store_run(const qn_cuda_vq &a, int first, int rows, int p, const entries &e, const float *unit)
{
    const affine by = affine_of(a, p);
#pragma unroll
    for (int r = 0; r < VECTOR; r++) {
        u32 w[RUN / 2];
        char *const row = a.y + (i64)(first + r) * a.y_row;
#pragma unroll
        for (int i = 0; i < RUN; i += 2) {
            w[i / 2] = pack_f16(element_of(e, by, i, r) * unit[r], element_of(e, by, i + 1, r) * unit[r]);
        }
        if (r < rows) {
#if RUN == 4
            *(uint2 *)(row + (i64)p * 2) = make_uint2(w[0], w[1]);
#else
            *(u32 *)(row + (i64)p * 2) = w[0];
#endif
        }
    }
}

#else
#define RUN 1
#endif

#if UNPACK_THREADS > 256
#define UNPACK_BLOCKS 1
#elif OUTLIER_ENTRIES
#define UNPACK_BLOCKS 2 /* a third of the registers is not enough: two would be spilled */
#else
#define UNPACK_BLOCKS 3
#endif

/* A block has the rows that share their vectors; its threads take columns. What was looked up far away is kept in
 * shared memory, for the first KEPT runs of a thread, between the search for the largest and the writing. */
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS, UNPACK_BLOCKS)
    qn_vq_unpack(const __grid_constant__ qn_cuda_vq a)
{
    __shared__ float most[UNPACK_THREADS / 32][VECTOR];
    const int first = (int)blockIdx.x * VECTOR, rows = min(VECTOR, a.n - first), warp = (int)threadIdx.x / 32;
    float unit[VECTOR];
#if RUN > 1
    extern __shared__ __align__(16) uint4 far[];
    uint4 *const mine = far + threadIdx.x;
#endif
    release_next();
    wait_before();
    pad_scales(a);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        unit[i] = 0.0f;
    }
    for (int j = 0, p = (int)threadIdx.x * RUN; p < a.k; j++, p += UNPACK_THREADS * RUN) {
#if RUN > 1
        if (is_whole(a, p)) {
            entries e;
            load_entries(a, first, p, 0, &e);
            if (j < KEPT) {
                keep_entries(e, mine + j * (RUN * KEPT_WORDS * UNPACK_THREADS));
            }
            const affine by = affine_of(a, p);
#pragma unroll
            for (int i = 0; i < RUN; i++) {
#pragma unroll
                for (int r = 0; r < VECTOR; r++) {
                    unit[r] = fmaxf(unit[r], fabsf(element_of(e, by, i, r)));
                }
            }
            continue;
        }
#endif
        for (int i = 0; i < RUN && p + i < a.k; i++) {
            float w[VECTOR];
            decode_rows(a, first, rows, p + i, w);
#pragma unroll
            for (int r = 0; r < VECTOR; r++) {
                unit[r] = fmaxf(unit[r], fabsf(w[r]));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        most[warp][i] = lanes_max(unit[i]);
    }
    __syncthreads();
    if (threadIdx.x < VECTOR) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < UNPACK_THREADS / 32; j++) {
            largest = fmaxf(largest, most[j][threadIdx.x]);
        }
        most[0][threadIdx.x] = unit_of(largest);
        if ((int)threadIdx.x < rows) {
            a.column_scale[first + (int)threadIdx.x] = inverse_of(unit_of(largest));
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        unit[i] = most[0][i];
    }
    for (int j = 0, p = (int)threadIdx.x * RUN; p < a.k; j++, p += UNPACK_THREADS * RUN) {
#if RUN > 1
        if (is_whole(a, p)) {
            entries e;
            load_entries(a, first, p, j < KEPT ? mine + j * (RUN * KEPT_WORDS * UNPACK_THREADS) : 0, &e);
            store_run(a, first, rows, p, e, unit);
            continue;
        }
#endif
        for (int i = 0; i < RUN && p + i < a.k; i++) {
            float w[VECTOR];
            decode_rows(a, first, rows, p + i, w);
#pragma unroll
            for (int r = 0; r < VECTOR; r++) {
                if (r < rows) {
                    ((u16 *)(a.y + (i64)(first + r) * a.y_row))[p + i] = (u16)pack_f16(w[r] * unit[r], 0.0f);
                }
            }
        }
    }
}
#else
DEV float row_unit(const qn_cuda_vq &a, int n, int lane)
{
    float most = 0.0f;
#if MEASURED
    for (int g = lane; g < COUNT(a); g += 32) {
        for (int j = 0; j < VECTOR; j += 8) {
            float w[8];
            decode(a, n, g, j, w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                most = fmaxf(most, fabsf(w[i]));
            }
        }
    }
    most = lanes_max(most);
#endif
    return unit_of(most);
}

DEV void unpack_row(const qn_cuda_vq &a, int n, int lane, float unit, u16 *row)
{
#pragma unroll 4
    for (int g = lane; g < COUNT(a); g += 32) {
        for (int j = 0; j < VECTOR; j += 8) {
            float w[8];
            decode(a, n, g, j, w);
            if (VECTOR % 8 == 0) {
                *(uint4 *)(row + (i64)g * STEP + j) =
                    make_uint4(pack_f16(w[0] * unit, w[1] * unit), pack_f16(w[2] * unit, w[3] * unit),
                               pack_f16(w[4] * unit, w[5] * unit), pack_f16(w[6] * unit, w[7] * unit));
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    if (j + i < VECTOR) {
                        row[(i64)g * STEP + j + i] = (u16)pack_f16(w[i] * unit, 0.0f);
                    }
                }
            }
        }
    }
}

#if FORMAT == QN_CUDA_AQLM && BOOKS == 1 && BOOK_FORMAT == QN_MM_F16 && VECTOR % 8 == 0 && OUT_GROUP == 1
#define COPIED 1 /* entries are the weights as they are */
DEV void copy_row(const qn_cuda_vq &a, int n, int lane, u16 *row)
{
#pragma unroll 8
    for (int i = lane; i < COUNT(a) * (VECTOR / 8); i += 32) {
        const int g = i / (VECTOR / 8), part = i % (VECTOR / 8);
        const char *const entry = a.books + (i64)code_of(a, n, g, 0) * a.entry_step;
        ((uint4 *)row)[i] = __ldg((const uint4 *)entry + part);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) qn_vq_unpack(const __grid_constant__ qn_cuda_vq a)
{
    release_next();
    wait_before();
    const int lane = (int)threadIdx.x % 32, n = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    pad_scales(a);
    if (n >= a.n) {
        return;
    }
    u16 *const row = (u16 *)(a.y + (i64)n * a.y_row);
    const float unit = row_unit(a, n, lane);
#if COPIED
    if (((u64)a.books | (u64)a.entry_step) % 16 == 0) {
        copy_row(a, n, lane, row);
    } else
#endif
    {
        unpack_row(a, n, lane, unit, row);
    }
    if (lane == 0) {
        float scale = inverse_of(unit);
#if FORMAT == QN_CUDA_AQLM
        scale *= load_float(a.scales + (i64)(n / OUT_GROUP) * a.scales_row, 0, SCALE_FORMAT);
#elif FORMAT == QN_CUDA_QUIP
        scale *= !RAW && a.wscale ? load_float(a.wscale, 0, WSCALE_FORMAT) : 1.0f;
#endif
        a.column_scale[n] = scale;
    }
}
#endif
#else
extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) qn_vq_direct(const __grid_constant__ qn_cuda_vq a)
{
    release_next();
    wait_before();
    const int lane = (int)threadIdx.x % 32, n = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    const int first = (int)blockIdx.y * ROWS;
    if (n >= a.n) {
        return;
    }
    const char *x[ROWS];
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int m = first + r < a.m ? first + r : a.m - 1;
        x[r] = a.x + (i64)m * a.x_row;
        sum[r] = 0.0f;
    }
    for (int g = lane; g < COUNT(a); g += 32) {
#if FORMAT == QN_CUDA_VPTQ
        float w;
        const int column = decode(a, n, g, &w);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = __fmaf_rn(load_float(x[r], column, X_FORMAT), w, sum[r]);
        }
#else
        for (int j = 0; j < VECTOR; j += 8) {
            float w[8];
            decode(a, n, g, j, w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (j + i < VECTOR) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        sum[r] = __fmaf_rn(load_float(x[r], (i64)g * STEP + j + i, X_FORMAT), w[i], sum[r]);
                    }
                }
            }
        }
#endif
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], step);
        }
    }
    if (lane != 0) {
        return;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v = sum[r];
        if (first + r >= a.m) {
            return;
        }
#if RAW
        a.total[(i64)(first + r) * a.n + n] = v;
#else
#if FORMAT == QN_CUDA_AQLM
        v *= load_float(a.scales + (i64)(n / OUT_GROUP) * a.scales_row, 0, SCALE_FORMAT);
#elif FORMAT == QN_CUDA_QUIP
        v *= a.wscale ? load_float(a.wscale, 0, WSCALE_FORMAT) : 1.0f;
#endif
#if BIAS
        v += load_float(a.bias, n, BIAS - 1);
#endif
        store_float(a.y + (i64)(first + r) * a.y_row, n, v, OUT);
#endif
    }
}
#endif
