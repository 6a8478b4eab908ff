/* attention of several queries by tensor cores: o = softmax(scale q k^T) v.
 *
 * Operands are planes of f16. A head of f32 or bf16 is multiplied by the power of two that takes its largest element to
 * between 2^14 and 2^15, the inverse of which is its factor. The first plane is then the nearest f16, the second, of
 * f32, the nearest to what that leaves: 22 bits of an element, or all down to 2^-40 of the largest. f16 and e4m3 are
 * exact in one plane; factors of e4m3 are scales. attention_planes.cu makes those of keys and values in memory of the
 * caller; f16 is read in place. Products are those of the planes but of the two lower ones: one where both operands
 * have one, three where both have two, whose errors are then those of f32. Weights of keys are 2^15 times exp2, as two
 * f16. The tensor core cuts its sums instead of rounding them: they begin at 0 in every tile, and tiles are added in
 * f32. Where values have factors, a tile's are divided by a power of two above the largest so far.
 *
 * A block has ROWS rows, each a query of one of the heads that share a key head, and goes over tiles of KEYS keys,
 * which arrive two deep; a warp has 16 rows, their scores stay in registers. With products of warpgroups the sums of
 * one tile are under way while the scores of the next become weights. The longest blocks come first. Where there are
 * too few, keys are cut into parts, which attention_join.cu adds in their order; where planes hold no more, into parts
 * of some launches.
 *
 * With a WINDOW, planes have rows for keys as codes and behind them rows for recent keys; a row of the block sees the
 * first of those and, from a place of its own on, of these.
 *
 * Host contract
 *   Parameters: Q_FORMAT, K_FORMAT, V_FORMAT, of the latter QN_MM_E4M3 too; WINDOW 0 or 1; OUT; SIZE: a multiple of 16,
 *     at most 128; WARPS; KEYS of a tile, a multiple of 16; BLOCKS of a multiprocessor; WGMMA 1: products of warpgroups
 *     (sm_90a), WARPS a multiple of 4; Q_PLANE_STEP, TILE_PLANE_STEP: from a plane of q, of a tile to the next in units
 *     of 16 bytes, as numbers that assembly can name
 *   Operands: rows, heads and planes of k and v begin at 16 bytes
 *   Launch: block 32 * WARPS, grid {ceil(queries * group / ROWS), key heads, parts}, dynamic shared memory of
 *     (ROWS * Q_PLANES + 2 * KEYS * (K_PLANES + V_PLANES)) * pitch + 16 * KEYS + 20 * ROWS bytes, pitch 2 * SIZE + 16,
 *     or with WGMMA 128 * ceil(SIZE / 64) */
#include "attention_tiles.h"

#define K_PLANES (K_FORMAT == 0 ? 2 : 1)
#define V_PLANES (V_FORMAT == 0 ? 2 : 1)
#define SIGNS (K_FORMAT == QN_MM_E4M3) /* scales may have them, powers of two have none */
#define ROW(bytes) (K_FORMAT == 1 && V_FORMAT == 1 ? bytes : 2 * SIZE) /* f16 is read in place */
#define Q_PLANES (Q_FORMAT == 0 ? 2 : 1)
#define ROWS (16 * WARPS)
#define THREADS (32 * WARPS)
#if WGMMA /* columns of 64 side by side, as wgmma_operand wants them */
#define PITCH 128
#define ROOM(rows) ((SIZE + 63) / 64 * 128 * (rows))
#else
#define PITCH (2 * SIZE + 16) /* eight rows on banks of their own */
#define ROOM(rows) (PITCH * (rows))
#endif
#define STEPS (SIZE / 16)
#define KEY_STEPS (KEYS / 16)
#define Q_BYTES ROOM(ROWS)
#define TILE_BYTES ROOM(KEYS)
#define V_AT (K_PLANES * TILE_BYTES)
#define STAGE_BYTES ((K_PLANES + V_PLANES) * TILE_BYTES)
#define STAGES_AT (Q_PLANES * Q_BYTES)
#define FACTORS_AT (STAGES_AT + 2 * STAGE_BYTES) /* a stage's 2 KEYS */
#define BY_AT (FACTORS_AT + 16 * KEYS)
#define TOTALS_AT (BY_AT + 4 * ROWS)
#define RANGE 0x1p15f
#define LOG2_E 1.4426950408889634f

