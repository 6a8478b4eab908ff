/* Products of many rows of x with vector-quantised weights on warpgroups (Hopper): 64 rows of w are the operand in
 * registers, decoded there chunk by chunk as in vq_tensor.cu, TOKENS rows of x the one in shared memory, which bulk
 * copies bring in the order that K is permuted to (qn_vq_rows, WIDE). So rows of x pass no register, and a decoded
 * vector serves TOKENS rows.
 *
 * A block has GROUPS warpgroups and one that copies; PAIR blocks of a cluster have the same rows of x, each brings
 * its part to all. GROUPS * PAIR * 64 = QN_VQ_BLOCK_ROWS rows of w belong together. A tile is those and TOKENS rows of
 * x; with `blocks` 0 clusters take whole tiles in turn and write y, else the spans of a tile of x are dealt to `blocks`
 * clusters and parts are written (vq_parts.h). With `ready` the cluster that begins a tile adds what the others have of
 * it and writes y: a cluster's first tile but its beginning is a part, which is there long before it is waited for.
 *
 * The books of gptvq change with every span: entries are multiplied by their scale relative to a power of two near the
 * largest of the rows' spans as they are rounded to f16, sums by that power.
 *
 * Host contract
 *   Parameters: as vq_tensor.cu without TILES, FUSION and REGISTERS; TOKENS 64, 128 or 256; GROUPS 2 and PAIR 2, or 4
 *     and 1; STAGES of x; TABLE_BYTES; OUT; BIAS, SCALE_FORMAT and WSCALE_FORMAT (format + 1)
 *   Launch: block 128 GROUPS + 128, cluster PAIR, grid {clusters * PAIR, tiles of x or 1}; 2048 + TABLE_BYTES +
 *     STAGES * TOKENS * 128 bytes */
#include "formats.h"
#include "cuda_vq.h"

#define THREADS (128 * GROUPS)
#define REGISTERS 0
#define CODES_AHEAD ".L2::256B"
#define LINE 128 /* bytes of 64 elements of a row of x: a stage */
#define STAGE_BYTES (TOKENS * LINE)
#define BARRIERS 1024

#include "names.h"
#include "vq_decode.h"

/* Steps that the compiler sees at a time: products of many sums take it long. */
#if TOKENS <= 128
#define TURN STEPS
#elif FORMAT == QN_CUDA_AQLM
#define TURN (GROUP > 4 ? GROUP : 4)
#else
#define TURN GROUP
#endif

/* ---- a tile's sums ---- */

/* Registers called s of names.h. */
#define WGMMA_SUMS WGMMA_NAMED(TOKENS, "f16", "s")

/* Once, before everything else. */
DEV void declare_sums(void)
{
    asm volatile(EACH(TOKENS, "s", DECLARED));
}

DEV void begin_sums(void)
{
    asm volatile(EACH(TOKENS, "s", ZERO)::: "memory");
}

/* sums += of 32 of K: two products' operands of registers, and where the first one's other operand is. */
DEV void multiply(const u32 *first, const u32 *second, u64 x)
{
    asm volatile("{\n.reg .b64 y;\nadd.s64 y, %8, 2;\n" WGMMA_SUMS "{%0, %1, %2, %3}, %8, 1, 1, 1, 0;\n" WGMMA_SUMS
                 "{%4, %5, %6, %7}, y, 1, 1, 1, 0;\n}" ::"r"(first[0]),
                 "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(second[0]), "r"(second[1]), "r"(second[2]),
                 "r"(second[3]), "l"(x)
                 : "memory");
}

/* Fours of a warpgroup's threads, side by side: four sums of a thread are 2048 bytes from the next. */
#define STORE_FOUR(v, x, at, i, j, k, l)                                                                               \
    "st.global.v4.f32 [%0 + (" #at " + " #i ") * 512], {" v #x #i ", " v #x #j ", " v #x #k ", " v #x #l "};\n"
#define STORE(v, x, at) STORE_FOUR(v, x, at, 0, 1, 2, 3) STORE_FOUR(v, x, at, 4, 5, 6, 7)

DEV void store_sums(float4 *to)
{
    asm volatile(EACH(TOKENS, "s", STORE)::"l"(to) : "memory");
}

#define ADD_FOUR(v, x, at, i, j, k, l)                                                                                 \
    "ld.global.cg.v4.f32 {v0, v1, v2, v3}, [%0 + (" #at " + " #i ") * 512];\n"                                         \
    "add.f32 " v #x #i ", " v #x #i ", v0;\nadd.f32 " v #x #j ", " v #x #j ", v1;\n"                                   \
    "add.f32 " v #x #k ", " v #x #k ", v2;\nadd.f32 " v #x #l ", " v #x #l ", v3;\n"
