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
 * The first two want 16-byte aligned rows and whole lanes. */
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
            range r = whole_range(v);
            reduce_lanes(&r, LANES);
            if (column < a.k) {
                const rule how = make_rule(a, r, row, segment);
                EACH for (int i = 0; i < PER; i++)
                {
                    v[i] = apply(how, v[i]);
                }
                store_codes(a.q + row * a.q_row + column, v);
                if (place == 0) {
                    write_rule(a, how, row, segment);
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
        const rule how = make_rule(a, r, row, 0);
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
            write_rule(a, how, row, 0);
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
            range r = no_range();
            for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
                widen_range(&r, value_at(a, x, i));
            }
            reduce_block(&r);
            const rule how = make_rule(a, r, row, segment);
            for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
                a.q[row * a.q_row + i] = (char)two_codes(apply(how, value_at(a, x, i)), 0.0f);
            }
            if (threadIdx.x == 0) {
                write_rule(a, how, row, segment);
            }
            __syncthreads();
        }
    }
}
