/* Elements of the row-wise quantisers that are those of x as they are (segments.h): quantize_fp8.cu, quantize_int8.cu.
 */
#ifndef QN_CUDA_PLAIN_LANES_H
#define QN_CUDA_PLAIN_LANES_H

struct lane {
    uint4 raw[X_WORDS];
};
typedef lane kept;

static __device__ inline void load_lane(const qn_cuda_rows &a, const char *x, i64 column, lane *to)
{
#if LOOSE
    load_loose(x + column * X_BYTES, a.k - column, to->raw);
#else
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
#if RANGED /* read before, and not again */
        to->raw[i] = load_by(pass_policy(), x + column * X_BYTES + i * 16);
#else
        to->raw[i] = load_once(x + column * X_BYTES + i * 16);
#endif
    }
#endif
}

static __device__ inline void ask_for_lane(const qn_cuda_rows &a, const char *x, i64 column)
{
    ask_for(x + column * X_BYTES);
}

static __device__ inline float value_at(const qn_cuda_rows &a, const char *x, i64 column)
{
    return load_one(x, column);
}

static __device__ inline void keep(const lane &from, kept *to)
{
    *to = from;
}

static __device__ inline void widen_by_kept(range *r, const kept &from)
{
    widen_by_lane(r, from.raw);
}

static __device__ inline void restore(const kept &from, float *v)
{
    unpack(from.raw, v);
}

#endif
