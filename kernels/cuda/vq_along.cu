/* y = x w^T for few rows of x and weights whose vectors of eight lie along N (vptq), on tensor cores. An entry, eight
 * rows of one column, is a row of what ldmatrix reads: 32 lanes name the entries of 16 columns of two vectors' rows,
 * and one instruction brings them, transposed, as the 16 x 16 operand of m16n8k16. Nothing is converted and nothing
 * added: a residual is another product of the same columns of x.
 *
 * Scales and places of columns go to x, once a block: x times the scale, in the order of the codes, as an upper and a
 * lower 16-bit float of one power of two, which are two columns of the product. Shifts of columns are a sum over x that
 * all rows share.
 *
 * A block has pairs of vectors' rows, one after the other; chunks of CHUNK columns of all of them are dealt to its
 * warps in runs. A lane reads the codes of eight neighbouring columns at a time: lane j of 16 has columns 8 j on of a chunk,
 * so column 8 j + s is number j of step s.
 *
 * FAR 1: shared memory does not hold the first book: its entries are copied from where they lie, GROUP steps ahead.
 *
 * Host contract
 *   Parameters: ROWS of x, 1, 2 or 4; ENTRIES, BITS, COPIES of the first book, RES_ENTRIES (0: no residuals), RES_BITS,
 *     RES_COPIES, FAR; BOOK_FORMAT f16 or bf16, of both; X_FORMAT; SCALE_FORMAT, SHIFT_FORMAT, BIAS (format + 1, 0:
 *     none); PERM; OUT
 *   K a multiple of 8; BITS + RES_BITS 8, 16, 24 or 32, rows of codes at multiples of 16, books at multiples of 16
 *   tiles: pairs of vectors' rows of a block at most
 *   Launch: block 512, grid {blocks, ceil(M / ROWS)}; QN_VQ_ALONG_SHARED below */
#include "vq_parts.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define CHUNK QN_VQ_ALONG_CHUNK
#define STEPS 8 /* of 16 columns, of a chunk */
#define COLUMNS (2 * ROWS)
#define CODE_BITS (BITS + RES_BITS)
#define CODE_WORDS (CODE_BITS / 4) /* of eight codes */
#define AHEAD 3                    /* chunks whose codes are on their way */
#define GROUP 4                    /* steps whose entries are copied at a time */
#define MAIN_BYTES (FAR ? 0 : ENTRIES * COPIES * 16)
#define RES_AT MAIN_BYTES
#define ROWS_AT (RES_AT + RES_ENTRIES * RES_COPIES * 16)

extern __shared__ __align__(128) u8 memory[];

struct codes {
    u32 word[CODE_WORDS];
};

/* ---- codes ---- */

/* Where a warp is: a pair of vectors' rows of the block, a chunk. */
struct place {
    int pair, chunk;
};

DEV void pass_on(place *p, int chunks)
{
    p->chunk++;
    if (p->chunk == chunks) {
        p->chunk = 0;
        p->pair++;
    }
}

/* Of the lane's vectors' row and columns. */
DEV void load_codes(const qn_cuda_vq &a, int pair0, const place &p, int lane, codes *c)
{
    const int vectors = (a.n + 7) / 8, column = p.chunk * CHUNK + (lane % 8 + lane / 16 * 8) * STEPS;
    const int row = min((pair0 + p.pair) * 2 + lane / 8 % 2, vectors - 1);
    const char *const at = a.codes + (i64)row * a.codes_row + column / 8 * CODE_BITS;
#pragma unroll
    for (int i = 0; i < CODE_WORDS; i++) {
        c->word[i] = 0;
    }
    if (column < a.k) {
#if CODE_WORDS % 4 == 0
#pragma unroll
        for (int i = 0; i < CODE_WORDS; i += 4) {
            const uint4 v = load_constant_u32x4(at + i * 4);
            c->word[i] = v.x, c->word[i + 1] = v.y, c->word[i + 2] = v.z, c->word[i + 3] = v.w;
        }
#else
#pragma unroll
        for (int i = 0; i < CODE_WORDS; i += 2) {
            const uint2 v = load_constant_u32x2(at + i * 4);
            c->word[i] = v.x, c->word[i + 1] = v.y;
        }
#endif
    }
}

DEV u32 code_of(const codes &c, int step)
{
    const int bit = step * CODE_BITS, word = bit / 32, from = bit % 32;
    if (from + CODE_BITS <= 32) {
        return c.word[word] >> from;
    }
    return __funnelshift_r(c.word[word], c.word[word + 1 < CODE_WORDS ? word + 1 : word], from);
}

