/* Instructions that work on registers alone: arithmetic, comparisons, conversions, bits. */
#include <math.h>

#include "backend/fake/ptx_state.h"

/* ---- arithmetic ---- */

static double fused(ptx_type type, double x, double y, double z)
{
    return type == PTX_F32 ? (double)fmaf((float)x, (float)y, (float)z) : fma(x, y, z);
}

static double saturated(double v)
{
    return v > 0.0 ? (v < 1.0 ? v : 1.0) : 0.0;
}

static double extreme(const ptx_instruction *i, double x, double y)
{
    const int of_absolute = ptx_has(i, PTX_W_XORSIGN);
    const double a = of_absolute ? fabs(x) : x, b = of_absolute ? fabs(y) : y;
    const double v = ptx_has(i, PTX_W_NAN) && (isnan(x) || isnan(y)) ? NAN : i->op == PTX_MIN ? fmin(a, b) : fmax(a, b);
    return of_absolute && !signbit(x) != !signbit(y) ? -v : v;
}

static uint64_t two_halves(const ptx_instruction *i, uint64_t x, uint64_t y, uint64_t z)
{
    uint64_t out = 0;
    for (int h = 0; h < 2; h++) {
        const int half = i->type == PTX_F16X2;
        const uint64_t bx = x >> 16 * h & 0xffff, by = y >> 16 * h & 0xffff, bz = z >> 16 * h & 0xffff;
        const double p = half ? f16_of(bx) : bf16_of(bx), q = half ? f16_of(by) : bf16_of(by);
        const double s = half ? f16_of(bz) : bf16_of(bz);
        double v = NAN;
        switch (i->op) {
        case PTX_ADD: v = p + q; break;
        case PTX_SUB: v = p - q; break;
        case PTX_MUL: v = p * q; break;
        case PTX_FMA: v = p * q + s; break;
        case PTX_MIN:
        case PTX_MAX: v = extreme(i, p, q); break;
        case PTX_NEG: v = -p; break;
        case PTX_ABS: v = fabs(p); break;
        default: break;
        }
        out |= (half ? f16_bits(v) : bf16_bits((float)v)) << 16 * h;
    }
    return out;
}

static double real_result(run *r, const ptx_instruction *i, double x, double y, double z)
{
    switch (i->op) {
    case PTX_ADD: return x + y;
    case PTX_SUB: return x - y;
    case PTX_MUL: return x * y;
    case PTX_MAD:
    case PTX_FMA: return fused(i->type, x, y, z);
    case PTX_DIV: return x / y;
    case PTX_MIN:
    case PTX_MAX: return extreme(i, x, y);
    case PTX_NEG: return -x;
    case PTX_ABS: return fabs(x);
    case PTX_EX2: return exp2(x);
    case PTX_LG2: return log2(x);
    case PTX_RCP: return 1.0 / x;
    case PTX_SQRT: return sqrt(x);
    case PTX_RSQRT: return 1.0 / sqrt(x);
    case PTX_SIN: return sin(x);
    case PTX_COS: return cos(x);
    case PTX_COPYSIGN: return copysign(y, x);
    default: ptx_fail(r, i, "no such operation on floats"); return NAN;
    }
}

static uint64_t multiplied(const ptx_instruction *i, uint64_t x, uint64_t y)
{
    const int bytes = ptx_types[i->type].bytes, is_signed = ptx_types[i->type].kind == 's';
    __int128 product;
    if (is_signed) {
        product = (__int128)signed_of(x, bytes) * signed_of(y, bytes);
    } else {
        product = (__int128)((unsigned __int128)x * y);
    }
    return (uint64_t)(ptx_has(i, PTX_W_HI) ? product >> 8 * bytes : product);
}

