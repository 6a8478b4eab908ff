/* d = x b^T with weights of any format, many rows: tiles of 64 x 64, both operands as floats (int8: as they are)
 * in shared memory, sums in the order of K by fused multiply-adds (int8: by dot products of four, exact). A chain of
 * them begins anew every 256 of K, as roundings of equal products agree. Rows of x are never rounded to a smaller type.
 *
 * Host contract
 *   Parameters: those of mm_common.h
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / 64), ceil(M / 64)} */
#define TILE 64
#define STEP 32
#define CHAIN 256 /* a multiple of it */
#define THREADS 256
#include "mm_staged.h"

#define X_MINE (TILE * STEP / THREADS)

#if INT_SUMS
#define PITCH 12 /* words of a row: 8, and so many that rows begin at different banks */
typedef u32 item;
#else
#define PITCH 36
typedef float item;
#endif

struct staged {
    raw b[MINE];
#if INT_SUMS
    u32 x[2];
#else
    float x[X_MINE];
#endif
};

DEV void fetch(const qn_cuda_mm &a, int row0, int column0, int k0, staged *s)
{
    fetch_units(a, column0, k0, s->b);
#if INT_SUMS
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int index = (int)threadIdx.x + i * THREADS, m = row0 + index / 8, k = k0 + index % 8 * 4;
        const u8 *const at = (const u8 *)a.x + m * a.x_row + k;
        s->x[i] = 0;
        if (m < a.m && k < a.k) {
#if ALIGNED
            s->x[i] = *(const u32 *)at;
#else
            for (int j = 0; j < 4 && k + j < a.k; j++) {
                s->x[i] |= (u32)at[j] << 8 * j;
            }
#endif
        }
    }
#else
#pragma unroll
    for (int i = 0; i < X_MINE; i++) {
        const int index = (int)threadIdx.x + i * THREADS, m = row0 + index / STEP, k = k0 + index % STEP;
        s->x[i] = m < a.m && k < a.k ? load_x(a, m, k) : 0.0f;
    }
#endif
}

DEV void put(const staged &s, item *x, item *b)
{
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int index = unit_index(i);
        if (index < TILE_UNITS) {
            item *const to = b + index / ROW_UNITS * PITCH;
#if INT_SUMS
            *(uint4 *)(to + index % ROW_UNITS * 4) =
                make_uint4(s.b[i].word[0], s.b[i].word[1], s.b[i].word[2], s.b[i].word[3]);
#else
#pragma unroll
            for (int j = 0; j < (UNIT + 7) / 8; j++) {
                float v[8];
                decode8(s.b[i], j, v);
                float *const at = to + index % ROW_UNITS * UNIT + 8 * j;
                *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
                if (UNIT > 4) {
                    *(float4 *)(at + 4) = make_float4(v[4], v[5], v[6], v[7]);
                }
            }
#endif
        }
    }
#if INT_SUMS
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int index = (int)threadIdx.x + i * THREADS;
        x[index / 8 * PITCH + index % 8] = s.x[i];
    }
#else
#pragma unroll
    for (int i = 0; i < X_MINE; i++) {
        const int index = (int)threadIdx.x + i * THREADS;
        x[index / STEP * PITCH + index % STEP] = s.x[i];
    }
#endif
}

/* Products of a step: rows y + 16 i, columns x + 16 j of the tile. */
DEV void multiply(const item *x_tile, const item *b_tile, int x, int y, sum_t sums[4][4])
{
#if INT_SUMS
#pragma unroll
    for (int w = 0; w < 8; w += 4) {
        int4 u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[i] = *(const int4 *)(x_tile + (y + 16 * i) * PITCH + w);
            v[i] = *(const int4 *)(b_tile + (x + 16 * i) * PITCH + w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sums[i][j] = __dp4a(u[i].x, v[j].x, sums[i][j]);
                sums[i][j] = __dp4a(u[i].y, v[j].y, sums[i][j]);
                sums[i][j] = __dp4a(u[i].z, v[j].z, sums[i][j]);
                sums[i][j] = __dp4a(u[i].w, v[j].w, sums[i][j]);
            }
        }
    }
#else
#pragma unroll
    for (int k = 0; k < STEP; k += 4) {
        float4 u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[i] = *(const float4 *)(x_tile + (y + 16 * i) * PITCH + k);
            v[i] = *(const float4 *)(b_tile + (x + 16 * i) * PITCH + k);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sums[i][j] = __fmaf_rn(u[i].x, v[j].x, sums[i][j]);
                sums[i][j] = __fmaf_rn(u[i].y, v[j].y, sums[i][j]);
                sums[i][j] = __fmaf_rn(u[i].z, v[j].z, sums[i][j]);
                sums[i][j] = __fmaf_rn(u[i].w, v[j].w, sums[i][j]);
            }
        }
    }
#endif
}

/* Adds a chain to the sums, and begins the next. */
DEV void end_chain(sum_t part[4][4], sum_t sums[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sums[i][j] += part[i][j];
            part[i][j] = 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_mm_tile(const __grid_constant__ qn_cuda_mm a)
{
    __shared__ __align__(16) item x_tile[TILE * PITCH], b_tile[TILE * PITCH];
    release_next();
    wait_before();
    const int column0 = (int)blockIdx.x * TILE, row0 = (int)blockIdx.y * TILE;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    sum_t part[4][4] = {}, sums[4][4] = {};
    staged next;
    fetch(a, row0, column0, 0, &next);
    for (int k0 = 0; k0 < a.k; k0 += STEP) {
        put(next, x_tile, b_tile);
        __syncthreads();
        if (k0 + STEP < a.k) {
            fetch(a, row0, column0, k0 + STEP, &next);
        }
        multiply(x_tile, b_tile, x, y, part);
        __syncthreads();
        if ((k0 + STEP) % CHAIN == 0 || k0 + STEP >= a.k) {
            end_chain(part, sums);
        }
    }
    const qn_cuda_mm_part &p = a.part[0];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int m = row0 + y + 16 * i;
        if (m < a.m) {
            const float scale = row_scale(a, m);
            const int azp = row_azp(a, m);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int n = column0 + x + 16 * j;
                if (n < p.n) {
                    const float v = finish(load_tail(p, n), sums[i][j], scale, azp, row_global(a));
                    store_float(p.d + m * p.d_row, n, v, OUT);
                }
            }
        }
    }
}