extern __shared__ __align__(1024) char shared[];

/* Where 16 bytes of a tile of so many rows lie. */
template <int rows> DEV u32 place_of_piece(int row, int piece)
{
#if WGMMA
    return (u32)(piece / 8 * rows * 128 + row * 128 + ((piece ^ row) & 7) * 16);
#else
    return (u32)(row * PITCH + piece * 16);
#endif
}

DEV bool hides(view v, int i)
{
    return i >= v.below && (!WINDOW || (u32)(i - v.from) >= (u32)(v.to - v.from));
}

/* Whether rows see a whole tile: all of them, `all` being what all and `any` what any of them sees. */
DEV int all_see(view all, view any, int key0)
{
    return key0 + KEYS <= all.below || (WINDOW && key0 >= any.from && key0 + KEYS <= all.to);
}

/* A warp's rows of q as planes, and what their scores are multiplied by: eight lanes have a row. */
DEV void load_queries(const qn_cuda_attention_tiles &a, int first, int head, int warp, int lane)
{
    const int column = lane % 8 * 2; /* of every 16 */
#pragma unroll 1
    for (int i = lane / 8; i < 16; i += 4) {
        const int at = warp * 16 + i;
        const row_place p = place_of(a, first + at);
        const int query = p.query < a.queries ? p.query : a.queries - 1; /* rows that nobody stores may be any */
        const char *const row = a.q + query * a.q_row + (head * a.group + p.head) * a.q_head;
        float v[STEPS][2], factor = 1.0f;
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            v[j][0] = load_element<Q_FORMAT>(row, column + 16 * j);
            v[j][1] = load_element<Q_FORMAT>(row, column + 16 * j + 1);
        }
        if (Q_FORMAT != 1) {
            factor = normalise<STEPS, 8>(v);
        }
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            u32 high, low;
            split_pair(v[j][0], v[j][1], &high, &low);
            char *const to = shared + place_of_piece<ROWS>(at, 2 * j + column / 8) + column % 8 * 2;
            *(u32 *)to = high;
            if (Q_PLANES == 2) {
                *(u32 *)(to + Q_BYTES) = low;
            }
        }
        if (column == 0) {
            ((float *)(shared + BY_AT))[at] = factor * a.scale * LOG2_E;
        }
    }
}

/* A tile of one operand's planes, zeros beyond the last row; a thread has 16 bytes of some rows. */
template <int planes> DEV void ask_planes(u32 to, const char *from, i64 row, i64 plane, int key0, int rows)
{
    const int pieces = SIZE / 8,
              across = pieces > 8   ? 16
                       : pieces > 4 ? 8
                       : pieces > 2 ? 4
                                    : 2,
              step = THREADS / across;
    const int thread = (int)lazy(threadIdx.x);
    const int piece = thread % across, first = thread / across;
    const char *at = from + (key0 + first) * row + piece * 16;
    to += place_of_piece<KEYS>(first, piece); /* steps are of 8 rows, or no others follow */
    if (piece >= pieces) {
        return;
    }
#pragma unroll
    for (int key = 0; key < KEYS; key += step, at += step * row) {
        if (KEYS % step == 0 || key + first < KEYS) {
            const u32 there = key0 + key + first < rows ? 16 : 0;
#pragma unroll
            for (int p = 0; p < planes; p++) {
                copy_async_16(to + (u32)(p * TILE_BYTES + key * PITCH), at + p * plane, there);
            }
        }
    }
}

static_assert(THREADS >= KEYS, "a thread has one factor of an operand at most");

/* A tile's factors, `beyond` behind the last row. */
DEV void ask_factors(u32 to, const float *from, int key0, int rows, float beyond)
{
    const int i = (int)lazy(threadIdx.x);
    if (i >= KEYS) {
        return;
    }
    if (key0 + i < rows) {
        copy_async_4(to + (u32)i * 4, from + key0 + i, 1);
    } else {
        store_shared_f32(to + (u32)i * 4, beyond);
    }
}

