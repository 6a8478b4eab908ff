/* vq_attention on any strides, vectors and codes, and the lower rungs of the ladder: an entry is looked up where it is
 * and multiplied in f32. A block has one query head of one sequence and a part of its tokens; its warps take strips of
 * 32 tokens in turn, a lane a token for the scores, a lane a group of channels for the sums.
 *
 * The same over rows that are no codes (ROWS): the recent tokens of a window, and keys and values of 8 bits with scales
 * (scaled_attention). A vector is then VEC neighbouring elements of the row.
 *
 * Host contract
 *   Parameters: Q_FORMAT; B_FORMAT of the books; WIDE 1: codes of 16 bits; SIZE of a head, VEC of a vector, at most 16;
 *     CACHED: entries of each group's book that are held in shared memory, the first ones; SWEEP 1: a block does all
 *     sequences of its head, so that it loads them once; TURN 1, 2: keys are turned by their position, pairs of halves
 *     or of neighbours; ALIGNED 1: entries begin at their own size, at most 16 bytes, VEC even, B_FORMAT f16
 *     PAGE: tokens of a page of codes, 0 or not defined: those of a sequence are one piece
 *     ROWS 0: codes; 1: rows of B_FORMAT, those of the window; 2: rows of e4m3 with scales, VEC 4 at 4 bytes or 1; OUT,
 *     the result's format; LENS 0: lengths follow from the queries' places; those of turn.h
 *   Launch: block 128, grid {query heads, parts, sequences or 1}, dynamic shared memory of SHARED_BYTES */
#include "formats.h"
#include "turn.h"
#include "vq_attention_parts.h"

#define WARPS 4
#define GROUPS (SIZE / VEC)
#define LANE_GROUPS ((GROUPS + 31) / 32)
#define ENTRY_BYTES (B_FORMAT == 0 ? 4 * VEC : 2 * VEC)
#ifndef ROWS
#define ROWS 0
#endif
#ifndef PAGE
#define PAGE 0
#endif
#define BOOK_BYTES ((CACHED)*ENTRY_BYTES * GROUPS)
#define ROW (SIZE + 2)

/* q, frequencies, a warp's weights and result; then the books */
#define FREQUENCY_AT ((SIZE * 4 + 7) / 8 * 8)
#define WEIGHTS_AT (FREQUENCY_AT + (TURN ? (SIZE + 1) / 2 * 8 : 0))
#define RESULT_AT (WEIGHTS_AT + WARPS * 32 * 4)
#define BOOKS_AT ((RESULT_AT + WARPS * ROW * 4 + 15) / 16 * 16)

extern __shared__ __align__(16) char shared[];

/* Codes of a token and head, whose sequence begins at `first`, or which are in one of its pages. A page that is none is
 * taken for the last, so that no operand is left. */
#if PAGE
DEV const char *codes_of(const qn_cuda_vq_attention &a, const qn_cuda_vq_codes &all, const int *pages, int kv, int token)
{
    const u32 page = (u32)pages[token / PAGE], last = (u32)(a.page_count - 1);
    return all.data + (i64)(page < last ? page : last) * all.batch + token % PAGE * all.token + kv * all.head;
}
#endif

DEV u32 code_at(const char *row, int group, int entries)
{
#if WIDE
    return ((const u16 *)row)[group] & (u32)(entries - 1);
#else
    return ((const u8 *)row)[group] & (u32)(entries - 1);
#endif
}

/* An entry of a group, wherever it is; `held` is the cached part of the book. */
DEV const char *entry_of(const qn_cuda_vq_book &book, const char *of_head, const char *held, int group, u32 code)
{
#if CACHED
    if (code < CACHED) {
        return held + (group * CACHED + (int)code) * ENTRY_BYTES;
    }
#endif
    return of_head + group * book.group + code * book.entry;
}

