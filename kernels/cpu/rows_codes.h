/* Codes of rows: ranges, f32 to 8-bit and 4-bit codes, and back. Part of rows.h.
 *
 * A small float of m mantissa bits is rounded by one f32 addition: for |t| of
 * exponent e the sum |t| + 2^(e + 23 - m) has the small float's last bit as its
 * own, rounds to nearest even, and ends in the bits of the rounded mantissa;
 * with e held to the smallest normal exponent the same sum rounds subnormals.
 * Exponent and mantissa then add up to the code. The constant that is left of
 * the exponents' biases is put into the addend's last bits (it is even, so ties
 * stay ties), and only the low byte counts. */

/* ---- ranges: magnitudes compared as integers, which sees NaN as the largest ---- */

QN_INLINE float magnitude(const int format, uint32_t bits)
{
    if (format == QN_MM_F16) {
        return f16_value((uint16_t)bits);
    }
    bits = format == QN_MM_F32 ? bits : bits << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

QN_INLINE uint32_t infinity_bits(const int format)
{
    return format == QN_MM_F32 ? 0x7f800000u : (format == QN_MM_F16 ? 0x7c00u : 0x7f80u);
}

/* With NaN among the values. */
QN_INLINE void range_without_nan(const int format, const void *x, int64_t n, qn_rows_range *range)
{
    char pad[STEP * 4];
    vf lo = vf_set(0.0f), hi = lo;
    for (int64_t i = 0; i < n; i += STEP) {
        const char *p = (const char *)x + i * real_bytes(format);
        vf a, b;
        load_step(format, n - i < STEP ? pad_step(format, p, n - i, pad) : p, &a, &b);
        lo = vf_min(b, vf_min(a, lo)); /* the second operand where the first is NaN */
        hi = vf_max(b, vf_max(a, hi));
    }
    range->low = -vf_highest(vf_sub(vf_set(0.0f), lo));
    range->high = vf_highest(hi);
    range->nan = 1;
}

/* Signed order puts the greatest positive value on top, unsigned order the lowest negative one. */
QN_INLINE void range_of(const int format, const void *x, int64_t n, qn_rows_range *range)
{
    const int wide = format == QN_MM_F32;
    const int64_t size = real_bytes(format), lanes = VL * 4 / size;
    const char *const p = x;
    vi hi[2] = {vi_set(0), vi_set(0)}, lo[2] = {vi_set(wide ? 0x80000000u : 0x80008000u)};
    lo[1] = lo[0];
    int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        for (int j = 0; j < 2; j++) {
            const vi v = vi_load(p + (i + j * lanes) * size);
            hi[j] = wide ? vi_max(hi[j], v) : vi_max16(hi[j], v);
            lo[j] = wide ? vi_umax(lo[j], v) : vi_umax16(lo[j], v);
        }
    }
    for (; i < n; i += lanes) {
        char pad[VL * 4] = {0};
        memcpy(pad, p + i * size, (size_t)((n - i < lanes ? n - i : lanes) * size));
        const vi v = vi_load(pad);
        hi[0] = wide ? vi_max(hi[0], v) : vi_max16(hi[0], v);
        lo[0] = wide ? vi_umax(lo[0], v) : vi_umax16(lo[0], v);
    }
    hi[0] = wide ? vi_max(hi[0], hi[1]) : vi_max16(hi[0], hi[1]);
    lo[0] = wide ? vi_umax(lo[0], lo[1]) : vi_umax16(lo[0], lo[1]);
    uint32_t high, low;
    if (wide) {
        high = vi_top(hi[0]);
        low = vi_top(vi_and(lo[0], vi_set(0x7fffffff)));
    } else {
        high = vi_top16(hi[0]);
        low = vi_top16(vi_and(lo[0], vi_set(0x7fff7fff)));
    }
    if (high > infinity_bits(format) || low > infinity_bits(format)) {
        range_without_nan(format, x, n, range);
        return;
    }
    range->high = magnitude(format, high);
    range->low = -magnitude(format, low);
    range->nan = 0;
}

