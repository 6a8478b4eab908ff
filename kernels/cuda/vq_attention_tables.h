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

/* Two half tables of values lie side by side, 64 bits a column. */
#ifndef WIDE_VALUES
#define WIDE_VALUES 0
#endif

/* Sets of sums of values: 4, one for each step of a lookup, so that a weight is laid out once for all of them (only
 * with two half tables); or 1. */
#ifndef SETS
#define SETS 1
#endif
#define ORDERS (SETS == 1 ? 4 : 1)                   /* of weights */
#define SUMS (PAIR_HALVES > 1 ? PAIR_HALVES / 2 : 1) /* matrix instructions' sums of a set */

#include "vq_attention_sums.h"

extern __shared__ __align__(256) char shared[];

struct item {
    int head, first, sequence, part; /* first key head, first query head of each key head's group */
};

DEV u32 quotient_of(u32 n, const qn_cuda_vq_divisor &d)
{
    return (u32)((u64)n * d.multiplier >> d.shift);
}

DEV u32 remainder_of(u32 n, const qn_cuda_vq_divisor &d)
{
    return n - quotient_of(n, d) * d.by;
}

DEV item item_of(const qn_cuda_vq_attention &a, int i)
{
    const u32 of_queries = quotient_of((u32)i, a.of_queries), head = quotient_of((u32)i, a.of_head);
    const u32 subset = of_queries - head * ((u32)a.group / QUERIES), left = (u32)i - of_queries * a.of_queries.by;
    const u32 sequence = quotient_of(left, a.of_sequence);
    item it;
    it.part = (int)(left - sequence * a.of_sequence.by);
    it.sequence = (int)sequence;
    it.first = (int)subset * QUERIES;
    it.head = (int)head * KV_HEADS;
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

/* The thread's warp, the same register in all its lanes: what branches on it needs no way for lanes that part. */
DEV u32 warp_here(void)
{
    return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
}

/* The thread's number, what is made of which is not made before: registers are few while tables are filled. */
DEV u32 thread_here(void)
{
    return lazy(threadIdx.x);
}

#if SHARERS == 1 && VEC <= 8
/* 64 bytes of 32 groups a task of a warp: four lanes of 16 bytes a group. Lanes of a group then store different groups'
 * columns: what they loaded is turned by the lane first. Loads of a warp's tasks are begun together. */
#define LANE_ENTRIES (8 / VEC)
#define STEP_ENTRIES (4 * LANE_ENTRIES)
#define STEPS (ENTRIES / STEP_ENTRIES)
#define TASKS (KV_HEADS * WORDS * STEPS)
#define TOGETHER (TASKS >= MOST_TOGETHER * WARPS ? MOST_TOGETHER : (TASKS + WARPS - 1) / WARPS)
#define IS_TASK(n) (TASKS % (TOGETHER * WARPS) == 0 || (n) < TASKS)
/* One for all tasks where the kernel is long. */
#define PUT_TEXTS (QUERIES > 1 || VEC == 2 || SIZE > 128 ? 1 : TOGETHER)

#include "vq_attention_books.h"

/* What a warp loads of a book at once, from its task `first` on, as book x or y. */
#define LOAD_ONE(x)                                                                                                    \
    if (i == 0) {                                                                                                      \
        LOAD_TASK(x, "0", from, book.group);                                                                           \
    } else if (i == 1) {                                                                                               \
        LOAD_TASK(x, "1", from, book.group);                                                                           \
    } else if (i == 2) {                                                                                               \
        LOAD_TASK(x, "2", from, book.group);                                                                           \
    } else {                                                                                                           \
        LOAD_TASK(x, "3", from, book.group);                                                                           \
    }

template <bool y> DEV void load_tasks(const qn_cuda_vq_book &book, int head, u32 first)
{
    const u32 lane = thread_here() % 32;
    const char *const at = book.data + head * book.head + group_of((int)lane / 4 * 4, 0) * book.group + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) { /* columns side by side, so groups too */
        const u32 task = IS_TASK(first + i * WARPS) ? first + i * WARPS : first;
        const u32 step = task % STEPS, word = task / STEPS % WORDS, kv = task / STEPS / WORDS;
        const char *const from = at + kv * book.head + 4 * word * book.group + step * 64;
        if (y) {
            LOAD_ONE("y")
        } else {
            LOAD_ONE("x")
        }
    }
}

