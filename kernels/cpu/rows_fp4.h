/* bf16, f16 and f32 to e2m1 codes, and the scales of their blocks. Part of rows_codes.h. */

/* Two vectors of factors for the STEP elements at i. */
QN_INLINE void factors_at(const int format, const float *factor, int64_t i, int64_t block, vf *a, vf *b)
{
    const float first = factor[i / block], second = factor[(i + VL) / block];
    if (block >= STEP) {
        *a = *b = vf_set(first);
    } else if (format == QN_MM_BF16) {
        *a = *b = vf_set2(first, second);
    } else {
        *a = vf_set(first);
        *b = vf_set(second);
    }
}

QN_INLINE vi e2m1_or_zero(vf t)
{
    const vi c = vi_select(vi_set(7), round_small(magnitudes(held(t, 6.0f)), 1, 0), vi_shr(vi_bits(t), 28));
    return vi_where_nan(t, vi_set(0), c);
}

QN_INLINE vi e2m1_step(const int format, const void *x, vf fa, vf fb, const int care, const addends *by)
{
    vf a, b;
    vi w;
    if (care == QN_ROWS_NAN) {
        load_step(format, x, &a, &b);
        w = vi_pairs(e2m1_or_zero(vf_mul(a, fa)), e2m1_or_zero(vf_mul(b, fb)));
    } else {
        const int hold = care == QN_ROWS_HOLD;
        const vi signs = load_signs(format, x, &a, &b);
        w = vi_pairs(round_size(vf_mul(a, fa), 1, 0, hold, by), round_size(vf_mul(b, fb), 1, 0, hold, by));
        w = hold ? vi_umin16(w, vi_set(0x00070007)) : w;
        w = vi_select(vi_set(0x00070007), w, vi_shr16(signs, 12));
    }
    return format == QN_MM_BF16 ? w : vi_in_order(w);
}

QN_INLINE vi e2m1_step_at(const int format, const char *x, int64_t i, int64_t block, const float *factor,
                          const int care, const addends *by)
{
    vf fa, fb;
    factors_at(format, factor, i, block, &fa, &fb);
    return e2m1_step(format, x + i * real_bytes(format), fa, fb, care, by);
}

QN_INLINE void e2m1_all(const int format, const void *x, int64_t n, int64_t block, const float *factor, const int care,
                        int64_t ahead, int past, uint8_t *q)
{
    const char *const p = x;
    const int64_t size = real_bytes(format);
    const addends by = addends_of(1, 0);
    int64_t i = 0;
    for (; i + 4 * STEP <= n; i += 4 * STEP) {
        vi w[4];
        for (int j = 0; j < 4; j++) {
            fetch_step(format, p + (i + j * STEP) * size, ahead);
            w[j] = e2m1_step_at(format, p, i + j * STEP, block, factor, care, &by);
        }
        vi_put_nibbles4(q + i / 2, vi_bytes(w[0], w[1]), vi_bytes(w[2], w[3]), past);
    }
    for (; i + STEP <= n; i += STEP) {
        vi_put_nibbles(q + i / 2, e2m1_step_at(format, p, i, block, factor, care, &by));
    }
    if (i < n) { /* n is a multiple of 16: one block, of a level with vectors of 16 */
        char pad[STEP * 4];
        uint8_t last[VL];
        const vf f = vf_set(factor[i / block]);
        vi_put_nibbles(last, e2m1_step(format, pad_step(format, p + i * size, n - i, pad), f, f, care, &by));
        memcpy(q + i / 2, last, (size_t)((n - i) / 2));
    }
}

/* Largest magnitudes of VL blocks of bf16, and the largest bits of all so far; look NULL: nothing. */
QN_INLINE void look_at_blocks(const char *look, const int64_t block, float *top, vi *most)
{
#ifdef VEC_FETCH_BETWEEN
    if (look) {
        uint32_t bits[VL];
        vec_block_tops16(look, block, bits);
        const vi v = vi_load(bits);
        *most = vi_umax(*most, v);
        vf_store(top, magnitudes_of(QN_MM_BF16, v));
    }
#else
    (void)look;
    (void)block;
    (void)top;
    (void)most;
#endif
}

