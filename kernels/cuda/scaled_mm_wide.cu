/* scaled_mm for strips of weights by many rows, on Hopper (sm_90a): FP8 and INT8 with the four epilogues, as
 * scaled_mm.cu has them, strips and parts of K as wide.h has them. For products that are too narrow for that kernel's
 * tiles to fill the card.
 *
 * INT8 sums stay in the tensor core. FP8 sums of a k-block are made there and then added in f32: it keeps fewer bits
 * than f32 (docs/operators.md).
 *
 * Host contract: that of wide.h, with b swizzled as x is, and
 *   Parameters INT8, OUT, BIAS, AZP as in scaled_mm.cu; of FP8 ROWS at most 192, of three warpgroups 112, not four
 *   Arguments: maps of b, x, b_last, x_last, then as declared, as there
 *   STEP is a k-block of 128; EXTRA 0 */
#define DEPTH 128
#define B_ROW 128
#define STEP 128
#include "ask.h"
#include "wide.h"

#if !INT8 && (ROWS > 192 || TEAMS > 3 || (TEAMS > 2 && ROWS > 112))
#error "scaled_mm_wide: FP8 has no registers for that many rows"
#endif

typedef struct arguments {
    const float *scale_a, *scale_b;
    i64 scale_a_step, scale_b_step;
    const void *bias;
    const int *adjust, *azp;
    i64 azp_step;
    char *d;
    i64 d_row;
    int m, n;
} arguments;

/* ---- multiplying ---- */

#if INT8
#define SUMS_OF_BLOCK "u"
#define BLOCK_TYPES "k32.s32.s8.s8", ""
#else
#define SUMS_OF_BLOCK "v"
#define BLOCK_TYPES "k32.f32.e4m3.e4m3", ", 1, 1"
#endif
#define BLOCK(N, types, more) BLOCK_(N, types, more)
#define BLOCK_(N, types, signs, more) BLOCK_NAMED(N, types, signs, SUMS_OF_BLOCK, more)

DEV void declare_block(void)
{
#if !INT8
    asm volatile(EACH(ROWS, "v", DECLARED));
#endif
}

/* A stage's products, left under way: of INT8 added to the sums, else alone. */
DEV void multiply_block(u64 b, u64 x)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " TEXT(INT8) ", 0;\nwgmma.fence.sync.aligned;\n" BLOCK(
                     ROWS, BLOCK_TYPES, "more") "wgmma.commit_group.sync.aligned;\n}" ::"l"(b),
                 "l"(x)
                 : "memory");
}

#define ADD_ONE(v, x, i) "add.rn.f32 u" #x #i ", u" #x #i ", v" #x #i ";\n"
#define ADD_BLOCK(v, x, at) OF_EIGHT(ADD_ONE, v, x)

/* A warpgroup's rows of b by all of x, in its turns of this part of K. */
DEV void multiply(const problem *p, u32 group, u32 turn, u32 lane)
{
    const u64 b_first = wgmma_operand(p->b + group * 8192), x_first = wgmma_operand(p->x);
    const int stages = stages_of(p);
    place at = {turn, 0};
    begin_sums();
#if INT8
    u32 before = STAGES;
#endif
#pragma unroll 1
    for (int i = (int)turn; i < stages; i += WK) {
        const u64 b = wgmma_operand_on(b_first, at.stage * (B_BYTES / 16));
        const u64 x = wgmma_operand_on(x_first, at.stage * (X_BYTES / 16));
        barrier_wait(p->full + 8 * at.stage, at.parity);
        multiply_block(b, x);
#if INT8 /* while the next one's operands are waited for */
        WGMMA_WAIT(1);
        if (before < STAGES) {
            release(p, before, lane);
        }
        before = at.stage;
#else
        WGMMA_WAIT(0);
        release(p, at.stage, lane);
        asm volatile(EACH(ROWS, "v", ADD_BLOCK)::: "memory");
#endif
        place_on(&at, WK);
    }
    WGMMA_WAIT(0);
}

