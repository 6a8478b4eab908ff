/* Sums of weighted values of vq_attention, of each of a block's queries, as registers with names: the compiler takes
 * long to follow them through statement after statement. What a chunk adds to them is one: lookups of values, weights
 * as operands, products on tensor cores.
 *
 * Query a, b, c or d has of set s (of SETS) and two halves h (of SUMS) the sums a<s>h<h>x0 to x3; of a chunk the
 * weights aw0 to aw7 of a lane's tokens, of two of these at a time as operands the upper parts ah0 and ah1, the lower
 * al0 and al1.
 *
 * Parameters: QUERIES, WORDS, PAIRS, PAIR_HALVES, WIDE_VALUES, SETS, ENTRIES, BITS of the includer */
#ifndef QN_CUDA_VQ_ATTENTION_SUMS_H
#define QN_CUDA_VQ_ATTENTION_SUMS_H

#include "names.h"

/* F(query, number, ...) for every query; F(query) for all but the first; F(query, sum, number) for every sum of one. */
#define EACH_QUERY_1(F, ...) F(a, 0, __VA_ARGS__)
#define EACH_QUERY_2(F, ...) EACH_QUERY_1(F, __VA_ARGS__) F(b, 1, __VA_ARGS__)
#define EACH_QUERY_3(F, ...) EACH_QUERY_2(F, __VA_ARGS__) F(c, 2, __VA_ARGS__)
#define EACH_QUERY_4(F, ...) EACH_QUERY_3(F, __VA_ARGS__) F(d, 3, __VA_ARGS__)
#define LATER_QUERY_1(F)
#define LATER_QUERY_2(F) F(b)
#define LATER_QUERY_3(F) LATER_QUERY_2(F) F(c)
#define LATER_QUERY_4(F) LATER_QUERY_3(F) F(d)
#define PASTED_(x, y) x##y
#define PASTED(x, y) PASTED_(x, y)
#define EACH_QUERY(F, ...) PASTED(EACH_QUERY_, QUERIES)(F, __VA_ARGS__)
#define LATER_QUERY(F) PASTED(LATER_QUERY_, QUERIES)(F)
#if SETS == 4
#define EACH_SUM(F, q) F(q, "0h0x", 0) F(q, "1h0x", 1) F(q, "2h0x", 2) F(q, "3h0x", 3)
#elif PAIR_HALVES == 4
#define EACH_SUM(F, q) F(q, "0h0x", 0) F(q, "0h1x", 1)
#else
#define EACH_SUM(F, q) F(q, "0h0x", 0)
#endif
#define OF_FOUR(F, v) F(v "0") F(v "1") F(v "2") F(v "3")

/* Once, before everything else. */
#define DECLARE_SUM(q, v, n) ".reg .f32 " #q v "<4>;\n"
#define DECLARE_QUERY(q, r, x) EACH_SUM(DECLARE_SUM, q) ".reg .b32 " #q "w<8>, " #q "h<2>, " #q "l<2>;\n"

DEV void declare_sums(void)
{
    asm volatile(EACH_QUERY(DECLARE_QUERY, ));
}

#define CLEAR_ONE(v) "mov.f32 " v ", 0f00000000;\n"
#define CLEAR_SUM(q, v, n) OF_FOUR(CLEAR_ONE, #q v)
#define CLEAR_QUERY(q, r, x) EACH_SUM(CLEAR_SUM, q)

DEV void clear_sums(void)
{
    asm volatile(EACH_QUERY(CLEAR_QUERY, ));
}

#define SCALE_ONE(v) "mul.rn.f32 " v ", " v ", %0;\n"
#define SCALE_SUM(q, v, n) OF_FOUR(SCALE_ONE, #q v)
#define SCALE_QUERY(q, r, x)                                                                                           \
    if (query == r) {                                                                                                  \
        asm volatile(EACH_SUM(SCALE_SUM, q)::"f"(by));                                                                 \
    }

DEV void scale_sums(int query, float by)
{
    EACH_QUERY(SCALE_QUERY, )
}

