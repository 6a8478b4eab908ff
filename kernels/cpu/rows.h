/* Row-wise parts (kernels/common/rows.h): activations and normalisation here,
 * codes in rows_codes.h. Included once by rows_<isa>.c of each folder, after its
 * vec.h. Elements are taken 2 VL at a time; what does not fill them is copied to
 * zeroed memory first, so nothing outside a row is touched. */
#include "kernels/common/rows.h"
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/name.h"

#include <math.h>

#define STEP (2 * VL) /* elements of a step */

QN_INLINE int64_t real_bytes(const int format)
{
    return format == QN_MM_F32 || format == QN_ROWS_PAIRED ? 4 : 2;
}

/* STEP elements as two vectors: in order, or of bf16 even and odd ones, which costs least. */
QN_INLINE void load_step(const int format, const void *x, vf *a, vf *b)
{
    const char *const p = x;
    if (format == QN_MM_F32 || format == QN_ROWS_PAIRED) {
        *a = vf_load((const float *)(const void *)p);
        *b = vf_load((const float *)(const void *)p + VL);
    } else if (format == QN_MM_F16) {
        *a = vf_from_f16(p);
        *b = vf_from_f16(p + 2 * VL);
    } else {
        vf_pairs_from_bf16(p, a, b);
    }
}

/* The same; returns pairs of 16-bit halves whose top bits are the signs. */
QN_INLINE vi load_signs(const int format, const void *x, vf *a, vf *b)
{
    load_step(format, x, a, b);
    return format == QN_MM_BF16 ? vi_load(x) : vi_halves(vi_shr(vi_bits(*a), 16), vi_bits(*b));
}

/* The last elements of a row with zeros behind them. */
QN_INLINE const char *pad_step(const int format, const void *x, int64_t n, char pad[STEP * 4])
{
    memset(pad, 0, STEP * 4);
    memcpy(pad, x, (size_t)(n * real_bytes(format)));
    return pad;
}

/* Fetch the lines that a later step at p + ahead will read. */
QN_INLINE void fetch_step(const int format, const char *p, int64_t ahead)
{
    if (ahead) {
        for (int64_t i = 0; i < STEP * real_bytes(format); i += 64) {
            vec_prefetch(p + ahead + i);
        }
    }
}

/* The same of a vector's line at p, behind what gives *a and before what takes *b, and behind the line before. turn: 0,
 * before a loop. */
QN_INLINE void fetch_between(const char *p, int64_t ahead, vi *a, vi *b, uint64_t *turn)
{
#ifdef VEC_FETCH_BETWEEN
    vec_fetch_between(a, b, p + ahead, turn); /* ahead 0: a line that is there */
#else
    (void)a;
    (void)b;
    (void)turn;
    if (ahead) {
        vec_prefetch(p + ahead);
    }
#endif
}

#include "kernels/cpu/rows_codes.h"

/* ---- silu ---- */

QN_INLINE vf load_one(const int format, const char *p)
{
    return format == QN_MM_F32 ? vf_load((const float *)(const void *)p)
                               : (format == QN_MM_F16 ? vf_from_f16(p) : vf_from_bf16(p));
}

#ifndef VEC_AT_0
#define VEC_AT_0 1.0f
#endif

/* 1 + e^-g, within 2^-21. e^-g is 2^n for n in steps of 1 / VEC_ROOTS, from a table of as many roots of two, times a
 * polynomial in r = g + n ln2, which is VEC_AT_0 at 0. Where the power is beyond f32, or below -86.5 at levels that
 * make it of bits, the sum is infinite; above 86.5 the power is held to what does not count. near: no |g| is beyond
 * VEC_NEAR's limit. */
QN_INLINE vf silu_below(vf g, const int near)
{
    /* 1.5 * 2^23 steps: the sum's last bits count them */
    const vf round = vf_set(12582912.0f / VEC_ROOTS), one = vf_set(1.0f);
    const vf x = near ? g : vf_min(g, vf_set(86.5f));
    const vf z = vf_fma(x, vf_set(-1.44269504f), round);
    const vf n = vf_sub(z, round);
    const vf r = vec_plus_octaves(x, n);
    const vf p = vf_fma(vec_rest(r), r, vf_set(VEC_AT_0));
    const vf d = vf_fma(vec_power(z, n), p, one);
    return near ? d : vec_held_sum(g, d);
}

