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
 * Host contract
 *   Parameters: SLOW, K / 1024; INNER, the least of 4 and the fast axis' spans; X_FORMAT,
 *   SU_FORMAT (format + 1). TILES is 2
 *   K a multiple of 1024, its fast axis of 256; N's fast axis a multiple of QN_VQ_CUT_ROWS; rows of Qidxs at multiples
 *   of 8 without gaps, of x at multiples of two elements; su at a multiple of 16; no scaleWH
 *   Launch: block 512, grid {ceil(units / a.tiles)}; as much shared memory as
 *   qn_cuda_vq_points_cut_of says */
#define THREADS 512
#define TILES 2
#include "vq_parts.h"
#include "vq_points.h"

#define WARPS (THREADS / 32)
#define DIGIT_BYTES (4 * DIGIT_PITCH) /* of a span of a row of x */
#define SLOW_PADDED ((SLOW + 3) / 4 * 4)
#define GROUPS 4      /* of threads that share the slow axis, element 4 j + g to group g */
#define ONCE 16       /* elements of the slow axis that a thread has as f32 */
#define SUMS_PITCH 33 /* of 32 rows: no two warps on one bank */
#define SU_UNIT (SU_FORMAT == QN_MM_F32 + 1 ? 4 : 8) /* elements of 16 bytes */

struct cut {
    int spans, first, count; /* spans of K; the first unit of this block, and how many */
    int rows_first, rows;    /* of the slow axis' matrix without its last levels */
};

/* ---- rows of x ---- */

/* +1 or -1 of those rows, for each group's elements. */
DEV void put_signs(const qn_cuda_slow &in, const cut &c, float *to)
{
    const int levels = in.levels / INNER, shift = 31 - __clz(levels);
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < c.rows * GROUPS * SLOW; at += THREADS) {
        const int j = at % SLOW, g = at / SLOW % GROUPS, slot = at / SLOW / GROUPS;
        const int row = (c.rows_first + slot) % (c.spans / INNER);
        const int column = (4 * j + g) / INNER;
        const u32 odd = ((u32)__popc(row & column & (levels - 1)) ^ in.rows[row >> shift] >> (column >> shift)) & 1;
        to[(slot * GROUPS + g) * SLOW_PADDED + j] = odd ? -1.0f : 1.0f;
    }
}

/* Where element j of a thread is. */
DEV int place_of(int j)
{
    return (4 * j + (int)threadIdx.x / 128) * 256 + (int)threadIdx.x % 128 * 2;
}

/* Two neighbours of 16 bits. */
DEV float2 values_of(u32 two, int format)
{
    if (format == QN_MM_F16) {
        return make_float2(half_float(two & 0xffff), half_float(two >> 16));
    }
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}

DEV float2 su_at(const char *su, int k)
{
    return SU_FORMAT == QN_MM_F32 + 1 ? *(const float2 *)(su + k * 4)
                                      : values_of(*(const u32 *)(su + k * 2), SU_FORMAT - 1);
}

/* Two neighbours of x as they are in memory. */
#if X_FORMAT == QN_MM_F32
typedef float2 pair;
#define VALUES_OF(v) (v)
#define X_AHEAD ONCE /* elements of the slow axis that are on their way at a time */
#else
typedef u32 pair;
#define VALUES_OF(v) values_of(v, X_FORMAT)
#define X_AHEAD SLOW
#endif

/* Row m of x times those rows of the matrix: to[row][group][256]. */
DEV void add_up(const qn_cuda_vq &a, const cut &c, int m, const char *su, const float *signs, float *to)
{
    const char *const row = a.x + (i64)m * a.x_row;
    pair x[X_AHEAD];
    constexpr int slots = SLOW <= ONCE ? 2 : 1; /* at a time */
    signs += (int)threadIdx.x / 128 * SLOW_PADDED;
    to += (int)threadIdx.x * 2;
#pragma unroll
    for (int first = 0; first < SLOW; first += ONCE) {
        float2 v[ONCE];
        if (first % X_AHEAD == 0) {
#pragma unroll
            for (int j = first; j < SLOW && j < first + X_AHEAD; j++) {
                x[j - first] = *(const pair *)(row + place_of(j) * (int)(sizeof(pair) / 2));
            }
        }
#pragma unroll
        for (int j = first; j < SLOW && j < first + ONCE; j++) {
            const float2 value = VALUES_OF(x[j % X_AHEAD]), by = su_at(su, place_of(j));
            v[j - first] = make_float2(value.x * by.x, value.y * by.y);
        }
#pragma unroll slots
        for (int slot = 0; slot < c.rows; slot++) {
            float2 *const at = (float2 *)(to + slot * (GROUPS * 256));
            float2 sum = first > 0 ? *at : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int j = first; j < SLOW && j < first + ONCE; j += 4) {
                const float4 four = *(const float4 *)(signs + slot * (GROUPS * SLOW_PADDED) + j);
                const float sign[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4 && j + i < SLOW; i++) {
                    sum.x = __fmaf_rn(v[j + i - first].x, sign[i], sum.x);
                    sum.y = __fmaf_rn(v[j + i - first].y, sign[i], sum.y);
                }
            }
            *at = sum;
        }
    }
}

