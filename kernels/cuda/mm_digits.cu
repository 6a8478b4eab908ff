/* d = x b^T with weights of GGUF blocks, many rows, by mma.sync: rows of x are digits (mm_digits_rows.cu), weights int8
 * codes (mm_digits_codes.cu), so sums of a group of weights are exact integers, of each digit one. They begin at the bits
 * of 1.5 x 2^23 and are floats without a conversion; as one number they meet the scales of both sides by a fused
 * multiply-add, and what is taken off each weight meets the sum of x. Tiles of ROWS x COLUMNS; a step of K comes by
 * asynchronous copies while the one before is multiplied. A sum that is not finite is done once more, as floats
 * (mm_plain.h): digits do not know infinities.
 *
 * Host contract
 *   Parameters: those of mm_common.h, of GGUF formats
 *   Launch: block 256, QN_CUDA_DIGITS_SHARED of shared memory, grid {ceil(N / COLUMNS), ceil(M / ROWS), parts}; parts
 *   above 1: mm_join.cu follows */
#define THREADS 256
#define ROWS QN_CUDA_DIGITS_ROWS
#define COLUMNS QN_CUDA_DIGITS_COLUMNS
#define STEP QN_CUDA_DIGITS_STEP
#include "mm_plain.h"

#define B_BYTES QN_CUDA_DIGITS_B_BYTES(CODE_GROUP)
#define STAGE (QN_CUDA_DIGITS_X_BYTES + B_BYTES)
#define WARP_COLUMNS (COLUMNS / 2) /* by 16 rows */
#define RESIDENT (__CUDA_ARCH__ >= 1200 ? 1 : 2) /* blocks that a multiprocessor has registers for */
#define ZERO 0x4b400000 /* 1.5 x 2^23 as f32, whose last bits count */

DEV void copy(u32 to, const char *from, int bytes)
{
#pragma unroll
    for (int i = 0; i < bytes; i += THREADS * 16) {
        if (i + THREADS * 16 <= bytes || i + (int)threadIdx.x * 16 < bytes) {
            copy_async_16(to + i, from + i, 16);
        }
    }
}

/* Products of a group of weights: of a group of x, or its part `half`. */
DEV void dot(const uint4 &x, u32 b0, u32 b1, int half, float d[4])
{
    int v[4];
#if CODE_GROUP == 32
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(b0), "r"(b1), "r"(ZERO));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
        : "r"(half ? x.z : x.x), "r"(half ? x.w : x.y), "r"(half ? b1 : b0), "r"(ZERO));
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) {
        d[i] = __int_as_float(v[i]);
    }
}

/* Where a warp's and a lane's operands are in a stage. */
struct places {
    u32 x, of_x, b, of_b;
};

