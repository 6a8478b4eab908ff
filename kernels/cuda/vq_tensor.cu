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
 * A block has QN_VQ_BLOCK_ROWS rows of w and all of K, or, with `blocks` above 0, takes its share of all rows' spans in
 * order; sums go to parts (vq_parts.h).
 *
 * Host contract
 *   Parameters: FORMAT; TOKENS; TILES 16-row tiles of w a warp; FUSION, HOT, COPIES, REGISTERS,
 *     RESIDENT blocks a multiprocessor
 *     aqlm   BOOKS, BITS, STORED bits of a code in memory, VECTOR (2 to 32, a power of two), ENTRIES = 2^BITS; f16
 *            codebooks without gaps at multiples of 16; K a multiple of 64; a lane's LANE_BYTES codes of a span at
 *            multiples of their largest power of two
 *     gptvq  ENTRIES 256, BOOKS 1, VECTOR 4, STORED 8; codebooks without gaps; K a multiple of 64
 *     quip   CODEBOOK as in vq_direct.cu; rows of Qidxs at multiples of 8
 *   Launch: block 32 * 256 / (16 TILES), grid {blocks of rows or any number, tiles of x}, SHARED bytes */
#include "vq_parts.h"
#include "vq_lattice.h"

#define THREADS (32 * QN_VQ_BLOCK_ROWS / (16 * TILES))
#define NT (TOKENS / 8)
#define STEPS 8 /* of 32 elements of a span */
/* Codes are loaded a span ahead, but where lookups take so long that registers are better used otherwise. */
#define AHEAD (FORMAT != QN_CUDA_AQLM)

#if FORMAT == QN_CUDA_QUIP
#define ROW_OF(half) (2 * (lane / 4) + (half)) /* Qidxs hold pairs of rows */
#define CODE_WORDS 8                           /* registers of a tile's codes of a span */
#define GROUP 2                                /* steps between which codes are moved on, by MOVED words */
#define MOVED 2
#else
#define ROW_OF(half) (lane / 4 + 8 * (half))
#define LANE_BYTES (64 / VECTOR * BOOKS * STORED / 8)
#define CODE_WORDS (2 * LANE_BYTES / 4)
#define WHOLE (LANE_BYTES % 16 == 0 ? 2 : LANE_BYTES % 8 == 0 ? 4 : 8) /* steps of whole words of codes */
#define GROUP (WHOLE < VECTOR / 8 ? VECTOR / 8 : WHOLE)
#define MOVED (LANE_BYTES / 4 * GROUP / STEPS)
#define ENTRY_BYTES (VECTOR * 2)
#define BOOK_BYTES (HOT * ENTRY_BYTES * COPIES)
#endif

/* ---- operands ---- */