#ifdef VEC_E2M1_BITS
/* The bits of quarters of the scales of VL blocks, in both halves of the lanes. */
QN_INLINE void e2m1_bases(const float *factor, uint32_t base[VL])
{
    const vi e = vi_max(vi_sub(vi_set(252), vi_shr(vi_bits(vf_load(factor)), 23)), vi_set(0)); /* of zeros below 0 */
    vi_store(base, vi_add(vi_shl(e, 7), vi_shl(e, 23)));
}

/* bf16 in blocks of 32, of factors that are powers of two. look: NULL, or where as many blocks are looked at. */
QN_INLINE void e2m1_by_bits(const void *x, int64_t n, const float *factor, int64_t ahead, int past, uint8_t *q,
                            const char *look, float *top, vi *most)
{
    const char *const p = x;
    uint64_t turn = 0;
    int64_t i = 0;
    for (int64_t blocks; i + 4 * STEP <= n; i += blocks * 32) {
        const int64_t left = (n - i) / (4 * STEP) * (STEP / 8);
        uint32_t base[VL];
        float some[VL] = {0};
        blocks = left < VL ? left : VL;
        if (blocks < VL) {
            memcpy(some, factor + i / 32, (size_t)blocks * 4);
        }
        e2m1_bases(blocks < VL ? some : factor + i / 32, base);
        look_at_blocks(look ? look + i * 2 : NULL, 32, top + i / 32, most);
        for (int b = 0; b < (int)blocks; b += STEP / 8) {
            vi both[2] = {vi_set(0)};
            for (int j = 0; j < 2; j++) {
                const char *const x0 = p + (i + b * 32 + 2 * j * STEP) * 2, *const x1 = x0 + STEP * 2;
                const int b0 = b + 2 * j * STEP / 32, b1 = b + (2 * j + 1) * STEP / 32;
                vi v = vi_load(x0), w = vi_load(x1);
                fetch_between(x0, ahead, &both[0], &v, &turn);
                vi bits = vec_e2m1_bits(v, vi_set(base[b0]));
                fetch_between(x1, ahead, &bits, &w, &turn);
                both[j] = vec_e2m1_of_bits(v, w, bits, vec_e2m1_bits(w, vi_set(base[b1])));
            }
            vi_put_nibbles4(q + (i + b * 32) / 2, both[0], both[1], past);
        }
    }
    e2m1_all(QN_MM_BF16, p + i * 2, n - i, 32, factor + i / 32, QN_ROWS_PLAIN, 0, 0, q + i / 2);
}
#endif

QN_INLINE void to_e2m1_of(const int format, const void *x, int64_t n, int64_t block, const float *factor, int care,
                          int64_t ahead, int past, uint8_t *q)
{
    if (care == QN_ROWS_NAN) {
        e2m1_all(format, x, n, block, factor, QN_ROWS_NAN, ahead, past, q);
    } else if (care == QN_ROWS_HOLD && block == 16) {
        e2m1_all(format, x, n, 16, factor, QN_ROWS_HOLD, ahead, past, q);
    } else if (care == QN_ROWS_HOLD) {
        e2m1_all(format, x, n, 32, factor, QN_ROWS_HOLD, ahead, past, q);
    } else if (block == 16) {
        e2m1_all(format, x, n, 16, factor, QN_ROWS_PLAIN, ahead, past, q);
    } else {
#ifdef VEC_E2M1_BITS
        if (format == QN_MM_BF16) {
            vi none = vi_set(0);
            e2m1_by_bits(x, n, factor, ahead, past, q, NULL, NULL, &none);
            return;
        }
#endif
        e2m1_all(format, x, n, 32, factor, QN_ROWS_PLAIN, ahead, past, q);
    }
}

/* What e2m1 codes of blocks must look out for: t of seven or more, which is not held to 6 by rounding. */
QN_INLINE int e2m1_care(vi most)
{
    return vi_top(most) >= 0x40e00000u ? QN_ROWS_HOLD : QN_ROWS_PLAIN;
}

/* Codes of y >= 0 as round_small() makes them, and their values: what the rounding addend leaves in the sum. */
QN_INLINE vi e4m3_with_values(vf y, vf *value)
{
    const vf t = vf_min(y, vf_set(448.0f));
    const vi e = vi_max(vi_and(vi_bits(t), vi_set(0x7f800000)), vi_set(121u << 23)); /* 2^-6 at least */
    const vf addend = vf_mul(vf_bits(e), vf_bits(vi_set((147u << 23) + ((0u - (121u << 3)) & 0xffff))));
    const vf sum = vf_add(t, addend);
    *value = vf_sub(sum, addend);
    return vi_add(vi_bits(sum), vi_shr(e, 20));
}

