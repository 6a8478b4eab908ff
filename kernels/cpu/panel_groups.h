/* Panel kernels of the codes of groups (kernels/common/panel.h). Included once by a folder's panel_<isa>.c, after its
 * groups.h, which owns the vectors:
 *     GROUP_LANES          columns of a vector: 16, or 8 and a panel is two halves
 *     GROUP_ROWS           rows of the largest tile, 8 or 4; GROUP_PANELS: panels read at once by one row, 4 or 2
 *     GROUP_WORDS(bits)    1: values of so many bits are multiplied as words, with vg_words
 *     vg, vgf              int32 and float sums; vg_plus(a, b, up): a + b 2^up
 *     vgf_load, vgf_store, vgf_set, vgf_mul, vgf_fma(a, b, c), vgf_fnma: c - a b; vgf_of(vg), vgf_of_f16(p),
 *                          vgf_of_u8(p), vgf_of_i8(p)
 *     vw, vw_load(p)       a line of codes of those columns
 *     vw_nibbles(w, high)  the low or the high nibbles of its bytes
 *     vw_with(w, plane, from, mask)  w and, 4 bits up, the bits of `mask` that bytes of plane have from bit `from` on
 *     vw_table(w)          the bytes of qn_panel_table that bytes of w, 0 to 15, are numbers of
 *     vg_begin(bits, start), vg_dot(bits, sums, w, x), vg_end(bits, sums, start)   start plus the sum over lines of
 *                          unsigned bytes of `bits` bits times the four digits at x; at most eight lines
 *     vg_words(high, low, w, x, step)  to both sums, unsigned bytes times the upper and the lowest digits of elements
 *                          4 step to 4 step + 3 of a block of words
 *
 * One tile for every M: rows in steps of eight, four, two and one times the whole of K of a few panels. A group's sums
 * of digits are exact integers; what follows is the same for every output of every tile and level. */
#include "kernels/common/panel.h"
#include "kernels/cpu/group_affine.h"
#include "kernels/cpu/name.h"

#define DIGITS 3
/* Bytes asked for ahead of all panels read at once, into the second cache: loads need the first one's few outstanding
 * lines. */
#define GROUP_AHEAD 8192

#define UNROLL_GROUP _Pragma("GCC unroll 12")

/* Digits, or words and the lowest digits, and their groups' sums. */
static void put_digits(int code, const int8_t digit[DIGITS][QN_PANEL_K], qn_panel_digits *out)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    for (int g = 0; g < QN_PANEL_K / c.group; g++) {
        int32_t sums[DIGITS] = {0};
        for (int d = 0; d < DIGITS; d++) {
            for (int i = 0; i < c.group; i++) {
                sums[d] += digit[d][g * c.group + i];
            }
        }
        const int32_t high = sums[1] + sums[2] * 256;
        out->sum[g] = (float)(high * 256 + sums[0]);
        out->high[g] = -c.middle * high;
        out->low[g] = -c.middle * sums[0];
    }
    if (!GROUP_WORDS(qn_panel_group_value_bits(code))) {
        memcpy(out->digit, digit, sizeof out->digit);
        return;
    }
    for (int i = 0; i < QN_PANEL_K; i++) { /* every four in the order k, k + 2, k + 1, k + 3, as codes come apart */
        out->word[i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = (int16_t)(digit[1][i] + digit[2][i] * 256);
        out->under[i] = digit[0][i];
    }
}

