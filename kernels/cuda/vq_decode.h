/* Codes of vector-quantised weights as operand registers of 16-bit products: what the kernels on tensor cores share
 * (vq_tensor.cu, vq_wide.cu). A lane of a quad owns chunks of 8 consecutive elements of K of two rows; a step is a
 * chunk of each. A file that includes it has FORMAT and its parameters, HOT, COPIES, REGISTERS, TOKENS and THREADS, the
 * threads that fill tables; see vq_tensor.cu. */
#ifndef QN_CUDA_VQ_DECODE_H
#define QN_CUDA_VQ_DECODE_H

#include "vq_lattice.h"
#include "vq_parts.h"

#define STEPS 8 /* of 32 elements of a span */

/* A block's share of the codebook where it has HOT entries of it alone and passes over the others' codes. */
#ifndef SLICES
#define SLICES 1
#endif

#if FORMAT == QN_CUDA_QUIP
#define FAR 0
#define ROW_OF(half) (2 * (lane / 4) + (half)) /* Qidxs hold pairs of rows */
#define CODE_WORDS 8                           /* registers of a tile's codes of a span */
#define GROUP 2                                /* steps between which codes are moved on, by MOVED words */
#define MOVED 2
#else
#define ROW_OF(half) (lane / 4 + 8 * (half))
#define LANE_BYTES (64 / VECTOR * BOOKS * STORED / 8)
#define CODE_WORDS (2 * LANE_BYTES / 4)
#define WHOLE (LANE_BYTES % 16 == 0 ? 2 : LANE_BYTES % 8 == 0 ? 4 : 8) /* steps of whole words of codes */
/* Where entries are far away many are asked for before the first is used. */
#define FAR (HOT < ENTRIES && SLICES == 1)
#define GROUP (FAR && TOKENS == 8 ? 8 : SLICES > 1 ? 4 : WHOLE < VECTOR / 8 ? VECTOR / 8 : FAR && WHOLE < 4 ? 4 : WHOLE)
#define MOVED (LANE_BYTES / 4 * GROUP / STEPS)
#define ENTRY_BYTES (VECTOR * 2)
#define BOOK_BYTES (HOT * ENTRY_BYTES * COPIES)
#endif

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

/* How far ahead of codes L2 fetches; a file may say more. */
#ifndef CODES_AHEAD
#define CODES_AHEAD ""
#endif

