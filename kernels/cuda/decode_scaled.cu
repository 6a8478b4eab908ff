/* Attention of one new token over keys and values of 8 bits with scales and a window of f16, all that comes before it
 * included: turns the query and the new key, puts the key and the value into the window and, as codes, into the cache,
 * and leaves the parts that parts.h puts together. decode_group.cu has the queries that share long heads. What is
 * before this token is read while the kernels before are still at work: nothing of this pass changes it.
 *
 * Host contract
 *   Parameters: SIZE of a head, a multiple of 8, at most 128; NORM 1: heads of the query and of the key are normalised
 *     first; ALIGNED 1: rows of codes begin at 16 bytes and SIZE is a multiple of 16; those of rows.h, 0; of turn.h
 *   Rows of codes begin at 4 bytes (a scale for each head stands behind them), recent ones at 16
 *   Launch: block 128, grid {parts of the whole cache, heads} */
#include "decode_part.h"
#include "kv_scaled.h"

#define PIECES (SIZE / (ALIGNED ? 16 : 4)) /* of a row of codes */

/* Where this token's head becomes the next row: f16 and codes, by a warp. */
DEV void keep(const qn_cuda_decode &a, int values, int head, int position, const float *x)
{
    const qn_cuda_kv_keep &scaled = a.scaled[values];
    const auto element_of = [](int j) {
        const int at = (int)threadIdx.x % 32 + 32 * j;
        return at < SIZE ? at : -1;
    };
    u16 *const row = recent_head(a.recent[values], position, head);
    float v[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int at = element_of(j);
        v[j] = at < 0 ? 0.0f : x[at];
        if (at >= 0) {
            row[at] = (u16)pack_f16(v[j], 0.0f);
        }
    }
    put_scaled(v, scaled.y + position * scaled.y_row + head * SIZE,
               (float *)(scaled.scale + position * scaled.scale_row + head * 4), element_of);
}

/* Two elements of a row: of f16, or codes by their scale. */
DEV void pair_of(const char *row, int pair, int is_code, float scale, float *v)
{
    if (is_code) {
        e4m3_floats(((const u16 *)row)[pair], v);
        v[0] *= scale;
        v[1] *= scale;
    } else {
        half_floats(((const u32 *)row)[pair], v);
    }
}

extern "C" __global__ void __launch_bounds__(128) qn_decode_scaled(const __grid_constant__ qn_cuda_decode a)
{
    __shared__ __align__(16) char rows[PART_KEYS][SIZE * 2]; /* the values, as they lie */
    __shared__ __align__(16) float q[SIZE], fresh[2][SIZE];
    __shared__ __align__(8) float sums[WARPS][SIZE];
    __shared__ float scales[PART_KEYS], weights[PART_KEYS], high[WARPS], all[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, shared_head = head / a.group, first = (int)blockIdx.x * PART_KEYS;
    release_next();
    const int position = *a.position; /* written before this pass's first kernel */
    const int coded = max(position / 32 * 32 - a.window, 0), key = first + (int)threadIdx.x, here = first <= position;
    u32 k[SIZE / 2]; /* codes, or f16 */
    float scale = 0.0f;
    if (key < coded) {
        const char *const row = a.scaled[0].y + key * a.scaled[0].y_row + shared_head * SIZE;
#if ALIGNED
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            const uint4 w = ((const uint4 *)row)[i];
            k[4 * i] = w.x;
            k[4 * i + 1] = w.y;
            k[4 * i + 2] = w.z;
            k[4 * i + 3] = w.w;
        }
#else
#pragma unroll
        for (int i = 0; i < SIZE / 4; i++) {
            k[i] = ((const u32 *)row)[i];
        }
#endif
        scale = *(const float *)(a.scaled[0].scale + key * a.scaled[0].scale_row + shared_head * 4);
        scales[threadIdx.x] = *(const float *)(a.scaled[1].scale + key * a.scaled[1].scale_row + shared_head * 4);
    } else if (key < position) {
        load_recent(a.recent[0], key, shared_head, k);
    }
    const int row0 = warp * 32; /* a warp copies the values of its own keys */
    if (first + row0 < coded) {
#pragma unroll 8
        for (int i = lane; i < 32 * PIECES; i += 32) {
            const int s = row0 + i / PIECES, at = i % PIECES * (SIZE / PIECES), token = first + s;
            if (token < coded) {
                const char *const from = a.scaled[1].y + token * a.scaled[1].y_row + shared_head * SIZE + at;
                if (ALIGNED) {
                    copy_async_16(shared_address(&rows[s][at]), from, 16);
                } else {
                    copy_async_4(shared_address(&rows[s][at]), from, 1);
                }
            }
        }
    }
    copy_recent<SIZE * 2>(a.recent[1], first + row0, coded, position, shared_head, rows[row0]);
    turn t = {1.0f, 0.0f};
    if (here && threadIdx.x < SIZE / 2) {
        t = turn_of(position, (int)threadIdx.x, SIZE, a.log2_theta, a.factors);
    }
    head_norm n = load_gains(a.norms);
    wait_before();
    if (!here) {
        copy_async_wait();
        return;
    }
    const int newest = position < first + PART_KEYS;
    const char *const new_q = a.q + head * (SIZE * 4), *const new_k = a.k + shared_head * (SIZE * 4);
    finish_norm(a.norms, new_q, new_k, &n);
    if (threadIdx.x < SIZE / 2) {
        turn_new(new_q, new_k, n, a.scale, t, q, fresh[0]);
    }
    for (int i = (int)threadIdx.x; newest && i < SIZE; i += 128) {
        const float x = ((const float *)a.v)[shared_head * SIZE + i];
        fresh[1][i] = x;
        ((u16 *)rows[position - first])[i] = (u16)pack_f16(x, 0.0f);
    }
    __syncthreads();
    float score = 0.0f;
    if (key < coded) {
#pragma unroll
        for (int i = 0; i < SIZE; i += 2) {
            float v[2];
            e4m3_floats(k[i / 4] >> 8 * (i % 4), v);
            score = __fmaf_rn(v[0] * scale, q[i], score);
            score = __fmaf_rn(v[1] * scale, q[i + 1], score);
        }
    } else if (key < position) {
#pragma unroll
        for (int i = 0; i < SIZE; i += 2) {
            float v[2];
            half_floats(k[i / 2], v);
            score = __fmaf_rn(v[0], q[i], score);
            score = __fmaf_rn(v[1], q[i + 1], score);
        }
    } else if (key == position) {
        for (int i = 0; i < SIZE; i++) {
            score = __fmaf_rn(half_float(pack_f16(fresh[0][i], 0.0f) & 0xffff), q[i], score);
        }
    } else {
        score = NONE;
    }
    const float most = weigh(score, weights, high, all, lane, warp);
    copy_async_wait();
    __syncwarp();
    const int left = position + 1 - (first + row0), count = left < 0 ? 0 : left < 32 ? left : 32;
    sum_values(weights, count, sums[warp],
               [&](int row, int pair, float *v) { pair_of(rows[row], pair, first + row < coded, scales[row], v); });
    __syncthreads();
    leave_part(a.partials, a.heads, head, sums, most, all);
    if (newest && head % a.group == 0 && warp < 2) {
        keep(a, warp, shared_head, position, fresh[warp]);
    }
}
