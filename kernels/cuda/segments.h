/* Kernels that quantise segments of rows, each with a scale from its own range.
 * The file that includes this one says what an element is and what the scale:
 *
 *   struct lane           PER elements of a row as loaded
 *   load_lane, value_at   into one; an element by itself
 *   ask_for_lane          of the L2 cache
 *   struct kept           what registers hold between range and codes
 *   keep, restore         lane to kept; kept to floats; widen_by_kept: their range
 *   struct rule           make_rule(args, range, row, segment), write_rule, apply(rule, value)
 *
 * Three entries, all with one block row a row of x:
 *   ENTRY##_team   LANES lanes a segment of LANES * PER elements, UNROLL segments a lane: one pass; registers for
 *                  TEAM_BLOCKS blocks of 256 threads a multiprocessor
 *   ENTRY##_row    one segment a row, ITEMS lanes' worth a thread in registers: one pass
 *   ENTRY##_plain  any length, alignment and stride: a block a segment, two passes
 * The first two want 16-byte aligned rows and whole lanes, or LOOSE.
 *
 * SPAN_ROWS rows share given scales. STATIC 1: no range is asked for.
 * RANGED 1: one scale for all, of a range that a launch before found (tensor_range.h):
 *   ENTRY##_range, ENTRY##_range_plain   the latter of any alignment
 * ONCE 1: nothing but
 *   ENTRY##_once   range and codes of a tensor without gaps (tensor_once.h)
 * BLOCKED 1: a scale for 128 rows by 128 columns, found here: a block of threads holds such a block in registers.
 *   ENTRY##_block         block 256, any grid along x: one pass; alignment as above */
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define EACH _Pragma("unroll")

#if LOOSE
#define STORE_CODES(q, there, v) store_loose(q, there, v)
#else
#define STORE_CODES(q, there, v) store_codes(q, v)
#endif

#if ONCE
typedef rule once_rule;
#define ONCE_ARGS qn_cuda_rows
#include "tensor_once.h"

static __device__ inline once_rule make_once(const qn_cuda_rows &a, range r)
{
    const once_rule how = make_rule(a, r, 0, 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        write_rule(a, how, 0, 0);
    }
    return how;
}

#if !INT8
static __device__ inline void write_lane(const rule &how, const uint4 *raw, char *q)
{
    float v[PER];
    unpack(raw, v);
    EACH for (int e = 0; e < PER; e++)
    {
        v[e] = apply(how, v[e]);
    }
    store_codes(q, v);
}
#endif

static __device__ inline void write_once(const qn_cuda_rows &a, const once_rule &how, const uint4 (*raw)[X_WORDS],
                                         i64 first, u32 count)
{
    __builtin_assume(threadIdx.x < ONCE_THREADS); /* whole slots need no test */
    EACH for (int u = 0; u < ONCE_PLACES; u++)
    {
        const u32 unit = u * ONCE_THREADS + threadIdx.x;
        if (unit < count) {
            write_lane(how, raw[u], a.q + (first + unit) * PER);
        }
    }
}

/* The elements behind the last unit are the last block's. */
extern "C" __global__ void __launch_bounds__(ONCE_THREADS + 32, 1)
    JOIN(ENTRY, _once)(const __grid_constant__ qn_cuda_rows a, const __grid_constant__ qn_cuda_deal o)
{
    extern __shared__ __align__(128) char slots[];
    begin_once();
    const int tail = blockIdx.x == gridDim.x - 1 && threadIdx.x < o.rest;
    const i64 last = o.units * PER + threadIdx.x;
    range r = no_range();
    if (tail) {
        widen_range(&r, value_at(a, a.x, last));
    }
    quantise_once(a, o, &r, slots);
    if (tail) {
        const rule how = make_rule(a, r, 0, 0);
        a.q[last] = (char)two_codes(apply(how, value_at(a, a.x, last)), 0.0f);
    }
}

#else
#if RANGED
#include "tensor_range.h"

extern "C" __global__ void __launch_bounds__(RANGE_THREADS)
    JOIN(ENTRY, _range)(const qn_cuda_rows a, i64 m, i64 k, i64 keep)
{
    begin_kernel();
    find_tensor_range(a.x, a.x_row, m, k, keep, 1, a.ranges);
}