DEV void load_entry(const char *at, float *v)
{
#if ALIGNED
#pragma unroll
    for (int j = 0; j < VEC; j += VEC < 8 ? VEC : 8) {
#if VEC == 2
        const u32 w[1] = {*(const u32 *)at};
#elif VEC == 4
        const uint2 x = *(const uint2 *)at;
        const u32 w[2] = {x.x, x.y};
#else
        const uint4 x = *(const uint4 *)(at + 2 * j);
        const u32 w[4] = {x.x, x.y, x.z, x.w};
#endif
#pragma unroll
        for (int k = 0; k < (VEC < 8 ? VEC : 8); k += 2) {
            v[j + k] = half_float(w[k / 2] & 0xffff);
            v[j + k + 1] = half_float(w[k / 2] >> 16);
        }
    }
#else
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        v[j] = load_float(at, j, B_FORMAT);
    }
#endif
}

#if CACHED
DEV void hold(const qn_cuda_vq_book &book, const char *of_head, char *to)
{
    for (int i = (int)threadIdx.x; i < GROUPS * CACHED; i += 128) {
        const char *const from = of_head + i / CACHED * book.group + i % CACHED * book.entry;
#if ALIGNED
#pragma unroll
        for (int j = 0; j < ENTRY_BYTES; j += 4) {
            *(u32 *)(to + i * ENTRY_BYTES + j) = *(const u32 *)(from + j);
        }
#else
        for (int j = 0; j < ENTRY_BYTES; j += 2) {
            *(u16 *)(to + i * ENTRY_BYTES + j) = *(const u16 *)(from + j);
        }
#endif
    }
}
#endif

#if ROWS
/* The row of token strip + i, i below 32: of a window's rows, which are more, `at` is that of the strip's first. */
DEV const char *row_of(const qn_cuda_vq_attention &a, const qn_cuda_vq_codes &all, const char *first, int at, int i)
{
    const int row = at + i;
    return first + (i64)(ROWS == 1 && row >= a.recent_rows ? row - a.recent_rows : row) * all.token;
}

DEV float scale_of(const qn_cuda_vq_codes &all, int kv, int token)
{
    return ROWS == 2 ? *(const float *)(all.scale + token * all.scale_token + kv * all.scale_head) : 1.0f;
}

/* A vector of a row as it lies: whole words of a row of codes, 16 bytes of one of f16, or an element. */
#if ROWS == 2
typedef u32 raw_vector;
#define BATCH 16 /* values under way at once */
#elif ALIGNED
typedef uint4 raw_vector;
#define BATCH 8
#else
typedef float raw_vector;
#define BATCH 16
#endif
#define VALUES (LANE_GROUPS < BATCH ? BATCH / LANE_GROUPS : 1) /* tokens of a batch */

DEV raw_vector raw_at(const char *row, int group)
{
#if ROWS == 2 && VEC == 4
    return *(const u32 *)(row + group * 4);
#elif ROWS == 2
    return ((const u8 *)row)[group];
#elif ALIGNED
    return *(const uint4 *)(row + group * 16);
#else
    return load_float(row, group, B_FORMAT);
#endif
}

DEV void floats_of(raw_vector raw, float scale, float *v)
{
#if ROWS == 2
    float four[4];
    e4m3_floats(raw, four);
    e4m3_floats(raw >> 16, four + 2);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        v[j] = four[j] * scale;
    }
#elif ALIGNED
    const u32 w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < VEC; j += 2) {
        v[j] = half_float(w[j / 2] & 0xffff);
        v[j + 1] = half_float(w[j / 2] >> 16);
    }
#else
    v[0] = raw;
#endif
}

/* Values of tokens `from` on of a strip, VALUES of them, those behind the last one again. */
DEV void ask_values(const qn_cuda_vq_attention &a, const qn_cuda_vq_codes &all, const char *first, int at, int from,
                    int count, raw_vector raw[VALUES][LANE_GROUPS])
{
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const char *const row = row_of(a, all, first, at, from + i < count ? from + i : count - 1);
#pragma unroll
        for (int x = 0; x < LANE_GROUPS; x++) {
            const int group = (int)threadIdx.x % 32 + 32 * x;
            raw[i][x] = raw_at(row, group < GROUPS ? group : 0);
        }
    }
}
#endif

#if TURN
DEV float channel_of(const qn_cuda_vq_attention &a, const char *book, const char *held, const char *row, int channel)
{
    const int group = channel / VEC;
    return load_float(entry_of(a.k_book, book, held, group, code_at(row, group, a.entries)), channel % VEC, B_FORMAT);
}
#endif

