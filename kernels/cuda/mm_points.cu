/* One step of a chain (src/backend/cuda/chain.c) with E8P12 weights:
 * d = SV . Wscale Hout(w Hin(SU . x / scaleWH)) + bias for one row of x and up to three weights that share it. A
 * cluster has a weight, so that a launch is all of it: every block makes the row (mm_before.h) and its transform,
 * multiplies its tiles of 16 rows of w, does the levels of y's transform that are within a tile, and sends every column
 * of that to the block which does the others for it.
 *
 * 4 w is an odd integer (of a 1-bit residual an even one) of up to five bits. x is an integer of 31 bits times a power
 * of two, which the sum of magnitudes before its transform allows: four digits of eight bits, which are four columns of
 * m16n8k32's other operand; the other columns are not read. So products and their sums along K are exact, and elements
 * of x are as f32 has the large ones of them.
 *
 * A unit is 64 columns of a tile; a tile's are dealt to some warps. Codes are read, and are operands in registers,
 * before the kernel in front is done. By then, too, all that is left to do has been done once for the sake of its
 * instructions, which is 4 % of a small model's token.
 *
 * Host contract
 *   Parameters: those of mm_before.h and ADD (mm_few.cu); THREADS, 512 or more; RESIDENT blocks of a multiprocessor;
 *   CODEBOOK as in vq_decode.h; CLUSTER blocks a weight: 16; UNITS of a warp and DEALT warps of a tile at most; DEPTH:
 *   K; TURN_BASE and TURN_FAST of its transform; TERMS of an element of y that a lane sums at most, a multiple of four;
 *   SU_FORMAT, SV_FORMAT; WSCALE_FORMAT, WH_FORMAT, BIAS (format + 1, 0: none); OUT
 *   K a multiple of 64, at most 2048; N of 16, at most CLUSTER * THREADS / 4; transforms of mm_turn.h, or without a
 *   base; Qidxs' rows at multiples of 8
 *   Launch: block THREADS, grid {weights * CLUSTER}, shared memory as src/backend/cuda/mm_points.c has it */
#include "cuda_mm_points.h"
#include "mm_unpack.h"
#define EARLY 1
#define LATER (PRE == 1 && ROUND == 0)
#define JOINED (UNITS > 2 ? 1 : 3) /* beside the weights */
#include "mm_before.h"
#include "vq_lattice.h"
#include "mm_turn.h"

#define WARPS (THREADS / 32)
#define PLANES (CODEBOOK == 1 ? 1 : 2) /* codes of a point: its own, and its residual's */
#define ACROSS (DEPTH / 64)            /* units of a tile */
#define UNIT_BYTES 272                 /* of x: four digits of 64 elements; and the next on other banks */
#define X (ITEMS * THREADS * 16)       /* where its digits are in shared memory, and a unit of zeros */
#define TURNED (X + (ACROSS + 1) * UNIT_BYTES) /* what they are made of */
#define AHEAD 3                        /* units whose codes are asked for at once: all are too many beside operands */
static const int QUADS_AT_ONCE = UNITS * PLANES > 5 ? 2 : 8; /* of terms, as there are registers */
/* warps that make the row: the others meet them behind it, if no norm of the whole row is in between */
#define ROW_WARPS (PRE == 1 && !LATER || DEPTH > THREADS * 4 ? WARPS : (DEPTH + 127) / 128)

/* ---- weights ---- */

/* A lane's codes of a unit: magnitudes and signs of two groups of eight columns of two rows; of a residual too. */
struct codes {
    u32 word[PLANES][2];
};

/* Tile `tile` of w, columns from 64 j on. */
DEV codes load_codes(const qn_cuda_mm_part &p, int tile, int j, int lane)
{
    const int columns = DEPTH / 32, at = j * 32 + lane;
    const char *const row = p.b + (i64)(tile * 16 + at / columns) * p.b_row + (i64)(at % columns) * 8;
    codes c;
#pragma unroll
    for (int i = 0; i < (CODEBOOK == 3 ? 2 : 1); i++) {
        const uint2 v = load_constant_u32x2((const u8 *)row + i * (DEPTH / 4));
        c.word[i][0] = v.x, c.word[i][1] = v.y;
    }
#if CODEBOOK == 2
    const u8 *const rest = (const u8 *)p.b + (i64)(tile * 16 + lane / 4 * 2) * p.b_row + DEPTH / 4 + j * 8 +
                           lane % 4 * 2;
    c.word[1][0] = load_constant_u16((const u16 *)rest);
    c.word[1][1] = load_constant_u16((const u16 *)(rest + p.b_row));
#endif
    return c;
}

