/* rmsnorm, silu_mul, rope, and the sum that a residual stream takes.
 *
 * Host contract
 *   Parameters: X_FORMAT, OUT of x and y; W_FORMAT of the norm's weight; STYLE of rope, 0 halves, 1 neighbours;
 *     SINGLE 1: of qn_silu_mul for few rows; THREADS of a block of the norms; of qn_rmsnorm NORM_ITEMS of PER elements
 *     a thread, TEAM threads a row, all THREADS or one item each of a part of a warp, WEIGHTS_EARLY 1: registers hold
 *     the weight, too; ITEMS of four elements a thread of qn_add_rmsnorm; of turn.h
 *   Launch: qn_rmsnorm K up to TEAM * NORM_ITEMS * PER, a block for THREADS / TEAM rows; qn_rmsnorm_long any K, a block
 *     a row (rows are walked); qn_add_rmsnorm one block, K a multiple of 4, rows at multiples of 16; qn_silu_mul and
 *     qn_add any block and grid of two dimensions, SINGLE block 256, grid {blocks of a row, rows}; qn_rope any block of
 *     the pairs of a head or more, at least TURNS where they are more, grid {parts of a head, tiles of rows, shares of
 *     the heads} */
#include "formats.h"
#include "cuda_activation.h"
#include "silu.h"
#include "turn.h"

#define PER 8
#define BYTES_OF(format) ((format) == QN_MM_F32 ? 4 : 2)
#define WORDS_OF(count, format) ((count)*BYTES_OF(format) / 4)

/* ---- elements in accesses as wide as their address allows ---- */

/* `per` neighbouring elements, an even number, of which `count` are there, as words; the others are 0. */
DEV void load_run(const char *p, int per, int count, int format, u32 *w)
{
    const int words = WORDS_OF(per, format);
    const u32 at = (u32)(u64)p;
    if (count >= per && words % 4 == 0 && at % 16 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            const uint4 v = ((const uint4 *)p)[i / 4];
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
    } else if (count >= per && words % 2 == 0 && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            const uint2 v = ((const uint2 *)p)[i / 2];
            w[i] = v.x, w[i + 1] = v.y;
        }
    } else if (count >= per && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = ((const u32 *)p)[i];
        }
    } else if (format == QN_MM_F32) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = i < count ? ((const u32 *)p)[i] : 0;
        }
    } else if (count >= per) { /* the first and the last by themselves */
        const u32 *const inner = (const u32 *)(p + 2);
        u32 before = (u32) * (const u16 *)p << 16;
#pragma unroll
        for (int i = 0; i < words; i++) {
            const u32 next = i + 1 < words ? inner[i] : *(const u16 *)(inner + i);
            w[i] = __funnelshift_r(before, next, 16);
            before = next;
        }
    } else {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = 2 * i < count ? ((const u16 *)p)[2 * i] : 0;
            w[i] |= 2 * i + 1 < count ? (u32)((const u16 *)p)[2 * i + 1] << 16 : 0;
        }
    }
}

/* Element i of them. */
DEV float run_float(const u32 *w, int i, int format)
{
    if (format == QN_MM_F32) {
        return __uint_as_float(w[i]);
    }
    const u32 bits = i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xffffu;
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

DEV void store_run(char *p, int per, int count, int format, const float *v)
{
    const int words = WORDS_OF(per, format);
    const u32 at = (u32)(u64)p;
    u32 w[16];
#pragma unroll
    for (int i = 0; i < words; i++) {
        w[i] = format == QN_MM_F32   ? __float_as_uint(v[i])
               : format == QN_MM_F16 ? pack_f16(v[2 * i], v[2 * i + 1])
                                     : pack_bf16(v[2 * i], v[2 * i + 1]);
    }
    if (count >= per && words % 4 == 0 && at % 16 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            ((uint4 *)p)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        }
    } else if (count >= per && words % 2 == 0 && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            ((uint2 *)p)[i / 2] = make_uint2(w[i], w[i + 1]);
        }
    } else if (count >= per && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            ((u32 *)p)[i] = w[i];
        }
    } else if (count >= per) {
        u32 *const inner = (u32 *)(p + 2);
        *(u16 *)p = (u16)w[0];
#pragma unroll
        for (int i = 0; i + 1 < words; i++) {
            inner[i] = __funnelshift_r(w[i], w[i + 1], 16);
        }
        *(u16 *)(inner + words - 1) = (u16)(w[words - 1] >> 16);
    } else {
#pragma unroll
        for (int i = 0; i < per; i++) {
            if (i < count) {
                store_float(p, i, v[i], format);
            }
        }
    }
}

