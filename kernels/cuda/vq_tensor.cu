/* Sums of x w^T for vector-quantised weights on tensor cores: rows of w are the 16-row operand of m16n8k16 products,
 * TOKENS rows of x the 8-column ones. Codes are read as checkpoints store them.
 *
 * K is permuted instead of exchanged (FUSION 3): a lane of a quad owns chunks of 8 consecutive elements of its rows,
 * which one to eight lookups fill, and they are its operand registers of two products; rows of x lie in the same order
 * (vq_side.cu). FUSION 1 goes through shared memory instead, the chunks' natural order restored there.
 *
 * Placement: entries below HOT are in shared memory, COPIES of each, so that lanes which are served together read
 * different banks; REGISTERS 1: those below 32 come from registers of the lanes by shuffles; the others from global
 * memory. HOT = ENTRIES: no branch. The books of gptvq change with every span of K and are kept twice.
 *
 * SLICES above 1 (a book that shared memory does not hold): a block keeps HOT entries alone, reads all codes of its
 * rows and takes those of others for zeros; blocks with the other entries find the rest, as parts. L2 serves single
 * entries at a third of the rate that shared memory does even so.
 *
 * A block has QN_VQ_BLOCK_ROWS rows of w and all of K, or, with `blocks` above 0, takes its share of all rows' spans in
 * order; sums go to parts (vq_parts.h).
 *
 * Host contract
 *   Parameters: FORMAT; TOKENS; TILES 16-row tiles of w a warp; FUSION, HOT, COPIES, REGISTERS,
 *     RESIDENT blocks a multiprocessor
 *     aqlm   BOOKS, BITS, STORED bits of a code in memory, VECTOR (2 to 32, a power of two), ENTRIES = 2^BITS; f16
 *            codebooks without gaps at multiples of 16; K a multiple of 64; a lane's LANE_BYTES codes of a span at
 *            multiples of their largest power of two. SLICES: one book of entries of 16 bytes, FUSION 3, TOKENS 8 for
 *            4 rows of x, TILES 1
 *     gptvq  ENTRIES 256, BOOKS 1, VECTOR 4, STORED 8; codebooks without gaps; K a multiple of 64
 *     quip   CODEBOOK as in vq_direct.cu; rows of Qidxs at multiples of 8
 *   Launch: block 32 * 256 / (16 TILES), grid {blocks of rows or any number, times SLICES; tiles of x}, SHARED bytes */
#define THREADS (32 * QN_VQ_BLOCK_ROWS / (16 * TILES))
#define NT (TOKENS / 8)
/* Codes are loaded a span ahead, but where lookups take so long, or a book's own sums so much, that registers are
 * better used otherwise. */
#define AHEAD (FORMAT == QN_CUDA_GPTVQ ? FUSION != 1 || TOKENS <= 16 : FORMAT != QN_CUDA_AQLM || SLICES > 1)

#include "vq_decode.h"

#define ONCE (FAR ? GROUP : 1)     /* steps that are decoded before their products */
#define SUMS (SLICES > 1 ? 2 : NT) /* of a tile, four of each a lane */

DEV void multiply(float *sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Rows of x were written by the kernel before; volatile, so that no more of them are loaded early than registers hold.
 */
DEV uint4 load_rows(const uint4 *p, int there)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"(there));
    return v;
}

/* ---- products of a span ---- */

#if SLICES > 1
/* GROUP steps. A looked-up vector is a whole operand as it is: its rows g and g + 8 are one row of w, words 0 and 2 of
 * the vector and words 1 and 3. Even columns of x are words 0 and 2 of a row of x, odd ones the others. */