QN_INLINE int tops_of(const int format, const void *x, int64_t n, int64_t block, float *top)
{
    const int64_t size = real_bytes(format);
    const char *const p = x;
    uint32_t special = 0;
    for (int64_t i = 0; i < n; i += 256) {
        char pad[256 * 4];
        uint32_t bits[16];
        const char *at = p + i * size;
        const int64_t count = n - i < 256 ? n - i : 256;
        if (count < 256) {
            memset(pad, 0, sizeof pad);
            memcpy(pad, at, (size_t)(count * size));
            at = pad;
        }
        if (format == QN_MM_F32) {
            vec_block_tops32(at, bits);
        } else {
            vec_block_tops16(at, bits);
        }
        const int64_t blocks = count / 16;
        float tops[16];
        for (int b = 0; b < 16; b++) {
            special |= bits[b] >= infinity_bits(format);
            tops[b] = magnitude(format, bits[b]);
        }
        if (block == 16) {
            memcpy(top + i / 16, tops, (size_t)blocks * 4);
        } else {
            for (int64_t b = 0; b < blocks; b += 2) {
                top[(i / 16 + b) / 2] = tops[b] > tops[b + 1] ? tops[b] : tops[b + 1];
            }
        }
    }
    for (int64_t b = 0; special && b < n / block; b++) {
        qn_rows_range r;
        range_of(format, p + b * block * size, block, &r);
        top[b] = (r.high > -r.low ? r.high : -r.low) + 0.0f; /* never -0 */
    }
    return special != 0;
}

/* ---- f32 to codes ---- */

/* Codes of |t| with the signs of another vector (a quotient may have lost that of 0) in the low bits of each lane;
 * m mantissa bits, e_min the smallest normal exponent, magnitudes below 2^bits. */
QN_INLINE vi small_codes(vf t, vf sign, const unsigned m, const int e_min, const unsigned bits)
{
    const uint32_t least = (uint32_t)(127 + e_min), addend = (23 - m) << 23, rest = 0u - (least << m);
    const vi x = vi_bits(t);
    const vi e = vi_max(vi_and(x, vi_set(0x7f800000)), vi_set(least << 23));
    const vf sum = vf_add(vf_bits(vi_and(x, vi_set(0x7fffffff))), vf_bits(vi_add(e, vi_set(addend + (rest & 0xff)))));
    const vi code = vi_add(vi_bits(sum), vi_shr(e, 23 - m));
    return vi_select(vi_set((1u << bits) - 1), code, vi_shr(vi_bits(sign), 31 - bits));
}

/* t held to +-most, NaN kept. */
QN_INLINE vf held(vf t, const float most)
{
    return vf_max(vf_set(-most), vf_min(vf_set(most), t));
}

QN_INLINE vi codes_of(const int code, vf t, vf sign, vi azp, const int careful)
{
    if (code == QN_ROWS_I8) {
        if (careful) {
            t = vf_bits(vi_where_nan(t, vi_set(0), vi_bits(held(t, 1e6f))));
        }
        return vi_max(vi_set(0xffffff80u), vi_min(vi_set(127), vi_add(vi_round(t), azp)));
    }
    const vf h = careful ? held(t, code == QN_ROWS_E4M3 ? 448.0f : (code == QN_ROWS_E5M2 ? 57344.0f : 224.0f)) : t;
    if (code == QN_ROWS_E4M3FNUZ) {
        const vi c = vi_zero_if(small_codes(h, sign, 3, -7, 7), vi_set(0x80)); /* one zero only */
        return careful ? vi_where_nan(t, vi_set(0x80), c) : c;
    }
    const vi c = code == QN_ROWS_E4M3 ? small_codes(h, sign, 3, -6, 7) : small_codes(h, sign, 2, -14, 7);
    return careful ? vi_where_nan(t, vi_set(0x7f), c) : c;
}

enum { MULTIPLY, QUOTIENT, DIVIDE };

