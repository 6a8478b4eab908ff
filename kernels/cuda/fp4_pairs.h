/* e2m1 codes as pairs of 16-bit floats, exactly, with their scales: what all kernels have that multiply NVFP4 and MXFP4
 * weights on tensor cores.
 *
 * Parameters: B_FORMAT, NVFP4 or MXFP4; X_FORMAT f16: pairs are of f16 (NVFP4 only), else of bf16.
 *
 * A code at bits 3:0 of each half of a word, times 2^12 + 2^6, has its sign at bit 15 and its size at 8:6: masked, a
 * bf16 pair of 2^-126 of the code. The scale that it is multiplied by (one instruction for two, exact: a product has at
 * most 6 significant bits) brings the power of two back, of NVFP4 but for 2^-8 that the sum gets at the end (FACTOR).
 */
#ifndef QN_CUDA_FP4_PAIRS_H
#define QN_CUDA_FP4_PAIRS_H

#include "mm_unpack.h"

#define IS_MX (B_FORMAT == QN_MM_MXFP4)
#define IS_F16 (X_FORMAT == QN_MM_F16)

#if IS_MX
#define FACTOR 1.0f
#elif IS_F16
#define FACTOR 16384.0f
#else
#define FACTOR 256.0f
#endif

DEV u32 multiply_pair(u32 a, u32 b)
{
    u32 v;
#if IS_F16
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
#else
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
#endif
    return v;
}

/* Codes i and i + 4 of a word, their sign and size in place. The sign of the highest is there already, and the word as
 * its size wants it serves the next lower ones too. */
DEV u32 place_pair(u32 word, int i)
{
#if IS_F16
    const u32 size = (i < 3 ? word << (9 - 4 * i) : word >> 3) & 0x0e000e00u;
    return (word << (12 - 4 * i) & 0x80008000u) | size;
#else
    const u32 low = word >> 6;
    if (i == 3) {
        return (word & 0x80008000u) | (low & 0x01c001c0u);
    }
    const u32 code = i == 0 ? word & 0x000f000fu : i == 1 ? word & 0x00f000f0u : low & 0x003c003cu;
    return code * (i == 0 ? 4160u : i == 1 ? 260u : 1040u) & 0x81c081c0u;
#endif
}

/* The same as texts of a statement: v = the pair of codes 0, 1 and so on of w, after BEGIN_PLACING; s is theirs. */
#if IS_F16
#define BEGIN_PLACING ""
#define PLACE_HALVES "and.b32 v, v, 0x80008000;\nand.b32 s, s, 0x0e000e00;\nor.b32 v, v, s;\n"
#define PLACE_0 "shl.b32 v, w, 12;\nshl.b32 s, w, 9;\n" PLACE_HALVES
#define PLACE_1 "shl.b32 v, w, 8;\nshl.b32 s, w, 5;\n" PLACE_HALVES
#define PLACE_2 "shl.b32 v, w, 4;\nshl.b32 s, w, 1;\n" PLACE_HALVES
#define PLACE_3 "mov.b32 v, w;\nshr.u32 s, w, 3;\n" PLACE_HALVES
#define MULTIPLY_TEXT "mul.rn.f16x2 "
#else
#define BEGIN_PLACING "shr.u32 s, w, 6;\n"
#define PLACE_0 "and.b32 v, w, 0x000f000f;\nmul.lo.u32 v, v, 4160;\nand.b32 v, v, 0x81c081c0;\n"
#define PLACE_1 "and.b32 v, w, 0x00f000f0;\nmul.lo.u32 v, v, 260;\nand.b32 v, v, 0x81c081c0;\n"
#define PLACE_2 "and.b32 v, s, 0x003c003c;\nmul.lo.u32 v, v, 1040;\nand.b32 v, v, 0x81c081c0;\n"
#define PLACE_3 "and.b32 v, w, 0x80008000;\nand.b32 s, s, 0x01c001c0;\nor.b32 v, v, s;\n"
#define MULTIPLY_TEXT "mul.rn.bf16x2 "
#endif

/* Before any MXFP4 scale: its power of two and the one left out may together be no bf16. */
#define MX_RAISE 0x7e807e80 /* 2^126 */
#define RAISE_PAIR "mov.b32 r, " TEXT(MX_RAISE) ";\nmul.rn.bf16x2 v, v, r;\n"

#if IS_MX
/* What a scale's code multiplies with, twice in a word: times the power of two that place_pair() leaves out, of codes
 * below 128; large 1: of any code, as it is. */
DEV u32 scale_twice(u32 code, int large)
{
    const u32 any = (code == 0 ? 0x40u : code == 255 ? 0x7fc0u : code << 7) * 0x10001u;
    return large ? any : code * 0x800080u + 0x3f003f00u; /* 2^(code - 1) */
}
#else
/* What a scale multiplies bf16 pairs with, twice in a word, times the power of two that place_pair() leaves out. */
DEV u32 scale_twice(float scale)
{
    const float v = scale * 0x1p118f;
    return pack_bf16(v, v);
}

/* The same of a scale's code, of either pairs. */
DEV u32 table_entry(u32 code)
{
#if IS_F16
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)code));
    return __byte_perm(pair, 0, 0x1010);
#else
    return scale_twice(e4m3_float(code));
#endif
}
#endif

DEV u32 expand_pair(u32 word, int i, u32 scale, int large)
{
    const u32 v = place_pair(word, i);
    return multiply_pair(large ? multiply_pair(v, MX_RAISE) : v, scale);
}

#endif
