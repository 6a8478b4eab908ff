/* d = x b^T with NVFP4 or MXFP4 weights and some rows of activations of 16 bits, on Hopper (sm_90a): weights are
 * expanded in registers to the activations' type, exactly, and multiplied by wgmma, whose left operand they are. Up to
 * 16 rows fp4_mm_few.cu is as fast or faster, whose strips of b can be narrower.
 *
 * A block takes a strip of b, ROWS rows of x and one part of K; a cluster holds the SPLIT parts. A warpgroup takes 64
 * rows of b at a time and all of a stage's 256 of K; warpgroups take turns at stages. One warp keeps the ring of stages
 * filled by bulk copies.
 *
 *   - The order of k within a product is free as long as both operands have the same: a lane takes 64 consecutive k of
 *     its row, whose codes are two loads and whose scales are one, and pairs nibbles that are 16 bits apart. Two warps
 *     turn every stage of x into that order, where it lies.
 *   - A NVFP4 scale as a pair of 16-bit floats comes out of a table of all 256.
 *   - A MXFP4 scale above 2 and the power of two left out (fp4_mm.h) are together no bf16. The warp that looks at all
 *     scales as they come says where one is 2 or more, and those four stages take one instruction more a pair, and
 *     wait for each slice.
 *
 * The parts of K are added through distributed shared memory, always in their order: no workspace, no atomics, two runs
 * are equal bit for bit.
 *
 * Host contract
 *   Parameters: those of mm_common.h (B_FORMAT NVFP4 or MXFP4; A_FORMAT PLAIN, or what x was before fp4_expand.cu wrote
 *   its codes out: NVFP4, sums are divided by x_global too, or I8 or E4M3, they are multiplied by their row's x_scale;
 *   X_FORMAT bf16, with NVFP4 weights and PLAIN also f16; ALIGNED 1), SUMS_ONLY (fp4_mm.h) and
 *     ROWS     of x in a block: 16, 32 or 64
 *     TILES    of 64 rows of b in a block: 1 to 4
 *     WK       warpgroups, which take turns at stages: 1 to 3
 *     SPLIT    parts of K, the cluster size: 1 to 8
 *     STAGES   of the ring, at least WK + 1
 *   Tensor maps, 3-D, UINT8, fill with zeros
 *     codes           swizzle 128B, sizes {K / 2, N, 1}, box {128, 64 TILES, 1}
 *     scales          sizes {K / UNIT, N, 1}, box {1024 / UNIT, 64 TILES, 1}, swizzle of as many bytes; where their
 * rows do not start at multiples of 16: any map, and mapped 0 x               swizzle 128B, sizes {2 K, M, 1}, box
 * {128, ROWS, 1}; whole 1, K a multiple of 64: sizes {128, M, K / 64}, box {128, ROWS, 4} x: base and row stride
 * multiples of 16; K a multiple of 8 and of the format's block Launch block 128 WK + 128, cluster {SPLIT, 1, 1}, grid
 * {ceil(N / (64 TILES)) * SPLIT, ceil(M / ROWS), 1} dynamic shared memory = 1024 + max(STAGES * (8192 TILES + 512 ROWS
 * + 24) + 192 TILES * 1024 / UNIT + 1168, 4 WK ROWS (64 TILES + 4)), with SPLIT > 1 also 16 + 64 SPLIT * ceil(4 ROWS
 * TILES / SPLIT) May be launched with programmatic stream serialization; constant 1: kernels ahead in the stream do not
 * write the weights, the first of which are then read before they end. */
#define SLICES 4 /* of a stage: rows of 128 bytes of x */
#define EARLY 2  /* stages whose weights come before their x: more would keep x waiting */
#define SPANS 3  /* of scales in the ring: with two, a span's first stages would wait for the last of the one before */
#define STRIP (64 * TILES)
#define CONSUMERS (128 * WK)
#define COPIERS 32 /* threads that look at scales, or copy them */
#define READERS 4  /* warps that read a stage */
#define TURNERS 2  /* warps that bring x into the order of the codes */
#define THREADS (CONSUMERS + 128)
#define PARTS WK
#define UNITS (ROWS * STRIP / 16)                /* of 16 results of a row, which one block of the cluster finishes */
#define SHARE ((UNITS + SPLIT - 1) / SPLIT * 64) /* bytes of a block's sums of the results of one */
#include "fp4_mm.h"
#include "names.h"
#if IS_F16
#define X_TYPE "f16"
#else
#define X_TYPE "bf16"
#endif