#define ADD(v, x, at) ADD_FOUR(v, x, at, 0, 1, 2, 3) ADD_FOUR(v, x, at, 4, 5, 6, 7)

DEV void add_sums(const float4 *from)
{
    asm volatile("{\n.reg .f32 v<4>;\n" EACH(TOKENS, "s", ADD) "}" ::"l"(from) : "memory");
}

/* Letter x becomes what x + 2, called y, was. */
#define MOVE_ONE(y, x, i) "mov.f32 s" #x #i ", s" #y #i ";\n"
#define MOVE(x, y) OF_EIGHT(MOVE_ONE, y, x)
#if TOKENS == 64
#define MOVES MOVE(a, c) MOVE(b, d)
#elif TOKENS == 128
#define MOVES MOVE(a, c) MOVE(b, d) MOVE(c, e) MOVE(d, f) MOVE(e, g) MOVE(f, h)
#else
#define MOVES                                                                                                          \
    MOVE(a, c) MOVE(b, d) MOVE(c, e) MOVE(d, f) MOVE(e, g) MOVE(f, h) MOVE(g, i) MOVE(h, j) MOVE(i, k) MOVE(j, l)      \
        MOVE(k, m) MOVE(l, n) MOVE(m, o) MOVE(n, p)
#endif

/* The first sixteen; the others move down. */
DEV void take_sums(float *to)
{
    EACH(32, "s", TAKE);
    asm volatile(MOVES::: "memory");
}

/* ---- work ---- */

/* Piece `rank` of a stage to all blocks of the cluster; their barriers count all pieces. */
DEV void bring(u32 to, const void *from, u32 bytes, u32 bar)
{
#if PAIR > 1
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "h"((u16)((1 << PAIR) - 1))
                 : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
#endif
}

/* A warpgroup has read a stage: said to all blocks that fill it. */
DEV void release_stage(u32 bar)
{
    if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (u32 r = 0; r < PAIR; r++) {
            barrier_arrive_cluster(cluster_address(bar, r));
        }
    }
}

/* How spans are dealt to clusters, first_span of many of them; the host deals no more than 2^31 spans to 2^15. */
struct dealt {
    u32 clusters, inverse, each, left;
};

DEV u32 share_of(const dealt &d, u32 v)
{
    return quotient_by(v, d.clusters, d.inverse);
}

DEV dealt dealt_of(const qn_cuda_vq &a)
{
    const u32 total = (u32)all_spans(a);
    dealt d;
    d.clusters = (u32)a.blocks;
    d.inverse = ~0u / d.clusters;
    d.each = share_of(d, total);
    d.left = total - d.each * d.clusters;
    return d;
}

DEV int first_of(const dealt &d, int cluster)
{
    return (int)(d.each * (u32)cluster + share_of(d, d.left * (u32)cluster));
}

/* The part of a tile that a cluster works on next: rows of w, of x, spans. */
struct share {
    int block, tile, span0, span1;
};

struct walk {
    int at, last;
};

DEV walk begin_walk(const qn_cuda_vq &a, int cluster)
{
    walk w;
    if (a.blocks > 0) {
        const dealt d = dealt_of(a);
        w.at = first_of(d, cluster);
        w.last = first_of(d, cluster + 1);
    } else {
        w.at = cluster;
        w.last = (a.n + QN_VQ_BLOCK_ROWS - 1) / QN_VQ_BLOCK_ROWS * ((a.m + TOKENS - 1) / TOKENS);
    }
    return w;
}

DEV share next_share(const qn_cuda_vq &a, int clusters, walk &w)
{
    const int dealt = a.blocks > 0;
    const u32 row = (u32)(dealt ? a.spans : (a.m + TOKENS - 1) / TOKENS), block = (u32)w.at / row;
    const int within = w.at - (int)(block * row);
    share s;
    s.block = (int)block;
    s.tile = dealt ? (int)blockIdx.y : within;
    s.span0 = dealt ? within : 0;
    s.span1 = dealt ? min(a.spans, within + w.last - w.at) : a.spans;
    w.at += dealt ? s.span1 - within : clusters;
    return s;
}

/* Which part of a tile the cluster's is: so many before it have some of the tile. */
DEV int piece_of(const qn_cuda_vq &a, const share &s, int cluster)
{
    const dealt d = dealt_of(a);
    int piece = 0;
    while (first_of(d, cluster - piece) > s.block * a.spans) {
        piece++;
    }
    return piece;
}

