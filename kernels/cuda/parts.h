/* An attention of one query in parts: each of PART_KEYS keys leaves, for every head, its largest score, the sum of its
 * weights and the weighted sum of its values. Cut by keys alone, so that results depend on nothing else.
 * Floats of part p, head h: [p][h][head_size + 4], the values' sum first, then score and sum of weights. */
#ifndef QN_CUDA_PARTS_H
#define QN_CUDA_PARTS_H

#define PART_KEYS 128
#define FEW_PARTS 4
#ifndef JOINED
#define JOINED 7 /* what a thread has registers for */
#endif
#define PART_PITCH(head_size) ((head_size) + 4)
#ifndef EARLY
#define EARLY 0 /* 1: what kernels before write is read once before they are done, too */
#endif

DEV float2 load_written_f32x2(const float *p)
{
    return EARLY ? load_l2_f32x2(p) : *(const float2 *)p;
}

DEV float4 load_written_f32x4(const float *p)
{
    return EARLY ? load_l2_f32x4(p) : *(const float4 *)p;
}

DEV float exp_base2(float v)
{
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
}

/* What parts give together: the weighted sum of four elements, beside the largest score. */
struct joined {
    float4 sum;
    float most, total;
};

/* Elements i to i + 3 of one head over `count` parts that lie `step` floats apart, so many asked for at a time. Scores
 * are in units of log 2. */
template <int at_once> DEV joined join_some(const float *p, int step, int head_size, int i, int count)
{
    const float none = __int_as_float(0xff800000);
    float most = none, total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < count; first += at_once, p += at_once * step) {
        float4 v[at_once];
        float2 of[at_once]; /* largest score, sum of weights */
        float high = most;
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            of[j] = make_float2(none, 0.0f);
            if (first + j < count) {
                v[j] = load_written_f32x4(p + j * step + i);
                of[j] = load_written_f32x2(p + j * step + head_size);
            }
        }
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            high = fmaxf(high, of[j].x);
        }
        const float old = exp_base2(most - high);
        most = high;
        total *= old;
        sum = make_float4(sum.x * old, sum.y * old, sum.z * old, sum.w * old);
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            const float weight = exp_base2(of[j].x - most);
            total = __fmaf_rn(weight, of[j].y, total);
            sum.x = __fmaf_rn(weight, v[j].x, sum.x);
            sum.y = __fmaf_rn(weight, v[j].y, sum.y);
            sum.z = __fmaf_rn(weight, v[j].z, sum.z);
            sum.w = __fmaf_rn(weight, v[j].w, sum.w);
        }
    }
    return {sum, most, total};
}

DEV float4 result_of(const joined &of)
{
    return make_float4(of.sum.x / of.total, of.sum.y / of.total, of.sum.z / of.total, of.sum.w / of.total);
}

/* The result of head h over all parts of `keys` keys. Many parts come JOINED at a time; few one after the other, since
 * there that costs less. */
DEV float4 join_parts(const char *partials, int heads, int head_size, int h, int i, int keys)
{
    const int count = (keys + PART_KEYS - 1) / PART_KEYS, step = heads * PART_PITCH(head_size);
    const float *const p = (const float *)partials + h * PART_PITCH(head_size);
    return result_of(count > FEW_PARTS ? join_some<JOINED>(p, step, head_size, i, count)
                                       : join_some<1>(p, step, head_size, i, count));
}

#endif