DEV void step_products(const tables &t, const u32 (*codes)[CODE_WORDS], const uint4 *x, float (*sums)[SUMS][4],
                       u32 exchange, int lane, int there)
{
    uint4 rows[GROUP];
    u32 w[GROUP][2][4];
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        rows[s] = load_rows(x + s * 32, there);
    }
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        CHUNK(t, codes[0], 0, s, w[s][0]);
        CHUNK(t, codes[0], 1, s, w[s][1]);
    }
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        const int odd = lane & 4;
        const u32 low = odd ? rows[s].y : rows[s].x, high = odd ? rows[s].w : rows[s].z;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 *const v = w[s][half];
            multiply(sums[0][half], v[0], v[1], v[2], v[3], low, high);
        }
    }
}
#else
/* `count` steps from the codes' first on. */
DEV void step_products(const tables &t, const u32 (*codes)[CODE_WORDS], const uint4 *x, float (*sums)[SUMS][4],
                       u32 exchange,
#if FORMAT == QN_CUDA_QUIP
                       const residual_codes *residuals, u32 inverse,
#endif
                       int lane, int there)
{
#pragma unroll
    for (int s = 0; s < GROUP; s += ONCE) {
        u32 u[ONCE][TILES][4], v[ONCE][TILES][4];
#pragma unroll
        for (int i = 0; i < ONCE * TILES; i++) {
            const int once = i / TILES, tile = i % TILES;
            CHUNK(t, codes[tile], 0, s + once, u[once][tile]);
            CHUNK(t, codes[tile], 1, s + once, v[once][tile]);
#if FUSION == 1
            /* a warp's 16 rows of 64 bytes, padded by 16; words come back in the products' own order */
            u32 *const a = u[once][tile], *const b = v[once][tile];
            const u32 mine = exchange + (u32)(lane / 4) * 80;
            store_shared_words(mine + lane % 4 * 16, a[0], a[1], a[2], a[3]);
            store_shared_words(mine + 8 * 80 + lane % 4 * 16, b[0], b[1], b[2], b[3]);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[j] = load_shared_word(mine + j * 16 + lane % 4 * 4);
                b[j] = load_shared_word(mine + 8 * 80 + j * 16 + lane % 4 * 4);
            }
            __syncwarp();
#endif
        }
#pragma unroll
        for (int i = 0; i < ONCE * NT; i++) {
            const int once = i / NT, j = i % NT;
            const uint4 b = load_rows(x + ((s + once) * NT + j) * 32, TOKENS > 8 || there);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const u32 *const a = u[once][tile], *const c = v[once][tile];
                multiply(sums[tile][j], a[0], c[0], a[1], c[1], b.x, b.y);
                multiply(sums[tile][j], a[2], c[2], a[3], c[3], b.z, b.w);
            }
        }
    }
}

#endif

/* A span a group of steps at a time: codes are moved on, so that they stay in registers without the loop being
 * unrolled, which would fill the registers with operands loaded early. */