/* Of VL blocks; returns the bits of their largest t. plain: g is above 0 and finite. */
QN_INLINE vi nvfp4_scales_step(const int plain, float g, vf inverse, vf top, uint8_t codes[STEP], float *factor)
{
    const vf y = vf_mul(vf_set(g), vf_mul(top, vf_set(1.0f / 6.0f)));
    vf value;
    const vi c = plain ? e4m3_with_values(y, &value) : careful_codes(QN_ROWS_E4M3, y, vi_set(0));
    vi_put_bytes(codes, vi_in_order(vi_pairs(c, c)));
    const vi s = vi_bits(plain ? value : vf_from_e4m3(codes));
    const vf f = vf_bits(vi_zero_if_zero(vi_bits(vf_div(vf_set(1.0f), vf_mul(vf_bits(s), inverse))), s));
    vf_store(factor, f);
    return vi_bits(vf_mul(top, f));
}

QN_INLINE int nvfp4_scales_of(const int plain, float g, const float *top, int64_t blocks, uint8_t *sf, float *factor)
{
    const vf inverse = vf_set(1.0f / g);
    uint8_t codes[STEP];
    vi most = vi_set(0);
    int64_t i = 0;
    for (; i + VL <= blocks; i += VL) {
        most = vi_umax(most, nvfp4_scales_step(plain, g, inverse, vf_load(top + i), codes, factor + i));
        memcpy(sf + i, codes, VL);
    }
    if (i < blocks) {
        float in[VL] = {0}, out[VL];
        memcpy(in, top + i, (size_t)(blocks - i) * 4);
        most = vi_umax(most, nvfp4_scales_step(plain, g, inverse, vf_load(in), codes, out));
        memcpy(sf + i, codes, (size_t)(blocks - i));
        memcpy(factor + i, out, (size_t)(blocks - i) * 4);
    }
    return e2m1_care(most);
}

static int rows_nvfp4_scales(float g, const float *top, int64_t blocks, uint8_t *sf, float *factor)
{
    return g > 0.0f && g < INFINITY ? nvfp4_scales_of(1, g, top, blocks, sf, factor)
                                    : nvfp4_scales_of(0, g, top, blocks, sf, factor);
}

#ifdef VEC_STEPS
QN_INLINE void nvfp4_codes_step(float g, vf top, uint8_t codes[STEP])
{
    vf value;
    const vi c = e4m3_with_values(vf_mul(vf_set(g), vf_mul(top, vf_set(1.0f / 6.0f))), &value);
    vi_put_bytes(codes, vi_in_order(vi_pairs(c, c)));
}

static void rows_nvfp4_codes(float g, const float *top, int64_t blocks, uint8_t *sf)
{
    uint8_t codes[STEP];
    int64_t i = 0;
    for (; i + VL <= blocks; i += VL) {
        nvfp4_codes_step(g, vf_load(top + i), codes);
        memcpy(sf + i, codes, VL);
    }
    if (i < blocks) {
        float in[VL] = {0};
        memcpy(in, top + i, (size_t)(blocks - i) * 4);
        nvfp4_codes_step(g, vf_load(in), codes);
        memcpy(sf + i, codes, (size_t)(blocks - i));
    }
}

/* Codes of 4 STEP elements. */
QN_INLINE void e2m1_stepped(const char *x, const uint8_t *sf, const qn_rows_e2m1_steps *steps, int64_t ahead, int past,
                            uint8_t *q, uint64_t *turn)
{
    vi both[2] = {vi_set(0)};
    for (int j = 0; j < 2; j++, sf += STEP / 8, x += 4 * STEP) {
        const char *const second = x + 2 * STEP;
        vi a = vi_load(x), b = vi_load(second);
        fetch_between(x, ahead, &both[0], &a, turn);
        vi met = vec_e2m1_met(a, sf, steps->add, steps->base);
        fetch_between(second, ahead, &met, &b, turn);
        both[j] = vec_e2m1_stepped(a, b, met, vec_e2m1_met(b, sf + STEP / 16, steps->add, steps->base));
    }
    vi_put_nibbles4(q, both[0], both[1], past);
}

