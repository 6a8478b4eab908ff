/* One step of a chain (src/backend/cuda/chain.c) with E8P12 weights:
 * d = SV . Wscale Hout(w Hin(SU . x / scaleWH)) + bias for one row of x and up to three weights that share it. A cluster
 * has a weight, so that a launch is all of it: every block makes the row (mm_before.h) and its transform, multiplies its
 * tiles of 16 rows of w, sends what it found to all blocks of the cluster, and transforms all of y for its share.
 *
 * 4 w is an odd integer (of a 1-bit residual an even one) of up to five bits: exact as bf16, made from a nibble in the
 * mantissa of 128. x is a sum of three bf16, which are three columns of m16n8k16's other operand; the other columns are
 * not read. So products are those of f32 but for the order of sums.
 *
 * A unit is 64 columns of a tile; they are dealt to warps. All codes are read before the kernel in front is done, and
 * LIVE units of a warp are operand registers by then. By then, too, all that is left to do has been done once for the
 * sake of its instructions, which is 4 % of a small model's token.
 *
 * Host contract
 *   Parameters: those of mm_before.h and ADD (mm_few.cu); THREADS; RESIDENT blocks of a multiprocessor; CODEBOOK as in
 *   vq_decode.h; CLUSTER blocks a weight; UNITS of a warp at most; LIVE; LONGEST of K and all N; SU_FORMAT, SV_FORMAT;
 *   WSCALE_FORMAT, WH_FORMAT, BIAS (format + 1, 0: none); OUT; TURNS: bytes of shared memory before the transform's
 *   K a multiple of 64; N of 16, at most CLUSTER * THREADS / 4; transforms of mm_turn.h, or without a base; Qidxs' rows at
 *   multiples of 8
 *   Launch: block THREADS, grid {weights * CLUSTER}, shared memory as src/backend/cuda/mm_points.c has it */
#include "cuda_mm_points.h"
#include "mm_unpack.h"
#include "mm_before.h"
#include "vq_lattice.h"
#include "mm_turn.h"

#define WARPS (THREADS / 32)
#define PLANES (CODEBOOK == 1 ? 1 : 2) /* codes of a point: its own, and its residual's */
#define PITCH(k) ((k) + 8) /* of a plane of x: lanes of a quad and of three columns on banks of their own */

/* ---- weights ---- */

/* A lane's codes of a unit: magnitudes and signs of two groups of eight columns of two rows; of a residual too. */
struct codes {
    u32 word[PLANES][2];
};

/* Tile `tile` of w, columns from 64 j on. */
DEV codes load_codes(const qn_cuda_mm_part &p, int k, int tile, int j, int lane)
{
    const u32 columns = (u32)k / 32, at = (u32)j * 32 + (u32)lane;
    const char *const row = p.b + (i64)(tile * 16 + (int)(at / columns)) * p.b_row + (i64)(at % columns) * 8;
    codes c;
#pragma unroll
    for (int i = 0; i < (CODEBOOK == 3 ? 2 : 1); i++) {
        const uint2 v = load_constant_u32x2((const u8 *)row + (i64)i * (k / 4));
        c.word[i][0] = v.x, c.word[i][1] = v.y;
    }
#if CODEBOOK == 2
    const u8 *const rest = (const u8 *)p.b + (i64)(tile * 16 + lane / 4 * 2) * p.b_row + k / 4 + j * 8 + lane % 4 * 2;
    c.word[1][0] = load_constant_u16((const u16 *)rest);
    c.word[1][1] = load_constant_u16((const u16 *)(rest + p.b_row));
#endif
    return c;
}

/* Nibbles j and j + 4 as bf16, 128 + 2 nibble. */
DEV u32 pair_of(u32 word, int j)
{
    const u32 placed = j == 0 ? word << 1 : word >> (4 * j - 1);
    return (placed & 0x001E001Eu) | 0x43004300u;
}

DEV u32 add_bf16(u32 a, u32 b)
{
    u32 v;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}

/* Operands of the two products of group i: four times a point of both rows. */
DEV void decode(const codes &c, int plane, int i, const u32 *table, u32 *w)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 word, offset;
#if CODEBOOK == 2
        if (plane == 1) {
            word = e8_words[c.word[1][half] >> 8 * i & 255];
            offset = 0xC310C310u; /* -144 */
        } else
#endif
        {
            const int code = half + 2 * i;
            u32 low;
            word = e8p_signed(table[c.word[plane][0] >> 8 * code & 255], c.word[plane][1] >> code & 0x11111111u, &low);
            offset = low ? 0xC311C311u : 0xC30FC30Fu; /* -145, -143 */
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[j / 2 * 4 + j % 2 * 2 + half] = add_bf16(pair_of(word, j), offset);
        }
    }
}