DEV void span_products(const tables &t, u32 (*codes)[CODE_WORDS], const uint4 *x, float (*sums)[SUMS][4], u32 exchange,
#if FORMAT == QN_CUDA_QUIP
                       residual_codes *residuals, u32 inverse,
#endif
                       int lane, int there)
{
#pragma unroll 1
    for (int i = 0; i < STEPS / GROUP; i++) {
#if FORMAT == QN_CUDA_QUIP
        step_products(t, codes, x, sums, exchange, residuals, inverse, lane, there);
#else
        step_products(t, codes, x, sums, exchange, lane, there);
#endif
        x += GROUP * NT * 32;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int w = 0; w + MOVED < CODE_WORDS; w++) {
                codes[tile][w] = codes[tile][w + MOVED];
            }
#if FORMAT == QN_CUDA_QUIP && CODEBOOK > 1
#pragma unroll
            for (int w = 0; w + MOVED < 8; w++) {
                residuals[tile].word[w] = residuals[tile].word[w + MOVED];
            }
#endif
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) qn_vq_tensor(const __grid_constant__ qn_cuda_vq a)
{
    extern __shared__ __align__(128) u8 memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const u32 base = shared_address(memory);
    tables t;
#if FORMAT == QN_CUDA_QUIP
    t.shared = base + (u32)(lane % COPIES) * 4;
    const u32 table_bytes = HOT * 4 * COPIES;
    const u32 inverse = pack_f16(a.resid_inverse, a.resid_inverse);
#else
    t.shared = base + (u32)(lane % COPIES) * ENTRY_BYTES;
    const u32 table_bytes = BOOKS * BOOK_BYTES * (FORMAT == QN_CUDA_GPTVQ ? 2 : 1);
#endif
    t.books = a.books;
    const u32 exchange = base + table_bytes + (u32)warp * (16 * 80);
    release_next();
#if SLICES > 1
    t.first = blockIdx.x % SLICES * HOT;
    if (a.early) { /* weights stay: they may be read while the kernel in front works */
        fill_slice(a, t.first, base);
    }
#endif
    wait_before();
#if SLICES > 1
    if (!a.early) {
        fill_slice(a, t.first, base);
    }
#elif FORMAT == QN_CUDA_AQLM && HOT > 0
    fill(a, base);
#elif FORMAT == QN_CUDA_QUIP && HOT > 0
    fill(base);
#endif
#if FORMAT == QN_CUDA_AQLM && REGISTERS
#pragma unroll
    for (int c = 0; c < BOOKS; c++) {
#pragma unroll
        for (int i = 0; i < VECTOR / 2; i++) {
            t.own[c][i] = ((const u32 *)a.books)[((i64)c * ENTRIES + lane) * (VECTOR / 2) + i];
        }
    }
#endif
    __syncthreads();
    /* the lane's row of x, and whether it is one, where there are 8 at most */
    const int column = SLICES > 1 ? lane / 8 : lane / 4, there = column < a.m;
    const int dealt = (int)blockIdx.x / SLICES;
    int at = dealt * a.spans, last = at + a.spans;
    if (a.blocks > 0) {
        at = first_span(a, all_spans(a), dealt);
        last = first_span(a, all_spans(a), dealt + 1);
    }
    while (at < last) {
        const int block = at / a.spans, span0 = at % a.spans, span1 = min(a.spans, span0 + last - at);
        const int row0 = block * QN_VQ_BLOCK_ROWS, row = row0 + warp * (16 * TILES);
        float sums[TILES][SUMS][4] = {};
        u32 next[TILES][CODE_WORDS];
#if FORMAT == QN_CUDA_QUIP
        residual_codes more[TILES];
#endif
#pragma unroll
        for (int tile = 0; tile < TILES && AHEAD; tile++) {
            load_codes(a, row + 16 * tile, span0, lane, next[tile]);
#if FORMAT == QN_CUDA_QUIP
            load_residuals(a, row + 16 * tile, span0, lane, &more[tile]);
#endif
        }
#if FORMAT == QN_CUDA_GPTVQ
        u32 entry = book_entry(a, row0, span0);
#endif
#pragma unroll 1
        for (int span = span0; span < span1; span++) {
            u32 codes[TILES][CODE_WORDS];
#if FORMAT == QN_CUDA_QUIP
            residual_codes residuals[TILES];
#endif
            const int after = span + 1 < span1 ? span + 1 : span, ahead = AHEAD ? after : span;
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int i = 0; i < CODE_WORDS && AHEAD; i++) {
                    codes[tile][i] = next[tile][i];
                }
                load_codes(a, row + 16 * tile, ahead, lane, AHEAD ? next[tile] : codes[tile]);
#if FORMAT == QN_CUDA_QUIP
                residuals[tile] = more[tile];
                load_residuals(a, row + 16 * tile, ahead, lane, &more[tile]);
#endif
            }
            const uint4 *const x = (const uint4 *)a.halves + ((i64)blockIdx.y * a.spans + span) * (STEPS * NT * 32) +
                                   column * 4 + lane % 4;
#if FORMAT == QN_CUDA_GPTVQ
            /* the other of two tables: a warp may still read the one of the span before */
            const u32 side = (u32)(span % 2) * BOOK_BYTES;
            fill(entry, base + side);
            entry = book_entry(a, row0, after);
            t.shared = base + side + (u32)(lane % COPIES) * ENTRY_BYTES;
            t.books = a.books + (i64)block * a.book_step + (i64)span * a.entry_step;
            __syncthreads();
            const float scale = ((const float *)(a.scales + (i64)block * a.scales_row))[span];
            float part[TILES][NT][4] = {};
            span_products(t, codes, x, part, exchange, lane, there);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        sums[tile][j][i] = __fmaf_rn(part[tile][j][i], scale, sums[tile][j][i]);
                    }
                }
            }
#elif FORMAT == QN_CUDA_QUIP
            span_products(t, codes, x, sums, exchange, residuals, inverse, lane, there);
#else
            span_products(t, codes, x, sums, exchange, lane, there);
#endif
        }
        const int met = a.blocks > 0 ? dealt - block_of_span(a, all_spans(a), (i64)block * a.spans) : 0;
        const int piece = met * SLICES + (int)blockIdx.x % SLICES;
#if SLICES > 1
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int n = row + ROW_OF(half), m = lane % 4;
            if (n < a.n && m < a.m) {
                a.parts[((i64)piece * a.m + m) * a.n + n] = sums[0][half][0] + sums[0][half][3];
            }
        }
#else
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int n = row + 16 * tile + ROW_OF(i / 2);
                    const int m = (int)blockIdx.y * TOKENS + j * 8 + lane % 4 * 2 + i % 2;
                    if (n < a.n && m < a.m) {
                        a.parts[((i64)piece * a.m + m) * a.n + n] = sums[tile][j][i];
                    }
                }
            }
        }
#endif
        at += span1 - span0;
#if FORMAT == QN_CUDA_GPTVQ
        __syncthreads(); /* the next rows' first table may be the one just read */
#endif
    }
}