/* Entries of the books; codes beyond are taken for the last. */
DEV u32 first_entry(u32 code)
{
    const u32 i = code & (u32)((1ull << BITS) - 1);
    return ENTRIES < 1ll << BITS ? min(i, ENTRIES - 1u) : i;
}

#if RES_ENTRIES
DEV u32 second_entry(u32 code)
{
    const u32 i = code >> BITS & (u32)((1ull << RES_BITS) - 1);
    return RES_ENTRIES < 1ll << RES_BITS ? min(i, RES_ENTRIES - 1u) : i;
}
#endif

/* ---- books ---- */

/* An entry's copies lie beside each other, so that lanes that are served together read different banks. */
#if !FAR || RES_ENTRIES
DEV void fill(u32 at, const char *book, int entries, int copies)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < entries * copies; i += THREADS) {
        store_shared_u32x4(at + (u32)i * 16, load_constant_u32x4(book + i / copies * 16));
    }
}
#endif

DEV void load_turned(u32 at, u32 *v)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}

/* ---- rows of x ---- */

DEV u32 pack_two(float low, float high)
{
    return BOOK_FORMAT == QN_MM_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

DEV float2 unpack_two(u32 pair)
{
    if (BOOK_FORMAT == QN_MM_F16) {
        return make_float2(half_float(pair & 0xffff), half_float(pair >> 16));
    }
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* What is left of a number when its upper part is taken off. */
DEV float rest_of(float v, float upper)
{
    return fabsf(upper) < __uint_as_float(0x7f800000u) ? v - upper : 0.0f;
}

/* Bring constants to where they are read from soon: every line of `bytes` of them. */
DEV void ask_near(const char *data, int bytes)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x * 128; i < bytes; i += THREADS * 128) {
        asm volatile("prefetch.global.L1 [%0];" ::"l"(data + i));
    }
}

/* What a row's sums are finished with. */
struct finish {
    float scale, shift;
};

/* A row of x to columns 2 m and 2 m + 1 of the operand, of KP columns with padding. scaled: room for KP floats. */
DEV finish put_row(const qn_cuda_vq &a, int m, int row, int padded, float *scaled, uint2 *to)
{
    __shared__ float largest[WARPS], shifts[WARPS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const char *const x = a.x + (i64)row * a.x_row;
    float most = 0.0f, shift = 0.0f;
    if (X_FORMAT == QN_MM_F32 && (u64)x % 16 == 0) {
#pragma unroll 8
        for (int k = (int)threadIdx.x * 4; k < a.k; k += THREADS * 4) {
            const float4 four = *(const float4 *)(x + (i64)k * 4);
            const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float by = SCALE_FORMAT ? load_float(a.in_scale, k + e, SCALE_FORMAT - 1) : 1.0f;
                const float u = SCALE_FORMAT ? v[e] * by : v[e];
                shift += SHIFT_FORMAT ? v[e] * load_float(a.in_shift, k + e, SHIFT_FORMAT - 1) : 0.0f;
                most = fmaxf(most, fabsf(u));
                scaled[k + e] = u;
            }
        }
    } else {
#pragma unroll 8
        for (int k = (int)threadIdx.x; k < a.k; k += THREADS) {
            const float v = load_float(x, k, X_FORMAT);
            const float u = SCALE_FORMAT ? v * load_float(a.in_scale, k, SCALE_FORMAT - 1) : v;
            shift += SHIFT_FORMAT ? v * load_float(a.in_shift, k, SHIFT_FORMAT - 1) : 0.0f;
            most = fmaxf(most, fabsf(u));
            scaled[k] = u;
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        shift += __shfl_xor_sync(~0u, shift, step);
    }
    if (lane == 0) {
        largest[warp] = most;
        shifts[warp] = shift;
    }
    __syncthreads();
    most = shift = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        most = fmaxf(most, largest[i]);
        shift += shifts[i];
    }
    /* the largest to 2^13; of zeros, infinities and numbers too small to bring there as they are */
    const int exponent = (int)(__float_as_uint(most) >> 23), usable = exponent > 20 && exponent < 255;
    const float up = usable ? __uint_as_float((u32)(267 - exponent) << 23) : 1.0f;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < padded / 4; i += THREADS) {
        const int t = i % 4, step = i / 4, first = step / STEPS * CHUNK + step % STEPS + t * (2 * STEPS);
        u32 upper[2], lower[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float v[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int p = first + half * (8 * STEPS) + e * STEPS;
                v[e] = 0.0f;
                if (p < a.k) {
                    const int k = PERM ? min((int)((const u16 *)a.perm)[p], a.k - 1) : p;
                    v[e] = scaled[k] * up;
                }
            }
            upper[half] = pack_two(v[0], v[1]);
            const float2 taken = unpack_two(upper[half]);
            lower[half] = pack_two(rest_of(v[0], taken.x), rest_of(v[1], taken.y));
        }
        to[i * COLUMNS + 2 * m] = make_uint2(upper[0], upper[1]);
        to[i * COLUMNS + 2 * m + 1] = make_uint2(lower[0], lower[1]);
    }
    __syncthreads(); /* the next row uses the same room */
    finish f = {usable ? __uint_as_float((u32)(exponent - 13) << 23) : 1.0f, shift};
    return f;
}

