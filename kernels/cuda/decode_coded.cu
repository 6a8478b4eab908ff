/* Attention of one new token over keys and values as codes of vectors and a window of f16, all that comes before it
 * included: turns the query and the new key, puts the key and the value into the window and, as codes of the unturned,
 * into the cache, and leaves the parts that parts.h puts together.
 *
 * What is before this token needs no query: while the kernels before are still at work, its codes and their vectors are
 * read, keys are turned by their own positions, and values lie in shared memory as rows of f16 like those of the
 * window. Nothing of this pass changes them. Vectors are read where the books are: a part needs fewer bytes of them
 * than the books have.
 *
 * Host contract
 *   Parameters: SIZE of a head, a multiple of 8, at most 128; VEC of a vector: 2, 4 or 8, SIZE / VEC a multiple of 4;
 *     those of vq_nearest.h: X_FORMAT 0, B_FORMAT f16, HELD 8, WIDE 0; of turn.h
 *   Books of 256 entries, dense, groups at 16 bytes; a head's codes begin at 4 bytes, recent rows at 16
 *   Launch: block 128, grid {parts of the whole cache, and blocks that encode, heads}: a warp of these has a group of a
 *     head of keys or values */
#include "vq_nearest.h"
#include "decode_part.h"

#define GROUPS (SIZE / VEC)
#define WORDS (GROUPS / 4) /* of a head's codes */
#define HALF (SIZE / 2)
#define ROW_BYTES (SIZE * 2 + 16) /* so that neighbouring rows begin at other banks */
#define LOW 8                     /* turns by 0 to 7 tokens, and by multiples of 8 from the part's first */
#define HIGH (PART_KEYS / LOW)

/* A vector of a book to where a row of values has it. */
DEV void copy_vector(void *to, const char *from)
{
#if VEC == 2
    copy_async_4(shared_address(to), from, 1);
#elif VEC == 4
    copy_async_8(shared_address(to), from, 8);
#else
    copy_async_16(shared_address(to), from, 16);
#endif
}

DEV u32 code_of(const u32 *words, int group)
{
    return words[group / 4] >> 8 * (group % 4) & 255u;
}

DEV void load_words(const char *at, u32 *words)
{
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        words[i] = ((const u32 *)at)[i];
    }
}

/* A head of a key, as words of two elements. */
DEV void load_vectors(const char *book, int group_bytes, const u32 *codes, u32 *k)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const char *const at = book + (u32)(g * group_bytes) + code_of(codes, g) * (2 * VEC);
#if VEC == 2
        k[g] = *(const u32 *)at;
#elif VEC == 4
        const uint2 w = *(const uint2 *)at;
        k[2 * g] = w.x;
        k[2 * g + 1] = w.y;
#else
        const uint4 w = *(const uint4 *)at;
        k[4 * g] = w.x;
        k[4 * g + 1] = w.y;
        k[4 * g + 2] = w.z;
        k[4 * g + 3] = w.w;
#endif
    }
}

DEV float element_of(const u32 *k, int i)
{
    return half_float(i % 2 ? k[i / 2] >> 16 : k[i / 2] & 0xffff);
}

/* The new token's codes, by the blocks behind the parts. */
DEV void encode_new(const qn_cuda_decode_coded &a)
{
    const int all = a.heads / a.group * GROUPS;
    const int block = ((int)blockIdx.x - a.parts) * a.heads + (int)blockIdx.y;
    const int task = block * WARPS + (int)threadIdx.x / 32, values = task >= all;
    const qn_cuda_vq_encode &coded = a.coded[values];
    const int head = (task - values * all) / GROUPS, group = task % GROUPS;
    if (task < 2 * all) {
        held_entries held;
        hold_entries(coded, head, group, &held);
        wait_before();
        encode_rows(coded, head, group, held, 0, 1);
    }
}