#if ROWS % 16 != 0 || ROWS > 64 || STAGES <= WK || (IS_MX && IS_F16) ||                                                \
    (X_FORMAT != QN_MM_F16 && X_FORMAT != QN_MM_BF16)
#error "fp4_mm: no such cut"
#endif

/* Texts of turn_eight, whose operands they name: of a row's halves p and q, slices 0 to 3 of words x to w. */
#define EACH_SLICE(F, ...) F("0", __VA_ARGS__) F("1", __VA_ARGS__) F("2", __VA_ARGS__) F("3", __VA_ARGS__)
#define SLICE_WORDS(t, h) h t "x, " h t "y, " h t "z, " h t "w"
#define DECLARE_SLICE(t, h) ".reg .b32 " SLICE_WORDS(t, h) ";\n"
#define LOAD_SLICE(t, h, from) "ld.shared.v4.u32 {" SLICE_WORDS(t, h) "}, [" from "+" t "*128*" TEXT(ROWS) "];\n"
#define TURN_SLICE(t, h, x, z, order) "prmt.b32 t" t ", " h t x ", " h t z ", " order ";\n"
#define TURN_PAIRS(h, x, z, order, to)                                                                                 \
    EACH_SLICE(TURN_SLICE, h, x, z, order) "st.shared.v4.u32 [" to "], {t0, t1, t2, t3};\n"
#define TURN_HALF(h, at)                                                                                               \
    TURN_PAIRS(h, "x", "z", "0x5410", "%2" at) TURN_PAIRS(h, "x", "z", "0x7632", "%3" at)                              \
    TURN_PAIRS(h, "y", "w", "0x5410", "%4" at) TURN_PAIRS(h, "y", "w", "0x7632", "%5" at)

/* Eight rows, `at` bytes behind from, of each half, and to, of each i (turn_x): all lanes read before any writes. */
DEV void turn_eight(const u32 *from, const u32 *to, u32 at)
{
    asm volatile("{\n.reg .b32 t<4>;\n" EACH_SLICE(DECLARE_SLICE, "p") EACH_SLICE(DECLARE_SLICE, "q")
                     EACH_SLICE(LOAD_SLICE, "p", "%0") EACH_SLICE(LOAD_SLICE, "q", "%1") "bar.warp.sync 0xffffffff;\n"
                 TURN_HALF("p", "") TURN_HALF("q", "+2*128*" TEXT(ROWS)) "}" ::"r"(from[0] + at),
                 "r"(from[1] + at), "r"(to[0] + at), "r"(to[1] + at), "r"(to[2] + at), "r"(to[3] + at)
                 : "memory");
}

/* A warp: brings stages of x, of every TURNERS-th eight rows, into the order in which multiply_stage() has codes. Of a
 * row's 256 elements the 16 bytes at (i, w) of the new order, i below 4, are elements i and i + 4 of the w-th eight of
 * each slice. */
DEV void turn_x(const problem *p, u32 first, u32 lane)
{
    const u32 row = lane % 8, w = lane / 8, x = p->x + first * 1024 + row * 128;
    u32 from[2], to[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        from[i % 2] = x + ((w + i % 2 * 4) ^ row) * 16;
        to[i] = x + w / 2 * (ROWS * 128) + ((w % 2 * 4 + i) ^ row) * 16;
    }
    place at = {0, 0};
#pragma unroll 1
    for (int k0 = p->begin; k0 < p->end; k0 += DEPTH) {
        barrier_wait(p->x_landed + 8 * at.stage, at.parity);
#pragma unroll
        for (u32 n = 0; n < ROWS / 8 / TURNERS; n++) {
            turn_eight(from, to, at.stage * X_BYTES + n * (TURNERS * 1024));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(p->full + 8 * at.stage);
        }
        place_on(&at, 1);
    }
}

