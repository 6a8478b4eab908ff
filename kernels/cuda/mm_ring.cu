/* d = x b^T of one row in a chain by tensor cores, for large weights of 4, 8 or 16 bits: sixteen columns of d after the
 * other, a block's warps share K. Weights come through rings in shared memory, one a warp, which are always full of
 * copies under way: so they cost no registers, and no warp waits for another's. As fast as memory gives b.
 *
 * Rows of b are the left operand; x, the one column of the right one, lies in shared memory, in 16 bits or as int8. A
 * lane's 16 bytes of a row are neighbours, and their places in K the operand's, so that x is read as it lies. Codes of
 * 8 bits become f16, of 4 with their scales bf16, exactly. Sums of a warp go over its steps in the order of K, those of
 * warps are added in one fixed order.
 *
 * Host contract
 *   Parameters: B_FORMAT, one of bf16, f16, e4m3, i8, e4m3 and e5m2 in blocks, nvfp4, mxfp4; A_FORMAT and the others of
 *   mm_common.h;
 *   PRE, ROUND, QUANT, FLOORS, ITEMS (mm_before.h) such that the row is of numbers that x has: rounded to the format of
 *   b (of 4 bits to bf16), or codes; and
 *     ADD      1: results are added to d
 *     SILU     1: b is two weights of as many rows, a multiple of 8, and silu_mul of their products goes where the
 *              first one's would
 *     K        rows of b are that many elements one behind the other, whole lines of 128 bytes
 *     THREADS  a multiple of 32, at least 64
 *     EDGE     1: the last weight's rows may be no whole sixteens
 *     LINES    of a row that are a warp's step of K: 1, 2 or, not of FP4, 4
 *     DEPTH    steps of a ring, 2 or more
 *     AHEAD    of them, 1 to DEPTH - 1, are asked for before the row, which comes behind them
 *     RING     where the rings begin in shared memory: a multiple of 16, behind x and the scales of its groups
 *   Rows of b and of NVFP4's scales lie at multiples of 16, of MXFP4's at multiples of 8; all weights but the last are
 *   whole sixteens of rows.
 *   Launch: block THREADS, grid of one dimension, one block a multiprocessor, dynamic shared memory
 *   RING + THREADS / 32 * DEPTH * SLOT_BYTES */
#define APART 1
#define CHAIN 1
#include "mm_common.h"
#define JOINED 7 /* no weights in registers */
#include "mm_before.h"

#define IS_FP4 (B_FORMAT == QN_MM_NVFP4 || B_FORMAT == QN_MM_MXFP4)
#if IS_FP4
#include "fp4_pairs.h"
#define ROW_BYTES (K / 2)
#define LINE_SCALES (256 / UNIT) /* bytes: a line's scales of a row */
#define STEP_SCALES (QN_MM_RING_COLUMNS * LINES * LINE_SCALES)
#define EXPANDED 0
#define WORDS_X 16
#else
#define ROW_BYTES (K * ELEMENT)
#define STEP_SCALES (16 * LINES)
#define EXPANDED (ELEMENT == 1 && !INT_SUMS) /* codes that become f16 */
#define WORDS_X (EXPANDED ? 8 : 4)           /* of x for a lane's 16 bytes of b */
#endif
#define WARPS (THREADS / 32)
#define OWN (SILU ? 8 : QN_MM_RING_COLUMNS)                        /* columns of d in a tile of sixteen rows of b */
#define LINE_COUNT (ROW_BYTES / 128)                               /* of a row */
#define PIECE (128 * LINES)                                        /* bytes of a row in a step */
#define STEPS ((LINE_COUNT + WARPS * LINES - 1) / (WARPS * LINES)) /* of a warp in a tile */
#define TOGETHER (STEPS == 1 ? 4 : STEPS < 4 ? 2 : 1)              /* tiles whose sums of warps are added at once */
#define EVEN (LINE_COUNT % (WARPS * LINES) == 0)                   /* all steps are whole */
#define SCALES (QN_MM_RING_COLUMNS * PIECE)                        /* of its lines, behind the rows of a step */
#define SLOT_BYTES (SCALES + STEP_SCALES)
#define ASKED (4 / LINES)                  /* rows that 32 lanes ask for at once */
#define LINE_X (8 * WORDS_X)               /* words of x */
#define X_SCALES (LINE_COUNT * LINE_X * 4) /* behind x */