/* g u / a of two vectors, a and b being what silu_below() gives, the quotients within 2^-20.3. -infinity gives NaN, as
 * in the reference. */
#ifdef VEC_DIVIDES
QN_INLINE void silu_pair(vf *g, vf *h, vf u, vf w, vf a, vf b, const int near)
{
    (void)near;
    *g = vf_mul(vf_div(*g, a), u);
    *h = vf_mul(vf_div(*h, b), w);
}
#else
/* One division serves both: 1 / (a b) times b is 1 / a. Lanes where the product is no f32 (or an element NaN) are
 * divided one by one. */
QN_INLINE void silu_pair(vf *g, vf *h, vf u, vf w, vf a, vf b, const int near)
{
    const float limit = 0x1p126f;
    const vf both = vf_mul(a, b), inverse = vf_div(vf_set(1.0f), both);
    vf q = vf_mul(*g, vf_mul(inverse, b)), r = vf_mul(*h, vf_mul(inverse, a));
    if (!near && !vf_all_below(both, limit)) {
        q = vf_where_below(both, limit, q, vf_div(*g, a));
        r = vf_where_below(both, limit, r, vf_div(*h, b));
    }
    *g = vf_mul(q, u);
    *h = vf_mul(r, w);
}
#endif

/* How silu's values are left: as floats, in order or with a step's two vectors as load_step has them; as bf16, of bf16
 * only. */
enum { IN_ORDER, AS_LOADED, AS_BF16 };

/* Even and odd elements as bf16. There is no NaN whose lower half counts: they come from those of bf16. */
QN_INLINE vi bf16_of_pairs(vf even, vf odd)
{
#ifdef VEC_ROUND_HALVES
    return vec_round_halves(vi_bits(even), vi_bits(odd));
#else
    const vi half = vi_set(0x7fff), one = vi_set(1), a = vi_bits(even), b = vi_bits(odd);
    const vi c = vi_add(vi_add(a, half), vi_and(vi_shr(a, 16), one));
    const vi d = vi_add(vi_add(b, half), vi_and(vi_shr(b, 16), one));
    return vi_halves(vi_shr(c, 16), d);
#endif
}

/* A step's values, where they go. */
QN_INLINE void silu_put(const int format, const int form, vf g, vf h, int past, void *out)
{
    if (form == AS_BF16) {
        vi_put(out, bf16_of_pairs(g, h), past);
        return;
    }
    if (form == IN_ORDER && format == QN_MM_BF16) {
        vf_interleave(&g, &h);
    }
    vf_put(out, g, past);
    vf_put((float *)out + VL, h, past);
}

/* g u e^g, which is what silu is where e^-g is beyond f32, and may be as large as u is: by the fourth root of e^g, so
 * that nothing on the way is smaller than the product. From where e^-g is beyond double the reference has zeros. */
QN_INLINE vf silu_far(vf g, vf u)
{
    const vf held = vf_exp(vf_max(vf_mul(g, vf_set(0.25f)), vf_set(-85.0f)));
    const vf root = vf_zero_below(held, g, -709.78265f);
    return vf_mul(vf_mul(vf_mul(vf_mul(vf_mul(g, root), u), root), root), root);
}

/* Lanes of v whose gate is near keep what they are. */
QN_INLINE vf silu_with_far(vf g, vf u, vf v)
{
    const vf size = vf_sub(vf_set(0.0f), g);
    return vf_all_below(size, 86.5f) ? v : vf_where_below(size, 86.5f, v, silu_far(g, u));
}