/* ---- results ---- */

#define EXACT INT8
#define OUT_BYTES (OUT == 2 ? 4 : 2)

typedef struct columns {
    float scale[4], bias[4];
    int adjust[4];
} columns;

DEV float load_bias(const arguments &a, int n)
{
#if BIAS == 1
    return __ldg((const float *)a.bias + n);
#elif BIAS > 1
    const u16 bits = __ldg((const u16 *)a.bias + n);
    return BIAS == 2 ? widen_f16(bits) : __uint_as_float((u32)bits << 16);
#else
    return 0.0f;
#endif
}

DEV columns load_columns(const arguments &a, int n)
{
    columns c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = n + i < a.n ? n + i : a.n - 1;
        c.scale[i] = __ldg(a.scale_b + at * a.scale_b_step);
        c.bias[i] = load_bias(a, at);
        c.adjust[i] = AZP ? __ldg(a.adjust + at) : 0;
    }
    return c;
}

DEV void store_one(char *to, float v)
{
#if OUT == 2
    *(float *)to = v;
#else
    *(u16 *)to = (u16)(OUT == 0 ? pack_bf16(v, 0.0f) : pack_f16(v, 0.0f));
#endif
}

DEV void store_four(const arguments &a, const columns &c, int row, int n, float *v)
{
    const float scale = __ldg(a.scale_a + row * a.scale_a_step);
    const u32 less = AZP == 2 ? (u32)__ldg(a.azp + row * a.azp_step) : AZP;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if INT8
        const float t = (float)(int)(__float_as_uint(v[i]) - less * (u32)c.adjust[i]) * c.scale[i];
#else
        const float t = v[i] * c.scale[i];
#endif
        v[i] = BIAS ? __fmaf_rn(scale, t, c.bias[i]) : t * scale;
    }
    char *const to = a.d + (row * a.d_row + n) * OUT_BYTES;
    if ((u64)a.d % (4 * OUT_BYTES) == 0 && a.d_row % 4 == 0 && n + 3 < a.n) {
#if OUT == 2
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
#elif OUT == 1
        *(uint2 *)to = make_uint2(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]));
#else
        *(uint2 *)to = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
#endif
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (n + i < a.n) {
            store_one(to + i * OUT_BYTES, v[i]);
        }
    }
}

#include "wide_out.h"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_scaled_mm_wide(const __grid_constant__ tensor_map b, const __grid_constant__ tensor_map x,
                      const __grid_constant__ tensor_map b_last, const __grid_constant__ tensor_map x_last,
                      const float *scale_a, i64 scale_a_step, const float *scale_b, i64 scale_b_step, const void *bias,
                      const int *adjust, const int *azp, i64 azp_step, char *d, i64 d_row, int m, int n, int k,
                      int constant, int split)
{
    declare_sums();
    declare_block();
    extern __shared__ __align__(16) char shared[];
    const arguments a = {scale_a, scale_b, scale_a_step, scale_b_step, bias, adjust, azp, azp_step, d, d_row, m, n};
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    problem own, *const p = &own;
    lay_out(p, shared_address(shared), m, n, k, (u32)split);
    const boxes from = {p->columns < STRIP ? &b_last : &b, p->rows < ROWS ? &x_last : &x};
    const int stages = stages_of(p), early = !constant ? 0 : stages < STAGES ? stages : STAGES;
    grid_release();
    if (warp == CONSUMERS / 32 && lane == 0) {
        begin_ring(p, &from, early);
    }
    __syncthreads();
    grid_wait();
    if (warp >= CONSUMERS / 32) {
        LOADERS_GIVE();
        if (warp == CONSUMERS / 32 && warp_elect()) {
            load(p, &from, early);
        }
        leave(p);
    } else {
        TEAMS_TAKE();
        multiply(p, warp / (4 * WK), own_turn(warp), lane);
        finish_strip(a, p, own_row(warp, lane), own_turn(warp), threadIdx.x);
    }
}