/* ---- multiplying ---- */

/* Scale i of the word of a lane's scales of a stage. */
DEV u32 scale_pair(u32 table, u32 word, int i)
{
    const u32 code = word >> 8 * i & 255;
#if IS_MX
    return scale_twice(code, 0);
#else
    return load_shared_u32(table + code * 4);
#endif
}

/* Sums are u0 to u3 of names.h, a tile's each. OF_TILES(F): F of each. */
#if TILES == 1
#define OF_TILES(F) F("u0")
#elif TILES == 2
#define OF_TILES(F) F("u0") F("u1")
#elif TILES == 3
#define OF_TILES(F) F("u0") F("u1") F("u2")
#else
#define OF_TILES(F) F("u0") F("u1") F("u2") F("u3")
#endif
#define DECLARE(v) EACH(ROWS, v, DECLARED)
#define BEGIN(v) EACH(ROWS, v, ZERO)

DEV void declare_sums(void)
{
    asm volatile(OF_TILES(DECLARE) ".reg .b32 c<16>, d<16>;\n");
}

DEV void begin_sums(void)
{
    asm volatile(OF_TILES(BEGIN)::: "memory");
}

/* Texts of a slice's statement, whose operands they name: a word of codes as left operands of two steps; all four steps
 * of a tile, whose left operands are c0 to c15 or d0 to d15. */
#define EXPAND_WORD(word, scale, raise, a0, a1, a2, a3)                                                                \
    "mov.b32 w, " word ";\n" BEGIN_PLACING PLACE_0 raise MULTIPLY_TEXT a0 ", v, " scale ";\n"                          \
    PLACE_1 raise MULTIPLY_TEXT a1 ", v, " scale ";\n" PLACE_2 raise MULTIPLY_TEXT a2 ", v, " scale ";\n"              \
    PLACE_3 raise MULTIPLY_TEXT a3 ", v, " scale ";\n"
#define STEP_TEXT(v, a0, a1, a2, a3)                                                                                   \
    WGMMA_NAMED(ROWS, X_TYPE, v) "{" a0 ", " a1 ", " a2 ", " a3 "}, x, 1, 1, 1, 0;\nadd.s64 x, x, 2;\n"
#define MULTIPLY_SLICE(v, a, raise)                                                                                    \
    asm volatile("{\n.reg .b64 x;\n.reg .b32 r, s, v, w;\nmov.b64 x, %6;\n"                                            \
                 EXPAND_WORD("%0", "%4", raise, a "0", a "2", a "4", a "6")                                            \
                 EXPAND_WORD("%1", "%4", raise, a "8", a "10", a "12", a "14")                                         \
                 EXPAND_WORD("%2", "%5", raise, a "1", a "3", a "5", a "7")                                            \
                 EXPAND_WORD("%3", "%5", raise, a "9", a "11", a "13", a "15") "wgmma.fence.sync.aligned;\n"           \
                 STEP_TEXT(v, a "0", a "1", a "2", a "3") STEP_TEXT(v, a "4", a "5", a "6", a "7")                     \
                 STEP_TEXT(v, a "8", a "9", a "10", a "11") STEP_TEXT(v, a "12", a "13", a "14", a "15")               \
                 "wgmma.commit_group.sync.aligned;\n}" ::"r"(first.x), "r"(first.y), "r"(second.x), "r"(second.y),     \
                 "r"(first_scale), "r"(second_scale), "l"(x)                                                           \
                 : "memory")

/* A slice of a tile expanded and multiplied, left under way. The compiler knows which tile, and that every other slice
 * has the left operands of the one before. first, second: codes of the lane's rows. */
