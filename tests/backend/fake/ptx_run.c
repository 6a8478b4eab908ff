/* Warps, blocks and clusters that run instructions. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fake/ptx_numbers.h"

enum { LANES = 32, SLICE = 4096, BARRIERS = 16, POISON = 0xFF };
#define ALL UINT32_MAX
#define MOST_STEPS INT64_C(4000000000) /* of warps, in a launch: more is taken for a wait that never ends */

typedef enum lane_state { READY = 0, AT_BARRIER, AT_CLUSTER, AT_MEETING, DONE } lane_state;

typedef struct block block;
typedef struct cluster cluster;

typedef struct warp {
    block *of;
    uint64_t *registers; /* [register][lane] */
    char *local;
    int pc[LANES], back[PTX_DEPTH][LANES];
    uint8_t state[LANES], barrier[LANES], depth[LANES];
    uint32_t phase[LANES]; /* of the cluster when the lane arrived */
    uint32_t ready;        /* lanes that are READY */
    int together;          /* all ready lanes are at one place */
} warp;

struct block {
    cluster *of;
    warp *warps;
    int count, live; /* warps; threads that have not ended */
    char *shared;
    size_t shared_bytes;
    uint32_t rank;
    int arrived[BARRIERS], wanted[BARRIERS];
};

struct cluster {
    block *blocks;
    uint32_t count, phase;
    int arrived, live;
};

typedef struct run {
    const ptx_module *m;
    const ptx_entry *entry;
    const ptx_geometry *g;
    const char *parameters;
    size_t dynamic;
    uint64_t random;
    int64_t steps;
    int failed;
    char *why;
    size_t why_bytes;
    uint64_t width_mask[9];
} run;

static void fail(run *r, const ptx_instruction *i, const char *format, ...)
{
    if (!r->failed) {
        va_list list;
        va_start(list, format);
        const int used = snprintf(r->why, r->why_bytes, "%s, line %d: ", r->entry->name, i ? i->line : 0);
        vsnprintf(r->why + used, r->why_bytes - (size_t)used, format, list);
        va_end(list);
    }
    r->failed = 1;
}

static uint64_t next_random(run *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

/* ---- operands ---- */

typedef struct source {
    const uint64_t *p;
    int step;
    uint64_t own[LANES];
} source;

static uint64_t symbol_value(const run *r, const warp *w, const ptx_operand *o, int lane)
{
    const ptx_symbol *s = &r->m->symbols[o->index];
    switch (s->space) {
    case PTX_IN_SHARED: return s->at + o->value;
    case PTX_IN_DYNAMIC: return r->dynamic + o->value;
    case PTX_IN_GLOBAL: return (uint64_t)(uintptr_t)(r->m->memory + s->at) + o->value;
    case PTX_IN_PARAMETERS: return (uint64_t)(uintptr_t)(r->parameters + s->at) + o->value;
    case PTX_IN_LOCAL: return (uint64_t)(uintptr_t)(w->local + (size_t)lane * r->m->local + s->at) + o->value;
    }
    return 0;
}

static void take(const run *r, warp *w, const ptx_operand *o, source *s)
{
    if (o->kind == PTX_REGISTER) {
        s->p = w->registers + (size_t)o->index * LANES;
        s->step = 1;
    } else if (o->kind == PTX_SYMBOL) {
        for (int l = 0; l < LANES; l++) {
            s->own[l] = symbol_value(r, w, o, l);
        }
        s->p = s->own;
        s->step = 1;
    } else {
        s->own[0] = o->value;
        s->p = s->own;
        s->step = 0;
    }
}

static void put(const run *r, warp *w, int index, int lane, uint64_t value)
{
    if (index >= 0) {
        w->registers[(size_t)index * LANES + (size_t)lane] = value & r->width_mask[r->m->width[index]];
    }
}

/* The address a lane names: in shared memory an offset, else the process's own. */
static uint64_t address_of(const run *r, const warp *w, const ptx_operand *o, int lane)
{
    if (o->base == PTX_REGISTER) {
        return w->registers[(size_t)o->index * LANES + (size_t)lane] + o->value;
    }
    return o->base == PTX_SYMBOL ? symbol_value(r, w, o, lane) : o->value;
}

/* Shared memory, of another block of the cluster where the address's high byte says which; NULL: not there. */
static char *shared_at(run *r, const warp *w, const ptx_instruction *i, uint64_t at, size_t bytes)
{
    const block *b = w->of;
    const uint64_t rank = at >> 24 & 0xff, offset = at & 0xffffff;
    if (rank) {
        if (rank > b->of->count) {
            fail(r, i, "shared memory of block %d of a cluster of %u", (int)rank - 1, b->of->count);
            return NULL;
        }
        b = &b->of->blocks[rank - 1];
    }
    if (at >> 32 || offset + bytes > b->shared_bytes) {
        fail(r, i, "%zu bytes at %llu of %zu of shared memory", bytes, (unsigned long long)at, b->shared_bytes);
        return NULL;
    }
    if (b->live == 0) {
        fail(r, i, "shared memory of a block that has ended");
        return NULL;
    }
    return b->shared + offset;
}

/* Where there is an address sanitizer it is asked, once an access: with checks of its own in this file all that kernels
 * do takes twice the time. */
extern void *__asan_region_is_poisoned(void *begin, size_t bytes) __attribute__((weak));

static char *global_at(run *r, const ptx_instruction *i, uint64_t at, size_t bytes)
{
    char *const p = (char *)(uintptr_t)at;
    if (at < 4096 || (__asan_region_is_poisoned && bytes && __asan_region_is_poisoned(p, bytes))) {
        fail(r, i, "%zu bytes at address %llx, where nothing is", bytes, (unsigned long long)at);
        return NULL;
    }
    return p;
}

static int in_shared(const ptx_instruction *i)
{
    return ptx_has(i, PTX_W_SHARED) || ptx_has(i, PTX_W_CTA_SHARED) || ptx_has(i, PTX_W_CLUSTER_SHARED);
}

static char *memory_at(run *r, const warp *w, const ptx_instruction *i, const ptx_operand *o, int lane, size_t bytes)
{
    const uint64_t at = address_of(r, w, o, lane);
    if (at & (bytes - 1)) {
        fail(r, i, "%zu bytes at address %llx, which is no multiple of it (thread %d of warp %d)", bytes,
             (unsigned long long)at, lane, (int)(w - w->of->warps));
        return NULL;
    }
    if (in_shared(i)) {
        return shared_at(r, w, i, at, bytes);
    }
    return global_at(r, i, at, bytes);
}

#define EACH(body)                                                                                                     \
    for (int l = 0; l < LANES; l++) {                                                                                  \
        if (mask >> l & 1) {                                                                                           \
            body;                                                                                                      \
        }                                                                                                              \
    }

#define A(l) a.p[(l)*a.step]
#define B(l) b.p[(l)*b.step]
#define C(l) c.p[(l)*c.step]
#define D(l, v) put(r, w, i->operand[0].index, l, v)

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
    default: fail(r, i, "no such operation on floats"); return NAN;
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
    default: fail(r, i, "no such operation on integers"); return 0;
    }
}