extern "C" __global__ void __launch_bounds__(RANGE_THREADS)
    JOIN(ENTRY, _range_plain)(const qn_cuda_rows a, i64 m, i64 k, i64 keep)
{
    begin_kernel();
    find_tensor_range(a.x, a.x_row, m, k, keep, 0, a.ranges);
}
#define EACH_ROW(a, row) for (i64 row = (a).m - 1 - blockIdx.x; row >= 0; row -= gridDim.x)
#else
#define EACH_ROW(a, row) for (i64 row = blockIdx.x; row < (a).m; row += gridDim.x)
#endif

#if BLOCKED
#define HELD 8 /* lanes' worth of a block in a thread */

/* Where a thread's part of a block of 128 rows by 128 columns is, and of which it is. */
typedef struct spot {
    u32 row, segment;
    i64 first, column;
} spot;

static __device__ inline spot spot_of(u32 tile, u32 across)
{
    spot s;
    s.row = tile / across;
    s.segment = tile - s.row * across;
    s.first = (i64)s.row * 128 + threadIdx.x / 16;
    s.column = (i64)s.segment * 128 + threadIdx.x % 16 * PER;
    return s;
}

static __device__ inline void load_tile(const qn_cuda_rows &a, spot s, lane *in)
{
    const char *from = a.x + s.first * a.x_row;
    EACH for (int j = 0; j < HELD; j++)
    {
        in[j] = lane();
        if (s.first + 16 * j < a.m && s.column < a.k) {
            load_lane(a, from, s.column, &in[j]);
        }
        from += 16 * a.x_row;
    }
}

/* The next block is on its way while one is worked on, of which in the first round there is none: loads are written out
 * once. */
extern "C" __global__ void __launch_bounds__(256, X_WORDS == 1 ? 2 : 1) JOIN(ENTRY, _block)(const qn_cuda_rows a)
{
    begin_kernel();
    const u32 across = (u32)((a.k + 127) / 128), tiles = (u32)((a.m + 127) / 128) * across;
    lane next[HELD] = {};
    spot ahead = {};
    u32 coming = blockIdx.x, more = 0;
#pragma unroll 1
    do {
        const spot at = ahead;
        const u32 work = more;
        kept values[HELD];
        EACH for (int j = 0; j < HELD; j++)
        {
            keep(next[j], &values[j]);
        }
        more = coming < tiles;
        asm volatile("" : "+r"(more)); /* the compiler takes no round apart */
        if (more) {
            ahead = spot_of(coming, across);
            load_tile(a, ahead, next);
            coming += gridDim.x;
        }
        if (work) {
            range r = no_range();
            EACH for (int j = 0; j < HELD; j++)
            {
                widen_by_kept(&r, values[j]);
            }
            reduce_block(&r);
            const rule how = make_rule(a, r, at.row, at.segment);
            char *to = a.q + at.first * a.q_row + at.column;
            EACH for (int j = 0; j < HELD; j++)
            {
                float v[PER];
                restore(values[j], v);
                EACH for (int e = 0; e < PER; e++)
                {
                    v[e] = apply(how, v[e]);
                }
                if (at.first + 16 * j < a.m && at.column < a.k) {
                    STORE_CODES(to, a.k - at.column, v);
                }
                to += 16 * a.q_row;
            }
            if (threadIdx.x == 0) {
                write_rule(a, how, at.row, at.segment);
            }
            __syncthreads(); /* the next reduction reuses the shared words */
        }
    } while (more);
}
#endif