QN_INLINE void silu_step(const int format, const int form, const int near, const char *gate, const char *up, int past,
                         void *out)
{
    vf first, second, u, w;
    load_step(format, gate, &first, &second);
    load_step(format, up, &u, &w);
    vf g = first, h = second;
    silu_pair(&g, &h, u, w, silu_below(g, near), silu_below(h, near), near);
    if (!near) {
        g = silu_with_far(first, u, g);
        h = silu_with_far(second, w, h);
    }
    silu_put(format, form, g, h, past, out);
}

#ifdef VEC_NEAR
enum { NEAR_STEPS = VEC_NEAR };

/* Whether no magnitude of NEAR_STEPS steps is above a limit, so that nothing is held. */
QN_INLINE int gates_near(const int format, const char *gate)
{
    vi top = vi_set(0);
    for (int64_t i = 0; i < NEAR_STEPS * STEP * real_bytes(format); i += VL * 4) {
        const vi x = vi_load(gate + i);
        top = format == QN_MM_F32 ? vi_umax(top, vi_and(x, vi_set(0x7fffffff)))
                                  : vi_max16(top, vi_and(x, vi_set(0x7fff7fff)));
    }
    return format == QN_MM_F32 ? !vec_any_above(top, VEC_NEAR_BF16 << 16)
                               : !vec_any_above16(top, format == QN_MM_F16 ? VEC_NEAR_F16 : VEC_NEAR_BF16);
}

#endif

QN_INLINE void silu_all(const int format, const int form, const void *gate, const void *up, int64_t n, int64_t ahead,
                        int past, void *out)
{
    const char *g = gate, *u = up;
    char *v = out;
    const int64_t size = real_bytes(format), out_size = form == AS_BF16 ? 2 : 4;
    int64_t i = 0;
    while (i + STEP <= n) {
#ifdef VEC_NEAR
        if (i + NEAR_STEPS * STEP <= n && gates_near(format, g + i * size)) {
            for (const int64_t end = i + NEAR_STEPS * STEP; i < end; i += STEP) {
                fetch_step(format, g + i * size, ahead);
                fetch_step(format, u + i * size, ahead);
                silu_step(format, form, 1, g + i * size, u + i * size, past, v + i * out_size);
            }
            continue;
        }
#endif
        fetch_step(format, g + i * size, ahead);
        fetch_step(format, u + i * size, ahead);
        silu_step(format, form, 0, g + i * size, u + i * size, past, v + i * out_size);
        i += STEP;
    }
    if (i < n) {
        char pad[2][STEP * 4];
        float last[STEP];
        silu_step(format, form == AS_LOADED ? IN_ORDER : form, 0, pad_step(format, g + i * size, n - i, pad[0]),
                  pad_step(format, u + i * size, n - i, pad[1]), 0, last);
        memcpy(v + i * out_size, last, (size_t)((n - i) * out_size));
    }
}

static void rows_silu_paired(const void *gate, const void *up, int64_t n, int64_t ahead, float *v)
{
    silu_all(QN_MM_BF16, AS_LOADED, gate, up, n, ahead, 0, v);
}

static void rows_silu_bf16(const void *gate, const void *up, int64_t n, int64_t ahead, int past, void *out)
{
    silu_all(QN_MM_BF16, AS_BF16, gate, up, n, ahead, past, out);
}

/* ---- normalisation and rotation ---- */

static double squares_in_double(const float *v, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)v[i] * (double)v[i];
    }
    return sum;
}

static double rows_squares(const float *v, int64_t n)
{
    vf sums[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int j = 0; j < 4; j++) {
            const vf x = vf_load(v + i + j * VL);
            sums[j] = vf_fma(x, x, sums[j]);
        }
    }
    for (; i < n; i += VL) {
        float pad[VL] = {0};
        memcpy(pad, v + i, (size_t)(n - i < VL ? n - i : VL) * 4);
        const vf x = vf_load(pad);
        sums[0] = vf_fma(x, x, sums[0]);
    }
    const float sum = vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
    return sum > 0x1p-80f && sum < 0x1p120f ? (double)sum : squares_in_double(v, n);
}

