/* Sums of attention_tiles.cu as registers with names, as the compiler takes long to follow so many through statement
 * after statement: o of all tiles, and, with products of warpgroups (sm_90a), s of a tile's scores and d of its sums,
 * eight of a letter. A lane has of them what struct state says of o.
 *
 * Parameters: SIZE, KEYS, OUT, WGMMA, Q_PLANES, K_PLANES, V_PLANES, Q_PLANE_STEP, TILE_PLANE_STEP and struct weights of
 * the includer */
#ifndef QN_CUDA_ATTENTION_NAMES_H
#define QN_CUDA_ATTENTION_NAMES_H

#include "names.h"

/* Once, before everything else. */
DEV void declare_names(void)
{
    asm volatile(EACH(SIZE, "o", DECLARED));
#if WGMMA
    asm volatile(EACH(KEYS, "s", DECLARED) EACH(SIZE, "d", DECLARED));
#endif
}

/* Results of row g times `by`, in statements whose operands are where the lane's first are and `by`. */
#define TIMES(i, v) "mul.rn.f32 t" #i ", " v ", %1;\n"
#define PUT_PARTS(v, x, at)                                                                                            \
    TIMES(0, v #x "0") TIMES(1, v #x "1") TIMES(2, v #x "4") TIMES(3, v #x "5")                                        \
    "st.global.v4.f32 [%0+" #at "*8], {t0, t1, t2, t3};\n"
#if OUT == QN_MM_F32
#define PUT_ONE(v, at) "mul.rn.f32 t0, " v ", %1;\nst.global.f32 [%0+4*(" at ")], t0;\n"
#elif OUT == QN_MM_F16
#define PUT_ONE(v, at) "mul.rn.f32 t0, " v ", %1;\ncvt.rn.f16.f32 u, t0;\nst.global.b16 [%0+2*(" at ")], u;\n"
#else
#define PUT_ONE(v, at) "mul.rn.f32 t0, " v ", %1;\ncvt.rn.bf16.f32 u, t0;\nst.global.b16 [%0+2*(" at ")], u;\n"
#endif
#define PUT_RESULTS(v, x, at)                                                                                          \
    PUT_ONE(v #x "0", #at "*2") PUT_ONE(v #x "1", #at "*2+1")                                                          \
    PUT_ONE(v #x "4", #at "*2+8") PUT_ONE(v #x "5", #at "*2+9")

DEV void put_parts(float *to, float by)
{
    asm volatile("{\n.reg .f32 t<4>;\n" EACH(SIZE, "o", PUT_PARTS) "}" ::"l"(to), "f"(by) : "memory");
}

DEV void put_results(char *to, float by)
{
    asm volatile("{\n.reg .f32 t0;\n.reg .b16 u;\n" EACH(SIZE, "o", PUT_RESULTS) "}" ::"l"(to), "f"(by) : "memory");
}

/* Row g + 8's to where row g's were. */
#define MOVE_ROW(v, x, at)                                                                                             \
    "mov.b32 " v #x "0, " v #x "2;\nmov.b32 " v #x "1, " v #x "3;\n"                                                   \
    "mov.b32 " v #x "4, " v #x "6;\nmov.b32 " v #x "5, " v #x "7;\n"

DEV void move_row(void)
{
    asm volatile(EACH(SIZE, "o", MOVE_ROW)::: "memory");
}

DEV void give_results(const float *from)
{
    EACH(SIZE, "o", GIVE);
}

#if WGMMA
#define ADD_ONE(v, x, i) "fma.rn.f32 o" #x #i ", o" #x #i ", " KEEP_##i ", " v #x #i ";\n"
#define KEEP_0 "%0"
#define KEEP_1 "%0"
#define KEEP_2 "%1"
#define KEEP_3 "%1"
#define KEEP_4 "%0"
#define KEEP_5 "%0"
#define KEEP_6 "%1"
#define KEEP_7 "%1"
#define ADD(v, x, at) OF_EIGHT(ADD_ONE, v, x)

DEV void give_scores(const float *from)
{
    EACH(KEYS, "s", GIVE);
}

DEV void take_scores(float *to)
{
    EACH(KEYS, "s", TAKE);
}

DEV void begin_results(void)
{
    asm volatile(EACH(SIZE, "o", ZERO)::: "memory");
}

/* o = keep o + d. */
DEV void add_sums(const float *keep)
{
    asm volatile(EACH(SIZE, "d", ADD)::"f"(keep[0]), "f"(keep[1]) : "memory");
}

/* Products of the planes of one step of 16, the smaller ones first, in one statement: s[64, KEYS] += a[64, 16] b[KEYS,
 * 16]', both in shared memory; d[64, SIZE] = or, if more, += p[64, 16] b[16, SIZE], p in registers. */
#define SCORES_PRODUCT(from, more) WGMMA_NAMED(KEYS, "f16", "s") from ", " more ", 1, 1, 0, 0;\n"
#define SUMS_PRODUCT(from, more) WGMMA_NAMED(SIZE, "f16", "d") from ", " more ", 1, 1, 1;\n"
#define LOW_PLANE(of, step) "add.s64 low, " of ", " TEXT(step) ";\n"

DEV void add_scores(u64 a, u64 b)
{
    asm volatile("{\n.reg .b64 low;\n"
#if Q_PLANES == 2
                 LOW_PLANE("%0", Q_PLANE_STEP) SCORES_PRODUCT("low, %1", "1")
#endif
#if K_PLANES == 2
                 LOW_PLANE("%1", TILE_PLANE_STEP) SCORES_PRODUCT("%0, low", "1")
#endif
                 SCORES_PRODUCT("%0, %1", "1") "}" ::"l"(a), "l"(b)
                 : "memory");
}

DEV void multiply_values(const weights *p, u64 b, int more)
{
    asm volatile("{\n.reg .pred more;\n.reg .b64 low;\nsetp.ne.b32 more, %9, 0;\n"
                 SUMS_PRODUCT("{%0, %1, %2, %3}, %8", "more")
#if V_PLANES == 2
                 LOW_PLANE("%8", TILE_PLANE_STEP) SUMS_PRODUCT("{%4, %5, %6, %7}, low", "1")
#endif
                 SUMS_PRODUCT("{%4, %5, %6, %7}, %8", "1") "}" ::"r"(p->low[0]), "r"(p->low[1]), "r"(p->low[2]),
                 "r"(p->low[3]), "r"(p->high[0]), "r"(p->high[1]), "r"(p->high[2]), "r"(p->high[3]), "l"(b), "r"(more)
                 : "memory");
}
#endif

#endif