extern "C" __global__ void __launch_bounds__(128) qn_decode_coded(const __grid_constant__ qn_cuda_decode_coded a)
{
    __shared__ __align__(16) char rows[PART_KEYS][ROW_BYTES]; /* the values */
    __shared__ __align__(16) union {
        turn by[HIGH + LOW][HALF + 1];
        float sums[WARPS][SIZE];
    } turned;
    __shared__ __align__(16) union {
        double frequency[HALF];
        float q[SIZE];
    } query;
    __shared__ __align__(16) float fresh[SIZE]; /* the new key, as f16 has it */
    __shared__ float weights[PART_KEYS], high[WARPS], all[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, shared_head = head / a.group, first = (int)blockIdx.x * PART_KEYS;
    release_next();
    if ((int)blockIdx.x >= a.parts) {
        encode_new(a);
        return;
    }
    const int position = *a.position; /* written before this pass's first kernel */
    if (first > position) {
        return;
    }
    const int coded = max(position / 32 * 32 - a.window, 0), key = first + (int)threadIdx.x;
    const int row0 = warp * 32; /* a warp copies the values of its own keys */
    const char *const k_codes = a.coded[0].codes + shared_head * a.coded[0].codes_head;
    const char *const v_codes = a.coded[1].codes + shared_head * a.coded[1].codes_head;
    u32 code[WORDS], v_code[WORDS], k[HALF];
    if (key < coded) {
        load_words(k_codes + key * a.coded[0].codes_token, code);
    }
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const int i = lane + 32 * j, token = first + row0 + i / WORDS;
        if (token < coded) {
            v_code[j] = ((const u32 *)(v_codes + token * a.coded[1].codes_token))[i % WORDS];
        }
    }
    copy_recent<ROW_BYTES>(a.recent[1], first + row0, coded, position, shared_head, rows[row0]);
    turn t = {1.0f, 0.0f};
    if (threadIdx.x < HALF) {
        const double frequency = frequency_of((int)threadIdx.x, SIZE, a.log2_theta, a.factors);
        query.frequency[threadIdx.x] = frequency;
        t = turn_by((double)position * frequency);
    }
    if (key < coded) {
        load_vectors(a.coded[0].book.data + shared_head * a.coded[0].book.head, (int)a.coded[0].book.group, code, k);
    } else if (key < position) {
        load_recent(a.recent[0], key, shared_head, k);
    }
    const char *const v_book = a.coded[1].book.data + shared_head * a.coded[1].book.head;
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const int i = lane + 32 * j, s = row0 + i / WORDS, word = i % WORDS;
        if (first + s < coded) {
#pragma unroll
            for (int b = 0; b < 4; b++) {
                const int group = 4 * word + b;
                copy_vector(&rows[s][group * 2 * VEC], v_book + (u32)(group * (int)a.coded[1].book.group) +
                                                           (v_code[j] >> 8 * b & 255u) * (2 * VEC));
            }
        }
    }
    __syncthreads();
    if (first < coded) {
        for (int n = (int)threadIdx.x; n < (HIGH + LOW) * HALF; n += 128) {
            const int of = n / HALF, i = n % HALF, tokens = of < HIGH ? first + of * LOW : of - HIGH;
            turned.by[of][i] = turn_by((double)tokens * query.frequency[i]);
        }
        __syncthreads();
    }
    float x[HALF], y[HALF]; /* the key's halves */
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        x[i] = element_of(k, i);
        y[i] = element_of(k, i + HALF);
    }
    if (key < coded) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const turn g = turned.by[threadIdx.x / LOW][i], h = turned.by[HIGH + threadIdx.x % LOW][i];
            const float c = __fmaf_rn(g.c, h.c, -(g.s * h.s)), s = __fmaf_rn(g.s, h.c, g.c * h.s);
            const float was = x[i];
            x[i] = __fmaf_rn(was, c, -(y[i] * s));
            y[i] = __fmaf_rn(y[i], c, was * s);
        }
    }
    wait_before();
    const int newest = position < first + PART_KEYS;
    if (threadIdx.x < HALF) {
        const int i = (int)threadIdx.x, j = i + HALF;
        turn_new(a.q + head * (SIZE * 4), a.k + shared_head * (SIZE * 4), head_norm(), a.scale, t, query.q, fresh);
        fresh[i] = half_float(pack_f16(fresh[i], 0.0f) & 0xffff);
        fresh[j] = half_float(pack_f16(fresh[j], 0.0f) & 0xffff);
    }
    for (int i = (int)threadIdx.x; newest && i < SIZE; i += 128) {
        ((u16 *)rows[position - first])[i] = (u16)pack_f16(((const float *)a.v)[shared_head * SIZE + i], 0.0f);
    }
    __syncthreads();
    if (key == position) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            x[i] = fresh[i];
            y[i] = fresh[i + HALF];
        }
    }
    float score = NONE;
    if (key <= position) {
        float part[4] = {};
#pragma unroll
        for (int i = 0; i < HALF; i += 2) {
            part[0] = __fmaf_rn(x[i], query.q[i], part[0]);
            part[1] = __fmaf_rn(x[i + 1], query.q[i + 1], part[1]);
            part[2] = __fmaf_rn(y[i], query.q[i + HALF], part[2]);
            part[3] = __fmaf_rn(y[i + 1], query.q[i + 1 + HALF], part[3]);
        }
        score = part[0] + part[1] + (part[2] + part[3]);
    }
    const float most = weigh(score, weights, high, all, lane, warp);
    copy_async_wait();
    __syncwarp();
    const int left = position + 1 - (first + row0), count = left < 0 ? 0 : left < 32 ? left : 32;
    sum_values(weights, count, turned.sums[warp],
               [&](int row, int pair, float *v) { half_floats(((const u32 *)rows[row])[pair], v); });
    __syncthreads();
    leave_part(a.partials, a.heads, head, turned.sums, most, all);
    if (newest && head % a.group == 0 && warp < 2) {
        u16 *const row = recent_head(a.recent[warp], position, shared_head);
        for (int i = lane; i < SIZE; i += 32) {
            row[i] = warp ? ((const u16 *)rows[position - first])[i] : (u16)pack_f16(fresh[i], 0.0f);
        }
    }
}