/* Rounded otherwise than to nearest, or cut off below zero. */
static int is_directed(const ptx_instruction *i)
{
    return ptx_has(i, PTX_W_RZ) || ptx_has(i, PTX_W_RM) || ptx_has(i, PTX_W_RP) || ptx_has(i, PTX_W_RELU);
}

static void arithmetic(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    static const ptx_operand zero = {.kind = PTX_NUMBER};
    source a, b, c;
    take(r, w, &i->operand[1], &a);
    take(r, w, i->count > 2 ? &i->operand[2] : &zero, &b);
    take(r, w, i->count > 3 ? &i->operand[3] : &zero, &c);
    const ptx_type_info *t = &ptx_types[i->type];
    if (is_directed(i)) {
        fail(r, i, "a rounding that is not emulated");
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

static void set_predicate(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c;
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
        fail(r, i, "a conversion that is not emulated");
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
        fail(r, i, "no such conversion");
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

static void moved(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
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

/* ---- memory ---- */

static void loads(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_operand *to = &i->operand[0];
    const ptx_type_info *t = &ptx_types[i->type];
    const int count = to->kind == PTX_VECTOR ? to->count : 1;
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const char *at = memory_at(r, w, i, &i->operand[1], l, (size_t)(count * t->bytes));
        for (int k = 0; k < count && at; k++) {
            uint64_t v = 0;
            memcpy(&v, at + k * t->bytes, (size_t)t->bytes);
            v = t->kind == 's' ? (uint64_t)signed_of(v, t->bytes) : v;
            put(r, w, to->kind == PTX_VECTOR ? to->parts[k] : to->index, l, v);
        }
    }
}

static void stores(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_operand *from = &i->operand[1];
    const ptx_type_info *t = &ptx_types[i->type];
    const int count = from->kind == PTX_VECTOR ? from->count : 1;
    source a;
    if (from->kind != PTX_VECTOR) {
        take(r, w, from, &a);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        char *at = memory_at(r, w, i, &i->operand[0], l, (size_t)(count * t->bytes));
        for (int k = 0; k < count && at; k++) {
            const uint64_t v =
                from->kind == PTX_VECTOR ? w->registers[(size_t)from->parts[k] * LANES + (size_t)l] : A(l);
            memcpy(at + k * t->bytes, &v, (size_t)t->bytes);
        }
    }
}

static uint64_t exchanged(run *r, const ptx_instruction *i, uint64_t old, uint64_t x, uint64_t y)
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
    fail(r, i, "no such atomic operation");
    return old;
}

/* atom d, [a], b{, c} and red [a], b */
static void atomics(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int gives = i->op == PTX_ATOM;
    const size_t bytes = (size_t)ptx_types[i->type].bytes;
    source b, c = {.p = NULL};
    take(r, w, &i->operand[gives + 1], &b);
    if (i->count > gives + 2) {
        take(r, w, &i->operand[gives + 2], &c);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        char *at = mask >> l & 1 ? memory_at(r, w, i, &i->operand[gives], l, bytes) : NULL;
        if (at) {
            uint64_t old = 0;
            memcpy(&old, at, bytes);
            const uint64_t new =
                exchanged(r, i, old, B(l) & r->width_mask[bytes], c.p ? C(l) & r->width_mask[bytes] : 0);
            memcpy(at, &new, bytes);
            if (gives) {
                D(l, old);
            }
        }
    }
}

/* ---- barriers in shared memory ---- */

typedef struct shared_barrier {
    int32_t bytes; /* expected and not yet come */
    uint16_t pending, phase_and_count;
} shared_barrier;

static void barrier_turns(shared_barrier *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->phase_and_count ^= 0x8000;
        b->pending = b->phase_and_count & 0x7fff;
    }
}

static void complete_bytes(run *r, const warp *w, const ptx_instruction *i, uint64_t at, int32_t bytes)
{
    char *p = shared_at(r, w, i, at, 8);
    if (p) {
        shared_barrier b;
        memcpy(&b, p, 8);
        b.bytes -= bytes;
        barrier_turns(&b);
        memcpy(p, &b, 8);
    }
}

/* 1: somebody waits in vain for now. */
static int shared_barriers(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int arrives = ptx_has(i, PTX_W_ARRIVE), waits = ptx_has(i, PTX_W_TRY_WAIT) || ptx_has(i, PTX_W_TEST_WAIT);
    const int named = arrives || waits; /* operand 0 is what it gives, but of remote ones */
    const int at_operand = named && i->operand[0].kind != PTX_MEMORY;
    int vain = 0;
    source v = {.p = NULL};
    if (i->count > at_operand + 1) {
        take(r, w, &i->operand[at_operand + 1], &v);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const uint64_t value = v.p ? v.p[l * v.step] : 1;
        char *p = shared_at(r, w, i, address_of(r, w, &i->operand[at_operand], l), 8);
        shared_barrier b;
        if (!p) {
            return 0;
        }
        memcpy(&b, p, 8);
        if (ptx_has(i, PTX_W_INIT)) {
            b = (shared_barrier){.pending = (uint16_t)value, .phase_and_count = (uint16_t)value};
        } else if (waits) {
            const int done = b.phase_and_count >> 15 != (value & 1);
            if (!ptx_has(i, PTX_W_PARITY)) {
                fail(r, i, "a wait for a state");
            }
            put(r, w, i->operand[0].index, l, (uint64_t)done);
            vain |= !done;
        } else if (arrives) {
            b.bytes += ptx_has(i, PTX_W_EXPECT_TX) ? (int32_t)value : 0;
            const int count = ptx_has(i, PTX_W_EXPECT_TX) ? 1 : (int)value;
            if (b.pending < count) {
                fail(r, i, "more arrivals than the barrier was made for");
            }
            b.pending = (uint16_t)(b.pending - count);
            barrier_turns(&b);
        } else if (ptx_has(i, PTX_W_EXPECT_TX)) {
            b.bytes += (int32_t)value;
        } else if (ptx_has(i, PTX_W_COMPLETE_TX)) {
            b.bytes -= (int32_t)value;
            barrier_turns(&b);
        } else if (!ptx_has(i, PTX_W_INVAL)) {
            fail(r, i, "no such operation on a barrier");
        }
        memcpy(p, &b, 8);
    }
    return vain;
}

/* Copies that the hardware does beside: done at once. */
static void copies(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    if (i->count == 0 || (i->count == 1 && i->operand[0].kind == PTX_NUMBER)) {
        return; /* groups of copies are closed or waited for */
    }
    if (i->count == 1) { /* an arrival when this thread's copies are there */
        if (!ptx_has(i, PTX_W_NOINC)) {
            return; /* it counts itself in first */
        }
        for (int l = 0; l < LANES && !r->failed; l++) {
            char *p = mask >> l & 1 ? shared_at(r, w, i, address_of(r, w, &i->operand[0], l), 8) : NULL;
            if (p) {
                shared_barrier b;
                memcpy(&b, p, 8);
                b.pending--;
                barrier_turns(&b);
                memcpy(p, &b, 8);
            }
        }
        return;
    }
    const int bulk = ptx_has(i, PTX_W_BULK), outward = bulk && !ptx_has(i, PTX_W_CLUSTER_SHARED);
    source size, real = {.p = NULL};
    if (i->count < 3) {
        return; /* a prefetch */
    }
    take(r, w, &i->operand[2], &size);
    if (!bulk && i->count > 3) {
        take(r, w, &i->operand[3], &real);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const uint64_t to = address_of(r, w, &i->operand[0], l), from = address_of(r, w, &i->operand[1], l);
        const size_t bytes = (uint32_t)size.p[l * size.step];
        const size_t there = real.p ? (uint32_t)real.p[l * real.step] : bytes;
        if ((bulk && (to | from | bytes) % 16 != 0) || (!bulk && (to | from) % bytes != 0)) {
            fail(r, i, "a copy of %zu bytes that is not aligned", bytes);
            return;
        }
        const int inside = bulk && !outward && !ptx_has(i, PTX_W_GLOBAL); /* from shared memory to another block's */
        char *const d = outward ? global_at(r, i, to, bytes) : shared_at(r, w, i, to, bytes);
        const char *const s = outward || inside ? shared_at(r, w, i, from, bytes) : global_at(r, i, from, there);
        if (!d || !s) {
            return;
        }
        memmove(d, s, there);
        memset(d + there, 0, bytes - there);
        if (bulk && !outward) {
            complete_bytes(r, w, i, address_of(r, w, &i->operand[3], l), (int32_t)bytes);
        }
    }
}

/* st.async [a], v, [barrier] */
static void stores_beside(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int count = i->operand[1].kind == PTX_VECTOR ? i->operand[1].count : 1;
    stores(r, w, i, mask);
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (mask >> l & 1) {
            complete_bytes(r, w, i, address_of(r, w, &i->operand[2], l), count * ptx_types[i->type].bytes);
        }
    }
}

