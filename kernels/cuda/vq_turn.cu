/* The transforms of QuIP#: turned = Hin(SU . x / scaleWH) in front of a product, y = SV . Wscale Hout(total) + bias
 * behind it. Many rows: vq_turn_rows.cu, with the same bits.
 *
 * PARTS above 1: a row's columns are shared by the blocks of a cluster; they exchange for the last levels, each reading
 * its share of all. PARTS 1: a block a row. PARTS 0, for rows that shared memory does not hold, and for one or two, of
 * which blocks can read all many times: a block makes up to 512 elements from all of the row, and needs no other.
 *
 * Host contract
 *   Parameters: INPUT 1 or 0; PARTS 0, 1 or a power of two; X_FORMAT, SU_FORMAT, WH_FORMAT (format + 1, 0: none);
 *   SV_FORMAT, WSCALE_FORMAT, BIAS (format + 1, 0: none), OUT
 *   Launch: block 512. Grid {PARTS, M}, shared memory for two times the row's share and the signs of the base
 *   (qn_cuda_vq_turn_bytes), fast at least 4 PARTS; PARTS 0: {length / min(fast, 512), M} */
#define THREADS 512
#include "vq_turn.h"

DEV float load_in(const qn_cuda_vq &a, int m, int at)
{
#if INPUT
    float v = load_float(a.x + (i64)m * a.x_row, at, X_FORMAT) * load_float(a.su, at, SU_FORMAT - 1);
#if WH_FORMAT
    v /= load_float(a.scale_wh, at, WH_FORMAT - 1);
#endif
    return v;
#else
    return a.total[(i64)m * a.n + at];
#endif
}

/* What the results are to be multiplied by; the weights' scale, or 1. */
DEV float scale_out(const qn_cuda_vq &a)
{
#if !INPUT && WSCALE_FORMAT
    return load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#else
    return 1.0f;
#endif
}

DEV void store_out(const qn_cuda_vq &a, int m, int at, float v, float wscale)
{
#if INPUT
    a.turned[(i64)m * a.k + at] = v;
#else
    v *= load_float(a.sv, at, SV_FORMAT - 1);
    v *= wscale;
#if BIAS
    v += load_float(a.bias, at, BIAS - 1);
#endif
    store_float(a.y + (i64)m * a.y_row, at, v, OUT);
#endif
}

#if PARTS > 0

#define ONCE 8 /* elements that a thread asks for at a time */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_turn(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_turn turn)
{
    extern __shared__ __align__(16) float memory[];
    const int columns = turn.fast / PARTS, share = turn.base * columns, m = (int)blockIdx.y, part = (int)blockIdx.x;
    const int shift = 31 - __clz(columns);
    float *const before = memory, *const after = memory + share;
    u32 *const signs = (u32 *)(memory + 2 * share);
    release_next();
    if (a.early) {
#if INPUT
        turn_prefetch(a.su, a.k, SU_FORMAT - 1, part, PARTS);
#else
        turn_prefetch(a.sv, a.n, SV_FORMAT - 1, part, PARTS);
#endif
    }
    wait_before();
    for (int done = 0; done < share; done += ONCE * THREADS) {
        float v[ONCE];
        const int first = done + (int)threadIdx.x;
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const int i = first + j * THREADS;
            v[j] = i < share ? load_in(a, m, (i >> shift) * turn.fast + part * columns + (i & (columns - 1))) : 0.0f;
        }
        if (turn.base > 1 && done == 0) { /* while the loads are under way */
            turn_signs(turn, signs);
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            if (first + j * THREADS < share) {
                before[first + j * THREADS] = v[j];
            }
        }
    }
    const float wscale = scale_out(a);
    __syncthreads();
    turn_row(turn, before, after, columns, signs);
#if PARTS == 1
    __syncthreads();
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < share; i += THREADS) {
        store_out(a, m, i, after[i] * turn.scale, wscale);
    }
#else
    cluster_arrive();
    cluster_wait();
    const int first = share / PARTS * part;
    const u32 mine = shared_address(after);
    for (int i = first + (int)threadIdx.x; i < first + share / PARTS; i += THREADS) {
        float v[PARTS];
#pragma unroll
        for (u32 p = 0; p < PARTS; p++) {
            asm volatile("ld.shared::cluster.f32 %0, [%1];"
                         : "=f"(v[p])
                         : "r"(cluster_address(mine + (u32)i * 4, p))
                         : "memory");
        }
#pragma unroll
        for (int half = 1; half < PARTS; half *= 2) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                if (!(p & half)) {
                    const float u = v[p], w = v[p + half];
                    v[p] = u + w;
                    v[p + half] = u - w;
                }
            }
        }
        const int at = (i >> shift) * turn.fast + (i & (columns - 1));
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            store_out(a, m, at + p * columns, v[p] * turn.scale, wscale);
        }
    }
    cluster_arrive_relaxed(); /* nobody leaves while its memory is read */
    cluster_wait();
#endif
}

#else

#define ONCE 16 /* rows that a thread asks for at a time */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_turn(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ qn_cuda_turn turn)
{
    __shared__ __align__(16) float before[THREADS], after[THREADS];
    __shared__ u32 signs[QN_TURN_MOST_BASE * TURN_WORDS(QN_TURN_MOST_BASE)];
    release_next();
    if (turn.base > 1) {
        turn_signs(turn, signs);
        __syncthreads();
    }
    wait_before();
    /* the slow axis: base * copies elements, of each of which every block loads its columns */
    const int fast = turn.fast < THREADS ? turn.fast : THREADS, copies = turn.fast / fast, rows = turn.base * copies;
    const int m = (int)blockIdx.y, i = (int)blockIdx.x, copy = i & (copies - 1), f = (int)threadIdx.x;
    const int shift = 31 - __clz(copies);
    float sum = 0.0f;
    for (int first = 0; first < rows; first += ONCE) {
        float v[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            v[j] = first + j < rows && f < fast ? load_in(a, m, (first + j) * fast + f) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const int row = first + j < rows ? first + j : 0;
            u32 odd = (u32)__popc(copy & row & (copies - 1));
            if (turn.base > 1) {
                const int column = row >> shift;
                odd ^= signs[(i >> shift) * TURN_WORDS(turn.base) + column / 32] << column % 32 >> 31;
            }
            sum += __uint_as_float(__float_as_uint(v[j]) ^ odd << 31);
        }
    }
    before[f] = sum;
    qn_cuda_turn within = {};
    within.base = 1;
    __syncthreads();
    turn_row(within, before, after, fast, signs);
    __syncthreads();
    if (f < fast) {
        store_out(a, m, i * fast + f, after[f] * turn.scale, scale_out(a));
    }
}

#endif