/* Operands of the product of group i: four times a point of both rows. Bytes of w[row] are coordinates 0, 4, 1, 5, of
 * w[row + 2] 2, 6, 3, 7. */
DEV void decode(const codes &c, int plane, int i, const u32 *table, u32 *w)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 word, offset; /* 2 nibble + offset - 128 */
#if CODEBOOK == 2
        if (plane == 1) {
            word = e8_words[c.word[1][row] >> 8 * i & 255];
            offset = 0x70707070u; /* -16 */
        } else
#endif
        {
            const int code = row + 2 * i;
            u32 low;
            word = e8p_signed(table[c.word[plane][0] >> 8 * code & 255], c.word[plane][1] >> code & 0x11111111u, &low);
            offset = low ? 0x6f6f6f6fu : 0x71717171u; /* -17, -15 */
        }
        w[row] = ((word << 1 & 0x1e1e1e1eu) + offset) ^ 0x80808080u;
        w[row + 2] = ((word >> 3 & 0x1e1e1e1eu) + offset) ^ 0x80808080u;
    }
}

/* v, of which the compiler does not know how to make it once more: or it decodes where a product reads it. */
DEV u32 kept(u32 v)
{
    return __shfl_sync(~0u, v, (int)threadIdx.x % 32);
}

struct unit {
    u32 w[PLANES][2][4];
};

DEV unit decode_unit(const codes &c, const u32 *table)
{
    unit u;
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            decode(c, plane, i, table, u.w[plane][i]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u.w[plane][i][e] = kept(u.w[plane][i][e]);
            }
        }
    }
    return u;
}

/* ---- x ---- */

/* What makes elements integers below 2^30 where `sum` is that of all magnitudes before their transform. */
DEV float digits_scale(float sum)
{
    return __uint_as_float((283 - min(max(__float_as_uint(sum) >> 23, 30u), 254u)) << 23);
}

/* One over it; of no number: none. */
DEV float digits_inverse(float sum)
{
    const u32 exponent = max(__float_as_uint(sum) >> 23 & 255, 30u);
    return __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - 29) << 23);
}

/* Digits of two neighbouring elements, of four lanes those of the group of eight that begins with element i: their
 * bytes as those of the weights are. */
DEV void store_digits(u32 x, int i, int there, int lane, float a, float b)
{
    const u32 v = ((u32)__float2int_rn(a) + 0x00808080u) ^ 0x00808080u; /* from -128 to 127 each */
    const u32 w = ((u32)__float2int_rn(b) + 0x00808080u) ^ 0x00808080u;
    const u32 even = __byte_perm(v, w, 0x6420), odd = __byte_perm(v, w, 0x7531), upper = (u32)lane / 2 % 2;
    const u32 other = __shfl_xor_sync(~0u, upper ? even : odd, 2); /* of elements 4 further on, or back */
    const u32 first = upper ? other : even, second = upper ? odd : other;
    if (there) {
        const u32 at = x + (u32)(i / 64 * UNIT_BYTES + i % 64 + lane % 2 * 4) + upper * 64;
        store_shared_i32(at, (int)__byte_perm(first, second, 0x6240));
        store_shared_i32(at + 128, (int)__byte_perm(first, second, 0x7351));
    }
}

/* ---- the product ---- */

/* d += a b */
DEV void multiply_digits(int *d, const u32 *a, u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

typedef int digit_sums[PLANES][3 - PLANES][4]; /* without residuals of a unit's halves, for shorter chains */

DEV void add_unit(const unit &u, u32 x, digit_sums sums)
{
    const uint4 v = load_shared_u32x4(x);
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
        multiply_digits(sums[plane][0], u.w[plane][0], v.x, v.y);
        multiply_digits(sums[plane][2 - PLANES], u.w[plane][1], v.z, v.w);
    }
}