/* ---- what a warp does together ---- */

static uint64_t lane_value(const warp *w, int index, int lane)
{
    return w->registers[(size_t)index * LANES + (size_t)lane];
}

static void shuffles(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c;
    uint64_t old[LANES], got[LANES];
    int good[LANES];
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    take(r, w, &i->operand[3], &c);
    for (int l = 0; l < LANES; l++) {
        old[l] = mask >> l & 1 ? A(l) : UINT32_MAX;
    }
    for (int l = 0; l < LANES; l++) {
        const int limit = (int)(C(l) & 31), segment = (int)(C(l) >> 8 & 31), by = (int)(B(l) & 31);
        const int most = (l & segment) | (limit & ~segment & 31), least = l & segment;
        int from = ptx_has(i, PTX_W_BFLY)   ? l ^ by
                   : ptx_has(i, PTX_W_IDX)  ? least | (by & ~segment & 31)
                   : ptx_has(i, PTX_W_DOWN) ? l + by
                                            : l - by;
        good[l] = ptx_has(i, PTX_W_UP) ? from >= most : from <= most;
        got[l] = old[good[l] ? from : l];
    }
    EACH(D(l, got[l]); put(r, w, i->operand[0].second, l, (uint64_t)good[l]))
}

static void votes(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    uint32_t yes = 0;
    take(r, w, &i->operand[1], &a);
    EACH(yes |= (uint32_t)((A(l) & 1) != (uint64_t)i->operand[1].negated) << l)
    const uint64_t out = ptx_has(i, PTX_W_BALLOT) ? yes : ptx_has(i, PTX_W_ANY) ? yes != 0 : yes == mask;
    EACH(D(l, out))
}