/* The first query's sums; those of the others are one query further on then. */
#define TAKE_SUM(q, v, n)                                                                                              \
    asm volatile("mov.f32 %0, " #q v "0;\nmov.f32 %1, " #q v "1;\nmov.f32 %2, " #q v "2;\nmov.f32 %3, " #q v "3;"      \
                 : "=f"(to[n][0]), "=f"(to[n][1]), "=f"(to[n][2]), "=f"(to[n][3]));
#define MOVE_SUM(q, v, n)                                                                                              \
    "mov.f32 " BEFORE_##q v "0, " #q v "0;\nmov.f32 " BEFORE_##q v "1, " #q v "1;\n"                                   \
    "mov.f32 " BEFORE_##q v "2, " #q v "2;\nmov.f32 " BEFORE_##q v "3, " #q v "3;\n"
#define MOVE_QUERY(q) EACH_SUM(MOVE_SUM, q)
#define BEFORE_b "a"
#define BEFORE_c "b"
#define BEFORE_d "c"

DEV void take_sums(float (*to)[4])
{
    EACH_SUM(TAKE_SUM, a)
    asm volatile("" LATER_QUERY(MOVE_QUERY));
}

/* The row of a word's code at a place (struct place), as an address. */
#if BITS < 8
#define MASK_ROW(row) "and.b32 " row ", " row ", " TEXT((ENTRIES - 1) << 8 | 0xff) ";\n"
#else
#define MASK_ROW(row)
#endif
#define FIND_ROW(row, word, base, pick, tables)                                                                        \
    "prmt.b32 " row ", " word ", " base ", " pick ";\n" MASK_ROW(row) "add.s32 " row ", " row ", " tables ";\n"

/* Texts of add_values, whose operands they name: rows of the words of two tokens; values of halves h and i, of words x
 * and y of them. */