/* put(own, round, kv, word, column, entry, words): an entry of the group of that column, as words of two channels; own:
 * what put.at(kv, word, column, round) gave. Of ROUNDS rounds each puts a part of what is made of an entry. */
template <bool y, class entry_put> DEV void put_tasks(u32 first, entry_put put)
{
    const int lane = (int)(thread_here() % 32), quarter = lane % 4, row = lane / 4;
#pragma unroll PUT_TEXTS
    for (u32 i = 0; i < TOGETHER; i++) {
        const u32 task = first + i * WARPS;
        if (!IS_TASK(task)) {
            break;
        }
        const int step = (int)(task % STEPS), word = (int)(task / STEPS % WORDS), kv = (int)(task / STEPS / WORDS);
        u32 v[4][4];
        if (y) {
            TAKE_TASK("y", v, quarter);
        } else {
            TAKE_TASK("x", v, quarter);
        }
#pragma unroll 1
        for (int round = 0; round < entry_put::ROUNDS; round++) {
            typename entry_put::of_column own[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                own[k] = put.at(kv, word, 4 * row + ((k + quarter) & 3), round);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int column = 4 * row + ((k + quarter) & 3), entry = step * STEP_ENTRIES + quarter * LANE_ENTRIES;
#pragma unroll
                for (int e = 0; e < LANE_ENTRIES; e++) {
                    put(own[k], round, kv, word, column, entry + e, v[k] + e * (VEC / 2));
                }
            }
        }
    }
}

template <class entry_put> DEV void fill_wide(const qn_cuda_vq_book &book, int head, entry_put put)
{
#pragma unroll 1
    for (u32 task = thread_here() / 32; task < TASKS; task += TOGETHER * WARPS) {
        load_tasks<false>(book, head, task);
        put_tasks<false>(task, put);
    }
}
#else
DEV void declare_tasks(void)
{
}
#endif

/* The same of books of any stride: a lane a column. */
template <class entry_put> DEV void fill_any(const qn_cuda_vq_book &book, int head, entry_put put)
{
    const int lane = (int)(thread_here() % 32);
    const typename entry_put::of_column own = put.at(0, 0, lane, 0);
#pragma unroll 1
    for (u32 task = thread_here() / 32; task < KV_HEADS * WORDS * ENTRIES; task += WARPS) {
        const int entry = (int)(task % ENTRIES), word = (int)(task / ENTRIES % WORDS);
        const int kv = (int)(task / ENTRIES / WORDS), group = group_of(lane, word);
        const u16 *const from =
            (const u16 *)(book.data + (head + kv) * book.head + group * book.group + entry * book.entry);
        u32 words[VEC / 2];
#pragma unroll
        for (int j = 0; j < VEC / 2; j++) {
            words[j] = (u32)from[2 * j] | (u32)from[2 * j + 1] << 16;
        }
        put(own, 0, kv, word, lane, entry, words);
    }
}

#if SHARERS > 1 && VEC <= 8
/* The same where lanes share words: a lane a column, 64 bytes of its group a task. */
#define LANE_WORDS 16
#define LANE_ENTRIES (32 / VEC)
#define ENTRY_TEXTS (QUERIES > 1 ? 1 : LANE_ENTRIES)

template <class entry_put> DEV void fill_wide(const qn_cuda_vq_book &book, int head, entry_put put)
{
    const int lane = (int)(thread_here() % 32);
    const typename entry_put::of_column own = put.at(0, 0, lane, 0);
#pragma unroll 1
    for (u32 task = thread_here() / 32; task < KV_HEADS * WORDS * ENTRIES / LANE_ENTRIES; task += WARPS) {
        const int entry = (int)(task * LANE_ENTRIES % ENTRIES), word = (int)(task * LANE_ENTRIES / ENTRIES % WORDS);
        const int kv = (int)(task * LANE_ENTRIES / ENTRIES / WORDS);
        const uint4 *const from = (const uint4 *)(book.data + (head + kv) * book.head +
                                                  group_of(lane, word) * book.group + entry * (VEC * 2));
        u32 words[LANE_WORDS];
#pragma unroll
        for (int i = 0; i < LANE_WORDS; i += 4) {
            const uint4 v = from[i / 4];
            words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
        }
#pragma unroll ENTRY_TEXTS
        for (int e = 0; e < LANE_ENTRIES; e++) {
            put(own, 0, kv, word, lane, entry + e, words);
#pragma unroll
            for (int i = VEC / 2; i < LANE_WORDS; i++) {
                words[i - VEC / 2] = words[i];
            }
        }
    }
}
#endif