static void block_digits(const float *x, qn_panel_code code, qn_panel_digits *out)
{
    int32_t bits[QN_PANEL_K], left[QN_PANEL_K], most = 0;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < QN_PANEL_K; i++) {
        const int32_t size = bits[i] & 0x7fffffff;
        most = size > most ? size : most;
    }
    memset(out, 0, sizeof *out);
    if (most >= 0x7f800000) {
        const uint32_t nan = 0x7fc00000;
        memcpy(&out->scale[0], &nan, sizeof nan);
        return;
    }
    if (most == 0) {
        return;
    }
    /* 2^e <= most < 2^(e + 1): times 2^(21 - e); below 2^-80 digits are lost, which the runner looks after */
    const int32_t exponent = most >> 23 < 47 ? 47 : most >> 23;
    const int32_t up = (127 + 21 + 127 - exponent) << 23, down = (exponent - 21) << 23;
    float factor, v[QN_PANEL_K];
    memcpy(&factor, &up, sizeof factor);
    memcpy(&out->scale[0], &down, sizeof down);
    for (int i = 0; i < QN_PANEL_K; i++) {
        v[i] = x[i] * factor + 0x1.8p23f; /* rounds to an integer, which the last bits are */
    }
    memcpy(left, v, sizeof left);
    for (int i = 0; i < QN_PANEL_K; i++) {
        left[i] -= 0x4b400000;
    }
    int8_t digit[DIGITS][QN_PANEL_K];
    for (int d = 0; d < DIGITS; d++) {
        for (int i = 0; i < QN_PANEL_K; i++) {
            digit[d][i] = (int8_t)left[i];
            left[i] = (left[i] - digit[d][i]) >> 8;
        }
    }
    put_digits((int)code, digit, out);
}

static void group_digits(const float *x, int64_t blocks, const qn_panel_rounding *how, void *out)
{
    for (int64_t b = 0; b < blocks; b++) {
        block_digits(x + b * QN_PANEL_K, how->code, (qn_panel_digits *)out + b);
    }
}

/* The codes of k = 4 step to 4 step + 3 of a block, of the columns from byte `half` of a line on; high: step is odd. */
QN_INLINE vw group_codes(const int code, const char *block, int64_t step, const int high, int64_t half)
{
    const int bits = qn_panel_group_code_of(code).bits;
    const char *const lines = block + half;
    if (bits == 8) {
        return vw_load(lines + step * QN_PANEL_LINE);
    }
    const int64_t i = step / 2;
    const vw low = vw_nibbles(vw_load(lines + i * QN_PANEL_LINE), high);
    const char *const planes = lines + 8 * QN_PANEL_LINE;
    if (bits == 5) {
        return vw_with(low, vw_load(planes + i / 4 * QN_PANEL_LINE), (int)(i % 4) * 2 + high, 1);
    }
    if (bits == 6) {
        return vw_with(low, vw_load(planes + i / 2 * QN_PANEL_LINE), (int)(i % 2) * 4 + high * 2, 3);
    }
    return qn_panel_group_code_of(code).table ? vw_table(low) : low;
}

/* Of mr rows and nr panels, a group. */
typedef struct group_at {
    const char *w;          /* the block of the first panel */
    const char *x;          /* the first row's */
    float *sums;            /* of the first row and the first column from `half` on */
    int64_t g, half, ahead; /* ahead: bytes to what is prefetched */
} group_at;

QN_INLINE const qn_panel_digits *group_row(const group_at *t, const qn_panel_call *call, int64_t r)
{
    return (const qn_panel_digits *)(const void *)(t->x + r * call->a_stride);
}

/* A group's sums of the upper digits, and of the lowest. */
typedef struct group_sums {
    vg high[GROUP_ROWS][GROUP_PANELS], low[GROUP_ROWS][GROUP_PANELS];
} group_sums;

/* The group's sums are scaled and added. */
QN_INLINE void group_finish(const int code, const int mr, const int nr, const qn_panel_call *call, const group_at *t,
                            const group_sums *s)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    UNROLL_GROUP for (int n = 0; n < nr; n++)
    {
        const group_affine a = group_affine_of(code, t->w + n * call->panel_bytes, t->g, t->half);
        UNROLL_GROUP for (int r = 0; r < mr; r++)
        {
            const qn_panel_digits *const d = group_row(t, call, r);
            float *const to = t->sums + r * call->sums_stride + n * QN_PANEL_COLS;
            const vgf high = vgf_of(s->high[r][n]), low = vgf_of(s->low[r][n]);
            vgf part = vgf_mul(vgf_fma(high, vgf_set(256.0f), low), a.scale);
            if (c.minima) {
                part = vgf_fma(vgf_set(d->sum[t->g]), a.offset, part);
            }
            vgf_store(to, vgf_fma(part, vgf_set(d->scale[0]), vgf_load(to)));
        }
    }
}