/* ---- rmsnorm ---- */

DEV float warp_sum(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, step);
    }
    return v;
}

#ifdef NORM_ITEMS
/* Squares are added in an order that follows from K alone: 8 neighbouring elements one after the other, 32 such sums in
 * a warp's tree, then sums of 256 elements. */
extern "C" __global__ void __launch_bounds__(THREADS) qn_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    const i64 row = (i64)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    const int place = (int)threadIdx.x % TEAM, k = (int)a.k;
    const char *const x = a.x + row * a.x_row;
    u32 of[NORM_ITEMS][WORDS_OF(PER, X_FORMAT)], by[NORM_ITEMS][WORDS_OF(PER, W_FORMAT)];
    float squares[NORM_ITEMS];
    release_next();
    wait_before();
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        const int i = (j * TEAM + place) * PER;
        load_run(x + (i64)i * BYTES_OF(X_FORMAT), PER, row < a.m ? k - i : 0, X_FORMAT, of[j]);
    }
    if (WEIGHTS_EARLY) {
#pragma unroll
        for (int j = 0; j < NORM_ITEMS; j++) {
            const int i = (j * TEAM + place) * PER;
            load_run(a.w + (i64)i * BYTES_OF(W_FORMAT), PER, k - i, W_FORMAT, by[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        squares[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const float v = run_float(of[j], e, X_FORMAT);
            squares[j] = __fmaf_rn(v, v, squares[j]);
        }
    }
#if TEAM <= 32
    float sum = squares[0];
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
#else
    __shared__ float parts[NORM_ITEMS * THREADS / 32];
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        squares[j] = warp_sum(squares[j]);
        if (lane == 0) {
            parts[(j * THREADS + threadIdx.x) / 32] = squares[j];
        }
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_ITEMS * THREADS / 32; i += 32) {
        sum += i + lane < NORM_ITEMS * THREADS / 32 ? parts[i + lane] : 0.0f;
    }
    sum = warp_sum(sum);
#endif
    const float factor = 1.0f / sqrtf(sum / (float)a.k + a.eps);
#pragma unroll
    for (int j = 0; j < NORM_ITEMS; j++) {
        const int i = (j * TEAM + place) * PER;
        float v[PER];
        if (!WEIGHTS_EARLY) {
            load_run(a.w + (i64)i * BYTES_OF(W_FORMAT), PER, k - i, W_FORMAT, by[j]);
        }
#pragma unroll
        for (int e = 0; e < PER; e++) {
            v[e] = run_float(of[j], e, X_FORMAT) * factor * run_float(by[j], e, W_FORMAT);
        }
        store_run(a.y + row * a.y_row + (i64)i * BYTES_OF(OUT), PER, row < a.m ? k - i : 0, OUT, v);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) qn_rmsnorm_long(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float parts[THREADS / 32];
    release_next();
    wait_before();
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        const char *const x = a.x + row * a.x_row;
        float squares = 0.0f;
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT);
            squares = __fmaf_rn(v, v, squares);
        }
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) {
            parts[threadIdx.x / 32] = squares;
        }
        __syncthreads();
        squares = 0.0f;
#pragma unroll
        for (int i = 0; i < THREADS / 32; i++) {
            squares += parts[i];
        }
        const float factor = 1.0f / sqrtf(squares / (float)a.k + a.eps);
        for (i64 i = threadIdx.x; i < a.k; i += THREADS) {
            const float v = load_float(x, i, X_FORMAT) * factor * load_float(a.w, i, W_FORMAT);
            store_float(a.y + row * a.y_row, i, v, OUT);
        }
        __syncthreads(); /* the next row uses parts again */
    }
}

/* ---- silu_mul, and x += y ---- */