/* 16 rows by WARP_COLUMNS, a step of K. */
DEV void multiply(const places &at, float sums[WARP_COLUMNS / 8][4])
{
#pragma unroll
    for (int g = 0; g < STEP / 32; g++) {
        uint4 x[3];
#pragma unroll
        for (int digit = 0; digit < 3; digit++) {
            x[digit] = load_shared_u32x4(at.x + (g * 3 + digit) * ROWS * 32);
        }
        const float4 of_x[2] = {load_shared_f32x4(at.of_x + g * ROWS * 16),
                                load_shared_f32x4(at.of_x + g * ROWS * 16 + 8 * 16)};
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 16; j++) {
            const uint4 b = load_shared_u32x4(at.b + g * COLUMNS * 32 + j * 512);
#pragma unroll
            for (int h = 0; h < 2 * 32 / CODE_GROUP; h++) {
                const int half = h / 2, second = h % 2;
                const float4 of_b =
                    load_shared_f32x4(at.of_b + ((g * (32 / CODE_GROUP) + half) * COLUMNS + 16 * j + 8 * second) * 8);
                float d[3][4];
#pragma unroll
                for (int digit = 0; digit < 3; digit++) {
                    dot(x[digit], second ? b.z : b.x, second ? b.w : b.y, half, d[digit]);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float4 of_row = of_x[e / 2];
                    const float scale = e % 2 ? of_b.z : of_b.x, minimum = e % 2 ? of_b.w : of_b.y;
                    float *const to = &sums[2 * j + second][e];
                    /* the three zeros are taken off with the first digit */
                    const float high = __fmaf_rn(d[0][e], 65536.0f, -12582912.0f * 65793.0f);
                    const float sum = __fmaf_rn(d[1][e], 256.0f, high) + d[2][e];
                    *to = __fmaf_rn(sum, of_row.x * scale, *to);
                    if (CODE_MINIMUM) {
                        const float all = CODE_GROUP == 32 ? of_row.y + of_row.z : half ? of_row.z : of_row.y;
                        *to = __fmaf_rn(-minimum, all, *to);
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    qn_mm_digits(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_mm_cut cut,
                 const __grid_constant__ qn_cuda_digits by)
{
    extern __shared__ __align__(16) u8 shared[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = warp / 2 * 16, column = warp % 2 * WARP_COLUMNS;
    const u32 own = shared_address(shared), mine = own + threadIdx.x * 16, b = own + QN_CUDA_DIGITS_X_BYTES;
    places at = {own + row * 32 + lane * 16, own + QN_CUDA_DIGITS_X_FLOATS + (row + lane / 4) * 16,
                 b + column * 32 + lane * 16, b + QN_CUDA_DIGITS_B_FLOATS + column * 8 + lane % 4 * 16};
    const int steps = cut.depth / STEP, first = (int)blockIdx.z * steps;
    const int end = first + steps < by.steps ? first + steps : by.steps;
    const char *next_x = by.x + ((i64)blockIdx.y * by.steps + first) * QN_CUDA_DIGITS_X_BYTES + threadIdx.x * 16;
    const char *next_b = by.b + ((i64)blockIdx.x * by.steps + first) * B_BYTES + threadIdx.x * 16;
    float sums[WARP_COLUMNS / 8][4] = {};
    release_next();
    wait_before();
    copy(mine, next_x, QN_CUDA_DIGITS_X_BYTES);
    copy(mine + QN_CUDA_DIGITS_X_BYTES, next_b, B_BYTES);
    u32 stage = 0;
#pragma unroll 1
    for (int step = first; step < end; step++) {
        const u32 other = STAGE - stage;
        copy_async_wait();
        __syncthreads();
        next_x += QN_CUDA_DIGITS_X_BYTES;
        next_b += B_BYTES;
        if (step + 1 < end) {
            copy(mine + other, next_x, QN_CUDA_DIGITS_X_BYTES);
            copy(mine + other + QN_CUDA_DIGITS_X_BYTES, next_b, B_BYTES);
        }
        multiply({at.x + stage, at.of_x + stage, at.b + stage, at.of_b + stage}, sums);
        stage = other;
    }
    const qn_cuda_mm_part &p = a.part[0];
    const int m0 = (int)blockIdx.y * ROWS + row + lane / 4, n0 = (int)blockIdx.x * COLUMNS + column + lane % 4 * 2;
    u32 others = 0;
#pragma unroll
    for (int j = 0; j < WARP_COLUMNS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int m = m0 + e / 2 * 8, n = n0 + 8 * j + e % 2;
            const float sum = sums[j][e];
            if (m >= a.m || n >= p.n) {
                continue;
            }
            if (gridDim.z > 1) {
                ((float *)cut.parts)[((i64)blockIdx.z * a.m + m) * p.n + n] = sum;
            } else {
                store_float(p.d + m * p.d_row, n, finish(load_tail(p, n), sum, 1.0f, 0, 1.0f), OUT);
                others |= (u32)!is_finite(sum) << (4 * j + e);
            }
        }
    }
    for (; others; others &= others - 1) {
        const int i = 31 - __clz((int)(others & (0u - others)));
        store_plain(a, m0 + i / 2 % 2 * 8, n0 + i / 4 * 8 + i % 2);
    }
}