/* Sums of rows 2 r and 2 r + 1 by lane 4 r. */
DEV float2 unit_sums(const digit_sums sums, float inverse)
{
    float found[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float of[PLANES];
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
            int low = sums[plane][0][2 * row], high = sums[plane][0][2 * row + 1];
#if PLANES == 1
            low += sums[plane][1][2 * row];
            high += sums[plane][1][2 * row + 1];
#endif
            of[plane] = (float)(high * 256 + low);
        }
        float v = of[0];
#if PLANES == 2
        v = __fmaf_rn(of[1], inverse, v);
#endif
        found[row] = __fmaf_rn(__shfl_down_sync(~0u, v, 1), 65536.0f, v);
    }
    return make_float2(found[0], found[1]);
}

/* ---- y ---- */

/* Bit i is set where term `first` + i of the transform's element `at` is negative; terms are columns of chunks of
 * `columns` elements, within which it is done. */
DEV u32 term_signs(const qn_cuda_mm_turn &t, int at, int first, int columns)
{
    const int shift = 31 - __clz(t.fast), parts = t.fast / columns, part_shift = 31 - __clz(parts);
    const u32 along = (u32)(at / columns % parts); /* whose bits a term's number along the fast axis meets */
    const u64 row = t.rows[at >> shift];
    u32 signs = 0;
#pragma unroll 4
    for (int i = 0; i < TERMS; i++) {
        const u32 term = (u32)(first + i), negative = (u32)(row >> (term >> part_shift & 63));
        signs |= ((negative ^ (u32)__popc(along & term)) & 1) << i;
    }
    return signs;
}

/* v, or -v where the last bit is set. */
DEV float signed_by(float v, u32 bits)
{
    return __uint_as_float(__float_as_uint(v) ^ bits << 31);
}

/* The sum of what warps have left. */
DEV float sum_left(const float *of)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < (ROW_WARPS + 3) / 4; i++) {
        const float4 v = *(const float4 *)(of + 4 * i);
        sum += (v.x + v.y) + (v.z + v.w);
    }
    return sum;
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
    extern __shared__ __align__(16) u8 memory[];
    __shared__ u32 table[256];
    __shared__ __align__(16) float found[4 * TERMS];        /* this block's column of every chunk of y */
    __shared__ __align__(16) float sums[WARPS + DEALT][16]; /* of a warp's units; more, that are read and not used */
    __shared__ __align__(16) float row_sums[2][2][16];      /* [dry], a warp's: magnitudes, squares before SU */
    __shared__ __align__(8) u64 arrived;                    /* all that is found */
    const qn_cuda_mm &a = p.mm;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int which = (int)blockIdx.x / CLUSTER, rank = (int)blockIdx.x % CLUSTER;
    const qn_cuda_mm_part &part = a.part[which];
    const qn_cuda_mm_turns &own = p.turns[which];
    const int tiles = part.n / 16, each = (tiles + CLUSTER - 1) / CLUSTER, first = rank * each;
    const int mine_tiles = max(min(tiles - first, each), 0), deal = WARPS / each;
    const int halves = own.out.fast < 16, columns = halves ? 8 : 16, chunks = tiles << halves; /* 1: two a tile */
    float *const su = (float *)memory; /* what a thread's elements are multiplied with */
    u8 *const turned = memory + TURNED;
    const u32 bar = shared_address(&arrived);
    release_next();
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init_fence();
    }
    cluster_arrive_relaxed(); /* blocks are there before anyone sends */
    codes code[UNITS];
    const int unit0 = warp % deal, tile = min(first + warp / deal, tiles - 1); /* a warp's units are `deal` apart */
    const int busy = unit0 < ACROSS && warp < mine_tiles * deal;
#pragma unroll
    for (int s = 0; s < min(UNITS, AHEAD); s++) {
        code[s] = load_codes(part, tile, min(unit0 + s * deal, ACROSS - 1), lane);
    }
    for (int i = (int)threadIdx.x; i < 256; i += THREADS) {
        table[i] = e8p_words[i];
    }
    const constants c = load_constants(a);
    mine factors;
    load_vector(own.su, a.k, SU_FORMAT, &factors);
