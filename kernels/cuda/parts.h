/* An attention of one query in parts: each of PART_KEYS keys leaves, for every head, its largest score, the sum of its
 * weights and the weighted sum of its values. Cut by keys alone, so that results depend on nothing else.
 * Floats of part p, head h: [p][h][head_size + 2], the values' sum first. */
#ifndef QN_CUDA_PARTS_H
#define QN_CUDA_PARTS_H

#define PART_KEYS 128

DEV float exp_base2(float v)
{
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
}

/* Element i of head h's result over all parts of `keys` keys. Scores are in units of log 2. */
DEV float join_parts(const char *partials, int heads, int head_size, int h, int i, int keys)
{
    const int count = (keys + PART_KEYS - 1) / PART_KEYS, step = heads * (head_size + 2);
    const float *p = (const float *)partials + h * (head_size + 2);
    if (count == 1) {
        return p[i] / p[head_size + 1];
    }
    float most = p[head_size];
    for (int j = 1; j < count; j++) {
        most = fmaxf(most, p[j * step + head_size]);
    }
    float total = 0.0f, sum = 0.0f;
    for (int j = 0; j < count; j++, p += step) {
        const float weight = exp_base2(p[head_size] - most);
        total = __fmaf_rn(weight, p[head_size + 1], total);
        sum = __fmaf_rn(weight, p[i], sum);
    }
    return sum / total;
}

#endif