/* any: the same in one round, for books of any stride. */
template <class wide_put, class any_put> DEV void fill(const qn_cuda_vq_book &book, int head, wide_put put, any_put any)
{
#if VEC <= 8
    if (book.wide) {
        fill_wide(book, head, put);
        return;
    }
#endif
    fill_any(book, head, any);
}

/* Pairs of channels into the half tables from `first` on; wide: two of them side by side, in a table for both. */
template <int first, bool wide> struct pairs_put {
    static const int ROUNDS = 1;
    u32 further = 0; /* bytes */
    struct of_column {};
    __device__ __forceinline__ of_column at(int, int, int, int) const
    {
        return {};
    }
    __device__ __forceinline__ void operator()(const of_column &, int, int kv, int word, int column, int entry,
                                               const u32 *words) const
    {
        char *const to = shared + further + kv * 128 + entry * 256 + column * (wide ? 8 : 4);
        u32 own[PAIRS];
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            u32 pair = words[p];
#pragma unroll
            for (int sharer = 1; sharer < SHARERS; sharer++) { /* not a choice of addresses, which would be memory */
                pair ^= (pair ^ words[sharer * PAIRS + p]) & (sharer_of(column) == sharer ? ~0u : 0u);
            }
            own[p] = pair;
        }
#pragma unroll
        for (int p = 0; p < PAIRS; p += wide ? 2 : 1) {
            const int at = WORDS == 2 && word ? HALF_AT(first + PAIRS + p) : HALF_AT(first + p);
            if (wide) {
                *(uint2 *)(to + at) = make_uint2(own[p], own[p + wide]);
            } else {
                *(u32 *)(to + at) = own[p];
            }
        }
    }
};

template <int first, bool wide> DEV void fill_pairs(const qn_cuda_vq_book &book, int head)
{
    fill(book, head, pairs_put<first, wide>(), pairs_put<first, wide>());
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

/* The same of a table of two pairs a column. */
struct wide_place {
    u32 base[4], pick[4];
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

DEV u32 base_of(const wide_place &p, int s)
{
    return p.base[s];
}

DEV u32 base_of(const place &p, int s)
{
#if KV_HEADS == 1
    return p.base;
#else
    return p.base[s];
#endif
}

#if KV_HEADS == 1
/* The same of a table of products: teams have halves of rows, so that offsets are up to 255 and zeros bytes of their
 * own. */
struct half_place {
    u32 base[2], pick[4];
};

DEV half_place half_place_of(int half, int word_lane, int turned)
{
    half_place p = {};
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const u32 byte = (u32)(turned + s) % 4, offset = (u32)half * 128 + 4 * (4 * (u32)word_lane + byte);
        p.base[s / 2] |= offset << 8 * (s % 2);
        p.pick[s] = (u32)(4 + s % 2) | byte << 4 | 0x6600;
        asm("" : "+r"(p.pick[s]));
    }
    return p;
}

DEV u32 row_of(u32 word, const half_place &p, int s)
{
    const u32 at = __byte_perm(word, p.base[s / 2], p.pick[s]);
    return BITS < 8 ? at & ((ENTRIES - 1) << 8 | 0xff) : at;
}
#endif

DEV wide_place wide_place_of(int word_lane, int turned)
{
    wide_place p;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const u32 byte = (u32)(turned + s) % 4;
        p.base[s] = 8 * (4 * (u32)word_lane + byte);
        p.pick[s] = 0x5504u | byte << 4;
        asm("" : "+r"(p.pick[s]), "+r"(p.base[s]));
    }
    return p;
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

/* A weight, at most 2^15, as its nearest f16 and the nearest to what is left. */
DEV u32 two_halves(float v)
{
    const u32 high = pack_f16(v, 0.0f) & 0xffff;
    return high | pack_f16(v - half_float(high), 0.0f) << 16;
}

/* The lower of two numbers, or, if upper, the upper one, plus that of the lane `by` lanes on or back, which keeps the
 * other. */
DEV float add_halves(float low, float high, int upper, int by)
{
    float sum;
    asm volatile("{\n.reg .pred up;\n.reg .f32 mine, other;\nsetp.ne.s32 up, %3, 0;\nselp.f32 mine, %2, %1, up;\n"
                 "selp.f32 other, %1, %2, up;\nshfl.sync.bfly.b32 other, other, %4, 0x1f, 0xffffffff;\n"
                 "add.rn.f32 %0, mine, other;\n}"
                 : "=f"(sum)
                 : "f"(low), "f"(high), "r"(upper), "r"(by));
    return sum;
}

/* ---- a warp's share ---- */

/* Largest score and sum of weights of a stream of chunks; its sums have names. With one half table, rows of the matrix
 * instruction's sums are codes of words and channels, times the upper and lower parts of weights, columns are words;
 * with more, rows are words of two halves, columns codes and channels. */
struct stream {
    float most, total;
};

DEV void begin_streams(stream *s)
{
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        s[r].most = NONE;
        s[r].total = 0.0f;
    }
    clear_sums();
}