DEV void multiply_slice(int tile, int odd, uint2 first, uint2 second, u32 first_scale, u32 second_scale, u64 x)
{
    switch (2 * tile + odd) {
    case 0: MULTIPLY_SLICE("u0", "c", ""); break;
    case 1: MULTIPLY_SLICE("u0", "d", ""); break;
    case 2: MULTIPLY_SLICE("u1", "c", ""); break;
    case 3: MULTIPLY_SLICE("u1", "d", ""); break;
    case 4: MULTIPLY_SLICE("u2", "c", ""); break;
    case 5: MULTIPLY_SLICE("u2", "d", ""); break;
    case 6: MULTIPLY_SLICE("u3", "c", ""); break;
    default: MULTIPLY_SLICE("u3", "d", "");
    }
}

#if IS_MX
/* The same of any scales. */
DEV void multiply_large_slice(int tile, uint2 first, uint2 second, u32 first_scale, u32 second_scale, u64 x)
{
    switch (tile) {
    case 0: MULTIPLY_SLICE("u0", "c", RAISE_PAIR); break;
    case 1: MULTIPLY_SLICE("u1", "c", RAISE_PAIR); break;
    case 2: MULTIPLY_SLICE("u2", "c", RAISE_PAIR); break;
    default: MULTIPLY_SLICE("u3", "c", RAISE_PAIR);
    }
}
#endif

DEV void leave_sums(int tile, u32 to)
{
    switch (tile) {
    case 0: EACH(ROWS, "u0", LEAVE) break;
    case 1: EACH(ROWS, "u1", LEAVE) break;
    case 2: EACH(ROWS, "u2", LEAVE) break;
    default: EACH(ROWS, "u3", LEAVE)
    }
}

/* Scales of a lane's row of a stage. */
DEV u32 stage_scales(u32 scales, u32 eight)
{
    const u32 at = scales + eight * (8 * SCALE_ROW);
    return IS_MX ? load_shared_u16(at) : load_shared_u32(at);
}

/* A stage of the warp's rows of b by all of x. codes, scales: of the lane's first row, the second is eight further. A
 * slice is expanded while the products of the one before run. */
DEV void multiply_stage(u32 codes, u32 scales, u32 table, u64 x)
{
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint4 word[2][2];
        u32 scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                word[c][r] = load_shared_u32x4((codes ^ c * 16) + (u32)(8 * i + r) * 1024);
            }
            scale[r] = stage_scales(scales, (u32)(8 * i + r));
        }
#pragma unroll
        for (int q = 0; q < SLICES; q++) {
            if (i > 0 || q >= 2) {
                WGMMA_WAIT(1);
            }
            const uint4 first = word[q / 2][0], second = word[q / 2][1];
            const int byte = IS_MX ? q / 2 : q;
            multiply_slice(i, q % 2, q % 2 ? make_uint2(first.z, first.w) : make_uint2(first.x, first.y),
                           q % 2 ? make_uint2(second.z, second.w) : make_uint2(second.x, second.y),
                           scale_pair(table, scale[0], byte), scale_pair(table, scale[1], byte),
                           x + (u64)(q * (ROWS * 128 / 16)));
        }
    }
    WGMMA_WAIT(0);
}

#if IS_MX
/* The same of any scales. They are seldom, and the text is long: a slice after the other. */
DEV void multiply_large_stage(u32 codes, u32 scales, u64 x)
{
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        u32 scale[2] = {stage_scales(scales, (u32)(8 * i)), stage_scales(scales, (u32)(8 * i + 1))};
#pragma unroll 1
        for (u32 q = 0; q < SLICES; q++) {
            const u32 at = (codes ^ q / 2 * 16) + q % 2 * 8 + (u32)i * 8192;
            multiply_large_slice(i, load_shared_u32x2(at), load_shared_u32x2(at + 1024),
                                 scale_twice(scale[0] >> q / 2 * 8 & 255, 1),
                                 scale_twice(scale[1] >> q / 2 * 8 & 255, 1), x + (u64)(q * (ROWS * 128 / 16)));
            WGMMA_WAIT(0);
        }
    }
}
#endif