DEV void multiply(float *sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEV uint4 load_shared_words(u32 at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

DEV u32 load_shared_word(u32 at)
{
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

DEV void store_shared_words(u32 at, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

DEV uint2 load_once_2(const char *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

DEV uint4 load_once_4(const char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
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

/* What a thread keeps for lookups. */
struct tables {
    u32 shared;        /* address of the tables, this lane's copy */
    const char *books; /* all entries in global memory */
#if FORMAT != QN_CUDA_QUIP && REGISTERS
    u32 own[BOOKS][VECTOR / 2]; /* entry `lane` of each book */
#endif
};

#if FORMAT != QN_CUDA_QUIP

/* `count` words of an entry from byte `first` of it on: 1, 2 or 4. */
#define PART_WORDS (VECTOR >= 8 ? 4 : VECTOR / 2)

DEV void from_shared(const tables &t, int book, u32 code, int part, u32 *w)
{
    const u32 at = t.shared + book * BOOK_BYTES + code * (ENTRY_BYTES * COPIES) + part * 16;
#if PART_WORDS == 4
    const uint4 v = load_shared_words(at);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
#elif PART_WORDS == 2
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at));
#else
    w[0] = load_shared_word(at);
#endif
}

DEV void from_global(const tables &t, int book, u32 code, int part, u32 *w)
{
    const char *const at = t.books + ((i64)book * ENTRIES + code) * ENTRY_BYTES + part * 16;
#if FORMAT == QN_CUDA_GPTVQ
    const u32 bytes = *(const u32 *)(t.books + code * 4);
    w[0] = pack_f16((float)(int)(signed char)bytes, (float)(int)(signed char)(bytes >> 8));
    w[1] = pack_f16((float)(int)(signed char)(bytes >> 16), (float)(int)(signed char)(bytes >> 24));
#elif PART_WORDS == 4
    const uint4 v = *(const uint4 *)at;
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
#elif PART_WORDS == 2
    const uint2 v = *(const uint2 *)at;
    w[0] = v.x, w[1] = v.y;
#else
    w[0] = *(const u32 *)at;
#endif
}

DEV void look_up(const tables &t, int book, u32 code, int part, u32 *w)
{
#if REGISTERS
    u32 kept[PART_WORDS];
#pragma unroll
    for (int i = 0; i < PART_WORDS; i++) {
        kept[i] = __shfl_sync(~0u, t.own[book][part * 4 + i], (int)(code & 31));
    }
    if (code < 32) {
#pragma unroll
        for (int i = 0; i < PART_WORDS; i++) {
            w[i] = kept[i];
        }
        return;
    }
#endif
#if HOT == 0
    from_global(t, book, code, part, w);
#elif HOT == ENTRIES
    from_shared(t, book, code, part, w);
#else
    if (code < HOT) {
        from_shared(t, book, code, part, w);
    } else {
        from_global(t, book, code, part, w);
    }
#endif
}

/* Code i of a lane's codes in memory order. */
DEV u32 code_at(const u32 *words, int i)
{
    const int bit = i * STORED, at = bit / 32, shift = bit % 32;
    u32 word = words[at];
    asm volatile("" : "+r"(word)); /* in order, or addresses of later steps fill the registers */
    u32 v = word >> shift;
    if (shift + STORED > 32) {
        v = __funnelshift_r(word, words[at + 1], shift);
    }
    return v & ((1u << BITS) - 1);
}

/* The 8 elements of step s of a row. */
DEV void chunk_of(const tables &t, const u32 *codes, int s, u32 *w)
{
#if VECTOR >= 8
    const int g = s * 8 / VECTOR, part = s % (VECTOR / 8);
    look_up(t, 0, code_at(codes, g * BOOKS), part, w);
#pragma unroll
    for (int c = 1; c < BOOKS; c++) {
        u32 more[4];
        look_up(t, c, code_at(codes, g * BOOKS + c), part, more);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = add_halves(w[i], more[i]);
        }
    }
#else
#pragma unroll
    for (int v = 0; v < 8 / VECTOR; v++) {
        const int g = s * 8 / VECTOR + v;
        look_up(t, 0, code_at(codes, g * BOOKS), 0, w + v * VECTOR / 2);
#pragma unroll
        for (int c = 1; c < BOOKS; c++) {
            u32 more[PART_WORDS];
            look_up(t, c, code_at(codes, g * BOOKS + c), 0, more);
#pragma unroll
            for (int i = 0; i < PART_WORDS; i++) {
                w[v * VECTOR / 2 + i] = add_halves(w[v * VECTOR / 2 + i], more[i]);
            }
        }
    }
#endif
}

/* Codes of both rows of a tile for a span; zeros past K. */
DEV void load_codes(const qn_cuda_vq &a, int row, int span, int lane, u32 *codes)
{
    const int k = span * QN_VQ_SPAN + lane % 4 * 64;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int n = min(row + ROW_OF(half), a.n - 1);
        const char *const at = a.codes + (i64)n * a.codes_row + (i64)k / 64 * LANE_BYTES;
        u32 *const to = codes + half * (LANE_BYTES / 4);
#pragma unroll
        for (int i = 0; i < LANE_BYTES / 4; i++) {
            to[i] = 0;
        }
        if (k < a.k) {
#if LANE_BYTES % 16 == 0
#pragma unroll
            for (int i = 0; i < LANE_BYTES; i += 16) {
                const uint4 v = load_once_4(at + i);
                to[i / 4] = v.x, to[i / 4 + 1] = v.y, to[i / 4 + 2] = v.z, to[i / 4 + 3] = v.w;
            }
#elif LANE_BYTES % 8 == 0
#pragma unroll
            for (int i = 0; i < LANE_BYTES; i += 8) {
                const uint2 v = load_once_2(at + i);
                to[i / 4] = v.x, to[i / 4 + 1] = v.y;
            }
#else
#pragma unroll
            for (int i = 0; i < LANE_BYTES / 4; i++) {
                to[i] = ((const u32 *)at)[i];
            }
#endif
        }
    }
}

#define CHUNK(t, codes, half, s, w) chunk_of(t, (codes) + (half) * (LANE_BYTES / 4), s, w)

#else /* quip */

#define PARTS (CODEBOOK == 3 ? 2 : 1)

struct residual_codes {
    u32 word[CODEBOOK == 3 ? 8 : CODEBOOK == 2 ? 8 : 1];
};

/* Words of four tiles of 16 rows by 64 columns: 8 bytes a lane each, two rows by two groups. */
DEV void load_part(const qn_cuda_vq &a, int row, int span, int lane, int first, u32 *codes)
{
    const u32 columns = (u32)a.k / 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int k = span * QN_VQ_SPAN + j * 64;
        codes[2 * j] = codes[2 * j + 1] = 0;
        if (k < a.k && row < a.n) {
            const u64 word = ((u64)(row / 16) * (u32)(a.k / 64) + (u32)k / 64) * 32 + lane;
            const u64 at = CODEBOOK == 1 && a.codes_row == (i64)columns * 8
                               ? word * 8
                               : word / columns * a.codes_row + (first + word % columns) * 8;
            const uint2 v = load_once_2(a.codes + at);
            codes[2 * j] = v.x, codes[2 * j + 1] = v.y;
        }
    }
}

DEV void load_codes(const qn_cuda_vq &a, int row, int span, int lane, u32 *codes)
{
    load_part(a, row, span, lane, 0, codes);
}

DEV void load_residuals(const qn_cuda_vq &a, int row, int span, int lane, residual_codes *r)
{
#if CODEBOOK == 3
    load_part(a, row, span, lane, a.k / 32, r->word);
#elif CODEBOOK == 2
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int k = span * QN_VQ_SPAN + j * 64;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            r->word[2 * j + half] = 0;
            if (k < a.k && row < a.n) {
                r->word[2 * j + half] =
                    *(const u16 *)(a.codes + (i64)(row + ROW_OF(half)) * a.codes_row + a.k / 4 + k / 8 + lane % 4 * 2);
            }
        }
    }