static uint64_t integer_result(run *r, const ptx_instruction *i, uint64_t x, uint64_t y, uint64_t z)
{
    const int bytes = ptx_types[i->type].bytes, is_signed = ptx_types[i->type].kind == 's', bits = 8 * bytes;
    const int64_t s = signed_of(x, bytes), t = signed_of(y, bytes);
    switch (i->op) {
    case PTX_ADD: return x + y;
    case PTX_SUB: return x - y;
    case PTX_MUL: return multiplied(i, x, y);
    case PTX_MAD: return multiplied(i, x, y) + z;
    case PTX_DIV:
        if (y == 0) {
            return UINT64_MAX;
        }
        return is_signed ? (t == -1 ? (uint64_t)0 - (uint64_t)s : (uint64_t)(s / t)) : x / y;
    case PTX_REM:
        if (y == 0) {
            return x;
        }
        return is_signed ? (t == -1 ? 0 : (uint64_t)(s % t)) : x % y;
    case PTX_MIN: return is_signed ? (s < t ? x : y) : (x < y ? x : y);
    case PTX_MAX: return is_signed ? (s > t ? x : y) : (x > y ? x : y);
    case PTX_NEG: return 0 - x;
    case PTX_ABS: return s < 0 ? 0 - (uint64_t)s : (uint64_t)s;
    case PTX_NOT: return i->type == PTX_PRED ? !x : ~x;
    case PTX_AND: return x & y;
    case PTX_OR: return x | y;
    case PTX_XOR: return x ^ y;
    case PTX_SHL: return (uint32_t)y >= (uint32_t)bits ? 0 : x << (uint32_t)y;
    case PTX_SHR: {
        const uint32_t by = (uint32_t)y;
        if (is_signed) {
            return (uint64_t)(s >> (by >= (uint32_t)bits ? bits - 1 : (int)by));
        }
        return by >= (uint32_t)bits ? 0 : x >> by;
    }
    case PTX_POPC: return (uint64_t)__builtin_popcountll(x);
    case PTX_CLZ: return x == 0 ? (uint64_t)bits : (uint64_t)(__builtin_clzll(x) - (64 - bits));
    case PTX_BREV: {
        uint64_t v = 0;
        for (int k = 0; k < bits; k++) {
            v |= (x >> k & 1) << (bits - 1 - k);
        }
        return v;
    }
    default: ptx_fail(r, i, "no such operation on integers"); return 0;
    }
}

/* Rounded otherwise than to nearest, or cut off below zero. */
static int is_directed(const ptx_instruction *i)
{
    return ptx_has(i, PTX_W_RZ) || ptx_has(i, PTX_W_RM) || ptx_has(i, PTX_W_RP) || ptx_has(i, PTX_W_RELU);
}

void ptx_do_arithmetic(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    static const ptx_operand zero = {.kind = PTX_NUMBER};
    source a, b, c;
    take(r, w, &i->operand[1], &a);
    take(r, w, i->count > 2 ? &i->operand[2] : &zero, &b);
    take(r, w, i->count > 3 ? &i->operand[3] : &zero, &c);
    const ptx_type_info *t = &ptx_types[i->type];
    if (is_directed(i)) {
        ptx_fail(r, i, "a rounding that is not emulated");
    } else if (i->type == PTX_F32 && !ptx_has(i, PTX_W_SAT) &&
               (i->op == PTX_ADD || i->op == PTX_SUB || i->op == PTX_MUL || i->op == PTX_FMA)) {
        switch (i->op) { /* the most frequent ones */
        case PTX_ADD: EACH(D(l, f32_bits(f32_of(A(l)) + f32_of(B(l))))) break;
        case PTX_SUB: EACH(D(l, f32_bits(f32_of(A(l)) - f32_of(B(l))))) break;
        case PTX_MUL: EACH(D(l, f32_bits(f32_of(A(l)) * f32_of(B(l))))) break;
        default: EACH(D(l, f32_bits(fmaf(f32_of(A(l)), f32_of(B(l)), f32_of(C(l)))))) break;
        }
    } else if (t->kind == 'f') {
        for (int l = 0; l < LANES; l++) {
            if (mask >> l & 1) {
                const double v =
                    real_result(r, i, real_of(A(l), i->type), real_of(B(l), i->type), real_of(C(l), i->type));
                D(l, real_bits(ptx_has(i, PTX_W_SAT) ? saturated(v) : v, i->type));
            }
        }
    } else if (t->kind == 'v') {
        EACH(D(l, two_halves(i, A(l), B(l), C(l))))
    } else if (ptx_has(i, PTX_W_WIDE)) {
        const uint64_t m = r->width_mask[t->bytes];
        EACH(D(l, multiplied(i, A(l) & m, B(l) & m) + C(l)))
    } else {
        const uint64_t m = r->width_mask[t->bytes];
        EACH(D(l, integer_result(r, i, A(l) & m, B(l) & m, C(l) & m)))
    }
}

