/* Codes of rows: ranges, f32 to 8-bit and 4-bit codes, and back. Part of rows.h.
 *
 * A small float of m mantissa bits is rounded by one f32 addition: for |t| of
 * exponent e the sum |t| + 2^(e + 23 - m) has the small float's last bit as its
 * own, rounds to nearest even, and ends in the bits of the rounded mantissa;
 * with e held to the smallest normal exponent the same sum rounds subnormals.
 * Exponent and mantissa then add up to the code. The constant that is left of
 * the exponents' biases is put into the addend's last bits (it is even, so ties
 * stay ties), and only the low half counts.
 *
 * Codes of a step's two vectors meet in 32-bit lanes, the first one's in the low
 * half ("pairs"): signs, limits and packing are done there for both at once. */

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

#ifndef VEC_ONCE
#define vec_once(v) (v)
#endif

/* From the bits that are greatest in signed order and in unsigned order; 0: there is a NaN. */
QN_INLINE int range_of_bits(const int format, vi hi, vi lo, qn_rows_range *range)
{
    uint32_t high, low;
    if (format == QN_MM_F32) {
        high = vi_top(hi);
        low = vi_top(vi_and(lo, vi_set(0x7fffffff)));
    } else {
        high = vi_top16(hi);
        low = vi_top16(vi_and(lo, vi_set(0x7fff7fff)));
    }
    if (high > infinity_bits(format) || low > infinity_bits(format)) {
        return 0;
    }
    *range = (qn_rows_range){.low = -magnitude(format, low), .high = magnitude(format, high)};
    return 1;
}

