/* The product of one or two rows of x and E8P12 weights between its two transforms, in parts: vq_points.h has what a
 * point becomes. vq_points_join.cu adds the parts and ends the transform of y.
 *
 * Units of QN_VQ_CUT_ROWS rows of w by a span of 256 columns, those of the same rows one after the other, are dealt to
 * the blocks in runs of a.tiles. So a block needs few spans of the transformed x, and makes them itself of all of x:
 * seen as [slow][256], a span is a row of the slow axis' matrix times x, which all threads add up, and then Sylvester's
 * of 256, which a warp does in its registers before it makes digits of them. The slow axis' matrix is the base's times
 * Sylvester's; its last two levels, as far as it has them, are left to the warp, so that spans share what is added up.
 * What a block finds of the rows is transformed along their 512 before it is a part: that transform is linear, too.
 *
 * Two blocks that need the same spans may be a cluster (PAIR 2): each adds up half of the columns for both, so that a
 * block reads half of x and of SU. Spans of a block, up to 16, have one scale: sums stay integers from unit to unit.
 *
 * Host contract
 *   Parameters: SLOW, K / 1024; INNER, the least of 4 and the fast axis' spans; PAIR, 1 or 2, where SLOW is even;
 *   X_FORMAT, SU_FORMAT (format + 1). TILES is 2
 *   K a multiple of 1024, its fast axis of 256; N's fast axis a multiple of QN_VQ_CUT_ROWS; rows of Qidxs at multiples
 *   of 8 without gaps, of x, and su, at multiples of two elements; no scaleWH
 *   PAIR 2: block b has the spans of block b + a.blocks, and a.blocks * 2 divides their number
 *   Launch: block 512, grid {ceil(units / a.tiles)}, clusters of PAIR; as much shared memory as
 *   qn_cuda_vq_points_cut_of says */
#define THREADS 512
#define TILES 2
#include "vq_parts.h"
#include "vq_points.h"

#define WARPS (THREADS / 32)
#define DIGIT_BYTES (4 * DIGIT_PITCH)  /* of a span of a row of x */
#define GROUPS 4                       /* that the slow axis is added up in, element 4 j + g in group g */
#define COLUMNS (256 / PAIR)           /* of a block, two a thread; */
#define IN_WARP (32 / PAIR)            /* so many threads of a warp have a group's */
#define STRIDE (GROUPS * PAIR)         /* elements from one of a thread to its next */
#define OWN (SLOW / PAIR)              /* elements of a thread */
#define OWN_PADDED ((OWN + 3) / 4 * 4) /* their signs */
#define ONCE 16                        /* elements that a thread has as f32 */
#define HALVES_PITCH 272               /* of 256 columns: of each eight the first four, and the others */
#define HALF_AT 144                    /* from there on, on other banks */
#define SUMS_PITCH 33                  /* of 32 rows: no two warps on one bank */

/* A multiprocessor has registers left for a block of vq_points_join.cu, which waits there. */
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4)
#define REGISTERS __maxnreg__((65536 - 256 * 32) / THREADS)
#else
#define REGISTERS __launch_bounds__(THREADS, 1)
#endif

/* Whether SU is in registers before x is there. */
#define KEPT (SU_FORMAT != QN_MM_F32 + 1 && SLOW / PAIR <= ONCE)

struct cut {
    int block, rank;         /* of those that units are dealt to; in the cluster */
    int spans, first, count; /* spans of K; the first unit of this block, and how many */
    int rows_first, rows;    /* of the slow axis' matrix without its last levels */
};

/* ---- rows of x ---- */

/* +1 or -1 of those rows, for the elements of each thread. */
DEV void put_signs(const qn_cuda_slow &in, const cut &c, float *to)
{
    const int levels = in.levels / INNER, shift = 31 - __clz(levels);
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < c.rows * STRIDE * OWN; at += THREADS) {
        const int j = at % OWN, first = at / OWN % STRIDE, slot = at / OWN / STRIDE;
        const int row = (c.rows_first + slot) % (c.spans / INNER);
        const int column = (STRIDE * j + first) / INNER;
        const u32 odd = ((u32)__popc(row & column & (levels - 1)) ^ in.rows[row >> shift] >> (column >> shift)) & 1;
        to[(slot * STRIDE + first) * OWN_PADDED + j] = odd ? -1.0f : 1.0f;
    }
}

/* A thread's group, its first element of the slow axis, its columns, and where element j is. */
DEV int group_of_thread(void)
{
    return (int)threadIdx.x / (THREADS / GROUPS);
}

DEV int first_of_thread(void)
{
    return (int)threadIdx.x % 32 / IN_WARP * GROUPS + group_of_thread();
}