/* What a row's sum of a digit starts with. */
QN_INLINE int32_t group_start(const qn_panel_digits *d, const int digit, int64_t g)
{
    return digit == 0 ? d->low[g] : (digit == 1 ? d->high[g] : 0);
}

/* Asks for codes that come later: those of two steps from s on. */
QN_INLINE void group_ask(const int code, const char *block, int64_t ahead, int64_t s)
{
    const int eight = qn_panel_group_code_of(code).bits == 8;
    const char *const next = block + ahead + (eight ? s : s / 2) * QN_PANEL_LINE;
    __builtin_prefetch(next, 0, 2);
    if (eight) {
        __builtin_prefetch(next + QN_PANEL_LINE, 0, 2);
    }
}

QN_INLINE void group_bytes(const int code, const int mr, const int nr, const qn_panel_call *call, const group_at *t,
                           group_sums *sums)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    const int bits = qn_panel_group_value_bits(code);
    vg acc[DIGITS][GROUP_ROWS][GROUP_PANELS];
    UNROLL_GROUP for (int r = 0; r < mr; r++)
    {
        UNROLL_GROUP for (int i = 0; i < nr * DIGITS; i++)
        {
            const int d = i % DIGITS;
            acc[d][r][i / DIGITS] = vg_begin(bits, group_start(group_row(t, call, r), d, t->g));
        }
    }
    UNROLL_GROUP for (int64_t i = 0; i < c.group / 8; i++)
    {
        const int64_t s = t->g * (c.group / 4) + 2 * i;
        UNROLL_GROUP for (int n = 0; n < nr; n++)
        {
            const char *const block = t->w + n * call->panel_bytes;
            group_ask(code, block, t->ahead, s);
            UNROLL_GROUP for (int h = 0; h < 2; h++)
            {
                const vw v = group_codes(code, block, s + h, h, t->half);
                UNROLL_GROUP for (int r = 0; r < mr; r++)
                {
                    const char *const x = t->x + r * call->a_stride + (s + h) * 4;
                    UNROLL_GROUP for (int d = 0; d < DIGITS; d++)
                    {
                        acc[d][r][n] = vg_dot(bits, acc[d][r][n], v, x + d * QN_PANEL_K);
                    }
                }
            }
        }
    }
    UNROLL_GROUP for (int r = 0; r < mr; r++)
    {
        UNROLL_GROUP for (int n = 0; n < nr; n++)
        {
            vg end[DIGITS];
            UNROLL_GROUP for (int d = 0; d < DIGITS; d++)
            {
                end[d] = vg_end(bits, acc[d][r][n], group_start(group_row(t, call, r), d, t->g));
            }
            sums->high[r][n] = vg_plus(end[1], end[2], 8);
            sums->low[r][n] = end[0];
        }
    }
}

#if GROUP_WORDS(8)
QN_INLINE void group_words(const int code, const int mr, const int nr, const qn_panel_call *call, const group_at *t,
                           group_sums *sums)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    UNROLL_GROUP for (int r = 0; r < mr; r++)
    {
        UNROLL_GROUP for (int n = 0; n < nr; n++)
        {
            sums->high[r][n] = vg_begin(8, group_row(t, call, r)->high[t->g]);
            sums->low[r][n] = vg_begin(8, group_row(t, call, r)->low[t->g]);
        }
    }
    UNROLL_GROUP for (int64_t i = 0; i < c.group / 8; i++)
    {
        const int64_t s = t->g * (c.group / 4) + 2 * i;
        UNROLL_GROUP for (int n = 0; n < nr; n++)
        {
            const char *const block = t->w + n * call->panel_bytes;
            group_ask(code, block, t->ahead, s);
            UNROLL_GROUP for (int h = 0; h < 2; h++)
            {
                const vw v = group_codes(code, block, s + h, h, t->half);
                UNROLL_GROUP for (int r = 0; r < mr; r++)
                {
                    vg_words(&sums->high[r][n], &sums->low[r][n], v, group_row(t, call, r), s + h);
                }
            }
        }
    }
}
#endif