/* This warp's rows of b in its turns of the part of K, left in shared memory as [PARTS][ROWS][PITCH] floats. */
DEV void multiply(const problem *p, u32 sums_at, u32 warp, u32 lane, int mapped)
{
    const u32 wk = warp / 4, g = lane / 4, t = lane % 4, row = warp % 4 * 16 + g;
    const int stages = (p->end - p->begin + DEPTH - 1) / DEPTH;
    const u64 x = wgmma_operand(p->x);
    u32 codes = p->codes + row * 128 + (2 * t ^ g) * 16;
    u32 scales = scale_at(row, t * (64 / UNIT));
    asm("" : "+r"(codes), "+r"(scales)); /* kept: the compiler would work them out in every stage */
    begin_sums();
    place at = {wk, 0};
    int stage = (int)wk;
#pragma unroll 1
    for (int span = 0; span * SPAN < stages; span++) {
        const int first = span * SPAN, last = first + SPAN < stages ? first + SPAN : stages;
        const turn now = turn_of(span);
        barrier_wait(p->scales_full + 8 * now.span, now.parity);
#pragma unroll 1
        for (; stage < last; stage += WK) {
            const u32 byte = (u32)(stage - first) * (DEPTH / UNIT); /* bits that are the swizzle's alone in `scales` */
            const u32 scales_at = p->scales + now.span * SCALE_BYTES + (scales ^ byte);
            barrier_wait(p->full + 8 * at.stage, at.parity);
            const u32 codes_at = codes + at.stage * B_BYTES;
            const u64 x_at = wgmma_operand_on(x, at.stage * (X_BYTES / 16));
#if IS_MX
            if (load_shared_u32(p->large + 16 * now.span)) {
                multiply_large_stage(codes_at, scales_at, x_at);
            } else
#endif
            {
                multiply_stage(codes_at, scales_at, p->table, x_at);
            }
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(p->empty + 8 * at.stage);
            }
            place_on(&at, WK);
        }
        if (lane == 0 || !mapped) {
            barrier_arrive(p->scales_empty + 8 * now.span);
        }
    }
    threads_sync(1, CONSUMERS); /* all stages are read: the sums lie where they were */
    const u32 thread = lazy(threadIdx.x), column = thread % 128 / 32 * 16 + thread % 32 / 4;
    const u32 to = sums_at + ((thread / 128 * ROWS + 2 * (thread % 4)) * PITCH + column) * 4;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        leave_sums(i, to + (u32)i * 256);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_fp4_mm(const __grid_constant__ tensor_map code_map, const __grid_constant__ tensor_map scale_map,
              const __grid_constant__ tensor_map x_map, const __grid_constant__ qn_cuda_mm a, int whole, int mapped,
              int constant)
{
    declare_sums();
    extern __shared__ __align__(16) char shared[];
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, part = SPLIT > 1 ? cluster_rank() : 0;
    problem own, *const p = &own;
    lay_out(a, p, shared_address(shared), part);
    const int early = !constant                           ? 0
                      : p->end - p->begin > EARLY * DEPTH ? EARLY
                                                          : (p->end - p->begin + DEPTH - 1) / DEPTH;
    release_next();
    if (warp == CONSUMERS / 32 && lane == 0) {
        begin_ring(p, &code_map, &scale_map, &x_map, mapped, early);
    }
#if !IS_MX
    if (threadIdx.x < 256) {
        store_shared_i32(p->table + 4 * threadIdx.x, (int)table_entry(threadIdx.x));
    }
#endif
    __syncthreads();
    wait_before();
#if SPLIT > 1
    cluster_arrive_relaxed();
#endif
    if (warp >= CONSUMERS / 32) {
        const u32 helper = warp - CONSUMERS / 32;
        if (helper == 0) {
            if (warp_elect()) {
                load(p, &code_map, &x_map, whole, early);
            }
        } else if (helper == 1) {
            look_at_scales(a, p, &scale_map, mapped, early, (int)lane);
        } else {
            turn_x(p, helper - 2, lane);
        }
#if SPLIT > 1
        __syncwarp();
        cluster_wait();
#endif
    } else {
        multiply(p, p->codes, warp, lane, mapped);
#if SPLIT > 1
        finish_shares(a, p, p->codes, part, threadIdx.x);
#else
        threads_sync(1, CONSUMERS);
        finish_strip(a, p, p->codes, threadIdx.x);
#endif
    }
}
