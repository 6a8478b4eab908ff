/* d = x b^T with NVFP4 or MXFP4 weights and many rows of activations of 16 bits, on Hopper (sm_90a): strips of wide.h.
 * Weights are expanded in registers to the activations' type, exactly, and multiplied from there.
 *
 *   - x stays as it is: a lane needs two codes of every eight, which are beside each other, 16 bits apart.
 *   - Half a stage's weights are expanded while the products of the half before run, those of the next stage's first
 *     half too; the loop ends with no product under way, as the assembler wants it.
 *   - Two warps write scales as numbers of x's type, 16 of each row at a time. All lanes that read and write these say
 *     so: a checker does not see that one may speak for others.
 *
 * Host contract: that of wide.h, with b of boxes of 32 bytes, not swizzled, and
 *   Parameters as those of fp4_mm.cu without TILES and SPLIT
 *   Arguments: maps of b, x, b_last, x_last, then as declared
 *   x: base and row stride multiples of 16; K a multiple of the format's block; STEP is 16 scales
 *   EXTRA: 64 GROUPS * 160 */
#define DEPTH 64 /* of K a stage */
#define B_ROW (DEPTH / 2)
#define STEP (16 * UNIT) /* a chunk of 16 scales */
#define SCALERS 2        /* warps */
#define CHUNKS 4         /* of scales under way, */
#define NUMBERED 3       /* and as numbers */
#include "fp4_out.h"
#include "wide.h"
#if IS_F16
#define X_TYPE "f16"
#else
#define X_TYPE "bf16"
#endif

#define NUMBER_ROW (DEPTH / UNIT * 2) /* bytes of a row's numbers of a stage */
#define NUMBER_BYTES (STRIP * 32)     /* and of a chunk */
#define PER_CHUNK (STEP / DEPTH)      /* stages */

#if (IS_MX && IS_F16) || (X_FORMAT != QN_MM_F16 && X_FORMAT != QN_MM_BF16)
#error "fp4_mm_wide: no such operands"
#endif

/* Behind the ring: chunks of scales, then of numbers. */
DEV u32 numbers_at(const problem *p)
{
    return p->extra + CHUNKS * STRIP * 16;
}

/* Barriers of NUMBERED chunks: written, read. */
DEV u32 written_at(const problem *p)
{
    return p->empty + STAGES * 8;
}

DEV u32 read_at(const problem *p)
{
    return written_at(p) + NUMBERED * 8;
}

/* Where a chunk is in the ring of NUMBERED, and its barriers' parity. */
typedef struct chunk {
    u32 slot, parity;
} chunk;

DEV void chunk_on(chunk *c)
{
    if (++c->slot == NUMBERED) {
        c->slot = 0;
        c->parity ^= 1;
    }
}

/* One thread. */
DEV void begin_numbers(const problem *p)
{
    for (u32 i = 0; i < NUMBERED; i++) {
        barrier_init(written_at(p) + 8 * i, 32 * SCALERS);
        barrier_init(read_at(p) + 8 * i, CONSUMERS);
    }
}

/* ---- scales ---- */

/* 16 scales of each of a thread's rows from k0 on, asked for, zeros where there are none. width: the bytes that all
 * addresses and counts are multiples of, 16 or 4; less: one by one. */
DEV void ask_for_scales(const qn_cuda_mm &a, const problem *p, u32 to, int k0, int width, u32 thread)
{
    const qn_cuda_mm_part &w = a.part[0];
    const int left = (a.k - k0) / UNIT;
#pragma unroll 1
    for (u32 r = thread; r < STRIP; r += 32 * SCALERS) {
        const int n = p->column + (int)r, count = n >= a.n || left < 0 ? 0 : left < 16 ? left : 16;
        const u8 *const from = (const u8 *)w.b_scale + (count ? n * w.b_scale_row + k0 / UNIT : 0);
        if (width == 16) {
            copy_async_16(to + 16 * r, from, (u32)count);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            if (width == 4) {
                copy_async_4(to + 16 * r + (u32)i, i < count ? from + i : from, i < count);
                continue;
            }
            u32 word = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                word |= i + j < count ? (u32)from[i + j] << 8 * j : 0;
            }
            store_shared_i32(to + 16 * r + (u32)i, (int)word);
        }
    }
}

/* Two scales as numbers that expanded codes are multiplied with. */
#if IS_MX
DEV u32 number_of(u32 code)
{
    return code == 0 ? 0x40u : code == 255 ? 0x7fc0u : code << 7;
}

DEV u32 two_numbers(u32 codes)
{
    return number_of(codes & 255) | number_of(codes >> 8 & 255) << 16;
}
#elif IS_F16
DEV u32 two_numbers(u32 codes)
{
    return e4m3_halves(codes);
}
#else
DEV u32 two_numbers(u32 codes)
{
    float v[2];
    e4m3_floats(codes, v);
    return pack_bf16(v[0] * 0x1p118f, v[1] * 0x1p118f);
}
#endif

DEV uint4 eight_numbers(u32 low, u32 high)
{
    return make_uint4(two_numbers(low & 0xffff), two_numbers(low >> 16), two_numbers(high & 0xffff),
                      two_numbers(high >> 16));
}