/* A tile's keys, and the factors of both operands, to stage 0 or 1. */
DEV void ask_keys(const qn_cuda_attention_tiles &a, int to, int head, int key0)
{
    ask_planes<K_PLANES>(shared_address(shared) + (u32)(STAGES_AT + to * STAGE_BYTES), a.k + head * a.k_head,
                         ROW(a.k_row), a.k_plane, key0 - a.plane_first, a.plane_rows);
    const u32 factors = shared_address(shared) + (u32)(FACTORS_AT + to * 8 * KEYS);
#if K_FACTORS
    ask_factors(factors, a.k_factors + head * a.factors_head, key0 - a.plane_first, a.plane_rows,
                1.0f); /* NONE stays NONE */
#endif
#if V_FACTORS
    ask_factors(factors + 4 * KEYS, a.v_factors + head * a.factors_head, key0 - a.plane_first, a.plane_rows, 0.0f);
#endif
}

DEV void ask_values(const qn_cuda_attention_tiles &a, int to, int head, int key0)
{
    ask_planes<V_PLANES>(shared_address(shared) + (u32)(STAGES_AT + to * STAGE_BYTES + V_AT), a.v + head * a.v_head,
                         ROW(a.v_row), a.v_plane, key0 - a.plane_first, a.plane_rows);
}

/* From tiles behind the last code that a row sees to the first of recent keys. */
DEV int step_over(int key0, view least, view most)
{
    return WINDOW && key0 >= most.below && key0 < least.from ? least.from / KEYS * KEYS : key0;
}

/* What a lane has of rows g = lane / 4 and g + 8 of its warp, for n < SIZE / 8 columns 8 n + 2 (lane % 4) and the next,
 * as a product of matrices leaves it: o[4 n] and the next of row g, the other two of g + 8. */
struct state {
#if !WGMMA
    float o[SIZE / 2];
#endif
    float most[2];
    float range; /* of the values' factors: sums are in units of range / 2^15 */
};

/* What scores of row g + 8 h are multiplied by: in shared memory, there are no registers for it. */
DEV float scale_of(int h)
{
    return ((const float *)(shared + BY_AT))[threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h];
}

/* A lane's sums of weights of rows g and g + 8 over its keys, in shared memory too: the wait for products that follows
 * their store stays behind all that leads to them. */
DEV u32 totals(void)
{
    return shared_address(shared) + (u32)TOTALS_AT + threadIdx.x * 8;
}

DEV void load_totals(float *to)
{
    const float2 v = load_shared_f32x2(totals());
    to[0] = v.x;
    to[1] = v.y;
}

/* Weights of 16 keys as a product takes them. */
struct weights {
    u32 high[4], low[4];
};

#include "attention_names.h"

#if WGMMA
static_assert(Q_PLANE_STEP == Q_BYTES / 16 && TILE_PLANE_STEP == TILE_BYTES / 16, "planes follow each other");

/* Asks for s += q k' of a tile, by a warpgroup: its rows and the tile. */
DEV void ask_scores(u64 a, u64 b)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        add_scores(a + step / 4 * ROWS * 8 + step % 4 * WGMMA_K_STEP,
                   b + step / 4 * KEYS * 8 + step % 4 * WGMMA_K_STEP);
    }
    wgmma_commit();
}

/* Values of a tile: of its rows, keys, 64 columns further are KEYS rows on, 8 keys further 1024 bytes. */
DEV u64 values_operand(u32 v)
{
    return (u64)((v & 0x3FFFF) >> 4) | (u64)(KEYS * 8) << 16 | (u64)64 << 32 | (u64)1 << 62;
}