QN_INLINE void encode_step(const int format, const int code, const int how, const int careful, const qn_rows_rule *rule,
                           const void *x, uint8_t *codes)
{
    vf a, b;
    load_step(format, x, &a, &b);
    const vf s = vf_set(rule->scale), r = vf_set(rule->factor);
    const vi azp = vi_set((uint32_t)rule->azp);
    const vf t = how == MULTIPLY ? vf_mul(a, r) : (how == QUOTIENT ? vf_quotient(a, s, r) : vf_div(a, s));
    const vf u = how == MULTIPLY ? vf_mul(b, r) : (how == QUOTIENT ? vf_quotient(b, s, r) : vf_div(b, s));
    const vi p = codes_of(code, t, how == QUOTIENT ? a : t, azp, careful);
    const vi q = codes_of(code, u, how == QUOTIENT ? b : u, azp, careful);
    if (format == QN_MM_BF16) {
        vi_put_byte_pairs(codes, p, q);
    } else {
        vi_put_bytes(codes, p, q);
    }
}

QN_INLINE void encode_all(const int format, const int code, const int how, const int careful, const qn_rows_rule *rule,
                          const void *x, int64_t n, int64_t ahead, uint8_t *codes)
{
    const char *const p = x;
    const int64_t size = real_bytes(format);
    const qn_rows_rule own = *rule; /* which stores of codes cannot change */
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        fetch_step(format, p + i * size, ahead);
        encode_step(format, code, how, careful, &own, p + i * size, codes + i);
    }
    if (i < n) {
        char pad[STEP * 4];
        uint8_t last[STEP];
        encode_step(format, code, how, careful, &own, pad_step(format, p + i * size, n - i, pad), last);
        memcpy(codes + i, last, (size_t)(n - i));
    }
}

QN_INLINE void encode_of(const int format, const int code, const qn_rows_rule *rule, const void *x, int64_t n,
                         int64_t ahead, void *codes)
{
    if (rule->multiply && rule->careful) {
        encode_all(format, code, MULTIPLY, 1, rule, x, n, ahead, codes);
    } else if (rule->careful) {
        encode_all(format, code, DIVIDE, 1, rule, x, n, ahead, codes);
    } else if (rule->multiply) {
        encode_all(format, code, MULTIPLY, 0, rule, x, n, ahead, codes);
    } else {
        encode_all(format, code, QUOTIENT, 0, rule, x, n, ahead, codes);
    }
}

/* Two vectors of factors for the STEP elements at i. */
QN_INLINE void factors_at(const int format, const float *factor, int64_t i, int64_t block, vf *a, vf *b)
{
    const float first = factor[i / block], second = factor[(i + VL) / block];
    if (format == QN_MM_BF16) {
        *a = *b = vf_set2(first, second);
    } else {
        *a = vf_set(first);
        *b = vf_set(second);
    }
}

QN_INLINE vi e2m1_codes(vf t, const int nan)
{
    const vi c = small_codes(held(t, 6.0f), t, 1, 0, 3);
    return nan ? vi_where_nan(t, vi_set(0), c) : c;
}

QN_INLINE void e2m1_step(const int format, const void *x, vf fa, vf fb, const int nan, uint8_t *q)
{
    vf a, b;
    load_step(format, x, &a, &b);
    const vi p = e2m1_codes(vf_mul(a, fa), nan), r = e2m1_codes(vf_mul(b, fb), nan);
    if (format == QN_MM_BF16) {
        vi_put_nibble_pairs(q, p, r);
    } else {
        vi_put_nibbles(q, p, r);
    }
}

QN_INLINE void e2m1_all(const int format, const void *x, int64_t n, int64_t block, const float *factor, const int nan,
                        int64_t ahead, uint8_t *q)
{
    const char *const p = x;
    const int64_t size = real_bytes(format);
    vf fa, fb;
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        fetch_step(format, p + i * size, ahead);
        factors_at(format, factor, i, block, &fa, &fb);
        e2m1_step(format, p + i * size, fa, fb, nan, q + i / 2);
    }
    if (i < n) { /* n is a multiple of 16: one block, of a level with vectors of 16 */
        char pad[STEP * 4];
        uint8_t last[VL];
        fa = fb = vf_set(factor[i / block]);
        e2m1_step(format, pad_step(format, p + i * size, n - i, pad), fa, fb, nan, last);
        memcpy(q + i / 2, last, (size_t)((n - i) / 2));
    }
}