static int compared(run *r, const ptx_instruction *i, uint64_t x, uint64_t y)
{
    const ptx_type_info *t = &ptx_types[i->type];
    int less, equal, neither = 0;
    if (t->kind == 'f') {
        const double p = real_of(x, i->type), q = real_of(y, i->type);
        less = p < q;
        equal = p == q;
        neither = isnan(p) || isnan(q);
    } else if (t->kind == 's') {
        less = signed_of(x, t->bytes) < signed_of(y, t->bytes);
        equal = (x ^ y) << (64 - 8 * t->bytes) == 0;
    } else {
        const uint64_t m = r->width_mask[t->bytes];
        less = (x & m) < (y & m);
        equal = (x & m) == (y & m);
    }
#define IS(word) ptx_has(i, PTX_W_##word)
    if (IS(EQ)) {
        return equal;
    }
    if (IS(NE)) {
        return !equal && !neither;
    }
    if (IS(LT)) {
        return less;
    }
    if (IS(LE)) {
        return less || equal;
    }
    if (IS(GT)) {
        return !less && !equal && !neither;
    }
    if (IS(GE)) {
        return !less && !neither;
    }
    if (IS(NUM) || IS(ISNAN)) {
        return IS(ISNAN) == neither;
    }
    if (neither) {
        return IS(EQU) || IS(NEU) || IS(LTU) || IS(LEU) || IS(GTU) || IS(GEU);
    }
    return IS(EQU)   ? equal
           : IS(NEU) ? !equal
           : IS(LTU) ? less
           : IS(LEU) ? less || equal
           : IS(GTU) ? !less && !equal
                     : !less;
#undef IS
}

void ptx_do_set_predicate(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c = {.p = NULL};
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    if (i->count > 3) {
        take(r, w, &i->operand[3], &c);
    }
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        int p = compared(r, i, A(l), B(l)), q = !p;
        if (i->count > 3) {
            const int other = (C(l) & 1) != (uint64_t)i->operand[3].negated;
            const int and = ptx_has(i, PTX_W_AND_WITH), or = ptx_has(i, PTX_W_OR_WITH);
            p = and? p & other : or ? p | other : p ^ other;
            q = and? q & other : or ? q | other : q ^ other;
        }
        put(r, w, i->operand[0].index, l, (uint64_t)p);
        put(r, w, i->operand[0].second, l, (uint64_t)q);
    }
}

/* ---- conversions ---- */

static double rounded(const ptx_instruction *i, double v)
{
    return ptx_has(i, PTX_W_RNI)   ? nearbyint(v)
           : ptx_has(i, PTX_W_RZI) ? trunc(v)
           : ptx_has(i, PTX_W_RMI) ? floor(v)
           : ptx_has(i, PTX_W_RPI) ? ceil(v)
                                   : v;
}

static uint64_t held(double v, ptx_type type)
{
    const ptx_type_info *t = &ptx_types[type];
    const int is_signed = t->kind == 's', bits = 8 * t->bytes;
    const double low = is_signed ? -ldexp(1.0, bits - 1) : 0.0, high = ldexp(1.0, bits - is_signed);
    if (isnan(v)) {
        return 0;
    }
    if (v < low) {
        return (uint64_t)(int64_t)low;
    }
    if (v >= high) {
        return is_signed ? (UINT64_C(1) << (bits - 1)) - 1 : bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    }
    return is_signed ? (uint64_t)(int64_t)v : (uint64_t)v;
}

