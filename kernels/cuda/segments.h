/* Kernels that quantise segments of rows, each with a scale from its own range.
 * The file that includes this one says what an element is and what the scale:
 *
 *   struct lane           PER elements of a row as loaded
 *   load_lane, value_at   into one; an element by itself
 *   struct kept           what registers hold between range and codes
 *   keep, restore         lane to kept; kept to floats
 *   struct rule           make_rule(args, range, row, segment), write_rule, apply(rule, value)
 *
 * Three entries, all with one block row a row of x:
 *   ENTRY##_team   LANES lanes a segment of LANES * PER elements, UNROLL segments a lane: one pass; registers for
 *                  TEAM_BLOCKS blocks of 256 threads a multiprocessor
 *   ENTRY##_row    one segment a row, ITEMS lanes' worth a thread in registers: one pass
 *   ENTRY##_plain  any length, alignment and stride: a block a segment, two passes
 * The first two want 16-byte aligned rows and whole lanes.
 *
 * SPAN_ROWS rows share scales. RANGED 1: the ranges of what shares a scale were found before, as words that are 0 at
 * first: the bits of the largest value or magnitude, and those of the lowest value's magnitude. That launch, block 128,
 * grid {ceil(K / 128), up to ceil(M / 128)}:
 *   ENTRY##_range, ENTRY##_range_plain   the latter of any alignment */
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define EACH _Pragma("unroll")

static __device__ inline range whole_range(const float *v)
{
    range r = no_range();
    EACH for (int i = 0; i < PER; i++)
    {
        widen_range(&r, v[i]);
    }
    return r;
}

#if RANGED
/* The bits of magnitudes order as they do, so the results are the same in any order. */
static __device__ inline void publish(const qn_cuda_rows &a, range r, i64 row, i64 segment)
{
    unsigned int *const to = a.ranges + row * a.range_row + segment * a.range_segment;
    atomicMax(to, __float_as_uint(r.high) & 0x7fffffffu);
#if ASYMMETRIC
    atomicMax(to + 1, __float_as_uint(r.low) & 0x7fffffffu);
#endif
}

static __device__ inline range found_range(const qn_cuda_rows &a, i64 row, i64 segment)
{
    range r = no_range();
    if (a.ranges) {
        const unsigned int *const from = a.ranges + row * a.range_row + segment * a.range_segment;
        r.high = __uint_as_float(from[0]);
#if ASYMMETRIC
        r.low = -__uint_as_float(from[1]);
#endif
    }
    return r;
}

extern "C" __global__ void __launch_bounds__(128) JOIN(ENTRY, _range)(const qn_cuda_rows a)
{
    begin_kernel();
    const i64 column = (i64)blockIdx.x * 128 + threadIdx.x % 16 * PER;
    for (i64 i = blockIdx.y; i * 128 < a.m; i += gridDim.y) {
        range r = no_range();
        EACH for (int part = 0; part < 4; part++)
        {
            lane in[4];
            EACH for (int j = 0; j < 4; j++)
            {
                const i64 row = i * 128 + part * 32 + j * 8 + threadIdx.x / 16;
                in[j] = lane();
                if (row < a.m && column < a.k) {
                    load_lane(a, a.x + row * a.x_row, column, &in[j]);
                }
            }
            EACH for (int j = 0; j < 4; j++)
            {
                float v[PER];
                kept k;
                keep(in[j], &k);
                restore(k, v);
                EACH for (int e = 0; e < PER; e++)
                {
                    widen_range(&r, v[e]);
                }
            }
        }
        reduce_block(&r);
        if (threadIdx.x == 0) {
            publish(a, r, i, blockIdx.x);
        }
        __syncthreads(); /* the next reduction reuses the shared words */
    }
}

extern "C" __global__ void __launch_bounds__(128) JOIN(ENTRY, _range_plain)(const qn_cuda_rows a)
{
    begin_kernel();
    const i64 column = (i64)blockIdx.x * 128 + threadIdx.x;
    for (i64 i = blockIdx.y; i * 128 < a.m; i += gridDim.y) {
        range r = no_range();
        for (i64 row = i * 128; row < a.m && row < (i + 1) * 128 && column < a.k; row++) {
            widen_range(&r, value_at(a, a.x + row * a.x_row, column));
        }
        reduce_block(&r);
        if (threadIdx.x == 0) {
            publish(a, r, i, blockIdx.x);
        }
        __syncthreads();
    }
}
#endif

#if LANES > 0
extern "C" __global__ void __launch_bounds__(256, TEAM_BLOCKS) JOIN(ENTRY, _team)(const qn_cuda_rows a)
{
    begin_kernel();
    const int place = threadIdx.x % LANES, teams = blockDim.x / LANES;
    const i64 first = (i64)blockIdx.y * teams * UNROLL + threadIdx.x / LANES;
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
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
#if !RANGED
            range r = whole_range(v);
            reduce_lanes(&r, LANES);
#endif
            if (column < a.k) {
#if RANGED
                const range r = found_range(a, row / SPAN_ROWS, segment);
#endif
                const rule how = make_rule(a, r, row / SPAN_ROWS, segment);
                EACH for (int i = 0; i < PER; i++)
                {
                    v[i] = apply(how, v[i]);
                }
                store_codes(a.q + row * a.q_row + column, v);
                if (place == 0) {
                    write_rule(a, how, row / SPAN_ROWS, segment);
                }
            }
        }
    }
}
#endif

#if ITEMS > 0
extern "C" __global__ void __launch_bounds__(THREADS) JOIN(ENTRY, _row)(const qn_cuda_rows a)
{
    begin_kernel();
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
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
            }
            EACH for (int j = 0; j < ITEMS; j++)
            {
                keep(in[j], &values[j]);
            }
        }
#if RANGED
        const range r = found_range(a, row / SPAN_ROWS, 0);
#else
        range r = no_range();
        EACH for (int j = 0; j < ITEMS; j++)
        {
            float v[PER];
            restore(values[j], v);
            EACH for (int i = 0; i < PER; i++)
            {
                widen_range(&r, v[i]);
            }
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
                store_codes(a.q + row * a.q_row + column, v);
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
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        const char *const x = a.x + row * a.x_row;
        for (i64 segment = blockIdx.y; segment < a.segments; segment += gridDim.y) {
            const i64 from = segment * a.length, to = from + a.length < a.k ? from + a.length : a.k;
#if RANGED
            const range r = found_range(a, row / SPAN_ROWS, segment);
#else
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