QN_INLINE void e2m1_all_steps(const char *x, int64_t n, const uint8_t *sf, const qn_rows_e2m1_steps *steps,
                              int64_t ahead, int past, uint8_t *q, const char *look, float *top, vi *most)
{
    uint64_t turn = 0;
    int64_t i = 0;
    for (; i + 4 * STEP <= n; i += 4 * STEP) {
        if (i % (16 * VL) == 0) {
            look_at_blocks(look ? look + i * 2 : NULL, 16, top + i / 16, most);
        }
        e2m1_stepped(x + i * 2, sf + i / 16, steps, ahead, past, q + i / 2, &turn);
    }
    if (i < n) {
        char pad[8 * STEP] = {0};
        uint8_t scales[STEP / 4] = {0}, last[2 * STEP];
        memcpy(pad, x + i * 2, (size_t)((n - i) * 2));
        memcpy(scales, sf + i / 16, (size_t)((n - i) / 16));
        e2m1_stepped(pad, scales, steps, 0, 0, last, &turn);
        memcpy(q + i / 2, last, (size_t)((n - i) / 2));
    }
}

static void rows_e2m1_steps(const void *x, int64_t n, const uint8_t *sf, const qn_rows_e2m1_steps *steps, int64_t ahead,
                            int past, uint8_t *q)
{
    vi none = vi_set(0);
    e2m1_all_steps(x, n, sf, steps, ahead, past, q, NULL, NULL, &none);
}

#ifdef VEC_FETCH_BETWEEN
static int rows_nvfp4_beside(const void *x, int64_t n, const uint8_t *sf, const qn_rows_e2m1_steps *steps,
                             const void *look, int64_t ahead, int past, uint8_t *q, float *top)
{
    vi most = vi_set(0);
    e2m1_all_steps(x, n, sf, steps, ahead, past, q, look, top, &most);
    return vi_top(most) >= infinity_bits(QN_MM_BF16);
}

static int rows_mxfp4_beside(const void *x, int64_t n, const float *factor, const void *look, int64_t ahead, int past,
                             uint8_t *q, float *top)
{
    vi most = vi_set(0);
    e2m1_by_bits(x, n, factor, ahead, past, q, look, top, &most);
    return vi_top(most) >= infinity_bits(QN_MM_BF16);
}
#endif
#endif

/* Of VL blocks: the exponent of top, one more where the rule's addend reaches it, less two; held to bytes from 0, of
 * infinity 254, whose factor is subnormal. */
QN_INLINE void mxfp4_scales_step(vi addend, vf top, uint8_t codes[STEP], float *factor, vi *most, vi *least)
{
    const vi bits = vi_bits(top);
    const vi e = vi_max(vi_sub(vi_shr(vi_add(bits, addend), 23), vi_set(2)), vi_set(0));
    const vi byte = vi_add(e, vi_shr(vi_add(bits, vi_set(0x00800000)), 31));
    const vf f = vf_bits(vi_max(vi_shl(vi_sub(vi_set(254), byte), 23), vi_set(0x00400000)));
    vi_put_bytes(codes, vi_in_order(vi_pairs(byte, byte)));
    vf_store(factor, f);
    *most = vi_umax(*most, vi_bits(vf_mul(top, f)));
    *least = vi_umax(*least, vi_sub(vi_set(0), bits)); /* 0 of 0, else large of small magnitudes */
}

static int rows_mxfp4_scales(uint32_t addend, const float *top, int64_t blocks, uint8_t *scale, float *factor)
{
    const vi add = vi_set(addend);
    uint8_t codes[STEP];
    vi most = vi_set(0), least = vi_set(0);
    int64_t i = 0;
    for (; i + VL <= blocks; i += VL) {
        mxfp4_scales_step(add, vf_load(top + i), codes, factor + i, &most, &least);
        memcpy(scale + i, codes, VL);
    }
    if (i < blocks) {
        float in[VL] = {0}, out[VL];
        memcpy(in, top + i, (size_t)(blocks - i) * 4);
        mxfp4_scales_step(add, vf_load(in), codes, out, &most, &least);
        memcpy(scale + i, codes, (size_t)(blocks - i));
        memcpy(factor + i, out, (size_t)(blocks - i) * 4);
    }
    return vi_top(least) > 0u - 0x03800000u ? QN_ROWS_HOLD : e2m1_care(most);
}