#if FORMAT == QN_CUDA_GPTVQ
/* A power of two not above the largest scale of a block of rows; 1 where that is no number to divide by. */
DEV float scale_unit(const qn_cuda_vq &a, int block)
{
    const float *const scales = (const float *)(a.scales + (i64)block * a.scales_row);
    float most = 0.0f;
    for (int i = (int)threadIdx.x % 32; i < a.spans; i += 32) {
        most = fmaxf(most, fabsf(scales[i]));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    const u32 exponent = __float_as_uint(most) & 0x7F800000u;
    return exponent > 0x01000000u && exponent < 0x7E000000u ? __uint_as_float(exponent) : 1.0f;
}

DEV void fill_scaled(u32 bytes, float scale, u32 shared)
{
    const u32 low = pack_f16((float)(int)(signed char)bytes * scale, (float)(int)(signed char)(bytes >> 8) * scale);
    const u32 high =
        pack_f16((float)(int)(signed char)(bytes >> 16) * scale, (float)(int)(signed char)(bytes >> 24) * scale);
#pragma unroll
    for (u32 c = 0; c < COPIES / 2; c++) {
        store_shared_words(shared + threadIdx.x % 256 * (8 * COPIES) + (c + threadIdx.x) % (COPIES / 2) * 16, low, high,
                           low, high);
    }
}
#endif

/* Scale of row m of x, 1 from `end` on. A volatile load, so that those of all columns do not fill the registers. */
DEV float row_scale_of(const qn_cuda_vq &a, int m, int end)
{
    float v = 1.0f;
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p ld.global.f32 %0, [%1];\n}"
                 : "+f"(v)
                 : "l"(a.row_scale + m), "r"(m), "r"(end));
    return v;
}

/* A float of a part, of rows m below `end`; a result is none. */
DEV void store_part(char *to, float v, int m, int end)
{
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p st.global.f32 [%0], %1;\n}" ::"l"(to), "f"(v), "r"(m),
                 "r"(end)
                 : "memory");
}

#if OUT == QN_MM_F32
#define OUT_BYTES 4
#else
#define OUT_BYTES 2
DEV void store_half(char *to, float v, int m, int end)
{
    const u16 bits = (u16)(OUT == QN_MM_F16 ? pack_f16(v, 0.0f) : pack_bf16(v, 0.0f));
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p st.global.u16 [%0], %1;\n}" ::"l"(to), "h"(bits), "r"(m),
                 "r"(end)
                 : "memory");
}
#endif

/* Where a warpgroup's part of a cluster's first tile is, as its threads hold it, and the word that says so. */
DEV float4 *part_of(const qn_cuda_vq &a, int cluster, int piece)
{
    const i64 at = ((i64)blockIdx.y * a.blocks + cluster) * (GROUPS * PAIR) + piece;
    return (float4 *)a.parts + at * (TOKENS / 8 * 128) + threadIdx.x % 128;
}

DEV u32 *ready_of(const qn_cuda_vq &a, int cluster, int piece)
{
    return a.ready + ((i64)blockIdx.y * a.blocks + cluster) * (GROUPS * PAIR) + piece;
}

/* All of the tile but its first spans: left to the cluster that has those. */
DEV void leave_part(const qn_cuda_vq &a, int cluster, int piece)
{
    store_sums(part_of(a, cluster, piece));
    threads_sync(2 + threadIdx.x / 128, 128);
    if (threadIdx.x % 128 == 0) {
        asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%0], 1;" ::"l"(ready_of(a, cluster, piece)) : "memory");
    }
}

/* What others have of the tile, in order; they began with it. */
DEV void add_parts(const qn_cuda_vq &a, const share &s, int cluster, int piece)
{
    const dealt d = dealt_of(a);
    const int end = (s.block + 1) * a.spans;
#pragma unroll 1
    for (int c = cluster + 1; first_of(d, c) < end; c++) {
        if (threadIdx.x % 128 == 0) {
            u32 there;
            do {
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(ready_of(a, c, piece)) : "memory");
            } while (!there);
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
        }
        threads_sync(2 + threadIdx.x / 128, 128);
        add_sums(part_of(a, c, piece));
    }
}

/* The tile's results, or its part of them: 16 at a time, through the same registers, since the code for one is long,
 * and without branches. */
