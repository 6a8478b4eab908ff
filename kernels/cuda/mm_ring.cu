/* d = x b^T of one row in a chain by tensor cores, for large weights of 8 or 16 bits: sixteen columns of d after the
 * other, a block's warps share K. Weights come through rings in shared memory, one a warp, which are always full of
 * copies under way: so they cost no registers, and no warp waits for another's. As fast as memory gives b.
 *
 * Rows of b are the left operand; x, the one column of the right one, lies in shared memory, in 16 bits or as int8. A
 * lane's 16 bytes of a row are neighbours, and their places in K the operand's, so that x is read as it lies. Codes of
 * 8 bits become f16, exactly. Sums of a warp go over its steps in the order of K, those of warps are added in one fixed
 * order.
 *
 * Host contract
 *   Parameters: B_FORMAT, one of bf16, f16, e4m3, i8, e4m3 and e5m2 in blocks; A_FORMAT and the others of mm_common.h;
 *   PRE, ROUND, QUANT, FLOORS, ITEMS (mm_before.h) such that the row is of numbers that x has: rounded to the format of
 *   b, or codes; and
 *     ADD      1: results are added to d
 *     SILU     1: b is two weights of as many rows, a multiple of 8, and silu_mul of their products goes where the
 *              first one's would
 *     K        rows of b are that many elements one behind the other, whole lines of 128 bytes
 *     THREADS  a multiple of 32
 *     LINES    of a row that are a warp's step of K: 1, 2 or 4
 *     DEPTH    steps of a ring, 2 or more
 *     AHEAD    of them, 1 to DEPTH - 1, are asked for before the row, which comes behind them
 *     RING     where the rings begin in shared memory: a multiple of 16, behind x and the scales of its groups
 *   Rows of b lie at multiples of 16; all weights but the last are whole sixteens of rows.
 *   Launch: block THREADS, grid of one dimension, one block a multiprocessor, dynamic shared memory
 *   RING + THREADS / 32 * DEPTH * SLOT_BYTES */
#define APART 1
#define CHAIN 1
#include "mm_common.h"
#define JOINED 7 /* no weights in registers */
#include "mm_before.h"

#define WARPS (THREADS / 32)
#define OWN (SILU ? 8 : QN_MM_RING_COLUMNS)                        /* columns of d in a tile of sixteen rows of b */
#define LINE_COUNT (K * ELEMENT / 128)                             /* of a row */
#define PIECE (128 * LINES)                                        /* bytes of a row in a step */
#define STEPS ((LINE_COUNT + WARPS * LINES - 1) / (WARPS * LINES)) /* of a warp in a tile */
#define EVEN (LINE_COUNT % (WARPS * LINES) == 0)                   /* all steps are whole */
#define SLOT_BYTES (QN_MM_RING_COLUMNS * PIECE + 16 * LINES)       /* rows of a step, scales of its lines behind them */
#define ASKED (4 / LINES)                                          /* rows that 32 lanes ask for at once */
#define EXPANDED (ELEMENT == 1 && !INT_SUMS)                       /* codes that become f16 */
#define WORDS_X (EXPANDED ? 8 : 4)                                 /* of x for a lane's 16 bytes of b */
#define LINE_X (EXPANDED ? 64 : 32)                                /* words of x */
#define X_SCALES (LINE_COUNT * LINE_X * 4)                         /* behind x */

extern __shared__ __align__(16) char shared[];

/* What a warp asks for next. */
struct cursor {
    const u8 *b; /* this lane's first piece of the tile */
    int n, left; /* the tile's first row in its weight, rows from there on */
    int tile, step;
#if SILU
    i64 up; /* how far behind gate it lies */
#endif
#if BLOCKED
    const u8 *scales[SILU + 1];
    i64 scales_row;
#endif
};

DEV void place(const qn_cuda_mm &a, int tile, int line, int lane, cursor *at)
{
    int n = tile * OWN;
    at->tile = tile;
    at->step = 0;
    const int part = SILU ? 0 : part_of(a, &n);
    const qn_cuda_mm_part &p = a.part[part];
    at->n = n;
    at->left = p.n - n;
    at->b = (const u8 *)p.b + (i64)(n + lane / (8 * LINES)) * (K * ELEMENT) + line * 128 + lane % (8 * LINES) * 16;
#if SILU
    at->up = a.part[1].b - a.part[0].b;
#endif
#if BLOCKED
#pragma unroll
    for (int i = 0; i < SILU + 1; i++) {
        at->scales[i] = (const u8 *)a.part[SILU ? i : part].b_scale;
    }
    at->scales_row = p.b_scale_row;
#endif
}

/* Ask for the next step, if there is one. Pieces of 16 bytes of odd rows change halves of a line, so that eight lanes
 * read all banks. */
