/* Sums of x w^T for one or two rows of x and gptvq weights in exact integers on tensor cores: entries are int8 operand
 * registers of m16n8k32, and the columns of the other operand are digits of x, three a row (qn_vq_digits).
 *
 * An entry of four int8 is a register: one access of 4 bytes a code, none of which conflict: a book lies in shared
 * memory once a lane, for a span of 256 columns of K while the next is filled. An entry of both has 256 bytes, so that
 * its address is one byte permutation. A lane's chunk of a span is 64 elements, 16 codes; product i takes codes 2 i and
 * 2 i + 1 of two rows.
 *
 * A block has QN_VQ_BLOCK_ROWS rows of w, and takes its share of all blocks' spans in order.
 *
 * Host contract
 *   K a multiple of 64; codes at multiples of 16, codebooks without gaps in an entry and a book
 *   Launch: block 256, grid {blocks}, 2 * 32768 bytes */
#include "vq_parts.h"

#define THREADS 256
#define TILES 2
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) qn_vq_bytes(const __grid_constant__ qn_cuda_vq a)
{
    extern __shared__ __align__(128) u8 memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, token = lane % 4 / 2;
    const u32 base = shared_address(memory);
    int at = (int)first_span(a, all_spans(a), (int)blockIdx.x);
    const int last = (int)first_span(a, all_spans(a), (int)blockIdx.x + 1);
    u32 next[TILES][2][4];
    const int there = lane < 16 || a.m > 1; /* columns of the second row of x */
    release_next();
    if (a.early && at < last) { /* weights stay: they may be read while the kernel in front works */
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            load_codes(a, at / a.spans * QN_VQ_BLOCK_ROWS + (warp * TILES + tile) * 16, at % a.spans, lane, next[tile]);
        }
    }
    wait_before();
    /* behind the digits: a scale a row of x and span */
    const float *const x_scales = (const float *)(a.halves + (i64)a.spans * 512) + (i64)token * a.spans;
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
#pragma unroll 1
        for (int span = span0; span < span1; span++) {
            const int ahead = span + 1 < span1 ? span + 1 : span;
            u32 codes[TILES][2][4];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    codes[tile][i / 4][i % 4] = next[tile][i / 4][i % 4];
                }
                load_codes(a, row + 16 * tile, ahead, lane, next[tile]);
            }
            const float scale = ((const float *)(a.scales + (i64)block * a.scales_row))[span] * x_scales[span];
            const u32 side = (u32)(span % 2) * 128, mine = side + (u32)lane * 4;
            fill(base + side, entry); /* the other table may still be read; this one was two spans ago */
            entry = book_entry(a, block, ahead);
            __syncthreads();
            const uint2 *const x = (const uint2 *)a.halves + (i64)span * 256 + lane;
            int sums[TILES][4] = {};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint2 b = there ? x[i * 32] : make_uint2(0, 0);
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