/* Codes, read once. */
DEV uint2 load_once_2(const char *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate" CODES_AHEAD ".v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

DEV uint4 load_once_4(const char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate" CODES_AHEAD ".v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* What a thread keeps for lookups. */
struct tables {
    u32 shared;        /* address of the tables, this lane's copy */
    const char *books; /* all entries in global memory */
#if SLICES > 1
    u32 first; /* entry of the block's share, as slice_key numbers them */
#endif
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

DEV void to_shared(u32 at, const u32 *w)
{
#if PART_WORDS == 4
    store_shared_words(at, w[0], w[1], w[2], w[3]);
#elif PART_WORDS == 2
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(w[0]), "r"(w[1]) : "memory");
#else
    store_shared_i32(at, (int)w[0]);
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
#if SLICES > 1
    const u32 at = code - t.first;
    w[0] = w[1] = w[2] = w[3] = 0;
    asm volatile("{\n.reg .pred own;\nsetp.lt.u32 own, %4, %6;\n@own ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "r"(at), "r"(t.shared + at * ENTRY_BYTES), "n"(HOT));
#elif HOT == 0
    from_global(t, book, code, part, w);
#elif HOT == ENTRIES
    from_shared(t, book, code, part, w);
#elif PART_WORDS == 4
    const u32 near = t.shared + book * BOOK_BYTES + code * (ENTRY_BYTES * COPIES) + part * 16;
    const char *const far = t.books + ((i64)book * ENTRIES + code) * ENTRY_BYTES + part * 16;
    asm volatile("{\n.reg .pred near;\nsetp.lt.u32 near, %6, %7;\n"
                 "@near ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "@!near ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
                 : "=&r"(w[0]), "=&r"(w[1]), "=&r"(w[2]), "=&r"(w[3])
                 : "r"(near), "l"(far), "r"(code), "n"(HOT));
#else
    if (code < HOT) {
        from_shared(t, book, code, part, w);
    } else {
        from_global(t, book, code, part, w);
    }
#endif
}

#define BYTES_TURNED (SLICES > 1 && BITS == 16 && STORED == 16)

/* What a share of the codebook is a range of, and back: a code with its bytes turned, as frequent codes are neighbours.
 */
DEV u32 slice_key(u32 code)
{
    return BYTES_TURNED ? __byte_perm(code, 0, 0x4401) : code;
}

/* Code i of a lane's codes in memory order, or its key. */
DEV u32 code_at(const u32 *words, int i)
{
#if BYTES_TURNED
    return __byte_perm(words[i / 2], 0, i % 2 ? 0x4423 : 0x4401);
#endif
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

/* Words of four tiles of 16 rows by 64 columns, 8 bytes a lane each, two rows by two groups; zeros past K and N. What
 * 16 rows have lies in their rows of codes, `columns` words in each. */
DEV void load_part(const qn_cuda_vq &a, int row, int span, int lane, int first, u32 *codes)
{
    const u32 columns = (u32)a.k / 32, inverse = ~0u / columns;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes[i] = 0;
    }
    if (row < a.n) { /* a branch, or the assembler moves each load to where its codes are used */
        const u32 word = (u32)(span * (QN_VQ_SPAN / 2) + lane);
        const u64 gap = (u64)a.codes_row - columns * 8;
        const char *from = a.codes + row * a.codes_row + first * 8 + (u64)word * 8;
        asm("" : "+l"(from));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 down = quotient_by(word + j * 32, columns, inverse);
            asm volatile("{\n.reg .pred there;\nsetp.lt.s32 there, %3, %4;\n"
                         "@there ld.global.nc.L1::no_allocate" CODES_AHEAD ".v2.u32 {%0, %1}, [%2];\n}"
                         : "+r"(codes[2 * j]), "+r"(codes[2 * j + 1])
                         : "l"(from + j * 256 + down * gap), "r"(span * QN_VQ_SPAN + j * 64), "r"(a.k));
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

#if FORMAT == QN_CUDA_AQLM && SLICES > 1
DEV void fill_slice(const qn_cuda_vq &a, u32 first, u32 shared)
{
#pragma unroll 8
    for (u32 i = threadIdx.x; i < HOT; i += THREADS) {
        if (first + i < ENTRIES) {
            const uint4 v = ((const uint4 *)a.books)[slice_key(first + i)];
            store_shared_words(shared + i * ENTRY_BYTES, v.x, v.y, v.z, v.w);
        }
    }
}
#elif FORMAT == QN_CUDA_AQLM && HOT > 0
DEV void fill(const qn_cuda_vq &a, u32 shared)
{
    const u32 pieces = ENTRY_BYTES / (4 * PART_WORDS), count = BOOKS * HOT * pieces;
    tables t;
    t.books = a.books;
#pragma unroll(COPIES == 1 ? 4 : 2)
    for (u32 first = 0; first < count; first += THREADS) {
        const u32 i = first + threadIdx.x, book = i / (HOT * pieces), entry = i / pieces % HOT, piece = i % pieces;
        if (count % THREADS == 0 || i < count) {
            u32 w[PART_WORDS];
            from_global(t, (int)book, entry, (int)piece, w);
#pragma unroll
            for (u32 c = 0; c < COPIES; c++) {
                to_shared(shared + book * BOOK_BYTES + (entry * COPIES + (c + entry) % COPIES) * ENTRY_BYTES +
                              piece * (4 * PART_WORDS),
                          w);
            }
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

#endif