static void reductions(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    uint64_t all = 0;
    int first = 1;
    take(r, w, &i->operand[1], &a);
    EACH(all = first ? A(l) : exchanged(r, i, all, A(l), 0) & UINT32_MAX; first = 0)
    EACH(D(l, all))
}

/* Row and column of element e of a lane in a tile of 16-bit values, or what stands for it. */
static void matrices(run *r, warp *w, const ptx_instruction *i)
{
    const int stores_it = i->op == PTX_STMATRIX;
    const ptx_operand *regs = &i->operand[stores_it], *at = &i->operand[!stores_it];
    const int count = regs->kind == PTX_VECTOR ? regs->count : 1;
    for (int m = 0; m < count && !r->failed; m++) {
        char *rows[8];
        for (int k = 0; k < 8; k++) {
            const uint64_t a = address_of(r, w, at, m * 8 + k);
            rows[k] = a % 16 == 0 ? shared_at(r, w, i, a, 16) : NULL;
            if (!rows[k]) {
                fail(r, i, "a row of a matrix that is not aligned");
                return;
            }
        }
        const int index = regs->kind == PTX_VECTOR ? regs->parts[m] : regs->index;
        for (int l = 0; l < LANES; l++) {
            uint64_t v = stores_it ? lane_value(w, index, l) : 0;
            for (int e = 0; e < 2; e++) {
                const int row = l / 4, column = l % 4 * 2 + e, turned = ptx_has(i, PTX_W_TRANS);
                char *const p = rows[turned ? column : row] + 2 * (turned ? row : column);
                uint16_t half = (uint16_t)(v >> 16 * e);
                if (stores_it) {
                    memcpy(p, &half, 2);
                } else {
                    memcpy(&half, p, 2);
                    v |= (uint64_t)half << 16 * e;
                }
            }
            if (!stores_it) {
                put(r, w, index, l, v);
            }
        }
    }
}

/* mma: an element of 8, 16 or 32 bits as a float. */
static double element(uint64_t word, int e, ptx_type type)
{
    switch (type) {
    case PTX_F16: return f16_of(word >> 16 * e & 0xffff);
    case PTX_BF16: return bf16_of(word >> 16 * e & 0xffff);
    case PTX_TF32: return f32_of(word & ~UINT64_C(0x1fff));
    case PTX_S8: return (double)signed_of(word >> 8 * e, 1);
    case PTX_U8: return (double)(word >> 8 * e & 255);
    case PTX_E4M3: return e4m3_of(word >> 8 * e & 255);
    default: return e5m2_of(word >> 8 * e & 255);
    }
}

/* d = a b + c of 16 x 8: types are those of d, a, b, c. Sums of a step are exact, then rounded. */
static void products(run *r, warp *w, const ptx_instruction *i)
{
    const ptx_type of_a = i->types[1], of_b = i->types[2], of_d = i->types[0];
    const int depth = ptx_has(i, PTX_W_M16N8K32) ? 32 : ptx_has(i, PTX_W_M16N8K16) ? 16 : 8;
    const int per = of_a == PTX_TF32 ? 1 : of_a == PTX_F16 || of_a == PTX_BF16 ? 2 : 4;
    double a[16][32], b[32][8];
    const ptx_operand *o = i->operand;
    if (o[1].count * per * 32 != 16 * depth || o[2].count * per * 32 != 8 * depth || o[0].count != 4 ||
        (of_d != PTX_F32 && of_d != PTX_S32)) {
        fail(r, i, "no such product of matrices");
        return;
    }
    for (int l = 0; l < LANES; l++) {
        const int g = l / 4, t = l % 4;
        for (int k = 0; k < o[1].count; k++) {
            for (int e = 0; e < per; e++) {
                a[g + k % 2 * 8][k / 2 * 4 * per + t * per + e] = element(lane_value(w, o[1].parts[k], l), e, of_a);
            }
        }
        for (int k = 0; k < o[2].count; k++) {
            for (int e = 0; e < per; e++) {
                b[k * 4 * per + t * per + e][g] = element(lane_value(w, o[2].parts[k], l), e, of_b);
            }
        }
    }
    for (int l = 0; l < LANES; l++) {
        uint64_t out[4];
        for (int k = 0; k < 4; k++) {
            const int row = l / 4 + k / 2 * 8, column = l % 4 * 2 + k % 2;
            const uint64_t c = lane_value(w, o[3].parts[k], l);
            double sum = 0.0;
            for (int d = 0; d < depth; d++) {
                sum += a[row][d] * b[d][column];
            }
            out[k] = of_d == PTX_F32 ? f32_bits((float)(sum + f32_of(c))) : (uint64_t)((int64_t)sum + signed_of(c, 4));
        }
        for (int k = 0; k < 4; k++) {
            put(r, w, o[0].parts[k], l, out[k]);
        }
    }
}