/* ---- products ---- */

DEV void multiply(float *sum, const u32 *w, uint2 x)
{
#if BOOK_FORMAT == QN_MM_F16
    MMA_F16(sum, w, x.x, x.y);
#else
    MMA_BF16(sum, w, x.x, x.y);
#endif
}

/* Steps from `first` on, of a chunk. x: the lane's place in the chunk's columns of x; far: where its copied entries
 * lie. */
DEV void multiply_steps(const codes &c, int first, int count, u32 x, u32 far, int lane, float (*sum)[4])
{
    const u32 book = shared_address(memory) + (u32)lane % COPIES * 16;
    const u32 residuals = shared_address(memory) + RES_AT + (u32)lane % RES_COPIES * 16;
#pragma unroll
    for (int s = first; s < first + count; s++) {
        const u32 code = code_of(c, s);
        const uint2 b = load_shared_u32x2(x + (u32)s * (4 * COLUMNS * 8));
        u32 w[4];
#if FAR
        load_turned(far + (u32)(s - first) * 512, w);
#else
        load_turned(book + first_entry(code) * (COPIES * 16), w);
#endif
        multiply(sum[0], w, b);
#if RES_ENTRIES
        load_turned(residuals + second_entry(code) * (RES_COPIES * 16), w);
        multiply(sum[1], w, b);
#endif
    }
}