#if WORDS == 2
#define FIND_ROWS(m, n, base, pick)                                                                                    \
    FIND_ROW("r0", FIRST_##m, base, pick, "%28") FIND_ROW("r1", SECOND_##m, base, pick, "%28")                         \
    FIND_ROW("q0", FIRST_##n, base, pick, "%28") FIND_ROW("q1", SECOND_##n, base, pick, "%28")
#else
#define FIND_ROWS(m, n, base, pick)                                                                                    \
    FIND_ROW("r0", FIRST_##m, base, pick, "%28") FIND_ROW("q0", FIRST_##n, base, pick, "%28")
#endif
#define FIRST_0 "%0"
#define FIRST_1 "%1"
#define FIRST_2 "%2"
#define FIRST_3 "%3"
#define FIRST_4 "%4"
#define FIRST_5 "%5"
#define FIRST_6 "%6"
#define FIRST_7 "%7"
#define SECOND_0 "%8"
#define SECOND_1 "%9"
#define SECOND_2 "%10"
#define SECOND_3 "%11"
#define SECOND_4 "%12"
#define SECOND_5 "%13"
#define SECOND_6 "%14"
#define SECOND_7 "%15"
#if WIDE_VALUES
#define LOOK_UP(x, h, y, i) "ld.shared.v2.u32 {v0, v1}, [r" x "+" h "];\nld.shared.v2.u32 {v2, v3}, [q" x "+" h "];\n"
#else
#define LOOK_UP(x, h, y, i)                                                                                            \
    "ld.shared.u32 v0, [r" x "+" h "];\nld.shared.u32 v1, [r" y "+" i "];\n"                                           \
    "ld.shared.u32 v2, [q" x "+" h "];\nld.shared.u32 v3, [q" y "+" i "];\n"
#endif

/* A query's weights of tokens m and n: two f16 0 or 1 times the upper, then the lower part, on the units of products,
 * which have more to spare than those of bits. A NaN becomes NaN in all rows, as it is in the sum of weights. */
#define LOAD_WEIGHTS(q, r, x)                                                                                          \
    "ld.shared.v4.u32 {" #q "w0, " #q "w1, " #q "w2, " #q "w3}, [%29+" #r "*128];\n"                                   \
    "ld.shared.v4.u32 {" #q "w4, " #q "w5, " #q "w6, " #q "w7}, [%29+" #r "*128+16];\n"
#define LAY_OUT_ONE(w, high_part, low_part, order)                                                                     \
    "mov.b32 {low, high}, " w ";\nmov.b32 both, {low, low};\nmul.rn.f16x2 " high_part ", " order ", both;\n"           \
    "mov.b32 both, {high, high};\nmul.rn.f16x2 " low_part ", " order ", both;\n"
#define LAY_OUT(q, r, m, n, order)                                                                                     \
    LAY_OUT_ONE(#q "w" #m, #q "h0", #q "l0", order) LAY_OUT_ONE(#q "w" #n, #q "h1", #q "l1", order)

/* d[16, 8] += a[16, 16] b[16, 8], f16 operands, f32 sums. */
#define MULTIPLY_ADD(d, a, b)                                                                                          \
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {" d "0, " d "1, " d "2, " d "3}, {" a "}, {" b "}, "           \
    "{" d "0, " d "1, " d "2, " d "3};\n"

#if PAIR_HALVES == 1
#define ADD_VALUES(q, r, v) MULTIPLY_ADD(#q v, #q "h0, " #q "l0, " #q "h1, " #q "l1", "v0, v1")
#define ADD_LOOKUPS(set) "ld.shared.u32 v0, [r0+%30];\nld.shared.u32 v1, [q0+%30];\n" EACH_QUERY(ADD_VALUES, set "h0x")
#else
#define ADD_VALUES(q, r, v)                                                                                            \
    MULTIPLY_ADD(#q v, "v0, v1, v2, v3", #q "h0, " #q "h1") MULTIPLY_ADD(#q v, "v0, v1, v2, v3", #q "l0, " #q "l1")
#if PAIRS == 1
#define ADD_LOOKUPS(set) LOOK_UP("0", "%30", "1", "%31") EACH_QUERY(ADD_VALUES, set "h0x")
#elif PAIR_HALVES == 2
#define ADD_LOOKUPS(set) LOOK_UP("0", "%30", "0", "%31") EACH_QUERY(ADD_VALUES, set "h0x")
#elif PAIRS == 2
#define ADD_LOOKUPS(set)                                                                                               \
    LOOK_UP("0", "%30", "0", "%31")                                                                                    \
    EACH_QUERY(ADD_VALUES, set "h0x") LOOK_UP("1", "%32", "1", "%33") EACH_QUERY(ADD_VALUES, set "h1x")
#else
#define ADD_LOOKUPS(set)                                                                                               \
    LOOK_UP("0", "%30", "0", "%31")                                                                                    \
    EACH_QUERY(ADD_VALUES, set "h0x") LOOK_UP("0", "%32", "0", "%33") EACH_QUERY(ADD_VALUES, set "h1x")
#endif
#endif
#if SETS == 4
#define ADD_TOKENS(m, n)                                                                                               \
    EACH_QUERY(LAY_OUT, m, n, "%24")                                                                                   \
    FIND_ROWS(m, n, "%16", "%20") ADD_LOOKUPS("0") FIND_ROWS(m, n, "%17", "%21") ADD_LOOKUPS("1")                      \
        FIND_ROWS(m, n, "%18", "%22") ADD_LOOKUPS("2") FIND_ROWS(m, n, "%19", "%23") ADD_LOOKUPS("3")
#else
#define ADD_STEP(m, n, base, pick, order) FIND_ROWS(m, n, base, pick) EACH_QUERY(LAY_OUT, m, n, order) ADD_LOOKUPS("0")
#define ADD_TOKENS(m, n)                                                                                               \
    ADD_STEP(m, n, "%16", "%20", "%24")                                                                                \
    ADD_STEP(m, n, "%17", "%21", "%25") ADD_STEP(m, n, "%18", "%22", "%26") ADD_STEP(m, n, "%19", "%23", "%27")
#endif

#endif