#if WH_FORMAT
    mine wh;
    load_vector(own.scale_wh, a.k, WH_FORMAT - 1, &wh);
#endif
    if ((int)threadIdx.x < 4 * TERMS - chunks) {
        found[chunks + (int)threadIdx.x] = 0.0f;
    }
    if (threadIdx.x < 64) {
        ((u32 *)(memory + X + ACROSS * UNIT_BYTES))[threadIdx.x] = 0;
    }
    if (lane < 16) {
        sums[warp][lane] = 0.0f;
    }
    if (threadIdx.x < 64) {
        row_sums[threadIdx.x / 32][threadIdx.x / 16 % 2][threadIdx.x % 16] = 0.0f;
    }
#if TURN_BASE > 1
    turn_fill((u16 *)turned, p.in);
#endif
    EACH_ELEMENT
    {
        float v = factors.v[j][e];
#if LATER
        v *= c.gains.v[j][e];
#endif
#if WH_FORMAT
        v /= wh.v[j][e];
#endif
        su[first_of(j) + e] = first_of(j) < a.k ? v : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(bar, (u32)chunks * 4); /* some of that may have come already */
    }
    unit unit[UNITS];
#pragma unroll
    for (int s = 0; s < UNITS; s++) {
        unit[s] = decode_unit(code[s], table);
        if (s + AHEAD < UNITS) {
            code[s + AHEAD] = load_codes(part, tile, min(unit0 + (s + AHEAD) * deal, ACROSS - 1), lane);
        }
    }
    /* four lanes an element of y, each with a quarter of the terms */
    const int own_chunk = ((int)threadIdx.x / 4 << halves) + (halves ? rank / 8 : 0), has = own_chunk < chunks;
    const int at = has ? own_chunk * columns + (rank & columns - 1) : 0;
    float sv = load_float(own.sv, at, SV_FORMAT), bias = 0.0f;
#if WSCALE_FORMAT
    sv *= load_float(own.wscale, 0, WSCALE_FORMAT - 1);
#endif
#if BIAS
    bias = load_float(part.bias, at, BIAS - 1);
#endif
    char *const d = part.d + (part.d_position ? *a.position * part.d_position : 0) + at * (OUT == QN_MM_F32 ? 4 : 2);
    char *const to = has && lane % 4 == 0 ? d : 0;
    const u32 signs = term_signs(own.out, at, lane % 4 * TERMS, columns);
    sv *= 0.25f * p.in.scale * own.out.scale;
    const u32 shared_base = shared_address(memory);
    /* Twice: instructions that a multiprocessor has not run lately come from L2 or further. So the row is made,
     * multiplied and transformed first of whatever lies where it will be, while the kernel in front is not done. */
    int dry;
    asm volatile("mov.u32 %0, 1;" : "=r"(dry)); /* the compiler is to know nothing of it: one copy of the code */
#pragma unroll 1
    for (; dry >= 0; dry--) {
        u32 thread = threadIdx.x, base = shared_base;
        int u = unit0 * UNIT_BYTES;
        if (UNITS * PLANES > 5) { /* or all that hangs on them takes registers around the loop */
            asm volatile("" : "+r"(thread), "+r"(base), "+r"(u));
        }
        const int lane = (int)(thread % 32), warp = (int)(thread / 32);
#if ADD
        float old = 0.0f;
#endif
        if (!dry) {
            cluster_wait();
            wait_before();
#if ADD
            old = to ? *(const float *)to : 0.0f;
#endif
        }
        if (warp < ROW_WARPS) {
            mine row;
            float magnitudes = 0.0f, squares = make_row(a, c, &row);
#pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                const int i = first_of(j);
                const float4 own_su = *(const float4 *)(su + i);
                row.v[j][0] *= own_su.x;
                row.v[j][1] *= own_su.y;
                row.v[j][2] *= own_su.z;
                row.v[j][3] *= own_su.w;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    magnitudes += fabsf(row.v[j][e]);
                }
                const float4 v = make_float4(row.v[j][0], row.v[j][1], row.v[j][2], row.v[j][3]);
#if TURN_BASE > 1
                turn_put((u16 *)turned, i, DEPTH, v);
#else
                if (i < DEPTH) {
                    *(float4 *)((float *)turned + i) = v;
                }
#endif
            }
            /* half of the lanes for each of both sums */
            const float other = __shfl_xor_sync(~0u, lane & 16 ? magnitudes : squares, 16);
            float sum = (lane & 16 ? squares : magnitudes) + other;