DEV void ask(const qn_cuda_mm &a, int line, int lane, u32 slot, cursor *at)
{
    const int row = lane / (8 * LINES), chunk = lane % (8 * LINES), here = line + at->step * (WARPS * LINES);
    if (at->left > 0) {
        const u32 to = slot + (u32)(row * PIECE);
        const u32 places[2] = {to + (u32)((chunk ^ (row & 1) * 4) * 16), to + (u32)((chunk ^ (~row & 1) * 4) * 16)};
        const u8 *const from = at->b + at->step * (WARPS * PIECE);
        if (EVEN || here + chunk / 8 < LINE_COUNT) {
#pragma unroll
            for (int i = 0; i < QN_MM_RING_COLUMNS; i += ASKED) {
#if SILU
                const u8 *const p = i < 8 ? from + i * (K * ELEMENT) : from + at->up + (i - 8) * (K * ELEMENT);
#else
                const u8 *const p = from + i * (K * ELEMENT);
#endif
                if (SILU || at->left >= QN_MM_RING_COLUMNS || i + row < at->left) {
                    copy_async_16(places[i & 1] + (u32)(i * PIECE), p, 16);
                }
            }
        }
#if BLOCKED
        if (lane < (SILU + 1) * LINES && (EVEN || here + lane % LINES < LINE_COUNT)) {
            const u8 *const scales = lane < LINES ? at->scales[0] : at->scales[SILU];
            copy_async_4(slot + 16 * PIECE + (u32)lane * 4,
                         scales + at->n / 128 * at->scales_row + (here + lane % LINES) * 4, 1);
        }
#endif
        if (++at->step == STEPS) {
            const int rows = (int)gridDim.x * OWN;
            at->tile += (int)gridDim.x;
            at->step = 0;
            if (rows < at->left) {
                at->n += rows;
                at->left -= rows;
                at->b += (i64)rows * (K * ELEMENT);
            } else { /* another weight, or none */
                place(a, at->tile, line, lane, at);
            }
        }
    }
    copy_async_commit();
}

#if EXPANDED
/* Four codes as f16. */
DEV void code_halves(u32 codes, u32 *to)
{
#if B_FORMAT == QN_MM_E5M2_BLOCK
    to[0] = __byte_perm(codes, 0, 0x1404);
    to[1] = __byte_perm(codes, 0, 0x3424);
#else
    to[0] = e4m3_halves(codes);
    to[1] = e4m3_halves(codes >> 16);
#endif
}
#endif

/* The operand's words of a lane's 16 bytes: elements as tensor cores take them, in order. */
DEV void expand(const uint4 &v, u32 *to)
{
#if EXPANDED
    const u32 word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        code_halves(word[i], to + 2 * i);
    }
#else
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
#endif
}

/* Rows lane / 4 of b and 8 further by x: each line of a step by itself. */
DEV void multiply(const char *b, const u32 *x, int lane, sum_t part[LINES][4])
{
    const int row = lane / 4, chunk = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 low[LINES][WORDS_X], high[LINES][WORDS_X], v[LINES][WORDS_X];
        const char *const from = b + row * PIECE + ((half ^ (row & 1)) * 4 + chunk) * 16;
#pragma unroll
        for (int l = 0; l < LINES; l++) {
            expand(*(const uint4 *)(from + 128 * l), low[l]);
            expand(*(const uint4 *)(from + 128 * l + 8 * PIECE), high[l]);
#pragma unroll
            for (int i = 0; i < WORDS_X; i += 4) {
                const uint4 four = *(const uint4 *)(x + l * LINE_X + (half * 4 + chunk) * WORDS_X + i);
                v[l][i] = four.x;
                v[l][i + 1] = four.y;
                v[l][i + 2] = four.z;
                v[l][i + 3] = four.w;
            }
        }
#pragma unroll
        for (int i = 0; i < WORDS_X; i += 2) {
#pragma unroll
            for (int l = 0; l < LINES; l++) {
                const u32 w[4] = {low[l][i], high[l][i], low[l][i + 1], high[l][i + 1]};
#if INT_SUMS
                MMA_S8(part[l], w, v[l][i], v[l][i + 1]);
#elif B_FORMAT == QN_MM_BF16
                MMA_BF16(part[l], w, v[l][i], v[l][i + 1]);
#else
                MMA_F16(part[l], w, v[l][i], v[l][i + 1]);
#endif
            }
        }
    }
}