struct unit {
    u32 w[PLANES][2][8];
};

DEV unit decode_unit(const codes &c, const u32 *table)
{
    unit u;
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            decode(c, plane, i, table, u.w[plane][i]);
        }
    }
    return u;
}

/* The same codes, of which the compiler is not to know that: or it decodes them before a loop. */
DEV codes decoded_late(codes c)
{
#pragma unroll
    for (int i = 0; i < PLANES; i++) {
        asm volatile("" : "+r"(c.word[i][0]), "+r"(c.word[i][1]));
    }
    return c;
}

/* ---- the product ---- */

/* Sums of a unit, by lane 4 r those of rows 2 r and 2 r + 1. x: of this lane's plane and columns. */
DEV float2 unit_sums(const unit &u, u32 x, float inverse)
{
    float sums[PLANES][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 v = load_shared_u32x4(x + i * 16);
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
            multiply(sums[plane], u.w[plane][i], v.x, v.y);
            multiply(sums[plane], u.w[plane][i] + 4, v.z, v.w);
        }
    }
    float found[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float first = sums[0][2 * row], second = sums[0][2 * row + 1];
#if PLANES == 2
        first = __fmaf_rn(sums[1][2 * row], inverse, first);
        second = __fmaf_rn(sums[1][2 * row + 1], inverse, second);
#endif
        found[row] = first + (second + __shfl_down_sync(~0u, first, 1));
    }
    return make_float2(found[0], found[1]);
}

/* ---- the step ---- */

DEV void load_vector(const char *from, int k, int format, mine *to)
{
    EACH_ELEMENT
    {
        to->v[j][e] = first_of(j) < k ? load_float(from, first_of(j) + e, format) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    qn_mm_points(const __grid_constant__ qn_cuda_mm_points p)
{
    extern __shared__ __align__(16) float memory[];
    __shared__ u32 table[256];
    __shared__ __align__(8) u64 arrived; /* all sums of y */
    const qn_cuda_mm &a = p.mm;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int which = (int)blockIdx.x / CLUSTER, rank = (int)blockIdx.x % CLUSTER;
    const qn_cuda_mm_part &part = a.part[which];
    const qn_cuda_mm_turns &own = p.turns[which];
    const int across = a.k / 64, tiles = part.n / 16, each = (tiles + CLUSTER - 1) / CLUSTER, first = rank * each;
    const int mine_tiles = max(min(tiles - first, each), 0), units = mine_tiles * across, pitch = PITCH(a.k);
    float *const before = memory, *const after = before + LONGEST, *const found = after + LONGEST;
    float *const sums = found + LONGEST; /* [unit][16] */
    u16 *const planes = (u16 *)(sums + UNITS * WARPS * 16);
    const turner in = turner_at(p.in, (char *)memory + TURNS);
    const u32 bar = shared_address(&arrived);
    release_next();
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init_fence();
        barrier_arrive_expect(bar, (u32)part.n * 4);
    }
    cluster_arrive_relaxed(); /* blocks are there before anyone sends */
    codes code[UNITS];
#pragma unroll
    for (int s = 0; s < UNITS; s++) {
        const int u = s * WARPS + warp < units ? s * WARPS + warp : 0;
        code[s] = load_codes(part, a.k, units ? first + u / across : 0, u % across, lane);
    }
    for (int i = (int)threadIdx.x; i < 256; i += THREADS) {
        table[i] = e8p_words[i];
    }
    const constants c = load_constants(a);
    mine su;
    load_vector(own.su, a.k, SU_FORMAT, &su);
#if WH_FORMAT
    mine wh;
    load_vector(own.scale_wh, a.k, WH_FORMAT - 1, &wh);
#endif
    /* four lanes an element of y, each with a quarter of its row of the base's matrix */
    const int share = (part.n + CLUSTER - 1) / CLUSTER, own_at = rank * share + (int)threadIdx.x / 4;
    const int has = (int)threadIdx.x / 4 < share && own_at < part.n, at = has ? own_at : 0;
    const int stores = has && lane % 4 == 0, fast = own.out.fast, base = own.out.base;
    u32 signs = 0;
    for (int j = lane % 4; j < base; j += 4) {
        signs |= (u32)(own.out.rows[at / fast] >> j & 1) << j / 4;
    }
    float sv = 0.0f, bias = 0.0f;
    if (stores) {
        sv = 0.25f * p.in.scale * own.out.scale * load_float(own.sv, at, SV_FORMAT);
#if WSCALE_FORMAT
        sv *= load_float(own.wscale, 0, WSCALE_FORMAT - 1);
#endif
#if BIAS
        bias = load_float(part.bias, at, BIAS - 1);
#endif
    }
    if (p.in.base > 1) {
        turner_fill(in, p.in);
    }
    __syncthreads();
    unit unit[LIVE];
#pragma unroll
    for (int s = 0; s < LIVE; s++) {
        unit[s] = decode_unit(code[s], table);
    }
    /* Twice: instructions that a multiprocessor has not run lately come from L2 or further. So the row is made,
     * multiplied and transformed first with what lies in shared memory, while the kernel in front is not done. */
    int dry;
    asm volatile("mov.u32 %0, 1;" : "=r"(dry)); /* the compiler is to know nothing of it: one copy of the code */
#pragma unroll 1
    for (; dry >= 0; dry--) {
        char *d = part.d;
#if ADD
        float old = 0.0f;
#endif
        if (!dry) {
            cluster_wait();
            wait_before();
            d += part.d_position ? *a.position * part.d_position : 0;
#if ADD
            old = stores ? ((const float *)d)[at] : 0.0f;
#endif
        }
        mine row;
        make_row(a, c, dry ? (const char *)memory : 0, &row);
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const int i = first_of(j);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                row.v[j][e] *= su.v[j][e];
#if WH_FORMAT
                row.v[j][e] /= wh.v[j][e];
#endif
            }
            const float4 v = make_float4(row.v[j][0], row.v[j][1], row.v[j][2], row.v[j][3]);
            if (p.in.base > 1) {
                turner_put(in, i, a.k, v);
            } else if (i < a.k) {
                *(float4 *)(before + i) = v;
            }
        }
        __syncthreads();
        if (p.in.base > 1) {
            for (int i = warp; i < turner_tiles(in); i += WARPS) {
                float v[4];
                int to;
                const int rows = turner_tile(in, p.in.base, i, lane, v, &to);
                for (int r = 0; r < rows; r++) {
                    store_pair(planes + to + 8 * r * in.columns, pitch, v[2 * r], v[2 * r + 1]);
                }
            }
        } else {
            turn_row(qn_cuda_turn{1}, before, after, p.in.fast, 0);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                if (first_of(j) < a.k) {
                    store_quad(planes + first_of(j), pitch, *(const float4 *)(after + first_of(j)));
                }
            }
        }
        __syncthreads();

        const u32 x = shared_address(planes) + (u32)(min(lane / 4, 2) * pitch + lane % 4 * 16) * 2;