/* Asks for d = p v of a tile, by a warpgroup. */
DEV void ask_sums(const weights *p, u64 b)
{
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++) {
        multiply_values(&p[step], b + step * 128, step > 0);
    }
    wgmma_commit();
}
#else
/* Four matrices of 8 x 8 at the rows that the lanes name, as they lie or turned. */
DEV void load_matrices(u32 *to, u32 at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

DEV void load_matrices_turned(u32 *to, u32 at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/* d[16, 16] += a[16, 16] b[16, 16] by planes of both, the smaller products first. */
template <int a_planes, int b_planes>
DEV void add_planes(float *d, const u32 *a_high, const u32 *a_low, const u32 *b_high, const u32 *b_low)
{
#pragma unroll
    for (int plane = 0; plane < 3; plane++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (plane == 0 && a_planes == 2) {
                MMA_F16(d + 4 * h, a_low, b_high[2 * h], b_high[2 * h + 1]);
            } else if (plane == 1 && b_planes == 2) {
                MMA_F16(d + 4 * h, a_high, b_low[2 * h], b_low[2 * h + 1]);
            } else if (plane == 2) {
                MMA_F16(d + 4 * h, a_high, b_high[2 * h], b_high[2 * h + 1]);
            }
        }
    }
}

/* o = keep o + d. */
DEV void add_sums(state &w, const float *keep, const float *d)
{
#pragma unroll
    for (int i = 0; i < SIZE / 2; i++) {
        w.o[i] = __fmaf_rn(w.o[i], keep[i / 2 % 2], d[i]);
    }
}

/* s = q k' of a tile: addresses that load_matrices takes. */
DEV void score_tile(float *s, u32 q, u32 k)
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        s[i] = 0.0f;
    }
#pragma unroll 2
    for (int step = 0; step < STEPS; step++, q += 32, k += 32) {
        u32 high[4], low[4];
        load_matrices(high, q);
        if (Q_PLANES == 2) {
            load_matrices(low, q + Q_BYTES);
        }
#pragma unroll
        for (int n = 0; n < KEY_STEPS; n++) {
            u32 b[4], c[4];
            load_matrices(b, k + n * 16 * PITCH);
            if (K_PLANES == 2) {
                load_matrices(c, k + TILE_BYTES + n * 16 * PITCH);
            }
            add_planes<Q_PLANES, K_PLANES>(s + 8 * n, high, low, b, c);
        }
    }
}

#define AT_ONCE (KEY_STEPS > 2 ? 2 : 1) /* steps of keys */

/* o = keep o + p v of a tile. The loop, in which weights move up, makes the assembler keep the sums of all columns
 * under way at once; where it sees the whole it does few at a time and waits for each. */
DEV void add_values(state &w, weights *p, const float *keep, u32 v)
{
    float d[SIZE / 2];
#pragma unroll
    for (int i = 0; i < SIZE / 2; i++) {
        d[i] = 0.0f;
    }
#pragma unroll 1
    for (int first = 0; first < KEY_STEPS; first += AT_ONCE, v += AT_ONCE * 16 * PITCH) {
#pragma unroll
        for (int i = 0; i < AT_ONCE * STEPS; i++) {
            const int step = i / STEPS, n = i % STEPS;
            u32 b[4], c[4];
            load_matrices_turned(b, v + step * 16 * PITCH + n * 32);
            if (V_PLANES == 2) {
                load_matrices_turned(c, v + TILE_BYTES + step * 16 * PITCH + n * 32);
            }
            add_planes<2, V_PLANES>(d + 8 * n, p[step].high, p[step].low, b, c);
        }
#pragma unroll
        for (int step = 0; step < KEY_STEPS - AT_ONCE; step++) {
            p[step] = p[step + AT_ONCE];
        }
    }
    add_sums(w, keep, d);
}
#endif

/* The unit of sums with this tile, of whose values' factors the lane has some of those at `factors`; what sums so far
 * are multiplied by. */