DEV void write_sums(const qn_cuda_vq &a, const share &s, int cluster, int row, int lane, float unit)
{
    const int parted = a.blocks > 0 && !a.ready, piece = parted ? piece_of(a, s, cluster) : 0;
    const int scaled = a.row_scale && !parted ? a.m : 0;
    const i64 step = parted ? (i64)a.n * 4 : a.y_row;
    int m = s.tile * TOKENS + lane % 4 * 2;
    char *const first_row = (parted ? (char *)(a.parts + (i64)piece * a.m * a.n) : a.y) + m * step;
    char *to[2];
    float scale[2] = {unit, unit}, bias[2] = {0.0f, 0.0f};
    int parts[2], results[2]; /* ends of the rows of x whose parts, or results, are there */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int n = row + ROW_OF(half);
        to[half] = first_row + (i64)n * (parted ? 4 : OUT_BYTES);
        parts[half] = n < a.n && parted ? a.m : 0;
        results[half] = n < a.n && !parted ? a.m : 0;
        if (n < a.n && !parted) {
#if SCALE_FORMAT
            scale[half] *= load_float(a.scales + (i64)n * a.scales_row, 0, SCALE_FORMAT - 1);
#endif
#if WSCALE_FORMAT
            scale[half] *= load_float(a.wscale, 0, WSCALE_FORMAT - 1);
#endif
#if BIAS
            bias[half] = load_float(a.bias, n, BIAS - 1);
#endif
        }
    }
#pragma unroll 1
    for (int first = 0; first < TOKENS / 2; first += 16) {
        float sums[16];
        take_sums(sums);
#pragma unroll 1
        for (int eight = 0; eight < 2; eight++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float factor = row_scale_of(a, m + e, scaled);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const float v = sums[4 * j + 2 * half + e] * (factor * scale[half]) + bias[half];
                        char *const at = to[half] + e * step;
#if OUT == QN_MM_F32
                        store_part(at, v, m + e, max(parts[half], results[half]));
#else
                        store_part(at, v, m + e, parts[half]);
                        store_half(at, v, m + e, results[half]);
#endif
                    }
                }
                m += 8;
                to[0] += 8 * step;
                to[1] += 8 * step;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sums[i] = sums[8 + i];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) qn_vq_wide(const __grid_constant__ qn_cuda_vq a)
{
    extern __shared__ __align__(1024) u8 memory[];
    declare_sums();
    const u32 base = (shared_address(memory) + 1023) & ~1023u; /* swizzled stages want multiples of 1024 */
    const u32 full = base, empty = base + 8 * STAGES, stages = base + BARRIERS, table = stages + STAGES * STAGE_BYTES;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = warp / 4;
    const int clusters = (int)gridDim.x / PAIR, began = (int)blockIdx.x / PAIR;
    const int cluster = a.ready ? clusters - 1 - began : began; /* waits for those that began before */
#if PAIR > 1
    const u32 rank = cluster_rank();
#else
    const u32 rank = 0;
#endif
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, GROUPS * PAIR);
        }
        barrier_init_fence();
    }
    release_next();
#if FORMAT == QN_CUDA_QUIP
    if (warp < THREADS / 32) {
        fill(table);
    }
#endif
    if (!a.early) {
        wait_before();
    }
#if FORMAT == QN_CUDA_AQLM
    if (warp < THREADS / 32) {
        fill(a, table);
    }
#endif
    __syncthreads();
    if (a.early) {
        wait_before();
    }
#if PAIR > 1
    cluster_arrive();
    cluster_wait();