static uint64_t converted(run *r, const ptx_instruction *i, uint64_t x, uint64_t y)
{
    const ptx_type to = i->types[0], from = i->types[1];
    const ptx_type_info *t = &ptx_types[to], *f = &ptx_types[from];
    if (is_directed(i) || (ptx_has(i, PTX_W_SATFINITE) && to != PTX_E4M3X2 && to != PTX_E5M2X2)) {
        ptx_fail(r, i, "a conversion that is not emulated");
        return 0;
    }
    if (ptx_has(i, PTX_W_PACK)) {
        const int64_t p = signed_of(x, 4), q = signed_of(y, 4);
        return (held((double)q, to) & r->width_mask[t->bytes]) | (held((double)p, to) & r->width_mask[t->bytes])
                                                                     << 8 * t->bytes;
    }
    if (to == PTX_F16X2 && from == PTX_F32) {
        return f16_bits(f32_of(x)) << 16 | f16_bits(f32_of(y));
    }
    if (to == PTX_BF16X2 && from == PTX_F32) {
        return bf16_bits(f32_of(x)) << 16 | bf16_bits(f32_of(y));
    }
    if (to == PTX_E4M3X2 && from == PTX_F32) {
        return e4m3_bits(f32_of(x)) << 8 | e4m3_bits(f32_of(y));
    }
    if (to == PTX_E5M2X2 && from == PTX_F32) {
        return e5m2_bits(f32_of(x)) << 8 | e5m2_bits(f32_of(y));
    }
    if (to == PTX_F16X2 && (from == PTX_E4M3X2 || from == PTX_E5M2X2)) {
        const int four = from == PTX_E4M3X2;
        const float high = four ? e4m3_of(x >> 8 & 255) : e5m2_of(x >> 8 & 255);
        const float low = four ? e4m3_of(x & 255) : e5m2_of(x & 255);
        return f16_bits(high) << 16 | f16_bits(low);
    }
    if (to == PTX_TF32) { /* ties away from zero */
        return (x + 0x1000) & ~UINT64_C(0x1fff) & UINT32_MAX;
    }
    if (t->kind == 'v' || f->kind == 'v') {
        ptx_fail(r, i, "no such conversion");
        return 0;
    }
    if (f->kind == 'f') {
        const double v = rounded(i, real_of(x & r->width_mask[f->bytes], from));
        if (t->kind != 'f') {
            return held(v, to);
        }
        return real_bits(ptx_has(i, PTX_W_SAT) ? saturated(v) : v, to);
    }
    const int64_t s = f->kind == 's' ? signed_of(x, f->bytes) : (int64_t)(x & r->width_mask[f->bytes]);
    if (t->kind == 'f') {
        const int big = f->kind != 's' && f->bytes == 8;
        return to == PTX_F32 ? f32_bits(big ? (float)(uint64_t)s : (float)s)
                             : real_bits(big ? (double)(uint64_t)s : (double)s, to);
    }
    if (ptx_has(i, PTX_W_SAT)) {
        return held((double)s, to);
    }
    return t->kind == 's' ? (uint64_t)signed_of((uint64_t)s, t->bytes) : (uint64_t)s & r->width_mask[t->bytes];
}

void ptx_do_convert(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    static const ptx_operand none = {.kind = PTX_NUMBER};
    source a, b;
    take(r, w, &i->operand[1], &a);
    take(r, w, i->count > 2 ? &i->operand[2] : &none, &b);
    EACH(D(l, converted(r, i, A(l), B(l))))
}

static uint32_t permuted(uint32_t x, uint32_t y, uint32_t selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t s = selector >> 4 * k & 15;
        uint32_t byte = (uint32_t)(both >> 8 * (s & 7)) & 255;
        if (s & 8) {
            byte = byte & 128 ? 255 : 0;
        }
        out |= byte << 8 * k;
    }
    return out;
}

static uint32_t looked_up(uint32_t x, uint32_t y, uint32_t z, uint32_t table)
{
    uint32_t out = 0;
    for (int k = 0; k < 8; k++) {
        if (table >> k & 1) {
            out |= (k & 4 ? x : ~x) & (k & 2 ? y : ~y) & (k & 1 ? z : ~z);
        }
    }
    return out;
}

static uint64_t field(const ptx_instruction *i, uint64_t x, uint32_t at, uint32_t count)
{
    const uint32_t bits = 8 * (uint32_t)ptx_types[i->type].bytes;
    at &= 255;
    count &= 255;
    if (count == 0) {
        return 0;
    }
    const int is_signed = ptx_types[i->type].kind == 's';
    const uint32_t top = at + count - 1 < bits ? at + count - 1 : bits - 1;
    const uint64_t sign = is_signed && x >> top & 1;
    uint64_t v = at < bits ? x >> at : 0;
    if (count < 64) {
        const uint64_t m = (UINT64_C(1) << count) - 1;
        v = (v & m) | (sign ? ~m : 0);
    }
    return v;
}