extern "C" __global__ void __launch_bounds__(128, 4)
    qn_vq_attention_plain(const __grid_constant__ qn_cuda_vq_attention a)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.x, part = ROWS == 1 ? a.parts : (int)blockIdx.y, kv = head / a.group;
#if ROWS == 1
    const qn_cuda_vq_codes &keys = a.k_recent, &values = a.v_recent;
#else
    const qn_cuda_vq_codes &keys = a.k, &values = a.v;
#endif
    const char *const k_book = a.k_book.data + kv * a.k_book.head, *const v_book = a.v_book.data + kv * a.v_book.head;
    float *const q = (float *)shared, *const weights = (float *)(shared + WEIGHTS_AT) + warp * 32;
    float *const results = (float *)(shared + RESULT_AT);
    char *const k_held = shared + BOOKS_AT, *const v_held = k_held + BOOK_BYTES;
    release_next();
    wait_before();
#if CACHED
    hold(a.k_book, k_book, k_held);
    hold(a.v_book, v_book, v_held);
#endif
#if TURN
    double *const frequency = (double *)(shared + FREQUENCY_AT);
    for (int i = (int)threadIdx.x; i < SIZE / 2; i += 128) {
        frequency[i] = frequency_of(i, SIZE, a.log2_theta, a.factors);
    }
#endif
    for (int sequence = SWEEP ? 0 : (int)blockIdx.z; sequence < (SWEEP ? a.batch : (int)blockIdx.z + 1); sequence++) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < SIZE; i += 128) {
            q[i] = load_float(a.q + sequence * a.q_row + head * a.q_head, i, Q_FORMAT) * a.scale;
        }
        __syncthreads();
        const int length = length_of(a, sequence), coded = coded_of(a, length);
        const int begin = ROWS == 1 ? coded : part * a.part_tokens;
        const int end = ROWS == 1 ? length : begin + a.part_tokens < coded ? begin + a.part_tokens : coded;
        if (ROWS != 1 && begin >= end && part > 0) {
            continue; /* nobody asks for it */
        }
#if PAGE
        const int *const pages = (const int *)((const char *)a.pages + sequence * a.pages_row);
#else
        const char *const k_row = keys.data + sequence * keys.batch + kv * keys.head;
        const char *const v_row = values.data + sequence * values.batch + kv * values.head;
#endif
        float most = NONE, total = 0.0f, sums[LANE_GROUPS][VEC];
#pragma unroll
        for (int x = 0; x < LANE_GROUPS; x++) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                sums[x][j] = 0.0f;
            }
        }
        for (int strip = begin + warp * 32; strip < end; strip += WARPS * 32) {
            const int token = strip + lane;
            const int count = end - strip < 32 ? end - strip : 32;
#if ROWS
            const int at = ROWS == 1 ? strip % a.recent_rows : strip;
            const float v_scale = token < end ? scale_of(values, kv, token) : 0.0f;
            raw_vector raw[VALUES][LANE_GROUPS]; /* under way while the scores are made */
            ask_values(a, values, v_row, at, 0, count, raw);
#endif
            float score = 0.0f;
            if (token < end) {
#if ROWS
                const char *const row = row_of(a, keys, k_row, at, lane);
                const float scale = scale_of(keys, kv, token);
#pragma unroll 16
                for (int group = 0; group < GROUPS; group++) {
                    float v[VEC];
                    floats_of(raw_at(row, group), scale, v);
#pragma unroll
                    for (int j = 0; j < VEC; j++) {
                        score = __fmaf_rn(v[j], q[group * VEC + j], score);
                    }
                }
#else
#if PAGE
                const char *const row = codes_of(a, keys, pages, kv, token);
#else
                const char *const row = k_row + token * a.k.token;
#endif
#if TURN
                for (int i = 0; i < SIZE / 2; i++) {
                    const turn t = turn_by((double)token * frequency[i]);
                    const int first = TURN == 1 ? i : 2 * i, second = TURN == 1 ? i + SIZE / 2 : 2 * i + 1;
                    const float x = channel_of(a, k_book, k_held, row, first);
                    const float y = channel_of(a, k_book, k_held, row, second);
                    score = __fmaf_rn(q[first], __fmaf_rn(x, t.c, -(y * t.s)), score);
                    score = __fmaf_rn(q[second], __fmaf_rn(y, t.c, x * t.s), score);
                }
#else
#pragma unroll 4
                for (int group = 0; group < GROUPS; group++) {
                    float v[VEC];
                    load_entry(entry_of(a.k_book, k_book, k_held, group, code_at(row, group, a.entries)), v);
#pragma unroll
                    for (int j = 0; j < VEC; j++) {
                        score = __fmaf_rn(v[j], q[group * VEC + j], score);
                    }
                }
#endif
#endif
            }
            score = token < end ? score : NONE;
            float high = score;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
            }
            high = fmaxf(high, most);
            const float weight = exp_base2(score - high + WEIGHT_SHIFT), keep = part_weight(most, high);
            most = high;
            total = __fmaf_rn(total, keep, weight);
