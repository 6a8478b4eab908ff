/* The nearest centroid of a group's book, of equals the first, by a warp whose lanes share the entries (vq_encode.cu,
 * kv_step.cu). |x - c|^2 is least where x . c - |c|^2 / 2 is largest: one fused multiply-add an element. A vector that
 * is not finite has code 0; one whose products would leave f32 is measured in double.
 *
 * Parameters: X_FORMAT, B_FORMAT, VEC; HELD: entries of a lane in registers, ENTRIES / 32; 0: read again for each row;
 * WIDE: codes of 16 bits */
#ifndef QN_CUDA_VQ_NEAREST_H
#define QN_CUDA_VQ_NEAREST_H

#include "formats.h"
#include "cuda_vq_kv.h"

#define LIMIT 1e15f

/* The largest key of a warp wins, of equals the lowest entry. Keys as signed integers of the same order. */
DEV int order_of(float v)
{
    const int bits = __float_as_int(v);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

DEV u32 nearest_far(const char *book, i64 entry_bytes, int entries, const float *x)
{
    const int lane = (int)threadIdx.x % 32;
    double least = __longlong_as_double(0x7ff0000000000000ll);
    u32 best = 0xffffffffu;
    for (int e = lane; e < entries; e += 32) {
        double distance = 0.0;
        for (int j = 0; j < VEC; j++) {
            const double d = (double)x[j] - (double)load_float(book + e * entry_bytes, j, B_FORMAT);
            distance = distance + d * d;
        }
        if (distance < least) {
            least = distance;
            best = (u32)e;
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const double d = __shfl_xor_sync(0xffffffffu, least, step);
        const u32 e = __shfl_xor_sync(0xffffffffu, best, step);
        if (d < least || (d == least && e < best)) {
            least = d;
            best = e;
        }
    }
    return best == 0xffffffffu ? 0 : best;
}

/* A lane's entries of a group's book. */
struct held_entries {
#if HELD
    float entry[HELD][VEC], half_norm[HELD];
#endif
};

DEV const char *book_of(const qn_cuda_vq_encode &a, int head, int group)
{
    return a.book.data + head * a.book.head + group * a.book.group;
}

DEV void hold_entries(const qn_cuda_vq_encode &a, int head, int group, held_entries *held)
{
#if HELD
    const char *const book = book_of(a, head, group);
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        held->half_norm[k] = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            held->entry[k][j] = load_float(book + (lane + 32 * k) * a.book.entry, j, B_FORMAT);
            held->half_norm[k] = __fmaf_rn(held->entry[k][j], -0.5f * held->entry[k][j], held->half_norm[k]);
        }
    }
#endif
}

/* Codes of a group of a head of rows first, first + step, ... */
DEV void encode_rows(const qn_cuda_vq_encode &a, int head, int group, const held_entries &held, i64 first, i64 step)
{
    const char *const book = book_of(a, head, group);
    const int lane = (int)threadIdx.x % 32;
    const i64 rows = (i64)a.batch * a.tokens;
    for (i64 r = first; r < rows; r += step) {
        const i64 b = r / a.tokens, t = r % a.tokens;
        const char *const from = a.x + b * a.x_batch + t * a.x_token + head * a.x_head;
        float x[VEC], size = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            x[j] = load_float(from, (i64)group * VEC + j, X_FORMAT);
            size = fmaxf(size, fabsf(x[j]) < __int_as_float(0x7f800000) ? fabsf(x[j]) : __int_as_float(0x7f800000));
        }
        u32 best = 0;
        if (size < LIMIT) {
            float most = __int_as_float(0xff800000u);
            u32 mine = 0;
#if HELD
#pragma unroll
            for (int k = 0; k < HELD; k++) {
                float key = held.half_norm[k];
#pragma unroll
                for (int j = 0; j < VEC; j++) {
                    key = __fmaf_rn(x[j], held.entry[k][j], key);
                }
                if (key > most) {
                    most = key;
                    mine = (u32)(lane + 32 * k);
                }
            }
#else
            for (int e = lane; e < a.entries; e += 32) {
                float key = 0.0f, norm = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) {
                    const float c = load_float(book + e * a.book.entry, j, B_FORMAT);
                    norm = __fmaf_rn(c, -0.5f * c, norm);
                    key = __fmaf_rn(x[j], c, key);
                }
                if (key + norm > most) {
                    most = key + norm;
                    mine = (u32)e;
                }
            }
#endif
            int order = order_of(most);
            order = __reduce_max_sync(0xffffffffu, order);
            best = __reduce_min_sync(0xffffffffu, order == order_of(most) ? mine : 0xffffffffu);
        } else if (size < __int_as_float(0x7f800000)) {
            best = nearest_far(book, a.book.entry, a.entries, x);
        }
        if (lane == 0) {
            const i64 token = a.position ? *a.position : t;
            char *const to = a.codes + b * a.codes_batch + token * a.codes_token + head * a.codes_head;
#if WIDE
            ((u16 *)to)[group] = (u16)best;
#else
            ((u8 *)to)[group] = (u8)best;
#endif
        }
    }
}

#endif