#define EACH_RUN(a, row, at)                                                                                           \
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < (a).m; row += (i64)gridDim.y * blockDim.y)        \
        for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * PER; at < (a).k;                                  \
             at += (i64)gridDim.x * blockDim.x * PER)

DEV int run_length(i64 k, i64 at)
{
    return k - at < PER ? (int)(k - at) : PER;
}

#if SINGLE
extern "C" __global__ void __launch_bounds__(256) qn_silu_mul(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    for (i64 row = blockIdx.y; row < a.m; row += gridDim.y) {
        const char *const x = a.x + row * a.x_row;
        for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < a.k; i += (i64)gridDim.x * 256) {
            const float v = silu_mul(load_float(x, i, X_FORMAT), load_float(x, a.k + i, X_FORMAT));
            store_float(a.y + row * a.y_row, i, v, OUT);
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(256) qn_silu_mul(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    EACH_RUN(a, row, at)
    {
        const char *const x = a.x + row * a.x_row;
        const int count = run_length(a.k, at);
        u32 gate[WORDS_OF(PER, X_FORMAT)], up[WORDS_OF(PER, X_FORMAT)];
        float v[PER];
        load_run(x + at * BYTES_OF(X_FORMAT), PER, count, X_FORMAT, gate);
        load_run(x + (a.k + at) * BYTES_OF(X_FORMAT), PER, count, X_FORMAT, up);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = silu_mul(run_float(gate, i, X_FORMAT), run_float(up, i, X_FORMAT));
        }
        store_run(a.y + row * a.y_row + at * BYTES_OF(OUT), PER, count, OUT, v);
    }
}
#endif

/* x += y, y being w; both f32. */
extern "C" __global__ void __launch_bounds__(256) qn_add(const __grid_constant__ qn_cuda_activation a)
{
    release_next();
    wait_before();
    EACH_RUN(a, row, at)
    {
        char *const y = a.y + row * a.y_row + at * 4;
        const int count = run_length(a.k, at);
        u32 to[PER], by[PER];
        float v[PER];
        load_run(y, PER, count, QN_MM_F32, to);
        load_run(a.w + row * a.w_row + at * 4, PER, count, QN_MM_F32, by);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = __uint_as_float(to[i]) + __uint_as_float(by[i]);
        }
        store_run(y, PER, count, QN_MM_F32, v);
    }
}

/* ---- rope ---- */

#define TURNS 256 /* threads of a block at most, each with an angle of a row: all pairs of a head, or so many of it */
#define PAIRS (STYLE ? 2 : 4) /* of a thread at a time */
#define SIDE_WORDS WORDS_OF(PAIRS, X_FORMAT)

/* Elements of the pairs of a head from `from` on, `count` of them there: first ones, then second, or side by side. */
DEV void load_pairs(const char *x, int from, int half, int count, u32 *w)
{
#if STYLE
    load_run(x + (i64)from * 2 * BYTES_OF(X_FORMAT), 2 * PAIRS, 2 * count, X_FORMAT, w);
#else
    load_run(x + (i64)from * BYTES_OF(X_FORMAT), PAIRS, count, X_FORMAT, w);
    load_run(x + (i64)(from + half) * BYTES_OF(X_FORMAT), PAIRS, count, X_FORMAT, w + SIDE_WORDS);
#endif
}

DEV void turn_pairs(const u32 *w, char *y, int from, int half, int count, const float *c, const float *s)
{
    float t[2 * PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int first = STYLE ? 2 * i : i, second = STYLE ? 2 * i + 1 : i + PAIRS;
        const float u = run_float(w, first, X_FORMAT), v = run_float(w, second, X_FORMAT);
        t[first] = __fmaf_rn(u, c[i], -(v * s[i]));
        t[second] = __fmaf_rn(v, c[i], u * s[i]);
    }
#if STYLE
    store_run(y + (i64)from * 8, 2 * PAIRS, 2 * count, QN_MM_F32, t);
#else
    store_run(y + (i64)from * 4, PAIRS, count, QN_MM_F32, t);
    store_run(y + (i64)(from + half) * 4, PAIRS, count, QN_MM_F32, t + PAIRS);
#endif
}