static void rows_scale(const float *restrict x, double factor, const float *restrict w, int64_t n, int64_t ahead,
                       int past, float *restrict y)
{
    const float f = (float)factor;
    if (!(f > 0x1p-80f && f < 0x1p80f)) {
        for (int64_t i = 0; i < n; i++) {
            y[i] = (float)((double)x[i] * factor * (double)w[i]);
        }
        return;
    }
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        fetch_step(QN_MM_F32, (const char *)(x + i), ahead);
        vf_put(y + i, vf_mul(vf_mul(vf_load(x + i), vf_set(f)), vf_load(w + i)), past);
        vf_put(y + i + VL, vf_mul(vf_mul(vf_load(x + i + VL), vf_set(f)), vf_load(w + i + VL)), past);
    }
    for (; i < n; i++) {
        y[i] = x[i] * f * w[i];
    }
}

QN_INLINE uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

QN_INLINE double bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* Reduced by quarter turns in double, pi / 2 in three parts whose products with
 * quarters < 2^19 are exact or small; then the Taylor polynomials on |r| <= pi / 4. */
static void rows_angles(int32_t position, const double *restrict turns, int64_t n, float *restrict cosines,
                        float *restrict sines)
{
    const double at = (double)position;
    if (at > 500000.0 || at < -500000.0) {
        for (int64_t i = 0; i < n; i++) {
            cosines[i] = (float)cos(at * turns[i]);
            sines[i] = (float)sin(at * turns[i]);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const double angle = at * turns[i];
        const double z = angle * 0.63661977236758134308 + 0x1.8p52, quarters = z - 0x1.8p52;
        double r = angle - quarters * 1.57079632673412561417e+00;
        r -= quarters * 6.07710050630396597660e-11;
        r -= quarters * 2.02226624879595063154e-21;
        const double q = r * r;
        const double s =
            r + r * q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 - q * (1.0 / 39916800)))));
        const double c = 1.0 - q * (0.5 - q * (1.0 / 24 - q * (1.0 / 720 - q * (1.0 / 40320 - q * (1.0 / 3628800)))));
        /* the low bits of z are the quarter's number: odd ones swap sine and cosine */
        const uint64_t k = double_bits(z), swap = 0 - (k & 1), sb = double_bits(s), cb = double_bits(c);
        cosines[i] = (float)bits_double(((sb & swap) | (cb & ~swap)) ^ ((k + 1) & 2) << 62);
        sines[i] = (float)bits_double(((cb & swap) | (sb & ~swap)) ^ (k & 2) << 62);
    }
}

static void rows_rotate(const float *restrict a, const float *restrict b, const float *restrict c,
                        const float *restrict s, int64_t n, int64_t step, int past, float *restrict y0,
                        float *restrict y1)
{
    if (step == 1) {
        int64_t i = 0;
        for (; i + VL <= n; i += VL) {
            const vf x = vf_load(a + i), y = vf_load(b + i), u = vf_load(c + i), v = vf_load(s + i);
            vf_put(y0 + i, vf_sub(vf_mul(x, u), vf_mul(y, v)), past);
            vf_put(y1 + i, vf_add(vf_mul(y, u), vf_mul(x, v)), past);
        }
        for (; i < n; i++) {
            y0[i] = a[i] * c[i] - b[i] * s[i];
            y1[i] = b[i] * c[i] + a[i] * s[i];
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y0[i * step] = a[i * step] * c[i] - b[i * step] * s[i];
        y1[i * step] = b[i * step] * c[i] + a[i * step] * s[i];
    }
}

/* ---- loads and stores ---- */

QN_INLINE void load_all(const int format, const void *x, int64_t n, float *v)
{
    const char *const p = x;
    const int64_t size = real_bytes(format);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_store(v + i, load_one(format, p + i * size));
    }
    if (i < n) {
        char pad[STEP * 4];
        float last[VL];
        vf_store(last, load_one(format, pad_step(format, p + i * size, n - i, pad)));
        memcpy(v + i, last, (size_t)(n - i) * 4);
    }
}