#if FAR
/* Begin to copy the entries of GROUP steps. */
DEV void ask(const qn_cuda_vq &a, const codes &c, int first, u32 far)
{
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        copy_async_16(far + (u32)s * 512, a.books + (i64)first_entry(code_of(c, first + s)) * 16, 16);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the last group have landed, for all lanes. */
DEV void wait_for_last_but_one(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}
#endif

/* The first chunk of a warp's run. */
DEV int first_chunk(int total, int warp)
{
    return (int)((i64)total * warp / WARPS);
}

DEV int warp_of(int total, int chunk)
{
    return (int)((((i64)chunk + 1) * WARPS - 1) / total);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_vq_along(const __grid_constant__ qn_cuda_vq a)
{
    const int lane = (int)threadIdx.x % 32, warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    const int all = (a.n + 15) / 16, block = (int)blockIdx.x, blocks = (int)gridDim.x;
    const int pair0 = first_dealt(all, block, blocks), pairs = first_dealt(all, block + 1, blocks) - pair0;
    const int chunks = (a.k + CHUNK - 1) / CHUNK, padded = chunks * CHUNK, total = pairs * chunks;
    const int row0 = (int)blockIdx.y * ROWS, rows = min(ROWS, a.m - row0);
    uint2 *const x = (uint2 *)(memory + ROWS_AT);
    float *const parts = (float *)(x + padded / 4 * COLUMNS); /* [pair][warp][16][ROWS] */
    float *const scaled = parts + a.tiles * (WARPS * 16 * ROWS);
    int left = first_chunk(total, warp + 1) - first_chunk(total, warp);
    place now = {first_chunk(total, warp) / chunks, first_chunk(total, warp) % chunks}, next = now;
    codes ahead[AHEAD];
    finish f[ROWS] = {};
    release_next();
    if (!a.early) { /* or weights may be read while the kernel in front works */
        wait_before();
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        load_codes(a, pair0, next, lane, &ahead[i]);
        pass_on(&next, chunks);
    }
#if !FAR
    fill(shared_address(memory), a.books, ENTRIES, COPIES);
#endif
#if RES_ENTRIES
    fill(shared_address(memory) + RES_AT, a.res_books, RES_ENTRIES, RES_COPIES);
#endif
    if (a.early) {
#if SCALE_FORMAT
        ask_near(a.in_scale, a.k * (SCALE_FORMAT == QN_MM_F32 + 1 ? 4 : 2));
#endif
#if SHIFT_FORMAT
        ask_near(a.in_shift, a.k * (SHIFT_FORMAT == QN_MM_F32 + 1 ? 4 : 2));
#endif
#if PERM
        ask_near(a.perm, a.k * 2);
#endif
        wait_before();
    }
    /* the code once for all rows: written out for each it is most of what the compiler's time goes to */
#pragma unroll 1
    for (int m = 0; m < ROWS; m++) {
        if (m < rows) {
            const finish made = put_row(a, m, row0 + m, padded, scaled, x);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                f[r] = m == r ? made : f[r];
            }
        } else {
            for (int i = (int)threadIdx.x; i < padded / 4; i += THREADS) {
                x[i * COLUMNS + 2 * m] = x[i * COLUMNS + 2 * m + 1] = make_uint2(0, 0);
            }
            __syncthreads();
        }
    }
#if FAR
    const u32 far = shared_address(scaled) + (u32)(warp * (2 * GROUP * 512) + lane * 16);
    ask(a, ahead[0], 0, far);
#endif
    /* columns of the product that x has no row for are those of another, and nobody's */
    const u32 columns = shared_address(x) + (u32)(lane % 4 * COLUMNS + lane / 4 % COLUMNS) * 8;
    float sum[2][4] = {};
#pragma unroll 1
    for (; left > 0; left--) {
        const codes c = ahead[0];
        const u32 of_chunk = columns + (u32)now.chunk * (CHUNK / 4 * COLUMNS * 8);
#pragma unroll
        for (int i = 0; i + 1 < AHEAD; i++) {
            ahead[i] = ahead[i + 1];
        }
        if (left > AHEAD) {
            load_codes(a, pair0, next, lane, &ahead[AHEAD - 1]);
            pass_on(&next, chunks);
        }
#if FAR
        ask(a, c, GROUP, far + GROUP * 512);
        wait_for_last_but_one();
        multiply_steps(c, 0, GROUP, of_chunk, far, lane, sum);
        __syncwarp();
        ask(a, ahead[0], 0, far); /* behind the last chunk any, which nobody reads */
        wait_for_last_but_one();
        multiply_steps(c, GROUP, GROUP, of_chunk, far + GROUP * 512, lane, sum);
        __syncwarp();
#else
        multiply_steps(c, 0, STEPS, of_chunk, 0, lane, sum);
#endif
        const int pair = now.pair;
        pass_on(&now, chunks);
        if (now.pair != pair || left == 1) {
            float *const to = parts + (pair * WARPS + warp) * (16 * ROWS);
            if (lane % 4 < ROWS) {
                to[lane / 4 * ROWS + lane % 4] = (sum[0][0] + sum[1][0]) + (sum[0][1] + sum[1][1]);
                to[(lane / 4 + 8) * ROWS + lane % 4] = (sum[0][2] + sum[1][2]) + (sum[0][3] + sum[1][3]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i / 4][i % 4] = 0.0f;
            }
        }
    }
    copy_async_wait();
    __syncthreads();
    for (int i = (int)threadIdx.x; i < pairs * 16 * ROWS; i += THREADS) {
        const int m = i % ROWS, pair = i / (16 * ROWS), n = (pair0 + pair) * 16 + i / ROWS % 16;
        const int last = warp_of(total, (pair + 1) * chunks - 1);
        const float *const from = parts + pair * (WARPS * 16 * ROWS) + i % (16 * ROWS);
        float v = 0.0f;
        finish by = f[0];
        for (int w = warp_of(total, pair * chunks); w <= last; w++) {
            v += first_chunk(total, w) < first_chunk(total, w + 1) ? from[w * (16 * ROWS)] : 0.0f; /* few have none */
        }
#pragma unroll
        for (int r = 1; r < ROWS; r++) {
            by = m == r ? f[r] : by;
        }
        if (m < rows && n < a.n) {
            v = __fadd_rn(__fmul_rn(v, by.scale), by.shift);
#if BIAS
            v = __fadd_rn(v, load_float(a.bias, n, BIAS - 1));
#endif
            store_float(a.y + (i64)(row0 + m) * a.y_row, n, v, OUT);
        }
    }
}