#pragma unroll
            for (int x = 0; x < LANE_GROUPS; x++) {
#pragma unroll
                for (int j = 0; j < VEC; j++) {
                    sums[x][j] *= keep;
                }
            }
            weights[lane] = token < end ? weight : 0.0f;
            __syncwarp();
#if ROWS
            for (int from = 0; from < count; from += VALUES) {
                raw_vector later[VALUES][LANE_GROUPS];
                if (from + VALUES < count) {
                    ask_values(a, values, v_row, at, from + VALUES, count, later);
                }
#pragma unroll
                for (int i = 0; i < VALUES; i++) {
                    if (from + i >= count) {
                        continue;
                    }
                    const float weight = weights[from + i], scale = __shfl_sync(0xffffffffu, v_scale, from + i);
#pragma unroll
                    for (int x = 0; x < LANE_GROUPS; x++) {
                        float v[VEC];
                        floats_of(raw[i][x], scale, v);
#pragma unroll
                        for (int j = 0; j < VEC; j++) {
                            sums[x][j] = __fmaf_rn(weight, v[j], sums[x][j]);
                        }
                        raw[i][x] = later[i][x];
                    }
                }
            }
#else
#pragma unroll 4
            for (int s = 0; s < count; s++) {
#if PAGE
                const char *const row = codes_of(a, values, pages, kv, strip + s);
#else
                const char *const row = v_row + (strip + s) * a.v.token;
#endif
#pragma unroll
                for (int x = 0; x < LANE_GROUPS; x++) {
                    const int group = lane + 32 * x;
                    if (group < GROUPS) {
                        float v[VEC];
                        load_entry(entry_of(a.v_book, v_book, v_held, group, code_at(row, group, a.entries)), v);
#pragma unroll
                        for (int j = 0; j < VEC; j++) {
                            sums[x][j] = __fmaf_rn(weights[s], v[j], sums[x][j]);
                        }
                    }
                }
            }
#endif
            __syncwarp();
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            total += __shfl_xor_sync(0xffffffffu, total, step);
        }
        float *const mine = results + warp * ROW;
#pragma unroll
        for (int x = 0; x < LANE_GROUPS; x++) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                if (lane + 32 * x < GROUPS) {
                    mine[(lane + 32 * x) * VEC + j] = sums[x][j];
                }
            }
        }
        if (lane == 0) {
            mine[SIZE] = most;
            mine[SIZE + 1] = total;
        }
        __syncthreads();
        for (int d = (int)threadIdx.x; d < SIZE; d += 128) {
            float high = NONE, all = 0.0f, sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                high = fmaxf(high, results[w * ROW + SIZE]);
            }
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float weight = part_weight(results[w * ROW + SIZE], high);
                all = __fmaf_rn(weight, results[w * ROW + SIZE + 1], all);
                sum = __fmaf_rn(weight, results[w * ROW + d], sum);
            }
            if (a.all_parts == 1) {
                put_result(a, sequence, head, d, length, high, all, sum);
            } else {
                put_part(a, sequence, head, part, d, high, all, sum);
            }
        }
    }
}