DEV float widen_range(state &w, const float *factors, int column)
{
    float most = w.range;
#pragma unroll
    for (int n = 0; n < KEYS; n += 8) {
        const float2 f = *(const float2 *)(factors + n + column);
        most = fmaxf(most, fmaxf(fabsf(f.x), fabsf(f.y)));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    if (!(most > w.range)) {
        return 1.0f;
    }
    const u32 above = (__float_as_uint(most) >> 23) + 1, exponent = above < 254 ? above : 254;
    const u32 further = exponent - (__float_as_uint(w.range) >> 23);
    w.range = __uint_as_float(exponent << 23);
    return __uint_as_float((further < 127 ? 127 - further : 0) << 23);
}

/* NONE to scores of a tile, whose first key is key0, where a row of the block, which begins at `first`, does not see
 * the key. */
DEV void hide(const qn_cuda_attention_tiles &a, float *s, int key0, int first)
{
    const int row = first + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const int column = (int)threadIdx.x % 4 * 2;
    const view sees[2] = {seen_by(a, row), seen_by(a, row + 8)};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        s[i] = hides(sees[i / 2 % 2], key0 + i / 4 * 8 + column + i % 2) ? NONE : s[i];
    }
}

/* Text of weigh_four, whose operands it names. */
#define WEIGH(i, by, base, sum, times)                                                                                 \
    "fma.rn.f32 %" #i ", %" #i ", " by ", " base ";\nex2.approx.ftz.f32 %" #i ", %" #i ";\n"                           \
    "add.rn.f32 " sum ", " sum ", %" #i ";\nmul.rn.f32 %" #i ", %" #i ", " times ";\n"

/* A lane's scores s of two rows and columns to weights 2^(s by + base), which sums take, times x and y of a column.
 * Weights below 2^-126 are 0. */
DEV void weigh_four(float *s, const float *by, const float *base, float *sum, float x, float y)
{
    asm(WEIGH(0, "%6", "%8", "%4", "%10") WEIGH(1, "%6", "%8", "%4", "%11")
        WEIGH(2, "%7", "%9", "%5", "%10") WEIGH(3, "%7", "%9", "%5", "%11")
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(sum[0]), "+f"(sum[1])
        : "f"(by[0]), "f"(by[1]), "f"(base[0]), "f"(base[1]), "f"(x), "f"(y));
}

/* Scores of a tile, whose first key is key0, to weights; keep: what sums so far are multiplied by. factors: the keys',
 * then the values'. masked: not all rows see all keys. */
DEV void weigh_tile(const qn_cuda_attention_tiles &a, state &w, float *s, const float *factors, int key0, int first,
                    int masked, float *keep)
{
    const int column = (int)threadIdx.x % 4 * 2;
    float top[2] = {NONE, NONE}, base[2], by[2], sum[2] = {}, total[2], before = 1.0f, unit = RANGE;
    if (V_FACTORS) {
        before = widen_range(w, factors + KEYS, column);
        unit = __uint_as_float((269 - (__float_as_uint(w.range) >> 23)) << 23); /* 2^15 / range */
    }
    if (K_FACTORS) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) {
            const float2 f = *(const float2 *)(factors + 2 * i + column);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[i + e] *= e % 2 ? f.y : f.x;
            }
        }
    }
    if (masked) {
        hide(a, s, key0, first);
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
        top[h] = fmaxf(top[h], w.most[h]);
        base[h] = top[h] == NONE ? 0.0f : top[h];
        by[h] = scale_of(h);
        keep[h] = weight_of((w.most[h] - base[h]) * by[h]);
        w.most[h] = top[h];
        base[h] *= -by[h];
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i += 4) {
        const float2 f = V_FACTORS ? *(const float2 *)(factors + KEYS + 2 * i + column) : make_float2(1.0f, 1.0f);
        weigh_four(s + i, by, base, sum, f.x * unit, f.y * unit);
    }
    load_totals(total);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] = __fmaf_rn(total[h], keep[h], sum[h]);
        keep[h] *= before;
    }
    store_shared_f32x2(totals(), total[0], total[1]);
}

/* A tile's weights as planes. */
DEV void split_weights(weights *p, const float *s)
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i += 2) {
        split_pair(s[i], s[i + 1], &p[i / 8].high[i / 2 % 4], &p[i / 8].low[i / 2 % 4]);
    }
}