/* Signed order puts the greatest positive value on top, unsigned order the lowest negative one. */
QN_INLINE void range_of(const int format, const void *x, int64_t n, int64_t ahead, qn_rows_range *range)
{
    const int wide = format == QN_MM_F32;
    const int64_t size = real_bytes(format), lanes = VL * 4 / size;
    const char *const p = x;
    vi hi[2] = {vi_set(0), vi_set(0)}, lo[2] = {vi_set(wide ? 0x80000000u : 0x80008000u)};
    lo[1] = lo[0];
    uint64_t turn = 0;
    (void)turn;
    (void)ahead;
    int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        for (int j = 0; j < 2; j++) {
            const char *const at = p + (i + j * lanes) * size;
            vi v = vec_once(vi_load(at));
#ifdef VEC_FETCH_BETWEEN /* elsewhere processors do as well by themselves */
            if (ahead) {
                fetch_between(at, ahead, &lo[j], &v, &turn);
            }
#endif
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
    if (!range_of_bits(format, hi[0], lo[0], range)) {
        range_without_nan(format, x, n, range);
    }
}

/* Magnitudes of VL blocks from their bits. */
QN_INLINE vf magnitudes_of(const int format, vi bits)
{
    if (format == QN_MM_F16) {
        uint16_t words[STEP];
        vi_store(words, vi_in_order(bits));
        return vf_from_f16(words);
    }
    return vf_bits(format == QN_MM_F32 ? bits : vi_shl(bits, 16));
}

/* Largest magnitude bits of a block of n elements, one vector after the other. */
QN_INLINE uint32_t top_of(const int format, const char *p, int64_t n)
{
    const int64_t size = real_bytes(format), lanes = VL * 4 / size;
    vi top = vi_set(0);
    for (int64_t i = 0; i < n; i += lanes) {
        char pad[VL * 4] = {0};
        const int whole = i + lanes <= n;
        if (!whole) {
            memcpy(pad, p + i * size, (size_t)((n - i) * size));
        }
        const vi x = vi_load(whole ? p + i * size : pad);
        top = format == QN_MM_F32 ? vi_umax(top, vi_and(x, vi_set(0x7fffffff)))
                                  : vi_umax16(top, vi_and(x, vi_set(0x7fff7fff)));
    }
    return format == QN_MM_F32 ? vi_top(top) : vi_top16(top);
}

#ifndef VEC_TOPS_TOGETHER
#define VEC_TOPS_TOGETHER 8
#endif

QN_INLINE int tops_in(const int format, const void *x, int64_t n, const int64_t block, float *top)
{
    /* blocks that are done together: of two bytes an element 8 at some levels, but 16 of the smallest */
    const int64_t size = real_bytes(format), together = size == 2 && block > 16 ? VEC_TOPS_TOGETHER : 16;
    const char *p = x;
    uint32_t bits[16] = {0}, last = 0;
    vi most = vi_set(0);
    for (; n >= together * block; n -= together * block, p += together * block * size, top += together) {
        if (format == QN_MM_F32) {
            vec_block_tops32(p, block, bits);
        } else {
            vec_block_tops16(p, block, bits);
        }
        for (int64_t b = 0; b < together; b += VL) {
            const vi v = vi_load(bits + b);
            most = vi_umax(most, v);
            if (b + VL <= together) {
                vf_store(top + b, magnitudes_of(format, v));
            } else {
                float some[VL];
                vf_store(some, magnitudes_of(format, v));
                memcpy(top + b, some, (VL < 8 ? VL : 8) * sizeof(float)); /* VL > 8 */
            }
        }
    }
    for (; n > 0; n -= block, p += block * size) {
        const uint32_t v = top_of(format, p, n < block ? n : block);
        last = v > last ? v : last;
        *top++ = magnitude(format, v);
    }
    return last >= infinity_bits(format) || vi_top(most) >= infinity_bits(format);
}

/* A NaN or an infinity: once more, block by block. */
QN_INLINE void tops_without_nan(const int format, const void *x, int64_t n, int64_t block, float *top)
{
    for (int64_t i = 0; i < n; i += block) {
        qn_rows_range r;
        range_of(format, (const char *)x + i * real_bytes(format), n - i < block ? n - i : block, 0, &r);
        top[i / block] = (r.high > -r.low ? r.high : -r.low) + 0.0f; /* never -0 */
    }
}

QN_INLINE int tops_of(const int format, const void *x, int64_t n, int64_t block, float *top)
{
    int special;
    switch (block) {
    case 16: special = tops_in(format, x, n, 16, top); break;
    case 32: special = tops_in(format, x, n, 32, top); break;
    case 64: special = tops_in(format, x, n, 64, top); break;
    default: special = tops_in(format, x, n, 128, top); break;
    }
    if (special) {
        tops_without_nan(format, x, n, block, top);
    }
    return special;
}

/* ---- f32 to codes ---- */

/* Codes of t >= 0 in the low half of each lane; m mantissa bits, e_min the smallest normal exponent. */
QN_INLINE vi round_small(vf t, const unsigned m, const int e_min)
{
    const uint32_t least = (uint32_t)(127 + e_min), rest = (0u - (least << m)) & 0xffff;
    const vi e = vi_max(vi_and(vi_bits(t), vi_set(0x7f800000)), vi_set(least << 23));
    const vf sum = vf_fma(vf_bits(e), vf_bits(vi_set(((150 - m) << 23) + rest)), t); /* the product is exact */
    return vi_add(vi_bits(sum), vi_shr(e, 23 - m));
}

/* The same of |t|, where a level looks up addends by exponent: t below 2^(e_min + 28 - m), or held to 16. */
#ifdef VEC_ADDENDS
typedef vec_addends addends;

QN_INLINE addends addends_of(const unsigned m, const int e_min)
{
    return vec_addends_of((int)m, e_min);
}

QN_INLINE vi round_size(vf t, const unsigned m, const int e_min, const int held, const addends *a)
{
    (void)m;
    (void)e_min;
    return vec_round(t, held, a);
}
#else
typedef struct addends {
    char none;
} addends;

QN_INLINE addends addends_of(const unsigned m, const int e_min)
{
    (void)m;
    (void)e_min;
    return (addends){0};
}

QN_INLINE vi round_size(vf t, const unsigned m, const int e_min, const int held, const addends *a)
{
    (void)held;
    (void)a;
    return round_small(vf_bits(vi_and(vi_bits(t), vi_set(0x7fffffff))), m, e_min);
}
#endif

QN_INLINE vf magnitudes(vf a)
{
    return vf_bits(vi_and(vi_bits(a), vi_set(0x7fffffff)));
}

/* t held to +-most, NaN kept. */
QN_INLINE vf held(vf t, const float most)
{
    return vf_max(vf_set(-most), vf_min(vf_set(most), t));
}

QN_INLINE vi round_code(const int code, vf t)
{
    return code == QN_ROWS_E5M2 ? round_small(t, 2, -14) : round_small(t, 3, code == QN_ROWS_E4M3 ? -6 : -7);
}

/* Codes of any t, with its sign, in the low half of each lane. */
QN_INLINE vi careful_codes(const int code, vf t, vi azp)
{
    if (code == QN_ROWS_I8) {
        t = vf_bits(vi_where_nan(t, vi_set(0), vi_bits(held(t, 1e6f))));
        return vi_max(vi_set(0xffffff80u), vi_min(vi_set(127), vi_add(vi_round(t), azp)));
    }
    const vf h = held(t, code == QN_ROWS_E4M3 ? 448.0f : (code == QN_ROWS_E5M2 ? 57344.0f : 224.0f));
    const vi c = vi_select(vi_set(0x7f), round_code(code, magnitudes(h)), vi_shr(vi_bits(t), 24));
    if (code == QN_ROWS_E4M3FNUZ) {
        return vi_where_nan(t, vi_set(0x80), vi_zero_if16(c, vi_set(0x80))); /* one zero only */
    }
    return vi_where_nan(t, vi_set(0x7f), c);
}

/* Codes of |a| and |b| in pairs; hold: they may lie beyond the codes' range. */
QN_INLINE vi size_pairs(const int code, const int hold, vf a, vf b, const addends *by)
{
    const int e_min = code == QN_ROWS_E4M3 ? -6 : -7;
    const vi w = code == QN_ROWS_E5M2 ? vi_pairs(round_code(code, magnitudes(a)), round_code(code, magnitudes(b)))
                                      : vi_pairs(round_size(a, 3, e_min, 0, by), round_size(b, 3, e_min, 0, by));
    return hold ? vi_umin16(w, vi_set(code == QN_ROWS_E5M2 ? 0x007b007b : 0x007e007e)) : w;
}

/* Codes of a and b with their signs, which a quotient of 0 has lost. */
QN_INLINE vi signed_pairs(const int code, const int hold, vf a, vf b, vi signs, const addends *by)
{
    return vi_select(vi_set(0x007f007f), size_pairs(code, hold, a, b, by), vi_shr16(signs, 8));
}

enum { MULTIPLY, QUOTIENT, DIVIDE };

/* What a rule needs in vectors. */
typedef struct rule_vectors {
    vf scale, factor, rest; /* factor + rest: 1 / scale to twice the bits */
    vi azp, azp16;
    addends by;
} rule_vectors;

QN_INLINE rule_vectors rule_load(const int code, const qn_rows_rule *rule)
{
    const vf s = vf_set(rule->scale), r = vf_set(rule->factor);
    return (rule_vectors){s,
                          r,
                          vf_inverse_rest(s, r),
                          vi_set((uint32_t)rule->azp),
                          vi_set(((uint32_t)rule->azp & 0xffff) * 0x10001u),
                          addends_of(3, code == QN_ROWS_E4M3 ? -6 : -7)};
}

QN_INLINE vf scaled(const int how, vf a, const rule_vectors *rule)
{
    return how == MULTIPLY ? vf_mul(a, rule->factor)
                           : (how == QUOTIENT ? vf_times_inverse(a, rule->scale, rule->factor, rule->rest)
                                              : vf_div(a, rule->scale));
}

/* Codes as words; of int8 any words, which are to be held to codes. */
QN_INLINE vi encode_step(const int format, const int code, const int how, const int careful, const rule_vectors *rule,
                         const void *x)
{
    const vi azp = rule->azp;
    vf a, b;
    vi w;
    if (careful || code == QN_ROWS_I8) {
        load_step(format, x, &a, &b);
        const vf t = scaled(how, a, rule), u = scaled(how, b, rule);
        if (careful) {
            w = vi_pairs(careful_codes(code, t, azp), careful_codes(code, u, azp));
        } else {
            w = vi_pairs(vi_round(t), vi_round(u));
            w = how == MULTIPLY ? vi_add16(w, rule->azp16) : w; /* quotients have no zero point */
        }
    } else {
        const vi signs = load_signs(format, x, &a, &b);
        w = signed_pairs(code, how == MULTIPLY, scaled(how, a, rule), scaled(how, b, rule), signs, &rule->by);
        if (code == QN_ROWS_E4M3FNUZ) {
            w = vi_zero_if16(w, vi_set(0x00800080)); /* one zero only */
        }
    }
    return format == QN_MM_BF16 || format == QN_ROWS_PAIRED ? w : vi_in_order(w);
}

#ifdef VEC_STEPS
/* Whether two steps of codes may meet their signs as bytes, which takes half of what words take. */
QN_INLINE int signs_last(const int format, const int code, const int careful)
{
    return !careful && (code == QN_ROWS_E4M3 || code == QN_ROWS_E5M2) &&
           (format == QN_MM_BF16 || format == QN_ROWS_PAIRED);
}

QN_INLINE void encode_signs_last(const int format, const int code, const int how, const rule_vectors *rule,
                                 const char *x, int past, uint8_t *codes)
{
    vf a, b;
    vi signs[2], w[2];
    for (int i = 0; i < 2; i++) {
        signs[i] = load_signs(format, x + i * STEP * real_bytes(format), &a, &b);
        w[i] = size_pairs(code, how == MULTIPLY, scaled(how, a, rule), scaled(how, b, rule), &rule->by);
    }
    vec_put_signed(codes, vi_bytes(w[0], w[1]), signs[0], signs[1], past);
}
#endif

/* Two steps. */
QN_INLINE void encode_two(const int format, const int code, const int how, const int careful, const rule_vectors *rule,
                          const char *x, int64_t ahead, int past, uint8_t *codes)
{
    const char *const second = x + STEP * real_bytes(format);
#ifdef VEC_STEPS
    if (signs_last(format, code, careful)) {
        fetch_step(format, x, ahead);
        fetch_step(format, second, ahead);
        encode_signs_last(format, code, how, rule, x, past, codes);
        return;
    }
#endif
    fetch_step(format, x, ahead);
    const vi a = encode_step(format, code, how, careful, rule, x);
    fetch_step(format, second, ahead);
    const vi b = encode_step(format, code, how, careful, rule, second);
    vi_put_bytes2(codes, a, b, code == QN_ROWS_I8, past);
}

QN_INLINE void encode_all(const int format, const int code, const int how, const int careful, const qn_rows_rule *rule,
                          const void *x, int64_t n, int64_t ahead, int past, uint8_t *codes)
{
    const char *const p = x;
    const int64_t size = real_bytes(format);
    const rule_vectors own = rule_load(code, rule);
    int64_t i = 0;
    for (; i + 2 * STEP <= n; i += 2 * STEP) {
        encode_two(format, code, how, careful, &own, p + i * size, ahead, past, codes + i);
    }
    for (; i < n; i += STEP) {
        char pad[STEP * 4];
        uint8_t last[2 * STEP];
        const vi w = n - i >= STEP ? encode_step(format, code, how, careful, &own, p + i * size)
                                   : encode_step(format == QN_ROWS_PAIRED ? QN_MM_F32 : format, code, how, careful,
                                                 &own, pad_step(format, p + i * size, n - i, pad));
        vi_put_bytes2(last, w, w, code == QN_ROWS_I8, 0);
        if (n - i < STEP) {
            memcpy(codes + i, last, (size_t)(n - i));
        } else {
            memcpy(codes + i, last, STEP);
        }
    }
}

/* Groups that are coded the same way, whose constants thus stay in registers. */
QN_INLINE void encode_alike(const int format, const int code, const int how, const int careful,
                            const qn_rows_rule *rules, const char *x, int64_t n, int64_t group, int64_t ahead, int past,
                            uint8_t *codes)
{
    for (int64_t i = 0; i < n; i += group) {
        encode_all(format, code, how, careful, rules++, x + i * real_bytes(format), n - i < group ? n - i : group,
                   ahead, past, codes + i);
    }
}

#include "kernels/cpu/rows_steps.h"

/* Quotients by scales that are `stride` floats apart. */
QN_INLINE void quotients_of(const int format, const int code, const float *scale, const float *factor, int64_t stride,
                            const char *x, int64_t n, int64_t group, int64_t ahead, int past, uint8_t *codes)
{
    int64_t i = 0;
    /* groups of the usual length: what is around their few steps took a fifth of the time */
    for (; group == QN_ROWS_GROUP && i + group <= n; i += QN_ROWS_GROUP, scale += stride, factor += stride) {
        const qn_rows_rule rule = {.scale = *scale, .factor = *factor};
        const rule_vectors own = rule_load(code, &rule);
        for (int j = 0; j < QN_ROWS_GROUP; j += 2 * STEP) {
            encode_two(format, code, QUOTIENT, 0, &own, x + (i + j) * real_bytes(format), ahead, past, codes + i + j);
        }
    }
    for (; i < n; i += group, scale += stride, factor += stride) {
        const qn_rows_rule rule = {.scale = *scale, .factor = *factor};
        encode_all(format, code, QUOTIENT, 0, &rule, x + i * real_bytes(format), n - i < group ? n - i : group, ahead,
                   past, codes + i);
    }
}

QN_INLINE void encode_of(const int format, const int code, const qn_rows_quotients_fn quotients,
                         const qn_rows_rule *rules, const void *x, int64_t n, int64_t group, int64_t ahead, int past,
                         uint8_t *codes)
{
    for (int64_t i = 0, count; i < n; i += count) {
        const char *const p = (const char *)x + i * real_bytes(format);
        const int multiply = rules->multiply, careful = rules->careful, stepped = steps_known(format, code, rules);
        const qn_rows_rule *const first = rules++;
        for (count = group; i + count < n && rules->multiply == multiply && rules->careful == careful &&
                            steps_known(format, code, rules) == stepped;
             rules++) {
            count += group;
        }
        count = i + count < n ? count : n - i;
        if (multiply && careful) {
            encode_alike(format, code, MULTIPLY, 1, first, p, count, group, ahead, past, codes + i);
        } else if (careful) {
            encode_alike(format, code, DIVIDE, 1, first, p, count, group, ahead, past, codes + i);
        } else if (stepped) {
            encode_by_steps(code, first, p, count, group, ahead, past, codes + i);
        } else if (multiply) {
            encode_alike(format, code, MULTIPLY, 0, first, p, count, group, ahead, past, codes + i);
        } else {
            quotients(&first->scale, &first->factor, sizeof *first / sizeof(float), p, count, group, ahead, past,
                      codes + i);
        }
    }
}

static int rows_scales(const qn_rows_bounds *bounds, const float *top, int64_t groups, float *scale, float *factor)
{
    const vf most = vf_set(bounds->most), least_top = vf_set(bounds->least_top), most_top = vf_set(bounds->most_top);
    const vf least_scale = vf_set(bounds->least_scale), most_scale = vf_set(bounds->most_scale);
    const float limit = bounds->most_scale < 0x1p60f ? bounds->most_scale : 0x1p60f;
    int plain = 1;
    for (int64_t g = 0; g < groups; g += VL) {
        const vf t = vf_load(top + g), amax = vf_max(least_top, vf_min(most_top, t));
        const vf s = vf_max(least_scale, vf_min(most_scale, vf_div(amax, most)));
        vf_store(scale + g, s);
        vf_store(factor + g, vf_div(vf_set(1.0f), s));
        plain &= vf_all_below(t, bounds->most_top) & vf_all_below(s, limit) &
                 vf_all_below(vf_sub(vf_set(0.0f), s), -0x1p-60f);
    }
    return plain;
}

#include "kernels/cpu/rows_fp4.h"

/* ---- codes to f32 ---- */

QN_INLINE vf value_of(const int code, const uint8_t *p)
{
    return code == QN_ROWS_E4M3 ? vf_from_e4m3(p) : (code == QN_ROWS_E5M2 ? vf_from_e5m2(p) : vf_from_e4m3fnuz(p));
}

QN_INLINE vf decode_one(const int code, const uint8_t *p, vf scale, vf azp)
{
    return vf_mul(code == QN_ROWS_I8 ? vf_sub(vf_from_i8(p), azp) : value_of(code, p), scale);
}

QN_INLINE void decode_of(const int code, const void *codes, int64_t n, float scale, int32_t azp, int past, float *out)
{
    const uint8_t *const p = codes;
    const vf s = vf_set(scale), z = vf_set((float)azp); /* differences are exact */
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_put(out + i, decode_one(code, p + i, s, z), past);
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
    decode_of(QN_ROWS_E4M3, codes, n, 1.0f, 0, 0, out);
}

/* |a| with the sign of b. */
QN_INLINE vf vf_signed(vf a, vf b)
{
    return vf_bits(vi_select(vi_set(0x7fffffff), vi_bits(a), vi_bits(b)));
}

enum { AS_IS, EXACT_QUOTIENT, PLAIN_DIVIDE };

QN_INLINE vf over_global(const int how, vf v, vf g, vf inverse)
{
    return how == AS_IS ? v : (how == EXACT_QUOTIENT ? vf_signed(vf_quotient(v, g, inverse), v) : vf_div(v, g));
}

QN_INLINE void from_e2m1_all(const uint8_t *q, int64_t n, const int block, const int how, const float *scale, float g,
                             int past, float *out)
{
    const vf by = vf_set(g), inverse = vf_set(1.0f / g);
#ifdef VEC_E2M1_TABLE
    for (int64_t i = 0; i < n; i += block) { /* the eight magnitudes of a block, then a lookup a code */
        const vf table = over_global(how, vf_mul(vec_e2m1_sizes(), vf_set(scale[i / block])), by, inverse);
        for (int64_t j = i; j < i + block; j += VL) {
            vf_put(out + j, vec_e2m1_of(table, q + j / 2), past);
        }
    }
#else
    for (int64_t i = 0; i < n; i += VL) {
        const vf v = vf_mul(vf_from_e2m1(q + i / 2), vf_set(scale[i / block]));
        vf_put(out + i, over_global(how, v, by, inverse), past);
    }
#endif
}

static void rows_from_e2m1(const uint8_t *q, int64_t n, int64_t block, const float *scale, float g, int past,
                           float *out)
{
    if (block == 32) {
        from_e2m1_all(q, n, 32, AS_IS, scale, g, past, out); /* mxfp4 has no global scale */
    } else if (g >= 0x1p-60f && g <= 0x1p60f) {
        from_e2m1_all(q, n, 16, EXACT_QUOTIENT, scale, g, past, out); /* of 0 or of 2^-10 to 2688 */
    } else {
        from_e2m1_all(q, n, 16, PLAIN_DIVIDE, scale, g, past, out);
    }
}