/* Warps of SCALERS: scales as numbers, chunk by chunk. A thread reads what it asked for itself. */
DEV void write_numbers(const qn_cuda_mm &a, const problem *p, u32 thread)
{
    const u64 rows = (u64)a.part[0].b_scale | (u64)a.part[0].b_scale_row;
    const int width = rows % 16 == 0 ? 16 : rows % 4 == 0 && a.k % (4 * UNIT) == 0 ? 4 : 1;
    int asked = p->begin;
    chunk to = {0, 1};
    u32 from = 0;
#pragma unroll 1
    for (int k0 = p->begin - (CHUNKS - 1) * STEP; k0 < p->end; k0 += STEP, asked += STEP) {
        if (asked < p->end) {
            ask_for_scales(a, p, p->extra + (u32)((asked - p->begin) / STEP) % CHUNKS * (STRIP * 16), asked, width,
                           thread);
        }
        copy_async_commit();
        if (k0 < p->begin) {
            continue;
        }
        copy_async_wait_but<CHUNKS - 1>();
        barrier_wait(read_at(p) + 8 * to.slot, to.parity);
#pragma unroll 1
        for (u32 r = thread; r < STRIP; r += 32 * SCALERS) {
            const uint4 codes = load_shared_u32x4(p->extra + from * (STRIP * 16) + r * 16);
            const u32 at = numbers_at(p) + to.slot * NUMBER_BYTES + r * 32;
            store_shared_u32x4(at, eight_numbers(codes.x, codes.y));
            store_shared_u32x4(at + 16, eight_numbers(codes.z, codes.w));
        }
        barrier_arrive(written_at(p) + 8 * to.slot);
        chunk_on(&to);
        from = (from + 1) % CHUNKS;
    }
}

/* ---- multiplying ---- */

/* Left operands of two steps, half a stage: c0 to c7 or d0 to d7. */
DEV void declare_operands(void)
{
    asm volatile(".reg .b32 c<8>, d<8>;\n");
}

/* Texts of statements. */
#if IS_MX
#define RAISE_TEXT RAISE_PAIR
#define SCALE_0(word, turn) "prmt.b32 f, " word ", 0, " turn ";\n" /* one a half, in either half of its word */
#define SCALE_1(word, turn) SCALE_0(word, turn)
#else
#define RAISE_TEXT ""
#define SCALE_0(word, turn) "prmt.b32 f, " word ", 0, 0x1010;\n"
#define SCALE_1(word, turn) "prmt.b32 f, " word ", 0, 0x3232;\n"
#endif
#define EXPAND_BYTES(first, second, a0, a2)                                                                            \
    "prmt.b32 w, " first ", " second                                                                                   \
    ", %8;\nshr.u32 s, w, 4;\nlop3.b32 w, w, s, 0x0000ffff, 0xe4;\n" BEGIN_PLACING PLACE_0 RAISE_TEXT MULTIPLY_TEXT a0 \
    ", v, f;\n" PLACE_2 RAISE_TEXT MULTIPLY_TEXT a2 ", v, f;\n"
#define EXPAND_HALF(a, turn)                                                                                           \
    asm volatile("{\n.reg .b32 f, r, s, v, w;\n" SCALE_0("%9", turn) EXPAND_BYTES("%0", "%1", a "0", a "2")            \
                     SCALE_0("%10", turn) EXPAND_BYTES("%4", "%5", a "1", a "3") SCALE_1("%9", turn)                   \
                         EXPAND_BYTES("%2", "%3", a "4", a "6") SCALE_1("%10", turn)                                   \
                             EXPAND_BYTES("%6", "%7", a "5", a "7") "}" ::"r"(first.x),                                \
                 "r"(first.y), "r"(first.z), "r"(first.w), "r"(second.x), "r"(second.y), "r"(second.z), "r"(second.w), \
                 "r"(bytes), "r"(first_scale), "r"(second_scale)                                                       \
                 : "memory")
#define STEP_TEXT(a0, a1, a2, a3)                                                                                      \
    WGMMA_NAMED(ROWS, X_TYPE, "u") "{" a0 ", " a1 ", " a2 ", " a3 "}, x, 1, 1, 1, 0;\nadd.s64 x, x, 2;\n"
#define MULTIPLY_HALF(a)                                                                                               \
    asm volatile("{\n.reg .b64 x;\nmov.b64 x, %0;\nwgmma.fence.sync.aligned;\n" STEP_TEXT(a "0", a "1", a "2", a "3")  \
                     STEP_TEXT(a "4", a "5", a "6", a "7") "wgmma.commit_group.sync.aligned;\n}" ::"l"(x)              \
                 : "memory")

/* A lane's codes of a stage, of its halves and rows, and numbers of its rows. */
typedef struct coded {
    uint4 code[2][2];
    uint2 number[2];
} coded;