extern __shared__ __align__(16) char shared[];

/* What a warp asks for next. */
struct cursor {
    const u8 *b; /* this lane's first piece of the tile */
    int n, left; /* the tile's first row in its weight, rows from there on */
    int tile, step;
#if SILU
    i64 up; /* how far behind gate it lies */
#endif
#if BLOCKED || IS_FP4
    const u8 *scales; /* those that this lane copies: of its line, FP4: and row of the tile */
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
    at->b = (const u8 *)p.b + (i64)(n + lane / (8 * LINES)) * ROW_BYTES + line * 128 + lane % (8 * LINES) * 16;
#if SILU
    at->up = a.part[1].b - a.part[0].b;
#endif
#if BLOCKED
    at->scales = (const u8 *)a.part[SILU ? lane / LINES % 2 : part].b_scale + (line + lane % LINES) * 4;
    at->scales_row = p.b_scale_row;
#elif IS_FP4
    const int row = lane / LINES, up = SILU && row >= OWN;
    at->scales = (const u8 *)a.part[up ? SILU : part].b_scale + (n + row - up * OWN) * p.b_scale_row +
                 (line + lane % LINES) * LINE_SCALES;
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
                const u8 *const p = i < 8 ? from + i * ROW_BYTES : from + at->up + (i - 8) * ROW_BYTES;
#else
                const u8 *const p = from + i * ROW_BYTES;
#endif
                if (!EDGE || i + row < at->left) {
                    copy_async_16_once(places[i & 1] + (u32)(i * PIECE), p);
                }
            }
        }
#if BLOCKED
        if (lane < (SILU + 1) * LINES && (EVEN || here + lane % LINES < LINE_COUNT)) {
            copy_async_4(slot + SCALES + (u32)lane * 4,
                         at->scales + at->n / 128 * at->scales_row + at->step * (WARPS * LINES * 4), 1);
        }
#elif IS_FP4
        if (lane < QN_MM_RING_COLUMNS * LINES && (!EDGE || lane / LINES < at->left) &&
            (EVEN || here + lane % LINES < LINE_COUNT)) {
            const u8 *const p = at->scales + at->step * (WARPS * LINES * LINE_SCALES);
            const u32 here_scales = slot + SCALES + (u32)lane * LINE_SCALES;
            if (LINE_SCALES == 16) {
                copy_async_16_once(here_scales, p);
            } else {
                copy_async_8(here_scales, p, 8);
            }
        }