/* First channel that a column of half table h has. */
DEV int first_channel(int h, int column)
{
    return group_of(column, h / PAIRS) * VEC + 2 * (sharer_of(column) * PAIRS + h % PAIRS);
}

#if PAIR_HALVES == 1
/* Channel of sum 0; sum 1 is of the next lane of words. */
DEV int channel_of(int word_lane, int lane)
{
    return first_channel(0, word_lane * 4 + lane / 8) + lane / 4 % 2;
}
#endif

/* The scores of a chunk's tokens, one a lane, to their weights: into `weights`, [4][8] by token, and the sums. */
DEV void weigh(float value, int token, int query, stream *s, u32 *weights)
{
    const float most = fmaxf(s->most, warp_max(value));
    if (most > s->most) {
        const float keep = exp_base2(s->most - most);
        s->total *= keep;
        scale_sums(query, keep);
        s->most = most;
    }
    const float weight = exp_base2(value - s->most + WEIGHT_SHIFT);
    s->total += weight;
    weights[token % 4 * 8 + token / 4] = two_halves(weight);
}

/* Add weight x value of a chunk to the sums, two of a lane's tokens at a time: lanes are four tokens of eight words. A
 * weight is laid out so that of the eight columns of its operand each takes one of two channels and, with one set, of
 * one of four codes. With four sets it takes those of one of four lanes, whose code depends on the step. */
template <int values_at, class place_type>
DEV void add_values(const u32 (*word)[WORDS], const u32 *weights, const place_type &p, const u32 *rows_of)
{
    const u32 last = WORDS - 1;
    asm volatile("{\n.reg .b32 r0, r1, q0, q1, v0, v1, v2, v3, both;\n.reg .b16 low, high;\n" EACH_QUERY(LOAD_WEIGHTS, )
                     ADD_TOKENS(0, 1) ADD_TOKENS(2, 3) ADD_TOKENS(4, 5) ADD_TOKENS(6, 7) "}" ::"r"(word[0][0]),
                 "r"(word[1][0]), "r"(word[2][0]), "r"(word[3][0]), "r"(word[4][0]), "r"(word[5][0]), "r"(word[6][0]),
                 "r"(word[7][0]), "r"(word[0][last]), "r"(word[1][last]), "r"(word[2][last]), "r"(word[3][last]),
                 "r"(word[4][last]), "r"(word[5][last]), "r"(word[6][last]), "r"(word[7][last]), "r"(base_of(p, 0)),
                 "r"(base_of(p, 1)), "r"(base_of(p, 2)), "r"(base_of(p, 3)), "r"(p.pick[0]), "r"(p.pick[1]),
                 "r"(p.pick[2]), "r"(p.pick[3]), "r"(rows_of[0]), "r"(rows_of[1 % ORDERS]), "r"(rows_of[2 % ORDERS]),
                 "r"(rows_of[3 % ORDERS]), "r"(shared_address(shared)), "r"(shared_address(weights)),
                 "n"(HALF_AT(values_at)), "n"(HALF_AT(values_at + 1)), "n"(HALF_AT(values_at + 2)),
                 "n"(HALF_AT(values_at + 3)));
}

