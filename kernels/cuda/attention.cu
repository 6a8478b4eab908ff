/* attention: o = softmax(scale q k^T) v, causal or not, grouped key heads. A block has QUERIES queries of one head; its
 * warps take strips of 32 keys in turn, a lane a key, keep a running largest score and sum each, and are added in their
 * order at the end. Scores in units of log 2; all sums in f32.
 *
 * Host contract
 *   Parameters: Q_FORMAT, K_FORMAT, V_FORMAT, OUT; QUERIES a block; DIMS: elements of a head a lane, ceil(size / 32);
 *     ALIGNED 1: rows and heads of k begin at 16 bytes and size is a multiple of 8
 *   Launch: block 128, grid {ceil(queries / QUERIES), heads}, dynamic shared memory of
 *     4 * (QUERIES * DIMS * 32 + 4 * QUERIES * (32 + DIMS * 32 + 2)) bytes */
#include "formats.h"
#include "cuda_activation.h"
#include "parts.h"

#define WARPS 4
#define SIZE (DIMS * 32)
#define NONE __int_as_float(0xff800000u)

extern __shared__ __align__(16) float shared[];

/* Four elements of a key from column i on; zeros beyond size. */
DEV float4 load_four(const char *row, int i, int size)
{
#if ALIGNED && K_FORMAT == 0
    return *(const float4 *)(row + i * 4);
#elif ALIGNED
    const uint2 v = *(const uint2 *)(row + i * 2);
    float4 f;
#if K_FORMAT == 1
    f.x = half_float(v.x & 0xffff);
    f.y = half_float(v.x >> 16);
    f.z = half_float(v.y & 0xffff);
    f.w = half_float(v.y >> 16);
#else
    f.x = __uint_as_float(v.x << 16);
    f.y = __uint_as_float(v.x & 0xffff0000u);
    f.z = __uint_as_float(v.y << 16);
    f.w = __uint_as_float(v.y & 0xffff0000u);
#endif
    return f;
#else
    float f[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        f[j] = i + j < size ? load_float(row, i + j, K_FORMAT) : 0.0f;
    }
    return make_float4(f[0], f[1], f[2], f[3]);
#endif
}

extern "C" __global__ void __launch_bounds__(128, 1) qn_attention(const __grid_constant__ qn_cuda_attention a)
{
    float *const q = shared, *const weights = q + QUERIES * SIZE, *const results = weights + WARPS * QUERIES * 32;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, head = (int)blockIdx.y;
    const int first = (int)blockIdx.x * QUERIES;
    release_next();
    wait_before();
    for (int i = (int)threadIdx.x; i < QUERIES * SIZE; i += 128) {
        const int t = first + i / SIZE, d = i % SIZE;
        const char *const row = a.q + t * a.q_row + head * a.q_head;
        q[i] = t < a.queries && d < a.size ? load_float(row, d, Q_FORMAT) * a.scale * 1.4426950408889634f : 0.0f;
    }
    __syncthreads();
    const int last = first + QUERIES < a.queries ? first + QUERIES : a.queries;
    const int seen = a.causal ? a.keys - a.queries + last : a.keys; /* by the block's last query */
    float most[QUERIES], total[QUERIES], sums[QUERIES][DIMS];
#pragma unroll
    for (int t = 0; t < QUERIES; t++) {
        most[t] = NONE;
        total[t] = 0.0f;
#pragma unroll
        for (int j = 0; j < DIMS; j++) {
            sums[t][j] = 0.0f;
        }
    }
    const char *const k = a.k + head / a.group * a.k_head, *const v = a.v + head / a.group * a.v_head;
    float *const mine = weights + warp * QUERIES * 32;
    for (int strip = warp * 32; strip < seen; strip += WARPS * 32) {
        const int key = strip + lane;
        float score[QUERIES] = {};
        if (key < seen) {
            const char *const row = k + key * a.k_row;
            for (int i = 0; i < a.size; i += 4) {
                const float4 f = load_four(row, i, a.size);
#pragma unroll
                for (int t = 0; t < QUERIES; t++) {
                    const float4 g = *(const float4 *)(q + t * SIZE + i);
                    score[t] = __fmaf_rn(f.x, g.x, score[t]);
                    score[t] = __fmaf_rn(f.y, g.y, score[t]);
                    score[t] = __fmaf_rn(f.z, g.z, score[t]);
                    score[t] = __fmaf_rn(f.w, g.w, score[t]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < QUERIES; t++) {
            const int limit = a.causal ? a.keys - a.queries + first + t + 1 : a.keys;
            const float s = key < limit && key < seen ? score[t] : NONE;
            float high = s;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
            }
            high = fmaxf(high, most[t]);
            const float weight = s == NONE ? 0.0f : exp_base2(s - high);
            const float keep = most[t] == NONE ? 0.0f : exp_base2(most[t] - high);
            most[t] = high;
            total[t] = __fmaf_rn(total[t], keep, weight); /* of this lane's keys */
#pragma unroll
            for (int j = 0; j < DIMS; j++) {
                sums[t][j] *= keep;
            }
            mine[t * 32 + lane] = weight;
        }
        __syncwarp();
        const int count = seen - strip < 32 ? seen - strip : 32;
        for (int s = 0; s < count; s++) {
            const char *const row = v + (strip + s) * a.v_row;
            float f[DIMS];
#pragma unroll
            for (int j = 0; j < DIMS; j++) {
                f[j] = lane + 32 * j < a.size ? load_float(row, lane + 32 * j, V_FORMAT) : 0.0f;
            }
#pragma unroll
            for (int t = 0; t < QUERIES; t++) {
                const float weight = mine[t * 32 + s];
#pragma unroll
                for (int j = 0; j < DIMS; j++) {
                    sums[t][j] = __fmaf_rn(weight, f[j], sums[t][j]);
                }
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int t = 0; t < QUERIES; t++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            total[t] += __shfl_xor_sync(0xffffffffu, total[t], step);
        }
        float *const r = results + (warp * QUERIES + t) * (SIZE + 2);
#pragma unroll
        for (int j = 0; j < DIMS; j++) {
            r[lane + 32 * j] = sums[t][j];
        }
        if (lane == 0) {
            r[SIZE] = most[t];
            r[SIZE + 1] = total[t];
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < QUERIES * SIZE; i += 128) {
        const int t = i / SIZE, d = i % SIZE;
        const float *const r = results + t * (SIZE + 2);
        const int step = QUERIES * (SIZE + 2);
        if (first + t >= a.queries || d >= a.size) {
            continue;
        }
        float high = r[SIZE], all = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            high = fmaxf(high, r[w * step + SIZE]);
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = r[w * step + SIZE] == NONE ? 0.0f : exp_base2(r[w * step + SIZE] - high);
            all = __fmaf_rn(weight, r[w * step + SIZE + 1], all);
            sum = __fmaf_rn(weight, r[w * step + d], sum);
        }
        const int visible = a.causal ? a.keys - a.queries + first + t + 1 : a.keys;
        store_float(a.o + (first + t) * a.o_row + head * a.o_head, d, visible > 0 ? sum / all : 0.0f, OUT);
    }
}