DEV int column_of_thread(const cut &c)
{
    const int warp = (int)threadIdx.x / 32 % (WARPS / GROUPS);
    return c.rank * COLUMNS + (warp * IN_WARP + (int)threadIdx.x % IN_WARP) * 2;
}

DEV int place_of(const cut &c, int j)
{
    return (STRIDE * j + first_of_thread()) * 256 + column_of_thread(c);
}

/* Two neighbours of 16 bits. */
DEV float2 values_of(u32 two, int format)
{
    if (format == QN_MM_F16) {
        return make_float2(half_float(two & 0xffff), half_float(two >> 16));
    }
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}

/* Two neighbours as they are in memory. */
template <int F32> struct pair_of_format {
    typedef u32 type;
};
template <> struct pair_of_format<1> {
    typedef float2 type;
};
typedef pair_of_format<X_FORMAT == QN_MM_F32>::type x_pair;
typedef pair_of_format<SU_FORMAT == QN_MM_F32 + 1>::type su_pair;

DEV float2 floats_of(u32 two, int format)
{
    return values_of(two, format);
}

DEV float2 floats_of(float2 two, int)
{
    return two;
}

DEV void load_su(const qn_cuda_vq &a, const cut &c, int first, su_pair *su)
{
#pragma unroll
    for (int j = first; j < OWN && j < first + ONCE; j++) {
        su[j - first] = *(const su_pair *)(a.su + place_of(c, j) * (int)(sizeof(su_pair) / 2));
    }
}

/* Row m of x times those rows of the matrix: to[row][group][256], in both blocks of a cluster. */
DEV void add_up(const qn_cuda_vq &a, const cut &c, int m, const su_pair *kept, const float *signs, float *to)
{
    const char *const row = a.x + (i64)m * a.x_row;
    const int column = column_of_thread(c);
    signs += first_of_thread() * OWN_PADDED;
    to += group_of_thread() * HALVES_PITCH + column / 8 * 4 + column % 4 + column % 8 / 4 * HALF_AT;
    const u32 there = PAIR == 1 ? 0 : cluster_address(shared_address(to), threadIdx.x % 32 / IN_WARP);
#pragma unroll
    for (int first = 0; first < OWN; first += ONCE) {
        x_pair x[ONCE];
        su_pair su[ONCE];
        float2 v[ONCE];
#pragma unroll
        for (int j = first; j < OWN && j < first + ONCE; j++) {
            x[j - first] = *(const x_pair *)(row + place_of(c, j) * (int)(sizeof(x_pair) / 2));
#if KEPT
            su[j - first] = kept[j - first];
            asm volatile("" : "+r"(su[j - first])); /* no floats of it beside those of the rows of x */
#endif
        }
        if (!KEPT) {
            load_su(a, c, first, su);
        }
#pragma unroll
        for (int j = 0; j < ONCE && first + j < OWN; j++) {
            const float2 value = floats_of(x[j], X_FORMAT), by = floats_of(su[j], SU_FORMAT - 1);
            v[j] = make_float2(value.x * by.x, value.y * by.y);
        }
#pragma unroll 1
        for (int slot = 0; slot < c.rows; slot++) {
            float2 *const here = (float2 *)(to + slot * (GROUPS * HALVES_PITCH));
            float2 sum = first > 0 ? *here : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < ONCE && first + j < OWN; j += 4) {
                const float4 four = *(const float4 *)(signs + slot * (STRIDE * OWN_PADDED) + first + j);
                const float sign[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4 && first + j + i < OWN; i++) {
                    sum.x = __fmaf_rn(v[j + i].x, sign[i], sum.x);
                    sum.y = __fmaf_rn(v[j + i].y, sign[i], sum.y);
                }
            }
#if PAIR == 1
            *here = sum;
#else /* a half of the warp has the other elements of these columns, and stores to the other block */
            sum.x += __shfl_xor_sync(~0u, sum.x, IN_WARP);
            sum.y += __shfl_xor_sync(~0u, sum.y, IN_WARP);
            const u32 at = there + (u32)slot * (GROUPS * HALVES_PITCH * 4);
            asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(sum.x), "f"(sum.y) : "memory");
#endif
        }
    }
}

/* All have stored what the others read, and read what they store to. */
DEV void meet(void)
{
#if PAIR == 1
    __syncthreads();
#else
    cluster_arrive();
    cluster_wait();
#endif
}

/* What a lane's own is multiplied by when another's, `step` lanes on, is added. */
DEV float sign_of(int lane, int step)
{
    return lane & step ? -1.0f : 1.0f;
}