/* What a weight is multiplied by for step j, two f16 0 or 1: which of the four codes or, the same for all steps, lanes,
 * and which channel of its pair. */
DEV void order_weights(u32 *rows_of)
{
    const int lane = (int)threadIdx.x % 32, word_lane = lane / 4;
#pragma unroll
    for (int j = 0; j < ORDERS; j++) {
        const bool here = word_lane / 2 == (lane + j) % 4;
        rows_of[j] = !here ? 0u : word_lane % 2 ? 0x3c000000u : 0x3c00u;
        asm("" : "+r"(rows_of[j])); /* kept, not made again */
    }
}

/* Word of a lane that looks up values. With long rows of codes and four sets two of four tokens begin with the other
 * half of their row: sixteen lanes read them at 32 banks. */
DEV int value_word(int word_lane, int phase)
{
    return WORDS == 2 && SETS == 4 ? word_lane ^ (phase & 2) * 2 : word_lane;
}

#if SETS == 4
/* The lane that has, in set (4 - i) % 4, the sums over a fourth of the tokens of this lane's code. */
DEV int lane_of_code(int lane, int i)
{
    const int phase = (lane + i) % 4;
    return 4 * value_word(lane / 4, phase) + phase;
}
#endif

/* A warp's sums of the first query, for those that join them; the others' move up. */
DEV void leave_sums(stream *s, float *mine)
{
    const int lane = (int)threadIdx.x % 32;
    float total = s[0].total;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, step);
    }
    float sums[SETS * SUMS][4];
    take_sums(sums);
    const float(*sum)[4] = sums;
#if SETS == 4
    float all[1][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int from = lane_of_code(lane, i);
#pragma unroll
        for (int x = 0; x < 4; x++) {
            all[0][x] += __shfl_sync(0xffffffffu, sums[(4 - i) % 4][x], from);
        }
    }
    sum = all;
#endif
#if PAIR_HALVES == 1
    mine[channel_of(2 * (lane % 4), lane)] = sum[0][0] + sum[0][2];
    mine[channel_of(2 * (lane % 4) + 1, lane)] = sum[0][1] + sum[0][3];
#else
#pragma unroll
    for (int h = 0; h < PAIR_HALVES; h++) {
        float *const to = mine + first_channel(h, lane);
        to[0] = sum[h / 2][h % 2 * 2];
        to[1] = sum[h / 2][h % 2 * 2 + 1];
    }
#endif
    if (lane == 0) {
        mine[SIZE] = s[0].most;
        mine[SIZE + 1] = total;
    }
#pragma unroll
    for (int r = 1; r < QUERIES; r++) {
        s[r - 1] = s[r];
    }
}

/* Channel d of a query's result: the sums of `warps` warps joined; whole warps call it, and a lane makes the weight of
 * one warp. */
template <int warps>
DEV void join_sums(const qn_cuda_vq_attention &a, const item &it, int head, int d, int length, const float *p)
{
    const int lane = (int)threadIdx.x % 32;
    const float *const own = p + min(lane, warps - 1) * PARTIAL + SIZE;
    const float most = warp_max(own[0]), weights = part_weight(own[0], most), totals = own[1];
    float all = 0.0f, sum = 0.0f;
#pragma unroll
    for (int y = 0; y < warps; y++) {
        const float weight = __shfl_sync(0xffffffffu, weights, y);
        all = __fmaf_rn(weight, __shfl_sync(0xffffffffu, totals, y), all);
        sum = __fmaf_rn(weight, p[y * PARTIAL + d], sum);
    }
    if (a.all_parts == 1) {
        put_result(a, it.sequence, head, d, length, most, all, sum);
    } else {
        put_part(a, it.sequence, head, it.part, d, most, all, sum);
    }
}

#endif