/* Sums of row g, as h is 0 or 1 the lane's first or second, to the result or to their place among the parts. */
DEV void store_row(const qn_cuda_attention_tiles &a, const state &w, int h, int head, int part, int r)
{
    const int lane = (int)threadIdx.x % 32, rows = a.queries * a.group;
    const float unit = V_FACTORS ? w.range * (1.0f / RANGE) : 1.0f / RANGE;
    float total = load_shared_f32(totals() + (u32)h * 4);
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (r >= rows) {
        return;
    }
    if (a.parts > 1) {
        float *const to = a.partials + (((i64)head * rows + r) * a.parts + part) * PARTIAL;
        put_parts(to + lane % 4 * 4, unit);
        if (lane % 4 == 0) {
            *(float2 *)(to + SIZE) = make_float2(w.most[0] * scale_of(h), total);
        }
        return;
    }
    const row_place p = place_of(a, r);
    const float by = end_of(seen_by(a, r)) > 0 ? unit * reciprocal(total) : 0.0f;
    char *const to = a.o + p.query * a.o_row + (head * a.group + p.head) * a.o_head;
    put_results(to + lane % 4 * (OUT == QN_MM_F32 ? 8 : 4), by);
}

/* The second row moves to the first one's registers: the code is there once. */
DEV void store_rows(const qn_cuda_attention_tiles &a, state &w, int head, int part, int row)
{
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
        store_row(a, w, h, head, part, row + 8 * h);
        move_row();
        w.most[0] = w.most[1];
    }
}

/* What the threads asked for is there, and what they were to read before is read. */
DEV void meet(void)
{
    copy_async_wait();
#if WGMMA
    fence_proxy_async();
#endif
    __syncthreads();
}

#if WGMMA
/* Scores of a tile, and sums of the one before, p and keep, which are this one's afterwards. Scores become weights
 * while sums are under way, in code without branches, behind which the assembler would wait. So scores begin at NONE
 * where a row does not see the key; where factors have signs all are looked at. whole: all rows see all keys. */
DEV void take_tile(const qn_cuda_attention_tiles &a, state &w, weights *p, float *keep, u32 q, u32 k, u32 v,
                   const float *factors, int key0, int first, int whole)
{
    const u64 rows = wgmma_operand(uniform(q)), keys = wgmma_operand(uniform(k)), values = values_operand(uniform(v));
    float s[KEYS / 2] = {}, next[2];
    if (!whole && !SIGNS) {
        hide(a, s, key0, first);
    }
    give_scores(s);
    wgmma_fence();
    ask_scores(rows, keys);
    ask_sums(p, values);
    WGMMA_WAIT(1);
    take_scores(s);
    weigh_tile(a, w, s, factors, key0, first, SIGNS, next);
    WGMMA_WAIT(0);
    add_sums(keep);
    split_weights(p, s);
    keep[0] = next[0];
    keep[1] = next[1];
}

/* Sums over the tiles from `begin` to before `end`, of which the first one's keys are asked for; least, most: what rows
 * of the block see. A tile's keys arrive beside the values of the one before, both in stages that take turns; before
 * the first there are zeros. */
DEV void go_over_tiles(const qn_cuda_attention_tiles &a, state &w, int head, int first, int begin, int end, view least,
                       view most)
{
    const int warp = (int)uniform(threadIdx.x / 32), mine = first + warp / 4 * 64;
    const view all = seen_by(a, mine), any = seen_by(a, mine + 63);
    const u32 q = shared_address(shared) + (u32)(warp / 4 * 64 * PITCH), k = shared_address(shared) + STAGES_AT;
    const u32 v = k + V_AT;
    const float *const factors = (const float *)(shared + FACTORS_AT);
    float keep[2] = {1.0f, 1.0f};
    weights p[KEY_STEPS] = {};
    int stage = 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < V_PLANES * TILE_BYTES / 16; i += THREADS) {
        store_shared_u32x4(v + (u32)(STAGE_BYTES + i * 16), make_uint4(0, 0, 0, 0));
    }
