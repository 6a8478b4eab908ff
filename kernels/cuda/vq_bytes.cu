/* Sums of x w^T for one or two rows of x and gptvq weights in exact integers on tensor cores: entries are int8 operand
 * registers of m16n8k32, and the columns of the other operand are digits of x, three a row (vq_digits.h), which a warp
 * makes for its block, a span ahead. sm_90a has vq_books.cu.
 *
 * An entry of four int8 is a register: one access of 4 bytes a code, none of which conflict: a book lies in shared
 * memory once a lane, for a span of 256 columns of K while the next is filled. An entry of both has 256 bytes, so that
 * its address is one byte permutation. A lane's chunk of a span is 64 elements, 16 codes; product i takes codes 2 i and
 * 2 i + 1 of two rows.
 *
 * A block has QN_VQ_BLOCK_ROWS rows of w, and takes its share of all blocks' spans in order.
 *
 * Host contract
 *   Parameter: X_FORMAT
 *   K a multiple of 64; codes at multiples of 16, codebooks without gaps in an entry and a book
 *   Launch: block 256, grid {blocks}, QN_VQ_BYTES_SHARED bytes */
#include "vq_digits.h"

#define THREADS 256
#define TILES 2
#define DIGITS_AT (2 * 32768)
#define PRODUCT_PITCH (QN_VQ_BYTES_DIGITS / 8)         /* 256 bytes, and 32 that keep products off each other's banks */
#define SCALES_AT (DIGITS_AT + 2 * QN_VQ_BYTES_DIGITS) /* [side][row of x] */
#define ROW_OF(half) (lane / 4 + 8 * (half))

DEV void multiply(int *sum, const u32 *w, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(b0), "r"(b1));
}

DEV void load_codes(const qn_cuda_vq &a, int row, int span, int lane, u32 (*codes)[4])
{
    const int k = span * QN_VQ_SPAN + lane % 4 * 64;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int n = min(row + ROW_OF(half), a.n - 1);
        const char *const at = a.codes + (i64)n * a.codes_row + k / 4;
        codes[half][0] = codes[half][1] = codes[half][2] = codes[half][3] = 0;
        if (k < a.k) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(codes[half][0]), "=r"(codes[half][1]), "=r"(codes[half][2]), "=r"(codes[half][3])
                         : "l"(at));
        }
    }
}

DEV u32 book_entry(const qn_cuda_vq &a, int block, int span)
{
    return ((const u32 *)(a.books + (i64)block * a.book_step + (i64)span * a.entry_step))[threadIdx.x];
}

/* Entry threadIdx.x in its 32 places of a side, each thread beginning at another bank. */
DEV void fill(u32 table, u32 entry)
{
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        const u32 at = table + threadIdx.x * 256 + (c + threadIdx.x) % 8 * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(entry) : "memory");
    }
}

/* The lane's copy of the entry of byte i of a word; mine: where it is in an entry. */
DEV u32 look_up(u32 table, u32 mine, u32 word, int i)
{
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(table + __byte_perm(word, mine, (u32)(0x7704 | i << 4))));
    return v;
}

