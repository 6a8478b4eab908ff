/* rmsnorm, silu_mul, rope, and the sum that a residual stream takes.
 *
 * Host contract
 *   Parameters: X_FORMAT, OUT of x and y; W_FORMAT of the norm's weight; STYLE of rope, 0 halves, 1 neighbours;
 *     THREADS of a block of the norms; of qn_rmsnorm NORM_ITEMS of PER elements a thread, TEAM threads a row, THREADS
 * of them or one item each of a part of a warp, WEIGHTS_EARLY 1: registers hold the weight, too; ITEMS of four elements
 *     a thread of qn_add_rmsnorm; of turn.h
 *   Launch: qn_rmsnorm K up to TEAM * NORM_ITEMS * PER, a block for THREADS / TEAM rows; qn_rmsnorm_long any K, a block
 *     a row (rows are walked); qn_add_rmsnorm one block, K a multiple of 4, rows at multiples of 16; qn_silu_mul and
 *     qn_add any block and grid of two dimensions, a thread PER elements at a time; qn_rope block 256, grid {parts
 *     of a head, tiles of rows, shares of the heads} */
#include "formats.h"
#include "cuda_activation.h"
#include "silu.h"
#include "turn.h"

#define PER 8
#define BYTES_OF(format) ((format) == QN_MM_F32 ? 4 : 2)
#define WORDS_OF(count, format) ((count)*BYTES_OF(format) / 4)

/* ---- elements in accesses as wide as their address allows ---- */

/* `per` neighbouring elements, a multiple of 4, of which `count` are there, as words; the others are 0. */
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
    } else if (count >= per && at % 8 == 0) {
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
    } else if (count >= per && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            ((uint2 *)p)[i / 2] = make_uint2(w[i], w[i + 1]);
        }
    } else if (count >= per && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            ((u32 *)p)[i] = w[i];
        }
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

#define TURNS 256 /* pairs of rows that a block has angles of: all pairs of a head for some rows, or so many of one */
#define PAIRS (X_FORMAT == QN_MM_F32 ? 4 : 8) /* of a thread at a time */

/* The pairs of a head from `from` on, `count` of them there. The angles are c and s. */
DEV void turn_pairs(const char *x, char *y, int from, int half, int count, const float *c, const float *s)
{
    float v[2 * PAIRS], t[2 * PAIRS];
#if STYLE
    u32 of[WORDS_OF(2 * PAIRS, X_FORMAT)];
    load_run(x + (i64)from * 2 * BYTES_OF(X_FORMAT), 2 * PAIRS, 2 * count, X_FORMAT, of);
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) {
        v[i] = run_float(of, i, X_FORMAT);
    }
#else
    u32 first[WORDS_OF(PAIRS, X_FORMAT)], second[WORDS_OF(PAIRS, X_FORMAT)];
    load_run(x + (i64)from * BYTES_OF(X_FORMAT), PAIRS, count, X_FORMAT, first);
    load_run(x + (i64)(from + half) * BYTES_OF(X_FORMAT), PAIRS, count, X_FORMAT, second);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        v[2 * i] = run_float(first, i, X_FORMAT);
        v[2 * i + 1] = run_float(second, i, X_FORMAT);
    }
#endif
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int u = STYLE ? 2 * i : i, w = STYLE ? 2 * i + 1 : i + PAIRS;
        t[u] = __fmaf_rn(v[2 * i], c[i], -(v[2 * i + 1] * s[i]));
        t[w] = __fmaf_rn(v[2 * i + 1], c[i], v[2 * i] * s[i]);
    }
#if STYLE
    store_run(y + (i64)from * 8, 2 * PAIRS, 2 * count, QN_MM_F32, t);
#else
    store_run(y + (i64)from * 4, PAIRS, count, QN_MM_F32, t);
    store_run(y + (i64)(from + half) * 4, PAIRS, count, QN_MM_F32, t + PAIRS);
#endif
}

/* The angles of a tile are made once and used for all heads. */
extern "C" __global__ void __launch_bounds__(256) qn_rope(const __grid_constant__ qn_cuda_activation a)
{
    __shared__ float c[TURNS + PAIRS], s[TURNS + PAIRS];
    const int half = (int)a.k / 2, span = min(half, TURNS), rows = TURNS / span; /* of a tile */
    const int quads = (span + PAIRS - 1) / PAIRS, own = (int)threadIdx.x, first = (int)blockIdx.x * span;
    const int mine = own / span, pair = first + own % span;
    const int quad = own % quads * PAIRS, line = own / quads % rows, beside = own / (quads * rows);
    const int turns = 256 / (quads * rows); /* heads side by side */
    const i64 tile = (i64)blockIdx.y * rows;
    release_next();
    const double frequency = pair < half ? frequency_of(pair, (int)a.k, a.log2_theta, a.factors) : 0.0;
    wait_before();
    for (i64 row0 = tile; row0 < a.m; row0 += (i64)gridDim.y * rows) {
        if (mine < rows && row0 + mine < a.m) {
            const turn t = turn_by((double)((const int *)a.w)[row0 + mine] * frequency);
            c[own] = t.c;
            s[own] = t.s;
        }
        __syncthreads();
        const i64 row = row0 + line;
        const int count = min(half - first, span) - quad;
        if (row < a.m && beside < turns && count > 0) {
            float by[PAIRS], with[PAIRS];
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                by[i] = c[line * span + quad + i];
                with[i] = s[line * span + quad + i];
            }
            for (int head = (int)blockIdx.z * turns + beside; head < a.heads; head += (int)gridDim.z * turns) {
                turn_pairs(a.x + row * a.x_row + head * a.x_head, a.y + row * a.y_row + head * a.y_head, first + quad,
                           half, count, by, with);
            }
        }
        __syncthreads(); /* the next tile's angles take their place */
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