/* The angles of a tile of rows are made once for all heads, while the first of these is on its way. */
extern "C" __global__ void __launch_bounds__(TURNS) qn_rope(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float c[2][TURNS + PAIRS], s[2][TURNS + PAIRS]; /* of two tiles in turn */
    const int own = (int)threadIdx.x, half = (int)a.k / 2, span = min(half, TURNS), rows = (int)blockDim.x / span;
    const int from = (int)blockIdx.x * span, pair = from + own % span, mine = own / span;
    const int runs = (span + PAIRS - 1) / PAIRS, place = own % runs * PAIRS;
    const int beside = (int)blockDim.x / (runs * rows), line = own / (runs * beside); /* heads at a time */
    const int head0 = (int)blockIdx.z * beside + own / runs % beside, step = (int)gridDim.z * beside;
    const int count = min(half - from, span) - place, heads = line < rows && count > 0 ? a.heads : 0;
    int side = 0;
    release_next();
    const double frequency = pair < half ? frequency_of(pair, (int)a.k, a.log2_theta, a.factors) : 0.0;
    wait_before();
    for (i64 row0 = (i64)blockIdx.y * rows; row0 < a.m; row0 += (i64)gridDim.y * rows) {
        const i64 row = row0 + line;
        const char *const x = a.x + row * a.x_row;
        char *const y = a.y + row * a.y_row;
        const int last = row < a.m ? heads : 0;
        u32 w[2 * SIDE_WORDS], next[2 * SIDE_WORDS];
        float by[PAIRS], with[PAIRS];
        if (head0 < last) {
            load_pairs(x + head0 * a.x_head, from + place, half, count, w);
        }
        if (mine < rows && row0 + mine < a.m) {
            const turn t = turn_by((double)((const int *)a.w)[row0 + mine] * frequency);
            c[side][own] = t.c;
            s[side][own] = t.s;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            by[i] = line < rows ? c[side][line * span + place + i] : 0.0f;
            with[i] = line < rows ? s[side][line * span + place + i] : 0.0f;
        }
        for (int head = head0; head < last; head += step) {
            if (head + step < last) {
                load_pairs(x + (head + step) * a.x_head, from + place, half, count, next);
            }
            turn_pairs(w, y + head * a.y_head, from + place, half, count, by, with);
#pragma unroll
            for (int i = 0; i < 2 * SIDE_WORDS; i++) {
                w[i] = next[i];
            }
        }
        side ^= 1;
    }
}

#ifdef ITEMS
/* x += added, and the norm of that, one row: x, added and the norm's weight f32. The weight is a constant. */
extern "C" __global__ void __launch_bounds__(THREADS) qn_add_rmsnorm(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float parts[THREADS / 32];
    float4 gain[ITEMS], v[ITEMS];
    float squares = 0.0f;
    release_next();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        gain[j] = i < a.k ? *(const float4 *)(a.w + i * 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    wait_before();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < a.k) {
            const float4 of = *(const float4 *)(a.x + i * 4), by = *(const float4 *)(a.added + i * 4);
            v[j] = make_float4(of.x + by.x, of.y + by.y, of.z + by.z, of.w + by.w);
            *(float4 *)(a.sum + i * 4) = v[j];
        }
        squares = __fmaf_rn(v[j].x, v[j].x, squares);
        squares = __fmaf_rn(v[j].y, v[j].y, squares);
        squares = __fmaf_rn(v[j].z, v[j].z, squares);
        squares = __fmaf_rn(v[j].w, v[j].w, squares);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = squares;
    }
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        squares += parts[i];
    }
    const float factor = 1.0f / sqrtf(squares / (float)a.k + a.eps);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = (j * THREADS + (int)threadIdx.x) * 4;
        if (i < a.k) {
            store_float(a.y, i, v[j].x * factor * gain[j].x, OUT);
            store_float(a.y, i + 1, v[j].y * factor * gain[j].y, OUT);
            store_float(a.y, i + 2, v[j].z * factor * gain[j].z, OUT);
            store_float(a.y, i + 3, v[j].w * factor * gain[j].w, OUT);
        }
    }
}
#endif