QN_INLINE void group_tile(const int code, const int mr, const int nr, const qn_panel_call *call, const group_at *t)
{
    group_sums sums;
#if GROUP_WORDS(8)
    if (GROUP_WORDS(qn_panel_group_value_bits(code))) {
        group_words(code, mr, nr, call, t, &sums);
        group_finish(code, mr, nr, call, t, &sums);
        return;
    }
#endif
    group_bytes(code, mr, nr, call, t, &sums);
    group_finish(code, mr, nr, call, t, &sums);
}

/* mr rows from r times nr panels from p, along the whole of K. The first rows bring the weights from memory. */
QN_INLINE void group_panels(const int code, const int mr, const int nr, const qn_panel_call *call, int64_t r, int64_t p)
{
    const int64_t bytes = qn_panel_group_bytes(code), groups = QN_PANEL_K / qn_panel_group_code_of(code).group;
    const int64_t distance = r ? 0 : (GROUP_AHEAD / nr + bytes - 1) / bytes;
    const int64_t after = r ? 0 : nr * call->panel_bytes - call->blocks * bytes;
    const int64_t streamed = qn_panel_group_code_of(code).bits == 8 ? 16 * QN_PANEL_LINE : 8 * QN_PANEL_LINE;
    float *const sums = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
    for (int i = 0; i < mr; i++) {
        memset(sums + i * call->sums_stride, 0, (size_t)nr * QN_PANEL_COLS * sizeof(float));
    }
    for (int64_t b = 0; b < call->blocks; b++) {
        group_at t = {.w = call->w + p * call->panel_bytes + b * bytes,
                      .x = call->a + r * call->a_stride + b * (int64_t)sizeof(qn_panel_digits),
                      .ahead = distance * bytes + (b + distance < call->blocks ? 0 : after)};
        UNROLL_GROUP for (int n = 0; n < nr; n++)
        {
            UNROLL_GROUP for (int64_t i = streamed; i < bytes; i += QN_PANEL_LINE)
            {
                __builtin_prefetch(t.w + n * call->panel_bytes + t.ahead + i, 0, 2);
            }
        }
        for (t.g = 0; t.g < groups; t.g++) {
            for (t.half = 0; t.half < QN_PANEL_LINE; t.half += GROUP_LANES * 4) {
                t.sums = sums + t.half / 4;
                group_tile(code, mr, nr, call, &t);
            }
        }
    }
}

/* All rows times the n panels from p: GROUP_PANELS of them, or one. */
QN_INLINE void group_rows(const int code, const int n, const qn_panel_call *call, int64_t p)
{
    int64_t r = 0;
#define STEP(mr, nr)                                                                                                   \
    for (; r + (mr) <= call->rows; r += (mr)) {                                                                        \
        for (int i = 0; i < n; i += (nr)) {                                                                            \
            group_panels(code, mr, nr, call, r, p + i);                                                                \
        }                                                                                                              \
    }
#if GROUP_ROWS >= 8
    STEP(8, 1)
#endif
    STEP(4, 1)
    STEP(2, (n >= 2 ? 2 : 1))
    STEP(1, n)
#undef STEP
}

#define GROUP_MM(name, code)                                                                                           \
    static void name(const qn_panel_call *call)                                                                        \
    {                                                                                                                  \
        int64_t p = 0;                                                                                                 \
        for (; p + GROUP_PANELS <= call->panels; p += GROUP_PANELS) {                                                  \
            group_rows(code, GROUP_PANELS, call, p);                                                                   \
        }                                                                                                              \
        for (; p < call->panels; p++) {                                                                                \
            group_rows(code, 1, call, p);                                                                              \
        }                                                                                                              \
    }

EACH_GROUP_CODE(GROUP_MM)

const qn_panel_set QN_NAME(groups) = {.rows_f = QN_PANEL_ROWS_DIGITS,
                                      .row_group = 1,
                                      .row_multiple = 1,
                                      .mr = GROUP_ROWS,
                                      .nr = QN_PANEL_COLS,
                                      .rows_block = 64,
                                      .panels_block = 16,
                                      .digits = group_digits,
                                      .mm = {EACH_GROUP_CODE(GROUP_ENTRY)}};
