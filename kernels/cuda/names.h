/* Registers with names in PTX, for sums of warpgroup products: as an array they would be operands of every statement,
 * through which the compiler takes long to follow them. What a lane has of N columns, d[N / 2] of WGMMA_E4M3 (ptx.h),
 * is va0 to va7, then vb0 to vb7 and so on for a name v: of f32, or of s32. */
#ifndef QN_CUDA_NAMES_H
#define QN_CUDA_NAMES_H

/* EACH(N, v, F): F(v, letter, first) for every eight of them. */
#define EACH_16(v, F) F(v, a, 0)
#define EACH_32(v, F) EACH_16(v, F) F(v, b, 8)
#define EACH_48(v, F) EACH_32(v, F) F(v, c, 16)
#define EACH_64(v, F) EACH_48(v, F) F(v, d, 24)
#define EACH_80(v, F) EACH_64(v, F) F(v, e, 32)
#define EACH_96(v, F) EACH_80(v, F) F(v, f, 40)
#define EACH_112(v, F) EACH_96(v, F) F(v, g, 48)
#define EACH_128(v, F) EACH_112(v, F) F(v, h, 56)
#define EACH_144(v, F) EACH_128(v, F) F(v, i, 64)
#define EACH_160(v, F) EACH_144(v, F) F(v, j, 72)
#define EACH_176(v, F) EACH_160(v, F) F(v, k, 80)
#define EACH_192(v, F) EACH_176(v, F) F(v, l, 88)
#define EACH_208(v, F) EACH_192(v, F) F(v, m, 96)
#define EACH_224(v, F) EACH_208(v, F) F(v, n, 104)
#define EACH_240(v, F) EACH_224(v, F) F(v, o, 112)
#define EACH_256(v, F) EACH_240(v, F) F(v, p, 120)
#define EACH_(N, v, F) EACH_##N(v, F)
#define EACH(N, v, F) EACH_(N, v, F)

#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x

/* In a statement: a list; declarations, before everything else; zeros. */
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
#define SEPARATOR_i ", "
#define SEPARATOR_j ", "
#define SEPARATOR_k ", "
#define SEPARATOR_l ", "
#define SEPARATOR_m ", "
#define SEPARATOR_n ", "
#define SEPARATOR_o ", "
#define SEPARATOR_p ", "
#define DECLARED(v, x, at) ".reg .b32 " v #x "<8>;\n"
#define OF_EIGHT(F, v, x) F(v, x, 0) F(v, x, 1) F(v, x, 2) F(v, x, 3) F(v, x, 4) F(v, x, 5) F(v, x, 6) F(v, x, 7)
#define ZERO_ONE(v, x, i) "mov.f32 " v #x #i ", 0f00000000;\n"
#define ZERO(v, x, at) OF_EIGHT(ZERO_ONE, v, x)

/* In a statement: the beginning of a product of N columns, of 16 of K; its operands follow. */
#define WGMMA_NAMED(N, type, v) WGMMA_LISTED(N, "k16.f32." type "." type, v)
#define WGMMA_LISTED(N, types, v) "wgmma.mma_async.sync.aligned.m64n" TEXT(N) types " {" EACH(N, v, LISTED) "}, "

/* In a statement whose operands %0 and %1 are a and b of a k-block, 128 bytes of a row of each (wgmma_operand): all of
 * its products, v = a b' or, with the predicate or number `more`, v += a b'. types: what follows N; signs: `more`. */
#define BLOCK_NAMED(N, types, signs, v, more)                                                                          \
    "{\n.reg .b64 a, b;\n" WGMMA_LISTED(N, types, v) "%0, %1, " more signs ";\n"                                       \
    NEXT_NAMED(N, types, signs, v, "2") NEXT_NAMED(N, types, signs, v, "4") NEXT_NAMED(N, types, signs, v, "6") "}\n"
#define NEXT_NAMED(N, types, signs, v, step)                                                                           \
    "add.s64 a, %0, " step ";\nadd.s64 b, %1, " step ";\n" WGMMA_LISTED(N, types, v) "a, b, 1" signs ";\n"

/* Statements: from `from` to the registers, from these to `to`. */
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

/* A lane's sums to their place in words [rows of x][PITCH] of shared memory, of which `to` is the first. */
#define LEFT_AT(i) (((8 * ((i) / 4) + (i) % 2) * PITCH + (i) / 2 % 2 * 8) * 4)
#define LEAVE_ONE(v, x, i) "st.shared.b32 [%8+%" #i "], " v #x #i ";\n"
#define LEAVE(v, x, at)                                                                                                \
    asm volatile(OF_EIGHT(LEAVE_ONE, v, x)::"n"(LEFT_AT(at)), "n"(LEFT_AT(at + 1)), "n"(LEFT_AT(at + 2)),              \
                 "n"(LEFT_AT(at + 3)), "n"(LEFT_AT(at + 4)), "n"(LEFT_AT(at + 5)), "n"(LEFT_AT(at + 6)),               \
                 "n"(LEFT_AT(at + 7)), "r"(to)                                                                         \
                 : "memory");

#endif