/* The warp's 256 elements of row m of x as digits: product i, lane t of a quad has elements 64 t + 8 i on. */
DEV void put_digits(const float *v, u32 memory, int side, int m, int lane)
{
    u32 u[8];
    const float scale = digits_of(v, u);
    const u32 at = memory + DIGITS_AT + (u32)side * QN_VQ_BYTES_DIGITS + (u32)(lane % 8) * PRODUCT_PITCH;
#pragma unroll
    for (u32 d = 0; d < 3; d++) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + (u32)m * 128 + d * 32 + (u32)(lane / 8) * 8),
                     "r"(four_digits(u[0], u[1], u[2], u[3], d)), "r"(four_digits(u[4], u[5], u[6], u[7], d))
                     : "memory");
    }
    if (lane == 0) {
        store_shared_f32(memory + SCALES_AT + (u32)(2 * side + m) * 4, scale);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) qn_vq_bytes(const __grid_constant__ qn_cuda_vq a)
{
    extern __shared__ __align__(128) u8 memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, token = lane % 4 / 2;
    const u32 base = shared_address(memory);
    int at = first_span(a, all_spans(a), (int)blockIdx.x);
    const int last = first_span(a, all_spans(a), (int)blockIdx.x + 1);
    u32 next[TILES][2][4];
    const int there = lane / 16 < a.m && lane % 16 < 12;                  /* columns of rows of x */
    const int row_of_x = warp % 2, turn = row_of_x < a.m ? warp / 2 : -1; /* warps make digits in turn */
    const char *const x = a.x + row_of_x * a.x_row;
    float ahead[8];
    release_next();
    if (a.early && at < last) { /* weights stay: they may be read while the kernel in front works */
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            load_codes(a, at / a.spans * QN_VQ_BLOCK_ROWS + (warp * TILES + tile) * 16, at % a.spans, lane, next[tile]);
        }
    }
    wait_before();
    int loaded = a.early;
    while (at < last) {
        const int block = at / a.spans, span0 = at % a.spans, span1 = min(a.spans, span0 + last - at);
        const int row = block * QN_VQ_BLOCK_ROWS + warp * (16 * TILES);
        float total[TILES][2] = {};
        if (!loaded) {
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                load_codes(a, row + 16 * tile, span0, lane, next[tile]);
            }
        }
        loaded = 0;
        u32 entry = book_entry(a, block, span0);
        if (span0 % 4 == turn) {
            load_eight(x, span0 * QN_VQ_SPAN + lane * 8, a.k, X_FORMAT, ahead);
        }
#pragma unroll 1
        for (int span = span0; span < span1; span++) {
            const int after = span + 1 < span1 ? span + 1 : span;
            u32 codes[TILES][2][4];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    codes[tile][i / 4][i % 4] = next[tile][i / 4][i % 4];
                }
                load_codes(a, row + 16 * tile, after, lane, next[tile]);
            }
            const float book_scale = ((const float *)(a.scales + (i64)block * a.scales_row))[span];
            const u32 side = (u32)(span % 2), mine = side * 128 + (u32)lane * 4;
            fill(base + side * 128, entry); /* the other table may still be read; this one was two spans ago */
            entry = book_entry(a, block, after);
            if (span % 4 == turn) {
                put_digits(ahead, base, (int)side, row_of_x, lane);
            }
            if ((span + 1) % 4 == turn) {
                load_eight(x, after * QN_VQ_SPAN + lane * 8, a.k, X_FORMAT, ahead);
            }
            __syncthreads();
            const float scale =
                book_scale * load_shared_f32(base + SCALES_AT + (2 * side + (u32)(token < a.m ? token : 0)) * 4);
            const u32 digits = base + DIGITS_AT + side * QN_VQ_BYTES_DIGITS + (u32)lane * 8;
            int sums[TILES][4] = {};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint2 b = there ? load_digits(digits + (u32)i * PRODUCT_PITCH) : make_uint2(0, 0);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    u32 w[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) { /* rows g and g + 8 of the first code, then of the second */
                        w[j] = look_up(base, mine, codes[tile][j % 2][i / 2], i % 2 * 2 + j / 2);
                    }
                    multiply(sums[tile], w, b.x, b.y);
                }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float low = (float)sums[tile][2 * half], high = (float)sums[tile][2 * half + 1];
                    const float part = lane & 1 ? low * 65536.0f : __fmaf_rn(high, 256.0f, low);
                    total[tile][half] = __fmaf_rn(part, scale, total[tile][half]);
                }
            }
        }
        const int piece = (int)blockIdx.x - block_of_span(a, all_spans(a), (i64)block * a.spans);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float sum = total[tile][half] + __shfl_xor_sync(~0u, total[tile][half], 1);
                const int n = row + 16 * tile + ROW_OF(half);
                if (lane % 2 == 0 && token < a.m && n < a.n) {
                    a.parts[((i64)piece * a.m + token) * a.n + n] = sum;
                }
            }
        }
        at += span1 - span0;
        __syncthreads(); /* the next rows' first table may be the one just read */
    }
}