/* ---- threads that wait for each other ---- */

static void make_ready(warp *w, int lane)
{
    w->state[lane] = READY;
    w->ready |= 1u << lane;
    w->together = 0;
}

static void make_waiting(warp *w, int lane, lane_state state)
{
    w->state[lane] = (uint8_t)state;
    w->ready &= ~(1u << lane);
}

static void release_barrier(block *b, int id)
{
    for (int n = 0; n < b->count; n++) {
        for (int l = 0; l < LANES; l++) {
            if (b->warps[n].state[l] == AT_BARRIER && b->warps[n].barrier[l] == id) {
                make_ready(&b->warps[n], l);
            }
        }
    }
    b->arrived[id] = 0;
    b->wanted[id] = 0;
}

static void look_at_barrier(block *b, int id)
{
    const int wanted = b->wanted[id] ? b->wanted[id] : b->live;
    if (b->arrived[id] > 0 && b->arrived[id] >= wanted) {
        release_barrier(b, id);
    }
}

static void look_at_cluster(cluster *c)
{
    if (c->arrived > 0 && c->arrived >= c->live) {
        c->arrived = 0;
        c->phase++;
        for (uint32_t k = 0; k < c->count; k++) {
            for (int n = 0; n < c->blocks[k].count; n++) {
                for (int l = 0; l < LANES; l++) {
                    if (c->blocks[k].warps[n].state[l] == AT_CLUSTER) {
                        make_ready(&c->blocks[k].warps[n], l);
                    }
                }
            }
        }
    }
}

/* bar.sync, bar.arrive and barrier.cluster; places have gone on already. */
static void barriers(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    block *const b = w->of;
    if (ptx_has(i, PTX_W_CLUSTER)) {
        for (int l = 0; l < LANES; l++) {
            if (!(mask >> l & 1)) {
                continue;
            }
            if (ptx_has(i, PTX_W_ARRIVE)) {
                w->phase[l] = b->of->phase;
                b->of->arrived++;
            } else if (w->phase[l] == b->of->phase) {
                make_waiting(w, l, AT_CLUSTER);
            }
        }
        look_at_cluster(b->of);
        return;
    }
    source id, count = {.p = NULL};
    if (ptx_has(i, PTX_W_REDS) || i->count < 1) {
        fail(r, i, "no such barrier");
        return;
    }
    take(r, w, &i->operand[0], &id);
    if (i->count > 1) {
        take(r, w, &i->operand[1], &count);
    }
    int touched = 0;
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            const int n = (int)id.p[l * id.step] & (BARRIERS - 1);
            b->arrived[n]++;
            b->wanted[n] = count.p ? (int)count.p[l * count.step] : 0;
            if (!ptx_has(i, PTX_W_ARRIVE)) {
                make_waiting(w, l, AT_BARRIER);
                w->barrier[l] = (uint8_t)n;
            }
            touched |= 1 << n;
        }
    }
    for (int n = 0; n < BARRIERS; n++) {
        if (touched >> n & 1) {
            look_at_barrier(b, n);
        }
    }
}

static void ends(warp *w, uint32_t mask)
{
    block *const b = w->of;
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            make_waiting(w, l, DONE);
            b->live--;
            b->of->live--;
        }
    }
    for (int n = 0; n < BARRIERS; n++) {
        look_at_barrier(b, n);
    }
    look_at_cluster(b->of);
}

/* Lanes that an instruction of the warp names, or all that have not ended. */
static uint32_t meeting(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    uint32_t wanted = ALL;
    const ptx_operand *o = NULL;
    if (i->op == PTX_SHFL) {
        o = &i->operand[4];
    } else if (i->op == PTX_VOTE || i->op == PTX_REDUX) {
        o = &i->operand[2];
    } else if (i->op == PTX_BAR) {
        o = &i->operand[0];
    } else if (i->op == PTX_ELECT) {
        o = &i->operand[1];
    }
    if (o) {
        source s;
        take(r, w, o, &s);
        wanted = (uint32_t)s.p[__builtin_ctz(mask) * s.step];
    }
    for (int l = 0; l < LANES; l++) {
        if (w->state[l] == DONE) {
            wanted &= ~(1u << l);
        }
    }
    return wanted;
}

static int is_meeting(const ptx_instruction *i)
{
    switch (i->op) {
    case PTX_SHFL:
    case PTX_REDUX:
    case PTX_ELECT:
    case PTX_LDMATRIX:
    case PTX_STMATRIX:
    case PTX_MMA: return 1;
    case PTX_VOTE: return 1;
    case PTX_BAR: return ptx_has(i, PTX_W_WARP);
    default: return 0;
    }
}

/* ---- steps ---- */

static void set_places(warp *w, uint32_t mask, int pc)
{
    EACH(w->pc[l] = pc)
}

static void calls(run *r, warp *w, const ptx_instruction *i, uint32_t mask, int pc)
{
    const ptx_entry *f = &r->m->entries[(int64_t)i->operand[1].value];
    const ptx_operand *arguments = &i->operand[2];
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        char *const local = w->local + (size_t)l * r->m->local;
        for (int k = 0; k < arguments->count; k++) {
            const ptx_symbol *from = &r->m->symbols[arguments->parts[k]], *to = &r->m->symbols[f->argument[k]];
            memcpy(local + to->at, local + from->at, to->bytes);
        }
        if (w->depth[l] == PTX_DEPTH) {
            fail(r, i, "calls nested too deep");
            return;
        }
        w->back[w->depth[l]++][l] = pc + 1;
        w->pc[l] = f->start;
    }
}