QN_INLINE void to_e2m1_of(const int format, const void *x, int64_t n, int64_t block, const float *factor, int nan,
                          int64_t ahead, uint8_t *q)
{
    if (nan) {
        e2m1_all(format, x, n, block, factor, 1, ahead, q);
    } else if (block == 16) {
        e2m1_all(format, x, n, 16, factor, 0, ahead, q);
    } else {
        e2m1_all(format, x, n, 32, factor, 0, ahead, q);
    }
}

static void rows_nvfp4_scales(float g, const float *top, int64_t blocks, uint8_t *sf, float *factor)
{
    const vf inverse = vf_set(1.0f / g), one = vf_set(1.0f);
    for (int64_t i = 0; i < blocks; i += VL) {
        const int64_t n = blocks - i < VL ? blocks - i : VL;
        float in[VL] = {0}, out[VL];
        uint8_t codes[STEP];
        memcpy(in, top + i, (size_t)n * 4);
        const vf y = vf_mul(vf_set(g), vf_mul(vf_load(in), vf_set(1.0f / 6.0f)));
        const vi c = codes_of(QN_ROWS_E4M3, y, y, vi_set(0), 1);
        vi_put_bytes(codes, c, c);
        const vi s = vi_bits(vf_from_e4m3(codes));
        const vi f = vi_bits(vf_div(one, vf_mul(vf_bits(s), inverse)));
        vf_store(out, vf_bits(vi_zero_if_zero(f, s)));
        memcpy(sf + i, codes, (size_t)n);
        memcpy(factor + i, out, (size_t)n * 4);
    }
}

/* ---- codes to f32 ---- */

QN_INLINE vf value_of(const int code, const uint8_t *p)
{
    return code == QN_ROWS_E4M3 ? vf_from_e4m3(p) : (code == QN_ROWS_E5M2 ? vf_from_e5m2(p) : vf_from_e4m3fnuz(p));
}

QN_INLINE vf decode_one(const int code, const uint8_t *p, vf scale, vf azp)
{
    return vf_mul(code == QN_ROWS_I8 ? vf_sub(vf_from_i8(p), azp) : value_of(code, p), scale);
}

QN_INLINE void decode_of(const int code, const void *codes, int64_t n, float scale, int32_t azp, float *out)
{
    const uint8_t *const p = codes;
    const vf s = vf_set(scale), z = vf_set((float)azp); /* differences are exact */
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_store(out + i, decode_one(code, p + i, s, z));
    }
    if (i < n) {
        uint8_t pad[VL] = {0};
        float last[VL];
        memcpy(pad, p + i, (size_t)(n - i));
        vf_store(last, decode_one(code, pad, s, z));
        memcpy(out + i, last, (size_t)(n - i) * 4);
    }
}

static void rows_from_e4m3(const uint8_t *codes, int64_t n, float *out)
{
    decode_of(QN_ROWS_E4M3, codes, n, 1.0f, 0, out);
}

/* |a| with the sign of b. */
QN_INLINE vf vf_signed(vf a, vf b)
{
    return vf_bits(vi_select(vi_set(0x7fffffff), vi_bits(a), vi_bits(b)));
}

enum { AS_IS, EXACT_QUOTIENT, PLAIN_DIVIDE };

QN_INLINE void from_e2m1_all(const uint8_t *q, int64_t n, const int block, const int how, const float *scale, float g,
                             float *out)
{
    const vf by = vf_set(g), inverse = vf_set(1.0f / g);
    for (int64_t i = 0; i < n; i += VL) {
        const vf v = vf_mul(vf_from_e2m1(q + i / 2), vf_set(scale[i / block]));
        vf_store(out + i, how == AS_IS
                              ? v
                              : (how == EXACT_QUOTIENT ? vf_signed(vf_quotient(v, by, inverse), v) : vf_div(v, by)));
    }
}

static void rows_from_e2m1(const uint8_t *q, int64_t n, int64_t block, const float *scale, float g, float *out)
{
    if (block == 32) {
        from_e2m1_all(q, n, 32, AS_IS, scale, g, out); /* mxfp4 has no global scale */
    } else if (g >= 0x1p-60f && g <= 0x1p60f) {
        from_e2m1_all(q, n, 16, EXACT_QUOTIENT, scale, g, out); /* of 0 or of 2^-10 to 2688 */
    } else {
        from_e2m1_all(q, n, 16, PLAIN_DIVIDE, scale, g, out);
    }
}
