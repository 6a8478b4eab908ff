/* Tables in shared memory that a code of a key or value is looked up in, and the two kernels' common parts
 * (vq_attention.cu, vq_attention_pairs.cu).
 *
 * A table's row is one entry of 64 columns, 256 bytes: a lookup's offset is the code as the second byte of an address,
 * one byte permutation, and the column alone decides the bank. Half a row belongs to a half table, 32 columns of one
 * word: a product, or a pair of f16 channels.
 *
 * Parameters: SIZE, VEC, BITS, KV_HEADS, QUERIES, WARPS as those files say; MOST_TOGETHER: loads of a table that are
 * in flight, in fours. */
#ifndef QN_CUDA_VQ_ATTENTION_TABLES_H
#define QN_CUDA_VQ_ATTENTION_TABLES_H

#include "formats.h"
#include "vq_attention_parts.h"

#define GROUPS (SIZE / VEC)
#define ENTRIES (1 << BITS)
#define WORDS (GROUPS > 32 ? 2 : 1)             /* words of four codes that a lane reads of a token */
#define SHARERS (GROUPS < 32 ? 32 / GROUPS : 1) /* lanes that read the same word, and look up its parts */
#define PAIRS (VEC / 2 / SHARERS)               /* pairs of channels that a lane looks up by a code */
#define CODE_BYTES (4 * WORDS)
#define PAIR_HALVES (WORDS * PAIRS) /* half tables of pairs of a head */
#define TABLE_BYTES (256 * ENTRIES)
#define HEAD_WARPS (WARPS / KV_HEADS)
#define PARTIAL (SIZE + 2)

/* Half table h of a key head: side by side with the other head's, or with its own next one. */
#if KV_HEADS == 2
#define HALF_AT(h) ((h)*TABLE_BYTES)
#else
#define HALF_AT(h) ((h) / 2 * TABLE_BYTES + (h) % 2 * 128)
#endif

extern __shared__ __align__(256) char shared[];

struct item {
    int head, first, sequence, part; /* first key head, first query head of each key head's group */
};

DEV item item_of(const qn_cuda_vq_attention &a, int i)
{
    const int subsets = a.group / QUERIES;
    item it;
    it.part = i % a.parts;
    i /= a.parts;
    it.sequence = i % a.batch;
    i /= a.batch;
    it.first = i % subsets * QUERIES;
    it.head = i / subsets * KV_HEADS;
    return it;
}

/* Group of a column of half `word`, the group that the lane of a code's word looks up. */
DEV int group_of(int column, int word)
{
    return 4 * (column / 4 % (8 / SHARERS) * WORDS + word) + column % 4;
}

DEV int sharer_of(int column)
{
    return column / 4 / (8 / SHARERS);
}

DEV float low_half(u32 v)
{
    return half_float(v & 0xffff);
}

DEV float high_half(u32 v)
{
    return half_float(v >> 16);
}

/* ---- filling ---- */

#if SHARERS == 1 && VEC <= 8
/* 64 bytes of 32 groups a task of a warp: four lanes of 16 bytes a group. Lanes of a group then store different groups'
 * columns: what they loaded is turned by the lane first. Loads of a warp's tasks are begun together. */
#define LANE_ENTRIES (8 / VEC)
#define STEP_ENTRIES (4 * LANE_ENTRIES)
#define STEPS (ENTRIES / STEP_ENTRIES)
#define TASKS (KV_HEADS * WORDS * STEPS)
#define TOGETHER (TASKS >= MOST_TOGETHER * WARPS ? MOST_TOGETHER : (TASKS + WARPS - 1) / WARPS)

/* put(kv, word, column, entry, words): an entry of the group of that column, as words of two channels. */
template <class entry_put> DEV void fill_wide(const qn_cuda_vq_book &book, int head, entry_put put)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, quarter = lane % 4, row = lane / 4;
#pragma unroll 1
    for (int task = warp; task < TASKS; task += TOGETHER * WARPS) {
        uint4 loaded[TOGETHER][4];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int this_task = task + i * WARPS < TASKS ? task + i * WARPS : task;
            const int step = this_task % STEPS, word = this_task / STEPS % WORDS, kv = this_task / STEPS / WORDS;
            const char *const from = book.data + (head + kv) * book.head + step * 64 + quarter * 16;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                loaded[i][k] = *(const uint4 *)(from + group_of(row + 8 * k, word) * book.group);
            }
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (task + i * WARPS >= TASKS) {
                break;
            }
            const int step = (task + i * WARPS) % STEPS, word = (task + i * WARPS) / STEPS % WORDS;
            const int kv = (task + i * WARPS) / STEPS / WORDS;
            uint4(&v)[4] = loaded[i];
            if (quarter & 1) {
                const uint4 kept = v[0];
                v[0] = v[1];
                v[1] = v[2];
                v[2] = v[3];
                v[3] = kept;
            }
            if (quarter & 2) {
                const uint4 x = v[0], y = v[1];
                v[0] = v[2];
                v[1] = v[3];
                v[2] = x;
                v[3] = y;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int column = row + 8 * ((k + quarter) & 3);
                const u32 words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
                for (int e = 0; e < LANE_ENTRIES; e++) {
                    put(kv, word, column, step * STEP_ENTRIES + quarter * LANE_ENTRIES + e, words + e * (VEC / 2));
                }
            }
        }
    }
}
#endif