DEV float either_way(int upper, float own, float other)
{
    return upper ? other - own : own + other;
}

/* A span from that, by a warp: eight neighbours a lane, but for the scale. */
DEV void span_of(const float *rows, int inner, int lane, float *v)
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
            const float4 part = *(const float4 *)(rows + g * 256 + lane * 8 + e);
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
            v[e] = either_way(lane & step, v[e], __shfl_xor_sync(~0u, v[e], step));
        }
    }
}

/* ---- weights ---- */

DEV void load_unit(const qn_cuda_vq &a, const cut &c, int i, int warp, int lane, u32 (*codes)[2][4])
{
    const int unit = c.first + i, tile = unit / c.spans * (QN_VQ_CUT_ROWS / 16) + warp * TILES;
    const i64 step = (i64)c.spans * 1024;
    const char *const at = a.codes + (i64)tile * step + (i64)(unit % c.spans) * 1024 + lane * 8;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            load_block(at + t * step, codes[t], j);
        }
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
            v[i] = either_way(lane & step, v[i], __shfl_xor_sync(~0u, v[i], step));
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
    const int part = (int)blockIdx.x - rows * c.spans / a.tiles;
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_points_cut(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_slow in)
{
    extern __shared__ __align__(128) u8 memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    cut c;
    c.spans = SLOW * 4;
    c.first = (int)blockIdx.x * a.tiles;
    c.count = min(a.tiles, a.n / QN_VQ_CUT_ROWS * c.spans - c.first);
    c.rows_first = c.first / INNER;
    c.rows = (c.first + c.count - 1) / INNER - c.rows_first + 1;
    const u32 digits = shared_address(memory) + TABLE_BYTES;                               /* [unit][m] */
    float2 *const scales = (float2 *)(memory + TABLE_BYTES + a.tiles * a.m * DIGIT_BYTES); /* [unit][m], and excess */
    float *const sums = (float *)(scales + (a.tiles * a.m + 1) / 2 * 2);                   /* of all warps */
    float *const signs = sums + (a.m * WARPS * SUMS_PITCH + 3) / 4 * 4;
    float *const rows = signs + QN_VQ_CUT_SLOTS(a.tiles, INNER) * GROUPS * SLOW_PADDED;
    char *const su = (char *)(rows + QN_VQ_CUT_SLOTS(a.tiles, INNER) * GROUPS * 256);
    u32 next[TILES][2][4];
    release_next();
    if (!a.early) { /* else weights stay: they may be read while the kernel in front works */
        wait_before();
    }
    load_unit(a, c, 0, warp, lane, next);
    for (int i = (int)threadIdx.x; i < SLOW * 1024 / SU_UNIT; i += THREADS) {
        copy_async_16(shared_address(su) + (u32)i * 16, a.su + i * 16, 16);
    }
    fill(shared_address(memory));
    put_signs(in, c, signs);
    copy_async_wait();
    wait_before();
    for (int m = 0; m < a.m; m++) {
        __syncthreads();
        add_up(a, c, m, su, signs, rows);
        __syncthreads();
#pragma unroll 1
        for (int i = warp; i < c.count; i += WARPS) {
            const int unit = c.first + i;
            float v[8], all;
            span_of(rows + (unit / INNER - c.rows_first) * (GROUPS * 256), unit % INNER, lane, v);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v[e] *= in.scale;
            }
            const float scale = put_digits(v, digits + (u32)(i * a.m + m) * DIGIT_BYTES, lane, &all);
            if (lane == 0) { /* of sums of nibbles times 16 x, and what the 15 are too much */
                scales[i * a.m + m] = make_float2(0.03125f * scale, 3.75f * scale * all);
            }
        }
    }
    __syncthreads();
    const int m = lane % 4 / 2 < a.m ? lane % 4 / 2 : 0;
    const u32 x = digits + (u32)(lane / 4 % (4 * a.m)) * DIGIT_PITCH + (u32)(lane % 4) * 8;
    const float place = lane & 1 ? 65536.0f : 1.0f;
    float found[TILES][2] = {}, excess = 0.0f;
#pragma unroll 1
    for (int i = 0; i < c.count; i++) {
        u32 codes[TILES][2][4];
        int of[TILES][4] = {};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int w = 0; w < 8; w++) {
                codes[t][w / 4][w % 4] = next[t][w / 4][w % 4];
            }
        }
        if (i + 1 < c.count) {
            load_unit(a, c, i + 1, warp, lane, next);
        }
        const float2 by = scales[i * a.m + m];
        unit_sums(memory, codes, x + (u32)(i * a.m) * DIGIT_BYTES, lane, of);
        const float scale = by.x * place;
        excess += by.y;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float v = __fmaf_rn((float)of[t][2 * half + 1], 256.0f, (float)of[t][2 * half]);
                found[t][half] = __fmaf_rn(v, scale, found[t][half]);
            }
        }
        const int unit = c.first + i;
        if (i + 1 == c.count || (unit + 1) % c.spans == 0) {
            put_part(a, c, unit / c.spans, found, excess, warp, lane, sums);
            excess = 0.0f;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                found[t][0] = found[t][1] = 0.0f;
            }
        }
    }
}