static void returns(run *r, warp *w, uint32_t mask)
{
    uint32_t over = 0;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        if (w->depth[l] == 0) {
            over |= 1u << l;
        } else {
            w->pc[l] = w->back[--w->depth[l]][l];
        }
    }
    w->together = 0;
    (void)r;
    if (over) {
        ends(w, over);
    }
}

/* Behind a call: what the function gave. */
static void returned(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_instruction *call = i - 1;
    const ptx_entry *f = &r->m->entries[(int64_t)call->operand[1].value];
    for (int l = 0; l < LANES; l++) {
        char *const local = w->local + (size_t)l * r->m->local;
        for (int k = 0; k < call->operand[0].count && (mask >> l & 1); k++) {
            const ptx_symbol *to = &r->m->symbols[call->operand[0].parts[k]], *from = &r->m->symbols[f->result[k]];
            memcpy(local + to->at, local + from->at, to->bytes);
        }
    }
}

static void addresses(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    take(r, w, &i->operand[1], &a);
    const uint64_t base = (uint64_t)(uintptr_t)w->of->shared;
    if (!ptx_has(i, PTX_W_SHARED)) {
        EACH(D(l, A(l)))
    } else if (ptx_has(i, PTX_W_TO)) {
        EACH(D(l, A(l) - base))
    } else {
        EACH(D(l, A(l) + base))
    }
}

static void selects(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a, b, c;
    take(r, w, &i->operand[1], &a);
    take(r, w, &i->operand[2], &b);
    take(r, w, &i->operand[3], &c);
    EACH(D(l, (C(l) & 1) != (uint64_t)i->operand[3].negated ? A(l) : B(l)))
}

/* Operations of three or four operands on bits. */
static void bits_of(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
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

/* The line of the module's text. */
static const char *text_of(const ptx_module *m, int line)
{
    static char text[120];
    const char *at = m->text;
    for (int n = 1; n < line; n++) {
        at = strchr(at, '\n') + 1;
    }
    at += strspn(at, " \t");
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "\n"), at);
    return text;
}

/* One instruction by the lanes of mask, whose places have gone on. 1: the warp's turn is over. */
static int execute(run *r, warp *w, const ptx_instruction *i, uint32_t mask, int pc)
{
    switch (i->op) {
    case PTX_MOV: moved(r, w, i, mask); break;
    case PTX_ADD:
    case PTX_SUB:
    case PTX_MUL:
    case PTX_MAD:
    case PTX_FMA:
    case PTX_DIV:
    case PTX_REM:
    case PTX_MIN:
    case PTX_MAX:
    case PTX_NEG:
    case PTX_ABS:
    case PTX_NOT:
    case PTX_AND:
    case PTX_OR:
    case PTX_XOR:
    case PTX_SHL:
    case PTX_SHR:
    case PTX_POPC:
    case PTX_CLZ:
    case PTX_BREV:
    case PTX_EX2:
    case PTX_LG2:
    case PTX_RCP:
    case PTX_SQRT:
    case PTX_RSQRT:
    case PTX_SIN:
    case PTX_COS:
    case PTX_COPYSIGN: arithmetic(r, w, i, mask); break;
    case PTX_SETP: set_predicate(r, w, i, mask); break;
    case PTX_SELP: selects(r, w, i, mask); break;
    case PTX_CVT: {
        static const ptx_operand none = {.kind = PTX_NUMBER};
        source a, b;
        take(r, w, &i->operand[1], &a);
        take(r, w, i->count > 2 ? &i->operand[2] : &none, &b);
        EACH(D(l, converted(r, i, A(l), B(l))))
        break;
    }
    case PTX_PRMT:
    case PTX_LOP3:
    case PTX_BFE:
    case PTX_BFI:
    case PTX_SHF:
    case PTX_DP4A: bits_of(r, w, i, mask); break;
    case PTX_CVTA: addresses(r, w, i, mask); break;
    case PTX_MAPA: {
        source a, b;
        take(r, w, &i->operand[1], &a);
        take(r, w, &i->operand[2], &b);
        EACH(D(l, (A(l) & 0xffffff) | ((B(l) & 255) + 1) << 24))
        break;
    }
    case PTX_LD:
    case PTX_LDU: loads(r, w, i, mask); break;
    case PTX_ST: ptx_has(i, PTX_W_ASYNC) ? stores_beside(r, w, i, mask) : stores(r, w, i, mask); break;
    case PTX_ATOM:
    case PTX_RED: atomics(r, w, i, mask); break;
    case PTX_BRA:
        set_places(w, mask, (int)i->operand[0].value);
        w->together &= mask == w->ready;
        break;
    case PTX_CALL: calls(r, w, i, mask, pc); break;
    case PTX_RETURNED: returned(r, w, i, mask); break;
    case PTX_RET: returns(r, w, mask); break;
    case PTX_EXIT: ends(w, mask); break;
    case PTX_SHFL: shuffles(r, w, i, mask); break;
    case PTX_VOTE: votes(r, w, i, mask); break;
    case PTX_REDUX: reductions(r, w, i, mask); break;
    case PTX_ACTIVEMASK: EACH(D(l, mask)) break;
    case PTX_ELECT:
        EACH(D(l, (uint64_t)__builtin_ctz(mask)); put(r, w, i->operand[0].second, l, l == __builtin_ctz(mask)))
        break;
    case PTX_BAR:
        if (!ptx_has(i, PTX_W_WARP)) {
            barriers(r, w, i, mask);
        }
        break;
    case PTX_BARRIER: barriers(r, w, i, mask); break;
    case PTX_LDMATRIX:
    case PTX_STMATRIX: matrices(r, w, i); break;
    case PTX_MMA: products(r, w, i); break;
    case PTX_MBARRIER: return shared_barriers(r, w, i, mask);
    case PTX_CP: copies(r, w, i, mask); break;
    case PTX_NANOSLEEP: return 1;
    case PTX_MEMBAR:
    case PTX_FENCE:
    case PTX_GRIDDEPCONTROL:
    case PTX_PREFETCH:
    case PTX_SETMAXNREG:
    case PTX_CREATEPOLICY: break;
    case PTX_TRAP: fail(r, i, "the kernel stopped itself"); break;
    case PTX_NO_OP:
    case PTX_OP_COUNT: fail(r, i, "not emulated: %s", text_of(r->m, i->line)); break;
    }
    return 0;
}