#if LANES > 0
extern "C" __global__ void __launch_bounds__(256, TEAM_BLOCKS) JOIN(ENTRY, _team)(const qn_cuda_rows a)
{
    const int place = threadIdx.x % LANES, teams = blockDim.x / LANES;
    const i64 first = (i64)blockIdx.y * teams * UNROLL + threadIdx.x / LANES;
#if UNROLL == 1 /* few rows: the wait for memory goes beside that for the kernel ahead */
    const i64 own = first * (LANES * PER) + place * PER;
    if (own < a.k && (own * X_BYTES) % 32 == 0) {
        ask_for_lane(a, a.x + blockIdx.x * a.x_row, own);
    }
#endif
    begin_kernel();
#if RANGED
    const range r = join_tensor_range(a.ranges);
#endif
    EACH_ROW(a, row)
    {
        const char *const x = a.x + row * a.x_row;
        lane in[UNROLL];
        EACH for (int u = 0; u < UNROLL; u++)
        {
            const i64 column = (first + u * teams) * (LANES * PER) + place * PER;
            in[u] = lane();
            if (column < a.k) {
                load_lane(a, x, column, &in[u]);
            }
        }
        EACH for (int u = 0; u < UNROLL; u++)
        {
            const i64 segment = first + u * teams, column = segment * (LANES * PER) + place * PER;
            float v[PER];
            kept k;
            keep(in[u], &k);
            restore(k, v);
#if STATIC
            const range r = no_range();
#elif !RANGED
            range r = no_range();
            widen_by_kept(&r, k);
            reduce_lanes(&r, LANES);
#endif
            if (column < a.k) {
                const rule how = make_rule(a, r, row / SPAN_ROWS, segment);
                EACH for (int i = 0; i < PER; i++)
                {
                    v[i] = apply(how, v[i]);
                }
                STORE_CODES(a.q + row * a.q_row + column, a.k - column, v);
                if (place == 0) {
                    write_rule(a, how, row / SPAN_ROWS, segment);
                }
            }
        }
    }
}
#endif

#if ITEMS > 0
/* Nothing is moved past accesses of several widths, and elements that take half of all registers leave no others. */
#define IN_TURN (LOOSE || sizeof(lane) * ITEMS * THREADS > 128 << 10)

extern "C" __global__ void __launch_bounds__(THREADS) JOIN(ENTRY, _row)(const qn_cuda_rows a)
{
    begin_kernel();
    EACH_ROW(a, row)
    {
        const char *const x = a.x + row * a.x_row;
        kept values[ITEMS];
        {
            lane in[ITEMS];
            EACH for (int j = 0; j < ITEMS; j++)
            {
                const i64 column = (i64)(j * THREADS + threadIdx.x) * PER;
                in[j] = lane();
                if (column < a.k) {
                    load_lane(a, x, column, &in[j]);
                }
                if (IN_TURN) {
                    keep(in[j], &values[j]);
                }
            }
            EACH for (int j = 0; j < ITEMS && !IN_TURN; j++)
            {
                keep(in[j], &values[j]);
            }
        }
#if RANGED
        const range r = join_tensor_range(a.ranges);
#elif STATIC
        const range r = no_range();
#else
        range r = no_range();
        EACH for (int j = 0; j < ITEMS; j++)
        {
            widen_by_kept(&r, values[j]);
        }
        reduce_block(&r);
#endif
        const rule how = make_rule(a, r, row / SPAN_ROWS, 0);
        EACH for (int j = 0; j < ITEMS; j++)
        {
            const i64 column = (i64)(j * THREADS + threadIdx.x) * PER;
            float v[PER];
            restore(values[j], v);
            EACH for (int i = 0; i < PER; i++)
            {
                v[i] = apply(how, v[i]);
            }
            if (column < a.k) {
                STORE_CODES(a.q + row * a.q_row + column, a.k - column, v);
            }
        }
        if (threadIdx.x == 0) {
            write_rule(a, how, row / SPAN_ROWS, 0);
        }
        __syncthreads(); /* the next row's reduction reuses the shared words */
    }
}
#endif

extern "C" __global__ void __launch_bounds__(128) JOIN(ENTRY, _plain)(const qn_cuda_rows a)
{
    begin_kernel();
#if RANGED
    const range r = join_tensor_range(a.ranges);
#endif
    EACH_ROW(a, row)
    {
        const char *const x = a.x + row * a.x_row;
        for (i64 segment = blockIdx.y; segment < a.segments; segment += gridDim.y) {
            const i64 from = segment * a.length, to = from + a.length < a.k ? from + a.length : a.k;
#if STATIC
            const range r = no_range();
#elif !RANGED
            range r = no_range();
            for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
                widen_range(&r, value_at(a, x, i));
            }
            reduce_block(&r);
#endif
            const rule how = make_rule(a, r, row / SPAN_ROWS, segment);
            for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
                a.q[row * a.q_row + i] = (char)two_codes(apply(how, value_at(a, x, i)), 0.0f);
            }
            if (threadIdx.x == 0) {
                write_rule(a, how, row / SPAN_ROWS, segment);
            }
            __syncthreads();
        }
    }
}
#endif