/* The same of books of any stride: a lane a column. */
template <class entry_put> DEV void fill_any(const qn_cuda_vq_book &book, int head, entry_put put)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll 2
    for (int task = warp; task < KV_HEADS * WORDS * ENTRIES; task += WARPS) {
        const int entry = task % ENTRIES, word = task / ENTRIES % WORDS, kv = task / ENTRIES / WORDS;
        const int group = group_of(lane, word);
        const u16 *const from =
            (const u16 *)(book.data + (head + kv) * book.head + group * book.group + entry * book.entry);
        u32 words[VEC / 2];
#pragma unroll
        for (int j = 0; j < VEC / 2; j++) {
            words[j] = (u32)from[2 * j] | (u32)from[2 * j + 1] << 16;
        }
        put(kv, word, lane, entry, words);
    }
}

template <class entry_put> DEV void fill(const qn_cuda_vq_book &book, int head, entry_put put)
{
#if SHARERS == 1 && VEC <= 8
    if (book.wide) {
        fill_wide(book, head, put);
        return;
    }
#endif
    fill_any(book, head, put);
}

/* Pairs of channels into the half tables from `first` on. */
template <int first> struct pairs_put {
    __device__ __forceinline__ void operator()(int kv, int word, int column, int entry, const u32 *words) const
    {
        char *const to = shared + kv * 128 + entry * 256 + column * 4;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            u32 pair = words[p];
#pragma unroll
            for (int sharer = 1; sharer < SHARERS; sharer++) { /* not a choice of addresses, which would be memory */
                pair ^= (pair ^ words[sharer * PAIRS + p]) & (sharer_of(column) == sharer ? ~0u : 0u);
            }
            *(u32 *)(to + (WORDS == 2 && word ? HALF_AT(first + PAIRS + p) : HALF_AT(first + p))) = pair;
        }
    }
};

template <int first> DEV void fill_pairs(const qn_cuda_vq_book &book, int head)
{
    fill(book, head, pairs_put<first>());
}

/* ---- lookups ---- */

/* Where a lane looks up: its column at step s of a token whose order is turned by `turned`, the code's byte. With one
 * key head columns' offsets are below 128: the bytes of one register, of which a permutation also makes the zeros above
 * the code, as copies of the sign. */
struct place {
#if KV_HEADS == 1
    u32 base;
#else
    u32 base[4];
#endif
    u32 pick[4];
};

DEV place place_of(int kv, int word_lane, int turned)
{
    place p;
#if KV_HEADS == 1
    p.base = 0;
#endif
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const u32 byte = (u32)(turned + s) % 4, offset = (u32)kv * 128 + 4 * (4 * (u32)word_lane + byte);
#if KV_HEADS == 1
        p.base |= offset << 8 * s;
        p.pick[s] = (u32)(4 + s) | byte << 4 | (u32)(12 + s) * 0x1100;
#else
        p.base[s] = offset;
        p.pick[s] = 0x5504u | byte << 4;
#endif
        asm("" : "+r"(p.pick[s])); /* kept, not made again */
    }
    return p;
}

/* A table's row and column: a code of a word, below ENTRIES, as the second byte. */
DEV u32 row_of(u32 word, const place &p, int s)
{
#if KV_HEADS == 1
    u32 at;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(at) : "r"(word), "r"(p.base), "r"(p.pick[s])); /* with signs */
#else
    const u32 at = __byte_perm(word, p.base[s], p.pick[s]);
#endif
    return BITS < 8 ? at & ((ENTRIES - 1) << 8 | 0xff) : at;
}

/* ---- numbers ---- */

/* Largest of a warp; of NaN a NaN or the largest, which is told by the sums. */
DEV float warp_max(float v)
{
    int key = __float_as_int(v), most;
    key ^= key >> 31 & 0x7fffffff;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(key));
    return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
}