static void rows_store_bf16(const float *v, int64_t n, void *out)
{
    uint16_t *const h = out;
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        vi_store(h + i, bf16_step(vf_load(v + i), vf_load(v + i + VL)));
    }
    if (i < n) {
        char pad[STEP * 4];
        uint16_t bits[STEP];
        const float *const last = (const float *)(const void *)pad_step(QN_MM_F32, v + i, n - i, pad);
        vi_store(bits, bf16_step(vf_load(last), vf_load(last + VL)));
        memcpy(h + i, bits, (size_t)(n - i) * 2);
    }
}

static void rows_store_f16(const float *v, int64_t n, void *out)
{
    uint16_t *const h = out;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_to_f16(h + i, vf_load(v + i));
    }
    if (i < n) {
        char pad[STEP * 4];
        uint16_t bits[VL];
        vf_to_f16(bits, vf_load((const float *)(const void *)pad_step(QN_MM_F32, v + i, n - i, pad)));
        memcpy(h + i, bits, (size_t)(n - i) * 2);
    }
}

static void rows_store_f32(const float *v, int64_t n, void *out)
{
    memcpy(out, v, (size_t)n * 4);
}

static void rows_stream(void *to, const void *from, size_t bytes)
{
    vec_stream(to, from, bytes);
}

static void rows_fence(void)
{
    vec_fence();
}

/* ---- instances ---- */

#define EACH_REAL(X) X(bf16, QN_MM_BF16) X(f16, QN_MM_F16) X(f32, QN_MM_F32)
#define EACH_CODE(X, name, format)                                                                                     \
    X(name, format, e4m3, QN_ROWS_E4M3)                                                                                \
    X(name, format, fnuz, QN_ROWS_E4M3FNUZ) X(name, format, e5m2, QN_ROWS_E5M2) X(name, format, i8, QN_ROWS_I8)

#define ENCODE(name, format, code_name, code)                                                                          \
    static void quotients_##name##_##code_name(const float *scale, const float *factor, int64_t stride, const void *x, \
                                               int64_t n, int64_t group, int64_t ahead, int past, void *codes)         \
    {                                                                                                                  \
        quotients_of(format, code, scale, factor, stride, x, n, group, ahead, past, codes);                            \
    }                                                                                                                  \
    static void encode_##name##_##code_name(const qn_rows_rule *rules, const void *x, int64_t n, int64_t group,        \
                                            int64_t ahead, int past, void *codes)                                      \
    {                                                                                                                  \
        encode_of(format, code, quotients_##name##_##code_name, rules, x, n, group, ahead, past, codes);               \
    }

#define REAL(name, format)                                                                                             \
    EACH_CODE(ENCODE, name, format)                                                                                    \
    static void range_##name(const void *x, int64_t n, int64_t ahead, qn_rows_range *range)                            \
    {                                                                                                                  \
        range_of(format, x, n, ahead, range);                                                                          \
    }                                                                                                                  \
    static int tops_##name(const void *x, int64_t n, int64_t block, float *top)                                        \
    {                                                                                                                  \
        return tops_of(format, x, n, block, top);                                                                      \
    }                                                                                                                  \
    static void to_e2m1_##name(const void *x, int64_t n, int64_t block, const float *factor, int care, int64_t ahead,  \
                               int past, uint8_t *q)                                                                   \
    {                                                                                                                  \
        to_e2m1_of(format, x, n, block, factor, care, ahead, past, q);                                                 \
    }                                                                                                                  \
    static void silu_mul_##name(const void *gate, const void *up, int64_t n, int64_t ahead, int past, float *v)        \
    {                                                                                                                  \
        silu_all(format, IN_ORDER, gate, up, n, ahead, past, v);                                                       \
    }                                                                                                                  \
    static void load_##name(const void *x, int64_t n, float *v)                                                        \
    {                                                                                                                  \
        load_all(format, x, n, v);                                                                                     \
    }
EACH_REAL(REAL)
EACH_CODE(ENCODE, paired, QN_ROWS_PAIRED)

#define DECODE(name, format, code_name, code)                                                                          \
    static void decode_##code_name(const void *codes, int64_t n, float scale, int32_t azp, int past, float *out)       \
    {                                                                                                                  \
        decode_of(code, codes, n, scale, azp, past, out);                                                              \
    }
