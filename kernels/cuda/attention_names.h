/* Scores and sums of a tile of attention_tiles.cu by products of warpgroups (sm_90a). They are registers with names, s
 * of scores and d of sums, eight of a letter, as the compiler takes long to follow so many through statement after
 * statement. A lane has of them what struct state says of o.
 *
 * Parameters: SIZE, KEYS, Q_PLANES, K_PLANES, V_PLANES, Q_PLANE_STEP, TILE_PLANE_STEP and struct weights of the
 * includer */
#ifndef QN_CUDA_ATTENTION_NAMES_H
#define QN_CUDA_ATTENTION_NAMES_H

#include "names.h"

/* Once, before everything else. */
DEV void declare_names(void)
{
    asm volatile(EACH(KEYS, "s", DECLARED) EACH(SIZE, "d", DECLARED));
}

#define ADD_ONE(v, x, i) "fma.rn.f32 %" #i ", %" #i ", " KEEP_##i ", " v #x #i ";\n"
#define KEEP_0 "%8"
#define KEEP_1 "%8"
#define KEEP_2 "%9"
#define KEEP_3 "%9"
#define KEEP_4 "%8"
#define KEEP_5 "%8"
#define KEEP_6 "%9"
#define KEEP_7 "%9"
#define ADD(v, x, at)                                                                                                  \
    asm volatile(OF_EIGHT(ADD_ONE, v, x)                                                                               \
                 : "+f"(o[at]), "+f"(o[at + 1]), "+f"(o[at + 2]), "+f"(o[at + 3]), "+f"(o[at + 4]), "+f"(o[at + 5]),   \
                   "+f"(o[at + 6]), "+f"(o[at + 7])                                                                    \
                 : "f"(keep[0]), "f"(keep[1])                                                                          \
                 : "memory");

DEV void give_scores(const float *from)
{
    EACH(KEYS, "s", GIVE);
}

DEV void take_scores(float *to)
{
    EACH(KEYS, "s", TAKE);
}

/* o = keep o + d. */
DEV void add_sums(float *o, const float *keep)
{
    EACH(SIZE, "d", ADD);
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