/* Lanes that are ready at the place furthest behind. */
static uint32_t furthest_behind(warp *w, int *pc)
{
    uint32_t mask = 0;
    int least = INT32_MAX;
    if (w->together && w->ready) {
        *pc = w->pc[__builtin_ctz(w->ready)];
        return w->ready;
    }
    for (int l = 0; l < LANES; l++) {
        if (w->ready >> l & 1 && w->pc[l] <= least) {
            mask = w->pc[l] < least ? 0 : mask;
            least = w->pc[l];
            mask |= 1u << l;
        }
    }
    w->together = mask == w->ready;
    *pc = least;
    return mask;
}

/* A turn of a warp; the instructions that it did. */
static int64_t turn_of(run *r, warp *w)
{
    int64_t done = 0;
    int met = 0; /* lanes that wait in the warp were woken once */
    while (done < SLICE && !r->failed) {
        int pc;
        if (!w->ready) {
            int woken = 0;
            for (int l = 0; l < LANES && !met; l++) {
                if (w->state[l] == AT_MEETING) {
                    make_ready(w, l);
                    woken = 1;
                }
            }
            if (!woken) {
                break;
            }
            met = 1;
        }
        uint32_t mask = furthest_behind(w, &pc);
        const ptx_instruction *i = &r->m->code[pc];
        const uint32_t all = mask;
        if (i->guard >= 0) {
            for (int l = 0; l < LANES; l++) {
                if ((lane_value(w, i->guard, l) & 1) == (uint64_t)i->guard_negated) {
                    mask &= ~(1u << l);
                }
            }
        }
        if (mask && is_meeting(i) && (meeting(r, w, i, mask) & ~mask) != 0) {
            for (int l = 0; l < LANES; l++) { /* the others must come first */
                if (mask >> l & 1) {
                    make_waiting(w, l, AT_MEETING);
                }
            }
            set_places(w, all & ~mask, pc + 1);
            w->together = 0;
            continue;
        }
        set_places(w, all, pc + 1);
        if (all != mask) {
            w->together &= i->op != PTX_BRA && i->op != PTX_RET && i->op != PTX_EXIT && i->op != PTX_CALL;
        }
        done++;
        met = 0;
        if (mask && execute(r, w, i, mask, pc)) {
            break;
        }
    }
    r->steps += done;
    return done;
}

/* ---- blocks ---- */

/* Registers of warps that have ended, for those that come: a launch would spend half its time on new pages. */
typedef struct registers_kept {
    struct registers_kept *next;
    size_t bytes;
} registers_kept;

static registers_kept *kept;

static void *registers_taken(size_t bytes)
{
    registers_kept *k = kept;
    if (k) {
        kept = k->next;
    }
    if (!k || k->bytes < bytes) {
        free(k);
        k = malloc(sizeof *k + bytes);
        memset(k, POISON, sizeof *k + bytes);
        k->bytes = bytes;
    }
    return k + 1;
}

static void registers_given(void *registers)
{
    registers_kept *const k = (registers_kept *)registers - 1;
    k->next = kept;
    kept = k;
}

static void warp_begins(run *r, block *b, int n, const uint32_t at[3])
{
    warp *const w = &b->warps[n];
    const ptx_geometry *g = r->g;
    const int threads = (int)(g->block[0] * g->block[1] * g->block[2]);
    w->of = b;
    w->registers = registers_taken((size_t)r->m->registers * LANES * sizeof *w->registers);
    w->local = malloc((size_t)LANES * r->m->local + 1);
    memset(w->local, POISON, (size_t)LANES * r->m->local + 1);
    w->together = 1;
    for (int l = 0; l < LANES; l++) {
        const uint32_t t = (uint32_t)(n * LANES + l);
        const uint64_t values[PTX_SPECIALS] = {[PTX_TID_X] = t % g->block[0],
                                               [PTX_TID_Y] = t / g->block[0] % g->block[1],
                                               [PTX_TID_Z] = t / g->block[0] / g->block[1],
                                               [PTX_NTID_X] = g->block[0],
                                               [PTX_NTID_Y] = g->block[1],
                                               [PTX_NTID_Z] = g->block[2],
                                               [PTX_CTAID_X] = at[0],
                                               [PTX_CTAID_Y] = at[1],
                                               [PTX_CTAID_Z] = at[2],
                                               [PTX_NCTAID_X] = g->grid[0],
                                               [PTX_NCTAID_Y] = g->grid[1],
                                               [PTX_NCTAID_Z] = g->grid[2],
                                               [PTX_LANEID] = (uint64_t)l,
                                               [PTX_WARPID] = (uint64_t)n,
                                               [PTX_CLUSTER_RANK] = b->rank,
                                               [PTX_CLUSTER_SIZE] = b->of->count,
                                               [PTX_CLUSTERID_X] = at[0] / b->of->count,
                                               [PTX_NCLUSTERID_X] = g->grid[0] / b->of->count,
                                               [PTX_CLUSTER_CTAID_X] = b->rank,
                                               [PTX_CLUSTER_NCTAID_X] = b->of->count,
                                               [PTX_LANEMASK_LT] = (1u << l) - 1,
                                               [PTX_DYNAMIC_BYTES] = g->shared_bytes};
        for (int s = 0; s < PTX_SPECIALS; s++) {
            w->registers[s * LANES + l] = values[s];
        }
        for (int k = 0; k < r->m->constant_count; k++) {
            w->registers[(size_t)r->m->constants[k].index * LANES + (size_t)l] = r->m->constants[k].value;
        }
        w->pc[l] = r->entry->start;
        if ((int)t < threads) {
            w->ready |= 1u << l;
        } else {
            w->state[l] = DONE;
        }
    }
}