#endif
}

/* Signed E8P point of half (row), group i of a 64-column tile. */
DEV void point(const tables &t, u32 abs_bytes, u32 sign_bits, int half, int i, u32 *w)
{
    const int code = half + 2 * i;
    u32 low;
    const u32 abs = abs_bytes >> 8 * code & 255;
#if HOT == 0
    const u32 word = e8p_signed(e8p_words[abs], sign_bits >> code & 0x11111111u, &low);
#else
    const u32 word = e8p_signed(load_shared_word(t.shared + abs * (4 * COPIES)), sign_bits >> code & 0x11111111u, &low);
#endif
    const u32 offset = E8P_OFFSET(low);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        w[j] = add_halves(e8p_pair(word, j), offset);
    }
}

DEV void chunk_of(const tables &t, const u32 *codes, const residual_codes &r, u32 inverse, int half, int s, u32 *w)
{
    const int j = s / 2, i = s % 2;
    point(t, codes[2 * j], codes[2 * j + 1], half, i, w);
#if CODEBOOK == 3
    u32 more[4];
    point(t, r.word[2 * j], r.word[2 * j + 1], half, i, more);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        w[p] = fma_halves(more[p], inverse, w[p]);
    }
#elif CODEBOOK == 2
    const u32 word = e8_words[r.word[2 * j + half] >> 8 * i & 255];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        w[p] = fma_halves(e8_pair(word, p), inverse, w[p]);
    }
#endif
}

#define CHUNK(t, codes, half, s, w) chunk_of(t, codes, residuals[tile], inverse, half, s, w)

#endif

/* ---- tables ---- */

#if FORMAT == QN_CUDA_AQLM && HOT > 0
DEV void fill(const qn_cuda_vq &a, u32 shared)
{
    const int pieces = ENTRY_BYTES / 4; /* words of an entry */
    for (int i = (int)threadIdx.x; i < BOOKS * HOT * pieces; i += THREADS) {
        const int book = i / (HOT * pieces), entry = i / pieces % HOT, word = i % pieces;
        const u32 v = ((const u32 *)a.books)[((i64)book * ENTRIES + entry) * pieces + word];
        const u32 to = shared + book * BOOK_BYTES + entry * (ENTRY_BYTES * COPIES) + word * 4;
#pragma unroll
        for (int c = 0; c < COPIES; c++) {
            store_shared_i32(to + (u32)((c + entry) % COPIES) * ENTRY_BYTES, (int)v);
        }
    }
}
#elif FORMAT == QN_CUDA_GPTVQ
DEV u32 book_entry(const qn_cuda_vq &a, int row0, int span)
{
    const char *const book = a.books + (i64)(row0 / 256) * a.book_step + (i64)span * a.entry_step;
    return threadIdx.x < 256 ? ((const u32 *)book)[threadIdx.x] : 0;
}