/* A span from that, by a warp: eight neighbours a lane. */
DEV void span_of(const float *rows, int inner, float scale, int lane, float *v)
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        v[e] = 0.0f;
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const float sign = __popc(inner & g & (INNER - 1)) & 1 ? -1.0f : 1.0f;
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            const float4 part = *(const float4 *)(rows + g * HALVES_PITCH + lane * 4 + e / 4 * HALF_AT);
            v[e] = __fmaf_rn(part.x, sign, v[e]);
            v[e + 1] = __fmaf_rn(part.y, sign, v[e + 1]);
            v[e + 2] = __fmaf_rn(part.z, sign, v[e + 2]);
            v[e + 3] = __fmaf_rn(part.w, sign, v[e + 3]);
        }
    }
#pragma unroll
    for (int level = 1; level < 8; level *= 2) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if (!(e & level)) {
                const float low = v[e], high = v[e + level];
                v[e] = low + high;
                v[e + level] = low - high;
            }
        }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[e] = __fmaf_rn(v[e], sign_of(lane, step), __shfl_xor_sync(~0u, v[e], step));
        }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        v[e] *= scale;
    }
}

/* Digits of all spans of row m, of WARPS of them at a time with one scale. scales: of sums of nibbles times 16 x, and
 * what the 15 are too much. */
DEV void make_digits(const qn_cuda_vq &a, const cut &c, int m, const float *rows, float by, u32 digits, float2 *scales,
                     u32 *largest, int warp, int lane)
{
#pragma unroll 1
    for (int first = 0; first < c.count; first += WARPS) {
        const int i = first + warp, unit = c.first + i, together = min(WARPS, c.count - first);
        float v[8], all;
        u32 most = 0;
        if (i < c.count) {
            span_of(rows + (unit / INNER - c.rows_first) * (GROUPS * HALVES_PITCH), unit % INNER, by, lane, v);
            most = largest_of(v);
            if (together > 1) {
                largest[warp] = most;
            }
        }
        if (together > 1) {
            __syncthreads();
            most = __reduce_max_sync(~0u, lane < together ? largest[lane] : 0);
        }
        if (i < c.count) {
            const float scale = put_digits(v, most, digits + (u32)(i * a.m + m) * DIGIT_BYTES, lane, &all);
            if (lane == 0) {
                scales[i * a.m + m] = make_float2(0.03125f * scale, 3.75f * scale * all);
            }
        }
        __syncthreads();
    }
}

/* ---- weights ---- */

/* Where a lane's codes of a unit are. */
struct place {
    const char *at;
    int span;
};

DEV void load_unit(const cut &c, const place &p, u32 (*codes)[2][4])
{
    const i64 step = (i64)c.spans * 1024; /* of a tile */
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            load_block(p.at + t * step + j * 256, codes[t], j);
        }
    }
}

DEV void step_on(const cut &c, place *p)
{
    p->at += 1024;
    if (++p->span == c.spans) {
        p->span = 0;
        p->at += (i64)(QN_VQ_CUT_ROWS / 16 - 1) * c.spans * 1024;
    }
}

/* ---- sums ---- */

DEV void butterfly(float *v, int level)
{
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        if (!(i & level)) {
            const float low = v[i], high = v[i + level];
            v[i] = low + high;
            v[i + level] = low - high;
        }
    }
}

/* What the block found of QN_VQ_CUT_ROWS rows, transformed along them, is a part of them. found: of a lane's digits,
 * rows lane / 4 * 2 and the next of each tile; excess: what they are too much. */
DEV void put_part(const qn_cuda_vq &a, const cut &c, int rows, float (*found)[2], float excess, int warp, int lane,
                  float *sums)
{
    float v[2 * TILES];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        v[i] = found[i / 2][i % 2];
        v[i] = v[i] + __shfl_xor_sync(~0u, v[i], 1) - excess;
    }
    butterfly(v, 1);
#pragma unroll 1
    for (int step = 4; step < 32; step *= 2) {
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            v[i] = __fmaf_rn(v[i], sign_of(lane, step), __shfl_xor_sync(~0u, v[i], step));
        }
    }
    butterfly(v, 2);
    __syncthreads(); /* all have read what was there before */
    if (lane % 2 == 0 && lane % 4 / 2 < a.m) {
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            sums[(lane % 4 / 2 * WARPS + warp) * SUMS_PITCH + i / 2 * 16 + lane / 4 * 2 + i % 2] = v[i];
        }
    }
    __syncthreads();
    const int part = c.block - rows * c.spans / a.tiles;
    for (int m = 0; m < a.m; m++) {
        float of[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            of[w] = sums[(m * WARPS + w) * SUMS_PITCH + lane];
        }
#pragma unroll
        for (int level = 1; level < WARPS; level *= 2) {
            const float sign = warp & level ? -1.0f : 1.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w += 2 * level) {
                of[w] = __fmaf_rn(of[w + level], sign, of[w]);
            }
        }
        a.parts[((i64)part * a.m + m) * a.n + rows * QN_VQ_CUT_ROWS + (int)threadIdx.x] = of[0];
    }
}