static cluster *cluster_begins(run *r, uint64_t number)
{
    const ptx_geometry *g = r->g;
    const int threads = (int)(g->block[0] * g->block[1] * g->block[2]);
    cluster *const c = calloc(1, sizeof *c);
    c->count = g->cluster ? g->cluster : 1;
    c->blocks = calloc(c->count, sizeof *c->blocks);
    c->live = threads * (int)c->count;
    const uint64_t a_row = g->grid[0] / c->count;
    for (uint32_t k = 0; k < c->count; k++) {
        block *const b = &c->blocks[k];
        const uint32_t at[3] = {(uint32_t)(number % a_row) * c->count + k, (uint32_t)(number / a_row % g->grid[1]),
                                (uint32_t)(number / a_row / g->grid[1])};
        b->of = c;
        b->rank = k;
        b->live = threads;
        b->shared_bytes = r->dynamic + g->shared_bytes;
        b->shared = aligned_alloc(1024, (b->shared_bytes + 1024) / 1024 * 1024);
        memset(b->shared, POISON, b->shared_bytes);
        b->count = (threads + LANES - 1) / LANES;
        b->warps = calloc((size_t)b->count, sizeof *b->warps);
        for (int n = 0; n < b->count; n++) {
            warp_begins(r, b, n, at);
        }
    }
    return c;
}

static void cluster_ends(cluster *c)
{
    for (uint32_t k = 0; k < c->count; k++) {
        for (int n = 0; n < c->blocks[k].count; n++) {
            registers_given(c->blocks[k].warps[n].registers);
            free(c->blocks[k].warps[n].local);
        }
        free(c->blocks[k].warps);
        free(c->blocks[k].shared);
    }
    free(c->blocks);
    free(c);
}

/* A turn of every warp, from one drawn at random on; the instructions done. */
static int64_t turns_of(run *r, cluster *c)
{
    int64_t done = 0;
    const int warps = c->blocks[0].count, all = warps * (int)c->count;
    const int first = (int)(next_random(r) % (uint64_t)all), down = (int)(next_random(r) & 1);
    for (int n = 0; n < all && !r->failed; n++) {
        const int i = (first + (down ? all - n : n)) % all;
        done += turn_of(r, &c->blocks[i / warps].warps[i % warps]);
    }
    return done;
}

int ptx_run(const ptx_entry *entry, const ptx_geometry *g, const void *parameters, uint32_t seed, char *why,
            size_t why_bytes)
{
    run r = {.m = entry->module,
             .entry = entry,
             .g = g,
             .parameters = parameters,
             .dynamic = (entry->module->shared + 1023) / 1024 * 1024,
             .random = UINT64_C(0x9E3779B97F4A7C15) ^ seed,
             .why = why,
             .why_bytes = why_bytes,
             .width_mask = {0, 0xff, 0xffff, 0, 0xffffffff, 0, 0, 0, UINT64_MAX}};
    const uint32_t size = g->cluster ? g->cluster : 1;
    const uint64_t clusters = (uint64_t)g->grid[0] / size * g->grid[1] * g->grid[2];
    if (g->grid[0] % size != 0) {
        fail(&r, NULL, "a grid of %u blocks in clusters of %u", g->grid[0], size);
    }
    /* clusters run one after the other; one that only waits lets the next begin */
    cluster **active = calloc(clusters ? clusters : 1, sizeof *active);
    uint64_t begun = 0, count = 0;
    while (!r.failed && (begun < clusters || count > 0)) {
        int64_t done = 0;
        if (count == 0) {
            active[count++] = cluster_begins(&r, begun++);
        }
        for (uint64_t k = 0; k < count && !r.failed;) {
            done += turns_of(&r, active[k]);
            if (active[k]->live == 0) {
                cluster_ends(active[k]);
                active[k] = active[--count];
            } else {
                k++;
            }
        }
        const int waits = done < (int64_t)count * SLICE / 8;
        if (!r.failed && waits && begun < clusters) {
            active[count++] = cluster_begins(&r, begun++);
        } else if (!r.failed && done == 0 && count > 0) {
            fail(&r, NULL, "every thread waits");
        }
        if (r.steps > MOST_STEPS) {
            fail(&r, NULL, "more steps than a kernel of a test has");
        }
    }
    while (count > 0) {
        cluster_ends(active[--count]);
    }
    free(active);
    return r.failed;
}