void ptx_do_move(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_operand *to = &i->operand[0], *from = &i->operand[1];
    source a;
    if (to->kind == PTX_VECTOR) { /* one into several */
        const int bits = 8 * ptx_types[i->type].bytes / to->count;
        take(r, w, from, &a);
        for (int k = 0; k < to->count; k++) {
            EACH(put(r, w, to->parts[k], l, A(l) >> bits * k & r->width_mask[bits / 8]))
        }
    } else if (from->kind == PTX_VECTOR) {
        const int bits = 8 * ptx_types[i->type].bytes / from->count;
        for (int l = 0; l < LANES; l++) {
            uint64_t v = 0;
            for (int k = 0; k < from->count; k++) {
                v |= (w->registers[(size_t)from->parts[k] * LANES + (size_t)l] & r->width_mask[bits / 8]) << bits * k;
            }
            if (mask >> l & 1) {
                D(l, v);
            }
        }
    } else {
        take(r, w, from, &a);
        EACH(D(l, A(l)))
    }
}

void ptx_do_select(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c;
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    take(r, w, &i->operand[3], &c);
    EACH(D(l, (C(l) & 1) != (uint64_t)i->operand[3].negated ? A(l) : B(l)))
}

/* Operations of three or four operands on bits. */
void ptx_do_bits(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c, d = {.p = NULL};
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    take(r, w, &i->operand[3], &c);
    if (i->count > 4) {
        take(r, w, &i->operand[4], &d);
    }
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const uint64_t x = A(l), y = B(l), z = C(l);
        uint64_t v = 0;
        switch (i->op) {
        case PTX_PRMT: v = permuted((uint32_t)x, (uint32_t)y, (uint32_t)z); break;
        case PTX_LOP3: v = looked_up((uint32_t)x, (uint32_t)y, (uint32_t)z, (uint32_t)d.p[l * d.step]); break;
        case PTX_BFE: v = field(i, x, (uint32_t)y, (uint32_t)z); break;
        case PTX_BFI: {
            const uint32_t at = (uint32_t)z & 255, count = (uint32_t)d.p[l * d.step] & 255;
            const uint64_t m = count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
            v = at >= 64 ? y : (y & ~(m << at)) | (x & m) << at;
            break;
        }
        case PTX_SHF: {
            const uint64_t both = (uint64_t)(uint32_t)y << 32 | (uint32_t)x;
            const uint32_t by = ptx_has(i, PTX_W_WRAP) ? (uint32_t)z & 31 : (uint32_t)z < 32 ? (uint32_t)z : 32;
            v = ptx_has(i, PTX_W_L) ? both << by >> 32 : both >> by;
            v = ptx_has(i, PTX_W_L) && by == 32 ? (uint32_t)x : v & UINT32_MAX;
            break;
        }
        default: { /* dp4a: signs of both in the two types */
            int64_t sum = signed_of(z, 4);
            for (int k = 0; k < 4; k++) {
                const uint64_t p = x >> 8 * k & 255, q = y >> 8 * k & 255;
                sum += (i->types[0] == PTX_S32 ? signed_of(p, 1) : (int64_t)p) *
                       (i->types[1] == PTX_S32 ? signed_of(q, 1) : (int64_t)q);
            }
            v = (uint64_t)sum;
        }
        }
        D(l, v);
    }
}

uint64_t ptx_exchanged(run *r, const ptx_instruction *i, uint64_t old, uint64_t x, uint64_t y)
{
    const ptx_type_info *t = &ptx_types[i->type];
    const int is_signed = t->kind == 's';
    if (ptx_has(i, PTX_W_ADDS)) {
        return t->kind == 'f' ? real_bits(real_of(old, i->type) + real_of(x, i->type), i->type) : old + x;
    }
    if (ptx_has(i, PTX_W_EXCH)) {
        return x;
    }
    if (ptx_has(i, PTX_W_CAS)) {
        return old == x ? y : old;
    }
    if (ptx_has(i, PTX_W_INC)) {
        return old >= x ? 0 : old + 1;
    }
    const int less = is_signed ? signed_of(old, t->bytes) < signed_of(x, t->bytes) : old < x;
    if (ptx_has(i, PTX_W_MINS)) {
        return less ? old : x;
    }
    if (ptx_has(i, PTX_W_MAXS)) {
        return less ? x : old;
    }
    if (ptx_has(i, PTX_W_AND_WITH)) {
        return old & x;
    }
    if (ptx_has(i, PTX_W_OR_WITH)) {
        return old | x;
    }
    ptx_fail(r, i, "no such atomic operation");
    return old;
}