extern "C" __global__ void REGISTERS qn_vq_points_cut(const __grid_constant__ qn_cuda_vq a,
                                                      const __grid_constant__ qn_cuda_slow in)
{
    extern __shared__ __align__(128) u8 memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    cut c;
    c.spans = SLOW * 4;
    c.rank = (int)blockIdx.x % PAIR;
    c.block = (int)blockIdx.x / PAIR;
    if (PAIR > 1) {
        c.block += c.block / a.blocks * a.blocks * (PAIR - 1) + c.rank * a.blocks;
    }
    c.first = c.block * a.tiles;
    c.count = min(a.tiles, a.n / QN_VQ_CUT_ROWS * c.spans - c.first);
    c.rows_first = c.first / INNER;
    c.rows = (c.first + c.count - 1) / INNER - c.rows_first + 1;
    const u32 digits = shared_address(memory) + TABLE_BYTES;                               /* [unit][m] */
    float2 *const scales = (float2 *)(memory + TABLE_BYTES + a.tiles * a.m * DIGIT_BYTES); /* [unit][m], and excess */
    float *const sums = (float *)(scales + (a.tiles * a.m + 1) / 2 * 2);                   /* of all warps */
    float *const signs = sums + (a.m * WARPS * SUMS_PITCH + 3) / 4 * 4;
    float *const rows = signs + QN_VQ_CUT_SLOTS(a.tiles, INNER) * (STRIDE * OWN_PADDED);
    u32 codes[2][TILES][2][4]; /* in turn */
    su_pair su[ONCE];
    release_next();
    if (!a.early) { /* else weights stay: they may be read while the kernel in front works */
        wait_before();
    }
    place ahead;
    const int tile = c.first / c.spans * (QN_VQ_CUT_ROWS / 16) + warp * TILES;
    ahead.span = c.first % c.spans;
    ahead.at = a.codes + ((i64)tile * c.spans + ahead.span) * 1024 + lane * 8;
    load_unit(c, ahead, codes[0]);
    step_on(c, &ahead);
    if (PAIR > 1) {
        cluster_arrive_relaxed();
    }
    if (KEPT) {
        load_su(a, c, 0, su);
    }
    fill(shared_address(memory));
    put_signs(in, c, signs);
    if (PAIR > 1) { /* the other block is there */
        cluster_wait();
    }
    wait_before();
    for (int m = 0; m < a.m; m++) {
        if (m == 0) {
            __syncthreads();
        } else {
            meet();
        }
        add_up(a, c, m, su, signs, rows);
        meet();
        make_digits(a, c, m, rows, in.scale, digits, scales, (u32 *)sums, warp, lane);
    }
    const int m = lane % 4 / 2 < a.m ? lane % 4 / 2 : 0;
    const u32 x = digits + (u32)(lane / 4 % (4 * a.m)) * DIGIT_PITCH + (u32)(lane % 4) * 8;
    const u32 entry = entry_of_lane(memory, lane);
    const float place_of_digit = lane & 1 ? 65536.0f : 1.0f;
    float found[TILES][2] = {}, excess = 0.0f;
    int of[TILES][4] = {};
    int left = c.spans - c.first % c.spans; /* units of the same rows */
#pragma unroll 1
    for (int first = 0; first < c.count; first += 2) {
#pragma unroll
        for (int now = 0; now < 2; now++) {
            const int i = first + now;
            if (i < c.count) {
                excess += scales[i * a.m + m].y;
                unit_sums(entry, codes[now], x + (u32)(i * a.m) * DIGIT_BYTES, of, [&] {
                    if (i + 1 < c.count) {
                        load_unit(c, ahead, codes[1 - now]);
                    }
                });
                step_on(c, &ahead);
                const int last = --left == 0 || i + 1 == c.count;
                if (last || i % WARPS == WARPS - 1) {
                    const float scale = scales[i * a.m + m].x * place_of_digit;
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const float v = __fmaf_rn((float)of[t][2 * half + 1], 256.0f, (float)of[t][2 * half]);
                            found[t][half] = __fmaf_rn(v, scale, found[t][half]);
                            of[t][2 * half] = of[t][2 * half + 1] = 0;
                        }
                    }
                }
                if (last) {
                    put_part(a, c, (c.first + i) / c.spans, found, excess, warp, lane, sums);
                    left = c.spans;
                    excess = 0.0f;
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        found[t][0] = found[t][1] = 0.0f;
                    }
                }
            }
        }
    }
}
