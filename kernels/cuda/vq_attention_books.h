/* What a warp of vq_attention's kernels loads of a book at once, tasks of four columns of four words, as registers with
 * names: the compiler need not follow them. Of two books, x and y: x<task>k<column>w0 to w3.
 *
 * Parameters: TOGETHER, tasks at once, up to four */
#ifndef QN_CUDA_VQ_ATTENTION_BOOKS_H
#define QN_CUDA_VQ_ATTENTION_BOOKS_H

#include "vq_attention_sums.h"

#define OF_COLUMNS(F, t) F(t "k0w") F(t "k1w") F(t "k2w") F(t "k3w")
#if TOGETHER == 1
#define OF_TASKS(F, x) OF_COLUMNS(F, x "0")
#define MOVE_TASKS(x)
#elif TOGETHER == 2
#define OF_TASKS(F, x) OF_COLUMNS(F, x "0") OF_COLUMNS(F, x "1")
#define MOVE_TASKS(x) MOVE_TASK(x, "0", "1")
#elif TOGETHER == 3
#define OF_TASKS(F, x) OF_COLUMNS(F, x "0") OF_COLUMNS(F, x "1") OF_COLUMNS(F, x "2")
#define MOVE_TASKS(x) MOVE_TASK(x, "0", "1") MOVE_TASK(x, "1", "2")
#else
#define OF_TASKS(F, x) OF_COLUMNS(F, x "0") OF_COLUMNS(F, x "1") OF_COLUMNS(F, x "2") OF_COLUMNS(F, x "3")
#define MOVE_TASKS(x) MOVE_TASK(x, "0", "1") MOVE_TASK(x, "1", "2") MOVE_TASK(x, "2", "3")
#endif

/* Once, before everything else. */
#define DECLARE_COLUMN(v) ".reg .b32 " v "<4>;\n"

DEV void declare_tasks(void)
{
    asm volatile(OF_TASKS(DECLARE_COLUMN, "x") OF_TASKS(DECLARE_COLUMN, "y"));
}

/* Where not all ways load them: then nothing of them stays from before. */
#define CLEAR_WORD(v) "mov.b32 " v ", 0;\n"
#define CLEAR_COLUMN(v) OF_FOUR(CLEAR_WORD, v)

DEV void clear_tasks(void)
{
    asm volatile(OF_TASKS(CLEAR_COLUMN, "x") OF_TASKS(CLEAR_COLUMN, "y"));
}

/* Task t from `from` on, columns `step` bytes apart. */
#define LOAD_COLUMN(v) "ld.global.v4.u32 {" v "0, " v "1, " v "2, " v "3}, [at];\nadd.s64 at, at, %1;\n"
#define LOAD_TASK(x, t, from, step)                                                                                    \
    asm volatile("{\n.reg .u64 at;\nmov.u64 at, %0;\n" OF_COLUMNS(LOAD_COLUMN, x t) "}" ::"l"(from), "l"(step))

/* Book x's tasks as book y's. */
#define PASS_COLUMN(v)                                                                                                 \
    "mov.b32 y" v "0, x" v "0;\nmov.b32 y" v "1, x" v "1;\nmov.b32 y" v "2, x" v "2;\nmov.b32 y" v "3, x" v "3;\n"

DEV void pass_tasks(void)
{
    asm volatile(OF_TASKS(PASS_COLUMN, ""));
}

/* Words w of the first task's columns, turned by the lane's quarter. */
#define TURN_WORD(x, w, k0, k1, k2, k3)                                                                                \
    "selp.b32 e, " x "0k1w" w ", " x "0k0w" w ", odd;\nselp.b32 f, " x "0k2w" w ", " x "0k1w" w ", odd;\n"             \
    "selp.b32 g, " x "0k3w" w ", " x "0k2w" w ", odd;\nselp.b32 h, " x "0k0w" w ", " x "0k3w" w ", odd;\n"             \
    "selp.b32 " k0 ", g, e, upper;\nselp.b32 " k1 ", h, f, upper;\n"                                                   \
    "selp.b32 " k2 ", e, g, upper;\nselp.b32 " k3 ", f, h, upper;\n"
#define MOVE_COLUMN(x, t, u, k)                                                                                        \
    "mov.b32 " x t k "0, " x u k "0;\nmov.b32 " x t k "1, " x u k "1;\n"                                               \
    "mov.b32 " x t k "2, " x u k "2;\nmov.b32 " x t k "3, " x u k "3;\n"
#define MOVE_TASK(x, t, u)                                                                                             \
    MOVE_COLUMN(x, t, u, "k0w") MOVE_COLUMN(x, t, u, "k1w") MOVE_COLUMN(x, t, u, "k2w") MOVE_COLUMN(x, t, u, "k3w")

/* The first task's, v[column][word]; the others move down. */
#define TAKE_TASK(x, v, quarter)                                                                                       \
    asm volatile("{\n.reg .pred odd, upper;\n.reg .b32 e, f, g, h;\n"                                                  \
                 "and.b32 e, %16, 1;\nsetp.ne.b32 odd, e, 0;\nand.b32 e, %16, 2;\nsetp.ne.b32 upper, e, 0;\n"          \
                 TURN_WORD(x, "0", "%0", "%4", "%8", "%12") TURN_WORD(x, "1", "%1", "%5", "%9", "%13")                 \
                 TURN_WORD(x, "2", "%2", "%6", "%10", "%14") TURN_WORD(x, "3", "%3", "%7", "%11", "%15")               \
                 MOVE_TASKS(x) "}"                                                                                     \
                 : "=r"(v[0][0]), "=r"(v[0][1]), "=r"(v[0][2]), "=r"(v[0][3]), "=r"(v[1][0]), "=r"(v[1][1]),           \
                   "=r"(v[1][2]), "=r"(v[1][3]), "=r"(v[2][0]), "=r"(v[2][1]), "=r"(v[2][2]), "=r"(v[2][3]),           \
                   "=r"(v[3][0]), "=r"(v[3][1]), "=r"(v[3][2]), "=r"(v[3][3])                                          \
                 : "r"(quarter))

#endif