#pragma unroll
            for (int step = 8; step > 0; step /= 2) {
                sum += __shfl_xor_sync(~0u, sum, step);
            }
            if (lane % 16 == 0) {
                row_sums[dry][lane / 16][warp] = sum;
            }
        }
        __syncthreads();
        const float scale = digits_scale(sum_left(row_sums[dry][0]));
#if TURN_BASE > 1
        if (warp < TURN_TILES) {
            const int row = warp / TURN_ACROSS * 16 + lane / 4, i = row * TURN_FAST + warp % TURN_ACROSS * 8;
            float v[4];
            turn_tile(base + TURNED, warp, lane, v);
            store_digits(base + X, i, row < TURN_BASE, lane, v[0] * scale, v[1] * scale);
            store_digits(base + X, i + 8 * TURN_FAST, row + 8 < TURN_BASE, lane, v[2] * scale, v[3] * scale);
        }
#else
        float *const after = (float *)turned + DEPTH;
        turn_row(qn_cuda_turn{1}, (float *)turned, after, DEPTH, 0);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < DEPTH / 2; i += THREADS) {
            store_digits(base + X, i / 4 * 8, 1, lane, after[2 * i] * scale, after[2 * i + 1] * scale);
        }
#endif
        __syncthreads();

        if (busy) {
            const u32 from = base + X + (u32)(lane / 4 % 4 * 64 + lane % 4 * 16);
            digit_sums of_digits = {};
#pragma unroll
            for (int s = 0; s < UNITS; s++, u += deal * UNIT_BYTES) {
                add_unit(unit[s], from + (u32)min(u, ACROSS * UNIT_BYTES), of_digits);
            }
            const float2 two = unit_sums(of_digits, p.resid_inverse);
            if (lane % 4 == 0) {
                *(float2 *)(sums[warp] + lane / 2) = two;
            }
        }
        __syncthreads();
        if (warp < mine_tiles) { /* two lanes a row of a tile */
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < DEALT; i += 2) {
                sum += i + lane / 16 < deal ? sums[warp * deal + i + lane / 16][lane % 16] : 0.0f;
            }
            sum += __shfl_xor_sync(~0u, sum, 16);
#pragma unroll
            for (int step = 1; step < 16; step *= 2) {
                const float other = __shfl_xor_sync(~0u, sum, step);
                sum = step < columns ? __fmaf_rn(sum, lane & step ? -1.0f : 1.0f, other) : sum;
            }
            const u32 block = (u32)(halves ? lane % 8 + lane / 16 * 8 : lane);
            const u32 place = shared_address(found + ((first + warp) << halves) + (halves ? lane / 8 % 2 : 0));
            if (!dry && lane < 16 << halves) {
                send_cluster_f32(cluster_address(place, block), cluster_address(bar, block), sum);
            }
        }
        float factor = sv * digits_inverse(sum_left(row_sums[dry][0]));
#if LATER
        factor *= norm_factor(a, sum_left(row_sums[dry][1]));
#endif
        if (!dry) {
            barrier_wait(bar, 0);
        }
        const float *const terms = dry ? su : found; /* other blocks may be sending already */
        float sum = 0.0f;
#pragma unroll QUADS_AT_ONCE
        for (int i = 0; i < TERMS; i += 4) {
            const float4 v = *(const float4 *)(terms + lane % 4 * TERMS + i);
            sum += (signed_by(v.x, signs >> i) + signed_by(v.y, signs >> (i + 1))) +
                   (signed_by(v.z, signs >> (i + 2)) + signed_by(v.w, signs >> (i + 3)));
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (to && !dry) {
            const float v = __fmaf_rn(sum, factor, bias);
#if ADD
            *(float *)to = old + v;
#else
            store_float(to, 0, v, OUT);
#endif
        }
    }
}