#endif
        if (++at->step == STEPS) {
            const int rows = (int)gridDim.x * OWN;
            at->tile += (int)gridDim.x;
            at->step = 0;
            if (rows < at->left) {
                at->n += rows;
                at->left -= rows;
                at->b += (i64)rows * ROW_BYTES;
#if IS_FP4
                at->scales += rows * at->scales_row;
#endif
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

#if IS_FP4
/* Where the words of eight elements of x lie, elements i and i + 4 in each: so that four lanes, whose elements are 32
 * apart, read all banks. */
DEV int eight_at(int eight)
{
    return (eight ^ (eight >> 3 & 1)) * 4;
}
#endif

/* Where a lane reads, from where a step's rows begin, and x of a line: both halves of its rows; FP4: scales of its
 * rows, even and odd eights of x. */
struct lane_places {
    u32 b[2], scales, x[2];
};

DEV lane_places find_places(int lane)
{
    const u32 row = (u32)lane / 4, chunk = (u32)lane % 4, own = row * PIECE + ((row & 1) * 4 + chunk) * 16;
    const u32 x = shared_address(shared);
    lane_places p = {{own, own ^ 64}, 0, {x + chunk * WORDS_X * 4, 0}};
#if IS_FP4
    p.scales = SCALES + row * (LINES * LINE_SCALES) + chunk * (32 / UNIT);
    p.x[0] = x + (u32)eight_at((int)chunk * 4) * 4;
    p.x[1] = x + (u32)eight_at((int)chunk * 4 + 1) * 4;
#endif
    asm("" : "+r"(p.b[0]), "+r"(p.b[1]), "+r"(p.scales), "+r"(p.x[0]), "+r"(p.x[1])); /* kept, not worked out again */
    return p;
}

#if IS_FP4
/* A row's scales of a lane's 32 elements, of each half of these. */
DEV void load_scales(u32 at, int large, u32 *pair)
{
#if IS_MX
    pair[0] = pair[1] = scale_twice(load_shared_u8(at), large);
#else
    float v[2];
    e4m3_floats(load_shared_u16(at), v);
    pair[0] = scale_twice(v[0]);
    pair[1] = scale_twice(v[1]);
#endif
}

/* Rows lane / 4 of b and 8 further by x: a line of a step. */
DEV void multiply_line(const lane_places &p, u32 b, u32 scales, u32 x, int large, sum_t *part)
{
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const uint4 two[2] = {load_shared_u32x4(b + p.b[half]), load_shared_u32x4(b + p.b[half] + 8 * PIECE)};
        u32 scale[2][2];
        load_scales(scales + p.scales + half * (128 / UNIT), large, scale[0]);
        load_scales(scales + p.scales + half * (128 / UNIT) + 8 * LINES * LINE_SCALES, large, scale[1]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 low = i == 0 ? two[0].x : i == 1 ? two[0].y : i == 2 ? two[0].z : two[0].w;
            const u32 high = i == 0 ? two[1].x : i == 1 ? two[1].y : i == 2 ? two[1].z : two[1].w;
            const uint4 v = load_shared_u32x4(x + p.x[i % 2] + half * 256 + i / 2 * 32);
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const u32 w[4] = {
                    expand_pair(low, e, scale[0][i / 2], large), expand_pair(high, e, scale[1][i / 2], large),
                    expand_pair(low, e + 1, scale[0][i / 2], large), expand_pair(high, e + 1, scale[1][i / 2], large)};
                MMA_BF16(part, w, e ? v.z : v.x, e ? v.w : v.y);
            }
        }
    }
}

