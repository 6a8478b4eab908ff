/* An attention of one query in parts: each of PART_KEYS keys leaves, for every head, its largest score, the sum of its
 * weights and the weighted sum of its values. Cut by keys alone, so that results depend on nothing else.
 * Floats of part p, head h: [p][h][head_size + 4], the values' sum first, then score and sum of weights. */
#ifndef QN_CUDA_PARTS_H
#define QN_CUDA_PARTS_H

#define PART_KEYS 128
#define PART_PITCH(head_size) ((head_size) + 4)

DEV float exp_base2(float v)
{
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
}

/* Elements i to i + 3 of head h's result over all parts of `keys` keys. Scores are in units of log 2. */
DEV float4 join_parts(const char *partials, int heads, int head_size, int h, int i, int keys)
{
    const int count = (keys + PART_KEYS - 1) / PART_KEYS, step = heads * PART_PITCH(head_size);
    const float *p = (const float *)partials + h * PART_PITCH(head_size);
    float most = p[head_size], total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int j = 1; j < count; j++) {
        most = fmaxf(most, p[j * step + head_size]);
    }
    for (int j = 0; j < count; j++, p += step) {
        const float4 v = *(const float4 *)(p + i);
        const float weight = exp_base2(p[head_size] - most);
        total = __fmaf_rn(weight, p[head_size + 1], total);
        sum.x = __fmaf_rn(weight, v.x, sum.x);
        sum.y = __fmaf_rn(weight, v.y, sum.y);
        sum.z = __fmaf_rn(weight, v.z, sum.z);
        sum.w = __fmaf_rn(weight, v.w, sum.w);
    }
    return make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}

#endif