/* The row to shared memory, and the scales of its groups behind it. */
DEV void stage_row(const qn_cuda_mm &a, const mine &row, const before &how)
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = first_of(j);
        const float *const v = row.v[j];
        if (i < a.k) {
#if INT_SUMS
            *(char4 *)(shared + i) =
                make_char4((signed char)v[0], (signed char)v[1], (signed char)v[2], (signed char)v[3]);
#elif B_FORMAT == QN_MM_BF16
            *(uint2 *)(shared + 2 * i) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
#else
            *(uint2 *)(shared + 2 * i) = make_uint2(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]));
#endif
#if BLOCKED
            if (threadIdx.x % 32 == 0) {
                ((float *)(shared + X_SCALES))[i / 128] = how.group[j];
            }
#endif
        }
    }
    __syncthreads();
}

/* Where a result goes, and what it is finished with. */
struct result {
    tail end;
    char *d;
    int n; /* -1: this lane has none */
    float old;
};

/* Row `row` of a tile. */
DEV result find_result(const qn_cuda_mm &a, int tile, int row)
{
    result r;
    r.n = tile * OWN + (SILU ? row % OWN + row / OWN * a.part[0].n : row);
    if (row >= QN_MM_RING_COLUMNS || r.n >= a.n) {
        r.n = -1;
        return r;
    }
    const qn_cuda_mm_part &p = a.part[part_of(a, &r.n)];
    r.d = p.d + (p.d_position ? *a.position * p.d_position : 0);
    r.end = load_tail(p, r.n);
#if ADD
    r.old = ((const float *)r.d)[r.n];
#endif
    return r;
}

/* The sums of lanes that have a result. */
DEV void store_result(const result &r, sum_t sum, const before &how, float global)
{
    const float v = finish(r.end, sum, how.scale, how.azp, global);
#if SILU
    const float up = __shfl_down_sync((1u << QN_MM_RING_COLUMNS) - 1, v, OWN);
    if (threadIdx.x % 32 < OWN) {
        store_float(r.d, r.n, silu_mul(v, up), OUT);
    }
#elif ADD
    ((float *)r.d)[r.n] = r.old + v;
#else
    store_float(r.d, r.n, v, OUT);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_mm_ring(const __grid_constant__ qn_cuda_mm a)
{
    __shared__ sum_t parts[2][WARPS][QN_MM_RING_COLUMNS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = warp * LINES;
    const int tiles = SILU ? a.part[0].n / OWN : (a.n + OWN - 1) / OWN;
    const char *const ring = shared + RING + warp * DEPTH * SLOT_BYTES;
    const u32 ring_at = shared_address(ring);
    release_next();
    cursor next;
    place(a, (int)blockIdx.x, first, lane, &next);
    mine row;
    const constants c = load_constants(a);
    for (int i = 0; i < AHEAD; i++) {
        ask(a, first, lane, ring_at + i * SLOT_BYTES, &next);
    }
    wait_before();
    make_row(a, c, &row);
    for (int i = AHEAD; i < DEPTH - 1; i++) {
        ask(a, first, lane, ring_at + i * SLOT_BYTES, &next);
    }
    const before how = quantise_row(c, &row);
    stage_row(a, row, how);
    int slot = 0, turn = 0;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x, turn++) {
        const result to = find_result(a, tile, turn % WARPS == warp ? lane : QN_MM_RING_COLUMNS);
        sum_t sums[2] = {0, 0};
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            copy_async_wait_but<DEPTH - 2>();
            __syncwarp();
            ask(a, first, lane, ring_at + (u32)(slot == 0 ? DEPTH - 1 : slot - 1) * SLOT_BYTES, &next);
            const int line = first + step * (WARPS * LINES);
            const char *const b = ring + slot * SLOT_BYTES;
            if (EVEN || line < LINE_COUNT) {
                sum_t part[LINES][4] = {};
                multiply(b, (const u32 *)shared + line * LINE_X, lane, part);
#pragma unroll
                for (int l = 0; l < LINES; l++) {
                    if (EVEN || line + l < LINE_COUNT) {
#if BLOCKED
                        const float *const scales = (const float *)(b + 16 * PIECE) + l;
                        const float scale = ((const float *)(shared + X_SCALES))[line + l];
                        sums[0] = __fmaf_rn(part[l][0], scales[0] * scale, sums[0]);
                        sums[1] = __fmaf_rn(part[l][2], scales[SILU * LINES] * scale, sums[1]);
#else
                        sums[0] += part[l][0];
                        sums[1] += part[l][2];
#endif
                    }
                }
            }
            slot = slot == DEPTH - 1 ? 0 : slot + 1;
        }
        sum_t *const here = parts[turn & 1][warp];
        if (lane % 4 == 0) {
            here[lane / 4] = sums[0];
            here[lane / 4 + 8] = sums[1];
        }
        __syncthreads();
        if (to.n >= 0) {
            sum_t sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += parts[turn & 1][w][lane];
            }
            store_result(to, sum, how, c.global);
        }
    }
}
