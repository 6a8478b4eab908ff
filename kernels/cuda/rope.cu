/* rope.
 *
 * Host contract
 *   Parameters: X_FORMAT; STYLE 0 halves, 1 neighbours; those of turn.h
 *   Launch: any block of the pairs of a head or more, at least TURNS where they are more, grid {parts of a head, tiles
 *     of rows, shares of the heads} */
#include "runs.h"
#include "cuda_activation.h"
#include "turn.h"

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
