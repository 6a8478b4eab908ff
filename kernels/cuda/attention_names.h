/* Scores and sums of a tile of attention_tiles.cu by products of warpgroups (sm_90a). They are registers with names, s
 * of scores and d of sums, eight of a letter, as the compiler takes long to follow so many through statement after
 * statement. A lane has of them what struct state says of o.
 *
 * Parameters: SIZE, KEYS, Q_PLANES, K_PLANES, V_PLANES, Q_PLANE_STEP, TILE_PLANE_STEP and struct weights of the
 * includer */
#ifndef QN_CUDA_ATTENTION_NAMES_H
#define QN_CUDA_ATTENTION_NAMES_H

/* Lists of the registers v of so many columns: EACH(N, v, F) is F(v, letter, first) for every eight of them. */
#define EACH_16(v, F) F(v, a, 0)
#define EACH_32(v, F) EACH_16(v, F) F(v, b, 8)
#define EACH_48(v, F) EACH_32(v, F) F(v, c, 16)
#define EACH_64(v, F) EACH_48(v, F) F(v, d, 24)
#define EACH_80(v, F) EACH_64(v, F) F(v, e, 32)
#define EACH_96(v, F) EACH_80(v, F) F(v, f, 40)
#define EACH_112(v, F) EACH_96(v, F) F(v, g, 48)
#define EACH_128(v, F) EACH_112(v, F) F(v, h, 56)
#define EACH_(N, v, F) EACH_##N(v, F)
#define EACH(N, v, F) EACH_(N, v, F)
#define LISTED(v, x, at)                                                                                               \
    SEPARATOR_##x v #x "0, " v #x "1, " v #x "2, " v #x "3, " v #x "4, " v #x "5, " v #x "6, " v #x "7"
#define SEPARATOR_a
#define SEPARATOR_b ", "
#define SEPARATOR_c ", "
#define SEPARATOR_d ", "
#define SEPARATOR_e ", "
#define SEPARATOR_f ", "
#define SEPARATOR_g ", "
#define SEPARATOR_h ", "
#define DECLARED(v, x, at) ".reg .f32 " v #x "<8>;\n"

/* Once, before everything else. */
DEV void declare_names(void)
{
    asm volatile(EACH(KEYS, "s", DECLARED) EACH(SIZE, "d", DECLARED));
}

#define OF_EIGHT(F, v, x) F(v, x, 0) F(v, x, 1) F(v, x, 2) F(v, x, 3) F(v, x, 4) F(v, x, 5) F(v, x, 6) F(v, x, 7)
#define GIVE_ONE(v, x, i) "mov.f32 " v #x #i ", %" #i ";\n"
#define GIVE(v, x, at)                                                                                                 \
    asm volatile(OF_EIGHT(GIVE_ONE, v, x)::"f"(from[at]), "f"(from[at + 1]), "f"(from[at + 2]), "f"(from[at + 3]),     \
                 "f"(from[at + 4]), "f"(from[at + 5]), "f"(from[at + 6]), "f"(from[at + 7])                            \
                 : "memory");
#define TAKE_ONE(v, x, i) "mov.f32 %" #i ", " v #x #i ";\n"
#define TAKE(v, x, at)                                                                                                 \
    asm volatile(OF_EIGHT(TAKE_ONE, v, x)                                                                              \
                 : "=f"(to[at]), "=f"(to[at + 1]), "=f"(to[at + 2]), "=f"(to[at + 3]), "=f"(to[at + 4]),               \
                   "=f"(to[at + 5]), "=f"(to[at + 6]), "=f"(to[at + 7])                                                \
                 :                                                                                                     \
                 : "memory");
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
#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x
#define PRODUCT(N, v, from, more, signs)                                                                               \
    "wgmma.mma_async.sync.aligned.m64n" TEXT(N) "k16.f32.f16.f16 {" EACH(N, v, LISTED) "}, " from ", " more signs ";\n"
#define SCORES_PRODUCT(from, more) PRODUCT(KEYS, "s", from, more, ", 1, 1, 0, 0")
#define SUMS_PRODUCT(from, more) PRODUCT(SIZE, "d", from, more, ", 1, 1, 1")
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