DEV void multiply(const lane_places &p, u32 b, u32 x, int lane, sum_t part[LINES][4])
{
    int large = 0;
#if IS_MX
    u32 codes = 0;
#pragma unroll
    for (u32 i = 0; i < STEP_SCALES / 128; i++) {
        codes |= load_shared_u32(b + SCALES + i * 128 + (u32)lane * 4);
    }
    large = __any_sync(0xffffffffu, (codes & 0x80808080u) != 0);
#endif
#pragma unroll
    for (u32 l = 0; l < LINES; l++) {
        if (IS_MX && large) {
            multiply_line(p, b + 128 * l, b + l * LINE_SCALES, x + l * (LINE_X * 4), 1, part[l]);
        } else {
            multiply_line(p, b + 128 * l, b + l * LINE_SCALES, x + l * (LINE_X * 4), 0, part[l]);
        }
    }
}
#else
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
DEV void multiply(const lane_places &p, u32 b, u32 x, int lane, sum_t part[LINES][4])
{
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 low[LINES][WORDS_X], high[LINES][WORDS_X], v[LINES][WORDS_X];
#pragma unroll
        for (u32 l = 0; l < LINES; l++) {
            expand(load_shared_u32x4(b + p.b[half] + 128 * l), low[l]);
            expand(load_shared_u32x4(b + p.b[half] + 128 * l + 8 * PIECE), high[l]);
#pragma unroll
            for (u32 i = 0; i < WORDS_X; i += 4) {
                const uint4 four = load_shared_u32x4(x + p.x[0] + l * (LINE_X * 4) + half * (WORDS_X * 16) + i * 4);
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
#endif

/* The row to shared memory, and the scales of its groups behind it. */
DEV void stage_row(const qn_cuda_mm &a, const mine &row, const before &how)
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = first_of(j);
        const float *const v = row.v[j];
#if IS_FP4 /* of eight elements a lane has four: the one before it gets the second half of the pairs' places */
        const int odd = (int)threadIdx.x & 1;
        const u32 low = pack_bf16(v[0], v[1]), high = pack_bf16(v[2], v[3]);
        const u32 other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        const u32 first = odd ? other : low, second = odd ? high : other;
#endif
        if (i < a.k) {
#if IS_FP4
            *(uint2 *)((u32 *)shared + eight_at(i / 8) + 2 * odd) =
                make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
#elif INT_SUMS
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

/* Row `row` of a tile; row < 0: none. */
DEV result find_result(const qn_cuda_mm &a, int tile, int row)
{
    result r;
    r.n = tile * OWN + (SILU ? row % OWN + row / OWN * a.part[0].n : row);
    if (row < 0 || r.n >= a.n) {
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

/* The sum of a lane that has a result. */
DEV void store_result(const result &r, sum_t sum, const before &how, float global)
{
#if IS_FP4
    sum *= FACTOR;
#endif
    const float v = finish(r.end, sum, how.scale, how.azp, global);
#if SILU
    const u32 tile = threadIdx.x % 32 / QN_MM_RING_COLUMNS * QN_MM_RING_COLUMNS; /* its first lane */
    const float up = __shfl_down_sync(((1u << QN_MM_RING_COLUMNS) - 1) << tile, v, OWN);
    if (threadIdx.x % 32 - tile < OWN) {
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
    __shared__ sum_t parts[2][TOGETHER][WARPS][QN_MM_RING_COLUMNS];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), first = warp * LINES;
    const int tiles = SILU ? a.part[0].n / OWN : (a.n + OWN - 1) / OWN, grid = (int)gridDim.x;
    const u32 ring = shared_address(shared) + RING + warp * DEPTH * SLOT_BYTES;
    const lane_places places = find_places(lane);
    release_next();
    cursor next;
    place(a, (int)blockIdx.x, first, lane, &next);
    mine row;
    const constants c = load_constants(a);
    for (int i = 0; i < AHEAD; i++) {
        ask(a, first, lane, ring + i * SLOT_BYTES, &next);
    }
    wait_before();
    make_row(a, c, &row);
    for (int i = AHEAD; i < DEPTH - 1; i++) {
        ask(a, first, lane, ring + i * SLOT_BYTES, &next);
    }
    const before how = quantise_row(c, &row);
    stage_row(a, row, how);
    int slot = 0, turn = 0;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += TOGETHER * grid, turn++) {
        /* results of so many tiles are finished by other warps than those before */
        const int item = ((warp + turn) % WARPS) * 32 + lane, of = tile + item / QN_MM_RING_COLUMNS * grid;
        const int own = item % QN_MM_RING_COLUMNS, has = item < TOGETHER * QN_MM_RING_COLUMNS && of < tiles;
        const result to = find_result(a, of, has ? own : -1);
#pragma unroll 1
        for (int t = 0; t < TOGETHER && tile + t * grid < tiles; t++) {
            sum_t sums[2] = {0, 0};
#pragma unroll 1
            for (int step = 0; step < STEPS; step++) {
                copy_async_wait_but<DEPTH - 2>();
                __syncwarp();
                ask(a, first, lane, ring + (u32)(slot == 0 ? DEPTH - 1 : slot - 1) * SLOT_BYTES, &next);
                const int line = first + step * (WARPS * LINES);
                const u32 b = ring + (u32)slot * SLOT_BYTES;
                if (EVEN || line < LINE_COUNT) {
                    sum_t part[LINES][4] = {};
                    multiply(places, b, (u32)line * (LINE_X * 4), lane, part);
#pragma unroll
                    for (int l = 0; l < LINES; l++) {
                        if (EVEN || line + l < LINE_COUNT) {
#if BLOCKED
                            const u32 scales = b + SCALES + l * 4;
                            const float scale = ((const float *)(shared + X_SCALES))[line + l];
                            const float by[2] = {load_shared_f32(scales) * scale,
                                                 load_shared_f32(scales + SILU * LINES * 4) * scale};
                            sums[0] = __fmaf_rn(part[l][0], by[0], sums[0]);
                            sums[1] = __fmaf_rn(part[l][2], by[1], sums[1]);
#else
                            sums[0] += part[l][0];
                            sums[1] += part[l][2];
#endif
                        }
                    }
                }
                slot = slot == DEPTH - 1 ? 0 : slot + 1;
            }
            if (lane % 4 == 0) {
                sum_t *const here = parts[turn & 1][t][warp];
                here[lane / 4] = sums[0];
                here[lane / 4 + 8] = sums[1];
            }
        }
        __syncthreads();
        if (to.n >= 0) {
            sum_t sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += parts[turn & 1][item / QN_MM_RING_COLUMNS][w][own];
            }
            store_result(to, sum, how, c.global);
        }
    }
}