/* An entry of four int8 as f16, in all its copies. */
DEV void fill(u32 bytes, u32 shared)
{
#if HOT > 0
    if (threadIdx.x < 256) {
        const u32 low = pack_f16((float)(int)(signed char)bytes, (float)(int)(signed char)(bytes >> 8));
        const u32 high = pack_f16((float)(int)(signed char)(bytes >> 16), (float)(int)(signed char)(bytes >> 24));
        const u32 to = shared + threadIdx.x * (8 * COPIES);
#if COPIES > 1
#pragma unroll
        for (int c = 0; c < COPIES / 2; c++) {
            store_shared_words(to + (c + threadIdx.x) % (COPIES / 2) * 16, low, high, low, high);
        }
#else
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
#endif
    }
#endif
}
#elif FORMAT == QN_CUDA_QUIP && HOT > 0
DEV void fill(u32 shared)
{
    for (int i = (int)threadIdx.x; i < 256 * COPIES; i += THREADS) {
        store_shared_i32(shared + (u32)i * 4, (int)e8p_words[i / COPIES]);
    }
}
#endif

/* ---- products of a span ---- */

/* `count` steps from the codes' first on. */
DEV void step_products(const tables &t, const u32 (*codes)[CODE_WORDS], const uint4 *x, float (*sums)[NT][4],
                       u32 exchange,
#if FORMAT == QN_CUDA_QUIP
                       const residual_codes *residuals, u32 inverse,
#endif
                       int lane, int there)
{
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        u32 u[TILES][4], v[TILES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            CHUNK(t, codes[tile], 0, s, u[tile]);
            CHUNK(t, codes[tile], 1, s, v[tile]);
#if FUSION == 1
            /* a warp's 16 rows of 64 bytes, padded by 16; words come back in the products' own order */
            const u32 mine = exchange + (u32)(lane / 4) * 80;
            store_shared_words(mine + lane % 4 * 16, u[tile][0], u[tile][1], u[tile][2], u[tile][3]);
            store_shared_words(mine + 8 * 80 + lane % 4 * 16, v[tile][0], v[tile][1], v[tile][2], v[tile][3]);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u[tile][i] = load_shared_word(mine + i * 16 + lane % 4 * 4);
                v[tile][i] = load_shared_word(mine + 8 * 80 + i * 16 + lane % 4 * 4);
            }
            __syncwarp();
#endif
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint4 b = load_rows(x + (s * NT + j) * 32, TOKENS > 8 || there);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                multiply(sums[tile][j], u[tile][0], v[tile][0], u[tile][1], v[tile][1], b.x, b.y);
                multiply(sums[tile][j], u[tile][2], v[tile][2], u[tile][3], v[tile][3], b.z, b.w);
            }
        }
    }
}

/* A span a group of steps at a time: codes are moved on, so that they stay in registers without the loop being
 * unrolled, which would fill the registers with operands loaded early. */
DEV void span_products(const tables &t, u32 (*codes)[CODE_WORDS], const uint4 *x, float (*sums)[NT][4], u32 exchange,
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
    wait_before();
#if FORMAT == QN_CUDA_AQLM && HOT > 0
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
    const int there = lane / 4 < a.m; /* whether the lane's row of x is one, where there are 8 at most */
    int at = (int)blockIdx.x * a.spans, last = at + a.spans;
    if (a.blocks > 0) {
        at = (int)first_span(a, all_spans(a), (int)blockIdx.x);
        last = (int)first_span(a, all_spans(a), (int)blockIdx.x + 1);
    }
    while (at < last) {
        const int block = at / a.spans, span0 = at % a.spans, span1 = min(a.spans, span0 + last - at);
        const int row0 = block * QN_VQ_BLOCK_ROWS, row = row0 + warp * (16 * TILES);
        float sums[TILES][NT][4] = {};
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
            const int ahead = AHEAD && span + 1 < span1 ? span + 1 : span;
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
            const uint4 *const x =
                (const uint4 *)a.halves + ((i64)blockIdx.y * a.spans + span) * (STEPS * NT * 32) + lane;
#if FORMAT == QN_CUDA_GPTVQ
            /* the other of two tables: a warp may still read the one of the span before */
            const u32 side = (u32)(span % 2) * BOOK_BYTES;
            fill(entry, base + side);
            entry = book_entry(a, row0, ahead);
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
        const int piece = a.blocks > 0 ? (int)blockIdx.x - block_of_span(a, all_spans(a), (i64)block * a.spans) : 0;
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
        at += span1 - span0;
#if FORMAT == QN_CUDA_GPTVQ
        __syncthreads(); /* the next rows' first table may be the one just read */
#endif
    }
}