#pragma unroll
        for (int s = 0; s < UNITS; s++) {
            const int u = s * WARPS + warp;
            if (u < units) {
                const float2 v = unit_sums(s < LIVE ? unit[s] : decode_unit(decoded_late(code[s]), table),
                                           x + (u32)(u % across) * 128, p.resid_inverse);
                if (lane % 4 == 0) {
                    *(float2 *)(sums + u * 16 + lane / 2) = v;
                }
            }
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < mine_tiles * 64; i += THREADS) { /* four lanes a row */
            const float *const from = sums + i / 64 * across * 16 + i / 4 % 16;
            float sum = 0.0f;
#pragma unroll 4
            for (int j = i % 4; j < across; j += 4) {
                sum += from[j * 16];
            }
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            float four[4]; /* rows of 16 lanes, each of which sends them to a block */
#pragma unroll
            for (int e = 0; e < 4; e++) {
                four[e] = __shfl_sync(~0u, sum, lane / 16 * 16 + e * 4);
            }
            const u32 to = shared_address(found + first * 16 + i / 16 * 4);
            for (u32 b = (u32)i % 16; b < (dry ? 0 : CLUSTER); b += 16) {
                send_cluster_f32x4(cluster_address(to, b), cluster_address(bar, b), four[0], four[1], four[2], four[3]);
            }
        }
        if (!dry) {
            barrier_wait(bar, 0);
        }
        float sum = 0.0f;
        if (base > 1) {
            for (int first_quad = warp * 128; first_quad < part.n; first_quad += THREADS * 4) {
                const int i = first_quad + lane * 4;
                const float4 v = turn_fast(*(const float4 *)(found + (i < part.n ? i : 0)), fast);
                if (i < part.n) {
                    *(float4 *)(after + i) = v;
                }
            }
            __syncthreads();
            const float *const from = after + at % fast;
#pragma unroll 4
            for (int j = lane % 4; j < base; j += 4) {
                const u32 sign = signs << (31 - j / 4) & 0x80000000u;
                sum = __fmaf_rn(from[j * fast], __uint_as_float(0x3f800000u | sign), sum);
            }
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
        } else {
            turn_row(qn_cuda_turn{1}, found, after, fast, 0);
            __syncthreads();
            sum = after[at];
        }
        if (stores && !dry) {
            const float v = sum * sv + bias;
#if ADD
            ((float *)d)[at] = old + v;
#else
            store_float(d, at, v, OUT);
#endif
        }
    }
}