#endif
    walk w = begin_walk(a, cluster);
    u32 stage = 0, phase = 0;
    if (group == GROUPS) {
        REGISTERS_GIVE(24);
        if (threadIdx.x == THREADS) {
            while (w.at < w.last) {
                const share s = next_share(a, clusters, w);
                const char *from = (const char *)a.halves + ((i64)s.tile * a.spans + s.span0) * (4 * STAGE_BYTES) +
                                   rank * (STAGE_BYTES / PAIR);
                for (int i = 4 * s.span0; i < 4 * s.span1; i++, from += STAGE_BYTES) {
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_arrive_expect(full + 8 * stage, STAGE_BYTES);
                    bring(stages + stage * STAGE_BYTES + rank * (STAGE_BYTES / PAIR), from, STAGE_BYTES / PAIR,
                          full + 8 * stage);
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                    phase ^= stage == 0;
                }
            }
        }
    } else {
        /* no more in all than the block began with, or it waits for ever: 384 times 168, 640 times 96 */
#if GROUPS == 2
        REGISTERS_TAKE(240);
#else
        REGISTERS_TAKE(112);
#endif
        tables t;
        t.books = a.books;
#if FORMAT == QN_CUDA_QUIP
        t.shared = table + (u32)(lane % COPIES) * 4;
        const u32 inverse = pack_f16(a.resid_inverse, a.resid_inverse);
#else
        t.shared = table + (u32)(lane % COPIES) * ENTRY_BYTES;
#endif
#if FORMAT == QN_CUDA_GPTVQ
        u32 side = 0;
#endif
        while (w.at < w.last) {
            const share s = next_share(a, clusters, w);
            const int row = s.block * QN_VQ_BLOCK_ROWS + (int)(rank * GROUPS + (u32)group) * 64 + warp % 4 * 16;
            begin_sums();
#if FORMAT == QN_CUDA_GPTVQ
            const float unit = scale_unit(a, s.block);
            u32 entry = book_entry(a, s.block * QN_VQ_BLOCK_ROWS, s.span0);
#endif
            u32 before = STAGES; /* the stage whose products may still run */
            u32 next[CODE_WORDS];
            load_codes(a, row, s.span0, lane, next);
#pragma unroll 1
            for (int span = s.span0; span < s.span1; span++) {
                u32 codes[1][CODE_WORDS];
#pragma unroll
                for (int i = 0; i < CODE_WORDS; i++) {
                    codes[0][i] = next[i];
                }
                load_codes(a, row, span + 1 < s.span1 ? span + 1 : span, lane, next);
#if FORMAT == QN_CUDA_QUIP
                residual_codes residuals[1];
                load_residuals(a, row, span, lane, &residuals[0]);
                const int tile = 0;
#elif FORMAT == QN_CUDA_GPTVQ
                /* the other of two tables, in the next tile too: a warp may still read the one of the span before */
                side ^= BOOK_BYTES;
                const float scale = ((const float *)(a.scales + (i64)s.block * a.scales_row))[span];
                if (THREADS == 256 || threadIdx.x < 256) {
                    fill_scaled(entry, scale * inverse_of(unit), table + side);
                    entry = book_entry(a, s.block * QN_VQ_BLOCK_ROWS, span + 1 < s.span1 ? span + 1 : span);
                }
                t.shared = table + side + (u32)(lane % COPIES) * ENTRY_BYTES;
                threads_sync(1, THREADS);
#endif
#pragma unroll 1
                for (int i = 0; i < STEPS / TURN; i++) {
#pragma unroll
                    for (int step = 0; step < TURN; step++) {
                        u32 u[4], v[4];
                        CHUNK(t, codes[0], 0, step, u);
                        CHUNK(t, codes[0], 1, step, v);
                        const u32 first[4] = {u[0], v[0], u[1], v[1]}, second[4] = {u[2], v[2], u[3], v[3]};
                        if (step % 2 == 0) {
                            barrier_wait(full + 8 * stage, phase);
                        }
                        const u64 x =
                            wgmma_operand(stages + stage * STAGE_BYTES) + (u64)(2 * WGMMA_K_STEP * (step % 2));
                        wgmma_fence();
                        multiply(first, second, x);
                        wgmma_commit();
                        WGMMA_WAIT(1); /* all products but these are done */
                        if (step % 2 == 0) {
                            if (before < STAGES) { /* and with them a stage, which may be filled again */
                                release_stage(empty + 8 * before);
                            }
                        } else {
                            before = stage;
                            stage = stage + 1 == STAGES ? 0 : stage + 1;
                            phase ^= stage == 0;
                        }
                    }
#pragma unroll
                    for (int w = 0; w + MOVED * TURN / GROUP < CODE_WORDS; w++) {
                        codes[0][w] = codes[0][w + MOVED * TURN / GROUP];
#if FORMAT == QN_CUDA_QUIP && CODEBOOK != 1
                        residuals[0].word[w] = residuals[0].word[w + MOVED * TURN / GROUP];
#endif
                    }
                }
            }
            WGMMA_WAIT(0);
            release_stage(empty + 8 * before);
            if (a.ready) {
                int again; /* found again: registers are few */
                asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(again));
                const int own = clusters - 1 - again / PAIR, piece = again % PAIR * GROUPS + group;
                if (s.span0 > 0) {
                    leave_part(a, own, piece);
                    continue;
                }
                add_parts(a, s, own, piece);
            }
            write_sums(a, s, cluster, row, lane,
#if FORMAT == QN_CUDA_GPTVQ
                       unit
#else
                       1.0f
#endif
            );
        }
    }
#if PAIR > 1
    cluster_arrive_relaxed(); /* no block leaves while another may tell its barriers something */
    cluster_wait();
#endif
}