EACH_CODE(DECODE, , )

#define ENCODE_ENTRY(name, format, code_name, code) [code] = encode_##name##_##code_name,
#define QUOTIENTS_ENTRY(name, format, code_name, code) [code] = quotients_##name##_##code_name,
#define DECODE_ENTRY(name, format, code_name, code) [code] = decode_##code_name,
#define ENCODE_ROW(name, format) [format] = {EACH_CODE(ENCODE_ENTRY, name, format)},
#define QUOTIENTS_ROW(name, format) [format] = {EACH_CODE(QUOTIENTS_ENTRY, name, format)},
#define RANGE_ENTRY(name, format) [format] = range_##name,
#define TOPS_ENTRY(name, format) [format] = tops_##name,
#define E2M1_ENTRY(name, format) [format] = to_e2m1_##name,
#define SILU_ENTRY(name, format) [format] = silu_mul_##name,
#define LOAD_ENTRY(name, format) [format] = load_##name,
#define STORE_ENTRY(name, format) [format] = rows_store_##name,

#ifndef VEC_AHEAD
#define VEC_AHEAD 4096
#endif
#ifndef VEC_LOOK
#define VEC_LOOK 0
#endif
#ifndef VEC_KEPT
#define VEC_KEPT 0
#endif
#ifdef VEC_STEPS
#define STEPS_ENTRIES .nvfp4_codes = rows_nvfp4_codes, .e2m1_steps = rows_e2m1_steps, .fp8_groups = rows_fp8_groups,
#else
#define STEPS_ENTRIES
#endif
#ifdef VEC_FETCH_BETWEEN
#define BESIDE_ENTRIES .beside = rows_beside, .nvfp4_beside = rows_nvfp4_beside, .mxfp4_beside = rows_mxfp4_beside,
#define INT8_GROUPS rows_int8_groups
#else
#define BESIDE_ENTRIES
#define INT8_GROUPS NULL
#endif

#define ROWS_SET(ahead_, look_, kept_, int8_groups_)                                                                   \
    {                                                                                                                  \
        .ahead = (ahead_), .look = (look_), .kept = (kept_), .steps = ROWS_STEPS,                                      \
        STEPS_ENTRIES BESIDE_ENTRIES.int8_groups = (int8_groups_), .range = {EACH_REAL(RANGE_ENTRY)},                  \
        .encode = {EACH_REAL(ENCODE_ROW) ENCODE_ROW(paired, QN_ROWS_PAIRED)},                                          \
        .quotients = {EACH_REAL(QUOTIENTS_ROW) QUOTIENTS_ROW(paired, QN_ROWS_PAIRED)},                                 \
        .decode = {EACH_CODE(DECODE_ENTRY, , )}, .tops = {EACH_REAL(TOPS_ENTRY)}, .to_e2m1 = {EACH_REAL(E2M1_ENTRY)},  \
        .scales = rows_scales, .nvfp4_scales = rows_nvfp4_scales, .mxfp4_scales = rows_mxfp4_scales,                   \
        .from_e2m1 = rows_from_e2m1, .from_e4m3 = rows_from_e4m3, .silu_mul = {EACH_REAL(SILU_ENTRY)},                 \
        .silu_paired = rows_silu_paired, .silu_bf16 = rows_silu_bf16, .squares = rows_squares, .scale = rows_scale,    \
        .angles = rows_angles, .rotate = rows_rotate, .load = {EACH_REAL(LOAD_ENTRY)},                                 \
        .store = {EACH_REAL(STORE_ENTRY)}, .stream = rows_stream, .fence = rows_fence                                  \
    }

const qn_rows_set QN_NAME(rows) = ROWS_SET(VEC_AHEAD, VEC_LOOK, VEC_KEPT, INT8_GROUPS);
#ifdef VEC_OTHER_AHEAD
const qn_rows_set QN_NAME(rows_other) = ROWS_SET(VEC_OTHER_AHEAD, 0, 0, NULL);
#endif