DEV coded load_coded(u32 codes, u32 numbers)
{
    coded c;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        c.code[0][r] = load_shared_u32x4(codes + r * (8 * B_ROW));
        c.code[1][r] = load_shared_u32x4(codes + r * (8 * B_ROW) + 16);
#if IS_MX
        c.number[r].x = c.number[r].y = load_shared_u32(numbers + r * (8 * 32));
#else
        c.number[r] = load_shared_u32x2(numbers + r * (8 * 32));
#endif
    }
    return c;
}

/* Half a stage's left operands, of these bytes of the words of codes. */
DEV void expand_first(const coded &own, u32 bytes)
{
    const uint4 first = own.code[0][0], second = own.code[0][1];
    const u32 first_scale = own.number[0].x, second_scale = own.number[1].x;
    EXPAND_HALF("c", "0x1010");
}

DEV void expand_second(const coded &own, u32 bytes)
{
    const uint4 first = own.code[1][0], second = own.code[1][1];
    const u32 first_scale = own.number[0].y, second_scale = own.number[1].y;
    EXPAND_HALF("d", "0x3232");
}

/* A warpgroup's rows of b, of which the lane's first is `row`, by all of x, in its turns of this part of K. */
DEV void multiply(const problem *p, u32 row, u32 turn, u32 lane)
{
    const u32 codes = p->b + row * B_ROW, numbers = numbers_at(p) + row * 32;
    const u32 bytes = lane % 4 * 0x1111 + 0x4040; /* 0 and 1 of the word: the lane's of the first and second word */
    const u64 x_first = wgmma_operand(p->x);
    const int stages = stages_of(p);
    place at = {turn, 0};
    chunk now = {0, 0};
    begin_sums();
    if (stages <= (int)turn) {
        return;
    }
    barrier_wait(p->full + 8 * turn, 0);
    barrier_wait(written_at(p), 0);
    coded own = load_coded(codes + turn * B_BYTES, numbers + turn * NUMBER_ROW);
    expand_first(own, bytes);
#pragma unroll 1
    for (int i = (int)turn; i < stages; i += WK) {
        u64 x = wgmma_operand_on(x_first, at.stage * (X_BYTES / 16));
        const int on = i + WK < stages ? i + WK : i, turned = on / PER_CHUNK != i / PER_CHUNK;
        place next = at;
        if (on != i) {
            place_on(&next, WK);
        }
        MULTIPLY_HALF("c");
        WGMMA_WAIT(1);
        expand_second(own, bytes);
        x += 4;
        MULTIPLY_HALF("d");
        barrier_wait(p->full + 8 * next.stage, next.parity);
        const u32 before = now.slot;
        if (turned) {
            chunk_on(&now);
            barrier_wait(written_at(p) + 8 * now.slot, now.parity);
        }
        own = load_coded(codes + next.stage * B_BYTES,
                         numbers + now.slot * NUMBER_BYTES + (u32)(on % PER_CHUNK) * NUMBER_ROW);
        if (turned) {
            barrier_arrive(read_at(p) + 8 * before);
        }
        WGMMA_WAIT(1);
        expand_first(own, bytes);
        WGMMA_WAIT(0);
        release(p, at.stage, lane);
        at = next;
    }
}

/* ---- results ---- */

#define EXACT 0
typedef qn_cuda_mm arguments;
typedef tails columns;

DEV tails load_columns(const qn_cuda_mm &a, int n)
{
    return load_tails(a, 0, n);
}

DEV void store_four(const qn_cuda_mm &a, tails t, int row, int n, float *sums)
{
    t.row_scale = row_scale(a, row);
    store_four(a, row, n, t, sums);
}

#include "wide_out.h"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_fp4_mm_wide(const __grid_constant__ tensor_map codes, const __grid_constant__ tensor_map x,
                   const __grid_constant__ tensor_map codes_last, const __grid_constant__ tensor_map x_last,
                   const __grid_constant__ qn_cuda_mm a, int split, int constant)
{
    declare_sums();
    declare_operands();
    extern __shared__ __align__(16) char shared[];
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    problem own, *const p = &own;
    lay_out(p, shared_address(shared), a.m, a.n, a.k, (u32)split);
    const boxes from = {p->columns < STRIP ? &codes_last : &codes, p->rows < ROWS ? &x_last : &x};
    const int stages = stages_of(p), early = !constant ? 0 : stages < STAGES ? stages : STAGES;
    release_next();
    if (warp == CONSUMERS / 32 && lane == 0) {
        begin_numbers(p);
        begin_ring(p, &from, early);
    }
    __syncthreads();
    if (warp >= CONSUMERS / 32) {
        LOADERS_GIVE();
        const u32 helper = warp - CONSUMERS / 32;
        if (helper == 0) {
            wait_before();
            if (warp_elect()) {
                load(p, &from, early);
            }
        } else if (helper <= SCALERS) {
            if (!constant) {
                wait_before();
            }
            write_numbers(a, p, (helper - 1) * 32 + lane);
        }
        leave(p);
    } else {
        TEAMS_TAKE();
        wait_before(); /* for bias and scales of rows, and before d is written */
        multiply(p, own_row(warp, lane), own_turn(warp), lane);
        finish_strip(a, p, own_row(warp, lane), own_turn(warp), threadIdx.x);
    }
}