/* d[16, 8] += a[16, 16] b[16, 8], f16 operands, f32 sums. */
DEV void multiply_add(float *d, const u32 *a, u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A weight, at most 2^15, as its nearest f16 and the nearest to what is left. */
DEV u32 two_halves(float v)
{
    const u32 high = pack_f16(v, 0.0f) & 0xffff;
    return high | pack_f16(v - half_float(high), 0.0f) << 16;
}

/* ---- a warp's share ---- */

/* Sums, largest score and sum of weights of a stream of chunks. */
struct stream {
    float sum[PAIR_HALVES][4], most, total;
};

DEV void begin_stream(stream *s)
{
    s->most = NONE;
    s->total = 0.0f;
#pragma unroll
    for (int h = 0; h < PAIR_HALVES; h++) {
        s->sum[h][0] = s->sum[h][1] = s->sum[h][2] = s->sum[h][3] = 0.0f;
    }
}

/* Channel of sum 0 of half h; sum 1 is of the next lane of words. */
DEV int channel_of(int h, int word_lane, int lane)
{
    const int column = word_lane * 4 + lane / 8;
    return group_of(column, h / PAIRS) * VEC + 2 * (sharer_of(column) * PAIRS + h % PAIRS) + lane / 4 % 2;
}

/* The scores of a chunk's tokens, one a lane, to their weights: into `weights`, [4][8] by token, and the sums. */
DEV void weigh(float value, stream *s, u32 *weights)
{
    const int lane = (int)threadIdx.x % 32;
    const float most = fmaxf(s->most, warp_max(value));
    if (most > s->most) {
        const float keep = exp_base2(s->most - most);
        s->total *= keep;
#pragma unroll
        for (int h = 0; h < PAIR_HALVES; h++) {
            s->sum[h][0] *= keep;
            s->sum[h][1] *= keep;
            s->sum[h][2] *= keep;
            s->sum[h][3] *= keep;
        }
        s->most = most;
    }
    const float weight = exp_base2(value - s->most + WEIGHT_SHIFT);
    s->total += weight;
    weights[lane % 4 * 8 + lane / 4] = two_halves(weight);
}

/* Add weight x value of the lane's tokens n and n + 1, those of words first and second, to the sums: lanes are four
 * tokens of eight words. A weight is laid out so that of the eight rows of the operand each takes one of four codes and
 * one of two channels. */
template <int values_at>
DEV void add_values(const u32 *first_words, const u32 *second_words, const u32 *weights, int n, const place &p,
                    const u32 *rows_of, stream *s)
{
    uint2 w[QUERIES];
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        w[r] = *(const uint2 *)(weights + r * 32 + n);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 first[WORDS], second[WORDS];
#pragma unroll
        for (int x = 0; x < WORDS; x++) {
            first[x] = row_of(first_words[x], p, j);
            second[x] = row_of(second_words[x], p, j);
        }
        u32 b0[PAIR_HALVES], b1[PAIR_HALVES];
#pragma unroll
        for (int h = 0; h < PAIR_HALVES; h++) {
            const char *const table = shared + HALF_AT(values_at + h);
            b0[h] = *(const u32 *)(table + first[h / PAIRS]);
            b1[h] = *(const u32 *)(table + second[h / PAIRS]);
        }
#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            const u32 rows[4] = {__byte_perm(w[r].x, 0, rows_of[j]), __byte_perm(w[r].x >> 16, 0, rows_of[j]),
                                 __byte_perm(w[r].y, 0, rows_of[j]), __byte_perm(w[r].y >> 16, 0, rows_of[j])};
#pragma unroll
            for (int h = 0; h < PAIR_HALVES; h++) {
                multiply_add(s[r].sum[h], rows, b0[h], b1[h]);
            }
        }
    }
}

/* Bytes of a weight for step j: which of the four codes, and which channel of its pair. */
DEV void order_weights(u32 *rows_of)
{
    const int lane = (int)threadIdx.x % 32, word_lane = lane / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const bool here = word_lane / 2 == (lane + j) % 4;
        rows_of[j] = !here ? 0x4444u : word_lane % 2 ? 0x1044u : 0x4410u;
    }
}

/* The results of an item's query r: its warps' sums joined. All threads of the block. */
DEV void merge_item(const qn_cuda_vq_attention &a, const item &it, int r, int length, const stream &s, float *merge)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, phase = lane % 4;
    float *const mine = merge + warp * PARTIAL;
    float total = s.total;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, step);
    }
#pragma unroll
    for (int h = 0; h < PAIR_HALVES; h++) {
        mine[channel_of(h, 2 * phase, lane)] = s.sum[h][0] + s.sum[h][2];
        mine[channel_of(h, 2 * phase + 1, lane)] = s.sum[h][1] + s.sum[h][3];
    }
    if (lane == 0) {
        mine[SIZE] = s.most;
        mine[SIZE + 1] = total;
    }
    __syncthreads();
    for (int x = (int)threadIdx.x; x < KV_HEADS * SIZE; x += 32 * WARPS) {
        const float *const p = merge + x / SIZE * HEAD_WARPS * PARTIAL;
        float most = NONE, all = 0.0f, sum = 0.0f;
#pragma unroll
        for (int y = 0; y < HEAD_WARPS; y++) {
            most = fmaxf(most, p[y * PARTIAL + SIZE]);
        }
#pragma unroll
        for (int y = 0; y < HEAD_WARPS; y++) {
            const float weight = part_weight(p[y * PARTIAL + SIZE], most);
            all = __fmaf_rn(weight, p[y * PARTIAL + SIZE + 1], all);
            sum = __fmaf_rn(weight, p[y * PARTIAL + x % SIZE], sum);
        }
        const int head = (it.head + x / SIZE) * a.group + it.first + r;
        if (a.all_parts == 1) {
            put_result(a, it.sequence, head, x % SIZE, length, most, all, sum);
        } else {
            put_part(a, it.sequence, head, it.part, x % SIZE, most, all, sum);
        }
    }
    __syncthreads();
}

#endif