#pragma unroll 1
    for (int key0 = begin, next; key0 < end; key0 = next, stage ^= 1) {
        next = step_over(key0 + KEYS, least, most);
        meet();
        ask_values(a, stage, head, key0);
        if (next < end) {
            ask_keys(a, stage ^ 1, head, next);
        }
        const u32 k_at = k + (u32)(stage * STAGE_BYTES), v_at = v + (u32)((stage ^ 1) * STAGE_BYTES);
        take_tile(a, w, p, keep, q, k_at, v_at, factors + stage * 2 * KEYS, key0, first, all_see(all, any, key0));
    }
    meet();
    u64 values = values_operand(uniform(v + (u32)((stage ^ 1) * STAGE_BYTES)));
#pragma unroll 1 /* a text of one step compiles sooner */
    for (int step = 0; step < KEY_STEPS; step++, values += 128) {
        wgmma_fence();
        multiply_values(p, values, step);
        wgmma_commit();
        WGMMA_WAIT(0);
#pragma unroll
        for (int i = 0; i < KEY_STEPS - 1; i++) {
            p[i] = p[i + 1];
        }
    }
    add_sums(keep);
}
#else
/* The same. */
DEV void go_over_tiles(const qn_cuda_attention_tiles &a, state &w, int head, int first, int begin, int end, view least,
                       view most)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)uniform(threadIdx.x / 32), mine = first + warp * 16;
    const view all = seen_by(a, mine), any = seen_by(a, mine + 15);
    const u32 q = shared_address(shared) + (u32)((warp * 16 + lane % 16) * PITCH + lane / 16 * 16);
    const u32 k = shared_address(shared) + (u32)(STAGES_AT + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16);
    const u32 v = shared_address(shared) + (u32)(STAGES_AT + V_AT + lane % 16 * PITCH + lane / 16 * 16);
    int stage = 0;
    ask_values(a, 0, head, begin);
#pragma unroll 1
    for (int key0 = begin; key0 < end; stage ^= 1) {
        const int next = step_over(key0 + KEYS, least, most);
        meet();
        if (next < end) {
            ask_keys(a, stage ^ 1, head, next);
            ask_values(a, stage ^ 1, head, next);
        }
        if (key0 < any.below || (WINDOW && key0 < any.to && key0 + KEYS > all.from)) {
            float s[KEYS / 2], keep[2];
            weights p[KEY_STEPS];
            score_tile(s, q, k + (u32)(stage * STAGE_BYTES));
            weigh_tile(a, w, s, (const float *)(shared + FACTORS_AT + stage * 8 * KEYS), key0, first,
                       !all_see(all, any, key0), keep);
            split_weights(p, s);
            add_values(w, p, keep, v + (u32)(stage * STAGE_BYTES));
        }
        key0 = next;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    qn_attention_tiles(const __grid_constant__ qn_cuda_attention_tiles a)
{
    declare_names();
    const int lane = (int)threadIdx.x % 32, warp = (int)uniform(threadIdx.x / 32), head = (int)blockIdx.y;
    const int part = a.first_part + (int)blockIdx.z, rows = a.queries * a.group;
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    const view least = seen_by(a, first), most = seen_by(a, (first + ROWS < rows ? first + ROWS : rows) - 1);
    int begin = part * a.part_keys, end = end_of(most);
    release_next();
    if (a.parts > 1) {
        end = end < begin + a.part_keys ? end : begin + a.part_keys;
        if (end <= begin && part > 0) {
            return;
        }
    }
    wait_before();
    begin = step_over(begin, least, most);
    if (begin < end) {
        ask_keys(a, 0, head, begin);
    }
    load_queries(a, first, head, warp, lane);
    __syncwarp();
    state w = {};
#if WGMMA
    begin_results();
#endif
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.most[h] = NONE;
    }
    w.range = __uint_as_float(16u << 23);
    store_shared_f32x2(totals(), 0.0f, 0.0f);
    if (begin < end) {
        go_over_tiles(a, w, head, first, begin, end, least, most);
    }
#if !WGMMA
    give_results(w.o);
#endif
    const int thread = (int)lazy(threadIdx.x);
    store_rows(a, w, head, part, first + thread / 32 * 16 + thread % 32 / 4);
}
