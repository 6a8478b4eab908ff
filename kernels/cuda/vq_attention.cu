/* vq_attention by tables in shared memory, one lookup a code, no two lanes on a bank.
 *
 * Keys: a table for each group of channels of the 2^BITS products q . vector in f32, so that a key's score is a sum of
 * looked-up numbers. Values: a table of the vectors as pairs of f16 channels, which a lookup gives as an operand of the
 * matrix instruction that adds weight x pair to the sums; a weight is two f16 that hold 22 bits of it together.
 *
 * A table's row is one entry of 64 columns, 256 bytes: a lookup's offset is the code as the second byte of an address,
 * one byte permutation, and the column alone decides the bank. A lane reads four codes of a token at once, but at step
 * s looks up the ((token + s) % 4)-th of them: so the 32 lanes, four tokens of eight words, meet 32 banks. What a
 * token's columns are turned by is undone where the weights are laid out for the matrix instruction.
 *
 * Keys that are to be turned by their position (TURN) have no such products: their table holds pairs of channels too. A
 * lane looks up the words of channels i and i + SIZE / 2 and turns its part of the query the other way, by four tokens
 * from one lookup to the next, in f32.
 *
 * A warp takes tokens in chunks of 32, keeps a running largest score, and joins the others at an item's end. Parts of
 * the tokens are joined by a second kernel. Codebooks stay for all items of a head.
 *
 * Host contract
 *   Parameters: Q_FORMAT; SIZE of a head: 64, 128, 256; VEC: 2, 4, 8, 16; BITS: 4 to 8; TURN: keys are turned, 1 pairs
 * of halves, 2 of neighbours; KV_HEADS, 1 or 2, and QUERIES, query heads of each, a block; WARPS a block, a multiple of
 *     KV_HEADS. At most 6 half tables (HALVES) and
 *     SIZE / VEC at most 64
 *   Books f16; codes' rows begin at multiples of CODE_BYTES
 *   Launch: block 32 * WARPS, grid ceil(items / block_items), dynamic shared memory of SHARED_BYTES
 *   With more than one part qn_vq_attention_join follows (vq_attention_join.cu); with a window vq_attention_plain.cu
 *   makes its part before that */
#include "formats.h"
#include "turn.h"
#include "vq_attention_parts.h"

#define GROUPS (SIZE / VEC)
#define ENTRIES (1 << BITS)
#define WORDS (GROUPS > 32 ? 2 : 1)             /* words of four codes that a lane reads of a token */
#define SHARERS (GROUPS < 32 ? 32 / GROUPS : 1) /* lanes that read the same word, and look up its parts */
#define PAIRS (VEC / 2 / SHARERS)               /* pairs of channels that a lane looks up by a value's code */
#define CODE_BYTES (4 * WORDS)
#define V_HALVES (WORDS * PAIRS)
#if TURN
#define TURN_PAIRS (SIZE > 128 ? SIZE / 128 : 1) /* pairs of channels of each of a lane's two words */
#define K_HALVES (2 * TURN_PAIRS)
#define K_WORDS 2
#else
#define K_HALVES (WORDS * QUERIES)
#define K_WORDS WORDS
#endif
#define HALVES (KV_HEADS * (K_HALVES + V_HALVES))
#define TABLE_BYTES (256 * ENTRIES)
#define TABLES ((HALVES + 1) / 2)
#define HEAD_WARPS (WARPS / KV_HEADS)
#define PARTIAL (SIZE + 2)

/* Half table h of a key head: side by side with the other head's, or with its own next one. */
#if KV_HEADS == 2
#define HALF_AT(h) ((h)*TABLE_BYTES)
#else
#define HALF_AT(h) ((h) / 2 * TABLE_BYTES + (h) % 2 * 128)
#endif

#define WEIGHTS_AT (TABLES * TABLE_BYTES)                   /* [WARPS][QUERIES][32] pairs of f16 */
#define QUERY_AT (WEIGHTS_AT + WARPS * QUERIES * 128)       /* [KV_HEADS][QUERIES][SIZE] */
#define MERGE_AT (QUERY_AT + KV_HEADS * QUERIES * SIZE * 4) /* [WARPS][PARTIAL] */
#define TURNS_AT                                                                                                       \
    ((MERGE_AT + WARPS * PARTIAL * 4 + 15) / 16 * 16) /* [SIZE / 2] frequencies, then turns by four tokens */
#define SHARED_BYTES (TURN ? TURNS_AT + SIZE * 8 : TURNS_AT)

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

/* ---- tables ---- */

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

/* One entry of a group's book, as words of two channels, for every query of the head. */
DEV void put_products(char *half0, const float *q, int group, int column, int entry, const u32 *words)
{
    const float *const mine = q + group * VEC;
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC / 2; j++) {
            sum = __fmaf_rn(low_half(words[j]), mine[r * SIZE + 2 * j], sum);
            sum = __fmaf_rn(high_half(words[j]), mine[r * SIZE + 2 * j + 1], sum);
        }
        *(float *)(half0 + HALF_AT(r * WORDS) + entry * 256 + column * 4) = sum;
    }
}

#if SHARERS == 1 && VEC <= 8
/* 64 bytes of 32 groups a task of a warp: four lanes of 16 bytes a group. Lanes of a group then store different groups'
 * columns: what they loaded is turned by the lane first. Loads of some tasks are begun together. */
#define LANE_ENTRIES (8 / VEC)
#define STEP_ENTRIES (4 * LANE_ENTRIES)
#define STEPS (ENTRIES / STEP_ENTRIES)
#define TASKS (KV_HEADS * WORDS * STEPS)
#define TOGETHER (WORDS == 2 ? 2 : 4)

template <bool keys> static __device__ void fill_wide(const qn_cuda_vq_book &book, int head)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, quarter = lane % 4, row = lane / 4;
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
                    const int entry = step * STEP_ENTRIES + quarter * LANE_ENTRIES + e;
                    char *const to = shared + kv * 128;
                    if (keys) {
                        const float *const q = (const float *)(shared + QUERY_AT) + kv * QUERIES * SIZE;
                        put_products(to + (WORDS == 2 ? word * 128 : 0), q, group_of(column, word), column, entry,
                                     words + e * (VEC / 2));
                    } else {
#pragma unroll
                        for (int p = 0; p < PAIRS; p++) {
                            char *const at =
                                WORDS == 2 && word ? to + HALF_AT(K_HALVES + PAIRS + p) : to + HALF_AT(K_HALVES + p);
                            *(u32 *)(at + entry * 256 + column * 4) = words[e * (VEC / 2) + p];
                        }
                    }
                }
            }
        }
    }
}
#endif

/* Books of any stride: a lane a column. */
template <bool keys> static __device__ void fill_any(const qn_cuda_vq_book &book, int head)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int task = warp; task < KV_HEADS * WORDS * ENTRIES; task += WARPS) {
        const int entry = task % ENTRIES, word = task / ENTRIES % WORDS, kv = task / ENTRIES / WORDS;
        const int group = group_of(lane, word), sharer = sharer_of(lane);
        const u16 *const from =
            (const u16 *)(book.data + (head + kv) * book.head + group * book.group + entry * book.entry);
        char *const to = shared + kv * 128;
        if (keys) {
            u32 words[VEC / 2];
#pragma unroll
            for (int j = 0; j < VEC / 2; j++) {
                words[j] = sharer == 0 ? (u32)from[2 * j] | (u32)from[2 * j + 1] << 16 : 0u;
            }
            const float *const q = (const float *)(shared + QUERY_AT) + kv * QUERIES * SIZE;
            if (sharer == 0) {
                put_products(to + (WORDS == 2 ? word * 128 : 0), q, group, lane, entry, words);
            } else { /* this lane's sum repeats another's word */
#pragma unroll
                for (int r = 0; r < QUERIES; r++) {
                    *(float *)(to + HALF_AT(r * WORDS) + entry * 256 + lane * 4) = 0.0f;
                }
            }
        } else {
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                const int pair = sharer * PAIRS + p;
                char *const at = WORDS == 2 && word ? to + HALF_AT(K_HALVES + PAIRS + p) : to + HALF_AT(K_HALVES + p);
                *(u32 *)(at + entry * 256 + lane * 4) = (u32)from[2 * pair] | (u32)from[2 * pair + 1] << 16;
            }
        }
    }
}

#if TURN
#define WORD_PAIRS (GROUPS / 8) /* words that have a partner half a head on */

DEV int turned_word(int column)
{
    return column / 4 % WORD_PAIRS;
}

/* Channel of the first half of a head that pair `pair` of a column begins with; SIZE / 2 or more: it has none. */
DEV int turned_channel(int column, int pair)
{
    const int part = column / 4 / WORD_PAIRS * TURN_PAIRS + pair;
    return part < VEC / 2 ? (4 * turned_word(column) + column % 4) * VEC + 2 * part : SIZE;
}

static __device__ void fill_turned(const qn_cuda_vq_book &book, int head)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int task = warp; task < KV_HEADS * K_HALVES * (ENTRIES / 8); task += WARPS) {
        const int entry = task % (ENTRIES / 8) * 8, half = task / (ENTRIES / 8) % K_HALVES;
        const int kv = task / (ENTRIES / 8) / K_HALVES, channel = turned_channel(lane, half / 2);
        const int group = channel / VEC + half % 2 * (GROUPS / 2);
        const u16 *const from = (const u16 *)(book.data + (head + kv) * book.head + group * book.group) + channel % VEC;
        char *const to = shared + kv * 128 + entry * 256 + lane * 4;
        u32 v[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const u16 *const at = (const u16 *)((const char *)from + (entry + e) * book.entry);
            v[e] = channel < SIZE ? (u32)at[0] | (u32)at[1] << 16 : 0u;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            *(u32 *)(to + e * 256 + (KV_HEADS == 2 ? half * TABLE_BYTES : half / 2 * TABLE_BYTES + half % 2 * 128)) =
                v[e];
        }
    }
}
#endif

template <bool keys> DEV void fill(const qn_cuda_vq_book &book, int head)
{
#if SHARERS == 1 && VEC <= 8
    if (book.wide) {
        fill_wide<keys>(book, head);
        return;
    }
#endif
    fill_any<keys>(book, head);
}

/* ---- codes ---- */

/* Words of tokens 4 n + lane % 4. */
struct k_codes {
    u32 word[8][K_WORDS];
};
struct v_codes {
    u32 word[8][WORDS];
};

#define PREFETCH ".L2::256B" /* other blocks read the codes beside these at about the same time */

DEV u32 load_word(const char *at)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate" PREFETCH ".u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}

/* Tokens from `limit` on, which weigh nothing, are read as the last one. */
DEV const char *token_at(const char *at, int token_bytes, int token, int limit)
{
    return at + (i64)(token < limit ? token : limit - 1) * token_bytes;
}

DEV void load_codes(const char *at, int token_bytes, int token, int limit, v_codes *c)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const char *const from = token_at(at, token_bytes, token + 4 * n, limit);
#if WORDS == 2
        asm volatile("ld.global.nc.L1::no_allocate" PREFETCH ".v2.u32 {%0, %1}, [%2];"
                     : "=r"(c->word[n][0]), "=r"(c->word[n][1])
                     : "l"(from));
#else
        c->word[n][0] = load_word(from);
#endif
    }
}

DEV void load_keys(const char *at, int token_bytes, int token, int limit, k_codes *c)
{
#if TURN
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const char *const from = token_at(at, token_bytes, token + 4 * n, limit);
        c->word[n][0] = load_word(from);
        c->word[n][1] = load_word(from + GROUPS / 2);
    }
#else
    load_codes(at, token_bytes, token, limit, (v_codes *)c);
#endif
}

/* A table's row and column: code `pick` of a word, below ENTRIES, as the second byte. */
DEV u32 row_of(u32 word, u32 base, u32 pick)
{
    const u32 at = __byte_perm(word, base, pick);
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
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
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

/* ---- the kernel ---- */

/* Sums, largest score and sum of weights of a stream of chunks. */
struct stream {
    float sum[V_HALVES][4], most, total;
};

DEV void begin_stream(stream *s)
{
    s->most = NONE;
    s->total = 0.0f;
#pragma unroll
    for (int h = 0; h < V_HALVES; h++) {
        s->sum[h][0] = s->sum[h][1] = s->sum[h][2] = s->sum[h][3] = 0.0f;
    }
}

#if TURN
/* What a lane has of a query at the position of its next token: two pairs that turn together, (x, y) each, and the
 * turns by four tokens. */
struct part_of_query {
    float x[2], y[2];
};
struct turn_of_pairs {
    turn by[2];
};

/* The other way round: q . turned(k) = turned_back(q) . k */
DEV void turn_back(float *x, float *y, turn t)
{
    const float was = *x;
    *x = __fmaf_rn(was, t.c, *y * t.s);
    *y = __fmaf_rn(*y, t.c, -(was * t.s));
}

/* Queries as they are in shared memory, turned to `position`; frequencies and turns by four tokens in shared memory
 * too. */
DEV void begin_query(const float *q, int position, int word_lane, int phase, part_of_query (*part)[4 * TURN_PAIRS],
                     turn_of_pairs *by)
{
    const double *const frequency = (const double *)(shared + TURNS_AT);
    const turn *const four = (const turn *)(frequency + SIZE / 2);
#pragma unroll
    for (int j = 0; j < 4 * TURN_PAIRS; j++) {
        const int channel = turned_channel(4 * word_lane + (phase + j / TURN_PAIRS) % 4, j % TURN_PAIRS);
#pragma unroll
        for (int i = 0; i < 2; i++) { /* TURN 1: channels c + i and its partner; 2: c and c + 1 of either half */
            const int none = channel >= SIZE, c = none ? 0 : channel;
            const int first = TURN == 1 ? c + i : c + i * (SIZE / 2), angle = TURN == 1 ? c + i : first / 2;
            const int second = TURN == 1 ? first + SIZE / 2 : first + 1;
            const turn t = turn_by((double)position * frequency[angle]);
            by[j].by[i] = four[angle];
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                part[r][j].x[i] = none ? 0.0f : q[r * SIZE + first];
                part[r][j].y[i] = none ? 0.0f : q[r * SIZE + second];
                turn_back(&part[r][j].x[i], &part[r][j].y[i], t);
            }
        }
    }
}

/* Add the products of a lookup of either half of the head, and turn on. */
DEV float add_turned(float sum, u32 a, u32 b, part_of_query *q, turn_of_pairs by)
{
    sum = __fmaf_rn(low_half(a), q->x[0], sum);
    sum = __fmaf_rn(high_half(a), TURN == 1 ? q->x[1] : q->y[0], sum);
    sum = __fmaf_rn(low_half(b), TURN == 1 ? q->y[0] : q->x[1], sum);
    sum = __fmaf_rn(high_half(b), q->y[1], sum);
    turn_back(&q->x[0], &q->y[0], by.by[0]);
    turn_back(&q->x[1], &q->y[1], by.by[1]);
    return sum;
}
#endif

/* Channel of sum 0 of half h; sum 1 is of the next lane of words. */
DEV int channel_of(int h, int word_lane, int lane)
{
    const int column = word_lane * 4 + lane / 8;
    return group_of(column, h / PAIRS) * VEC + 2 * (sharer_of(column) * PAIRS + h % PAIRS) + lane / 4 % 2;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    qn_vq_attention(const __grid_constant__ qn_cuda_vq_attention a)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int kv = warp / HEAD_WARPS, stream_index = warp % HEAD_WARPS;
    const int word_lane = lane / 4, phase = lane % 4;
    u32 base[4], pick[4], place[4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const u32 byte = (u32)(phase + s) % 4;
        base[s] = (u32)kv * 128 + 4 * (4 * (u32)word_lane + byte);
        pick[s] = 0x5504u | byte << 4;
        /* rows of the weights' operand: which of the four codes, and which channel of its pair */
        const bool here = (u32)word_lane / 2 == byte;
        place[s] = !here ? 0x4444u : word_lane % 2 ? 0x1044u : 0x4410u;
    }
    u32 *const weights = (u32 *)(shared + WEIGHTS_AT) + warp * QUERIES * 32;
    float *const merge = (float *)(shared + MERGE_AT);
    const i64 word_offset = word_lane % (8 / SHARERS) * CODE_BYTES;
#if TURN
    const i64 k_offset = word_lane % WORD_PAIRS * 4;
#else
    const i64 k_offset = word_offset;
#endif
    int tables_head = -1;
    release_next();
    wait_before();
#if TURN
    for (int i = (int)threadIdx.x; i < SIZE / 2; i += 32 * WARPS) {
        const double frequency = frequency_of(i, SIZE, a.log2_theta);
        ((double *)(shared + TURNS_AT))[i] = frequency;
        ((turn *)(shared + TURNS_AT + SIZE * 4))[i] = turn_by(4.0 * frequency);
    }
#endif

    const int last = ((int)blockIdx.x + 1) * a.block_items < a.items ? ((int)blockIdx.x + 1) * a.block_items : a.items;
    for (int i = (int)blockIdx.x * a.block_items; i < last; i++) {
        const item it = item_of(a, i);
        const int length = length_of(a, it.sequence), coded = coded_of(a, length);
        const int begin = it.part * a.part_tokens;
        int end = begin + a.part_tokens < coded ? begin + a.part_tokens : coded;
        const char *const k_at = a.k.data + it.sequence * a.k.batch + (it.head + kv) * a.k.head + k_offset;
        const char *const v_at = a.v.data + it.sequence * a.v.batch + (it.head + kv) * a.v.head + word_offset;
#if TURN /* neighbouring chunks, so that every turn is by four tokens */
        const int chunks = (end - begin + 32 * HEAD_WARPS - 1) / (32 * HEAD_WARPS), stride = 32;
        int token = begin + stream_index * chunks * 32;
        end = token + chunks * 32 < end ? token + chunks * 32 : end;
#else
        const int stride = HEAD_WARPS * 32;
        int token = begin + stream_index * 32;
#endif
        k_codes k[2];
        v_codes v[2];
        if (token < end) {
            load_keys(k_at, (int)a.k.token, token + phase, end, &k[0]);
            load_codes(v_at, (int)a.v.token, token + phase, end, &v[0]);
        }

        if (it.head != tables_head) { /* those that depend on no query; the last item's are no longer read */
#if TURN
            fill_turned(a.k_book, it.head);
#endif
            fill<false>(a.v_book, it.head);
            tables_head = it.head;
        }
        float *const q = (float *)(shared + QUERY_AT);
        for (int x = (int)threadIdx.x; x < KV_HEADS * QUERIES * SIZE; x += 32 * WARPS) {
            const int head = (it.head + x / (QUERIES * SIZE)) * a.group + it.first + x / SIZE % QUERIES;
            q[x] = load_float(a.q + it.sequence * a.q_row + head * a.q_head, x % SIZE, Q_FORMAT) * a.scale;
        }
        __syncthreads();
#if !TURN
        fill<true>(a.k_book, it.head);
#endif
        __syncthreads();

        stream s[QUERIES];
#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            begin_stream(&s[r]);
        }
#if TURN
        part_of_query part[QUERIES][4 * TURN_PAIRS];
        turn_of_pairs by[4 * TURN_PAIRS];
        begin_query(q + kv * QUERIES * SIZE, token + phase, word_lane, phase, part, by);
#endif
        const auto step = [&](const k_codes &k, const v_codes &v) {
            float score[QUERIES][8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < QUERIES; r++) {
                    score[r][n] = 0.0f;
                }
#if TURN
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const u32 first = row_of(k.word[n][0], base[j], pick[j]);
                    const u32 second = row_of(k.word[n][1], base[j], pick[j]);
#pragma unroll
                    for (int p = 0; p < TURN_PAIRS; p++) {
                        const u32 x = *(const u32 *)(shared + HALF_AT(2 * p) + first);
                        const u32 y = *(const u32 *)(shared + HALF_AT(2 * p + 1) + second);
#pragma unroll
                        for (int r = 0; r < QUERIES; r++) {
                            score[r][n] =
                                add_turned(score[r][n], x, y, &part[r][j * TURN_PAIRS + p], by[j * TURN_PAIRS + p]);
                        }
                    }
                }
#else
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const u32 at = row_of(k.word[n][w], base[j], pick[j]);
#pragma unroll
                        for (int r = 0; r < QUERIES; r++) {
                            score[r][n] += *(const float *)(shared + HALF_AT(r * WORDS + w) + at);
                        }
                    }
                }
#endif
            }
            __syncwarp();
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                /* add over the lanes of a token's words: a lane ends with token `lane` of the chunk */
#pragma unroll
                for (int step = 4; step > 0; step /= 2) {
                    const bool upper = (word_lane & step) != 0;
#pragma unroll
                    for (int n = 0; n < step; n++) {
                        const float mine = upper ? score[r][n + step] : score[r][n];
                        const float other = upper ? score[r][n] : score[r][n + step];
                        score[r][n] = mine + __shfl_xor_sync(0xffffffffu, other, 4 * step);
                    }
                }
                const float value = token + lane < end ? score[r][0] : NONE;
                const float most = fmaxf(s[r].most, warp_max(value));
                if (most > s[r].most) {
                    const float keep = exp_base2(s[r].most - most);
                    s[r].total *= keep;
#pragma unroll
                    for (int h = 0; h < V_HALVES; h++) {
                        s[r].sum[h][0] *= keep;
                        s[r].sum[h][1] *= keep;
                        s[r].sum[h][2] *= keep;
                        s[r].sum[h][3] *= keep;
                    }
                    s[r].most = most;
                }
                const float weight = exp_base2(value - s[r].most + WEIGHT_SHIFT);
                s[r].total += weight;
                weights[r * 32 + phase * 8 + word_lane] = two_halves(weight);
            }
            __syncwarp();
            u32 w[QUERIES][8];
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                const uint4 x = *(const uint4 *)(weights + r * 32 + phase * 8);
                const uint4 y = *(const uint4 *)(weights + r * 32 + phase * 8 + 4);
                w[r][0] = x.x, w[r][1] = x.y, w[r][2] = x.z, w[r][3] = x.w;
                w[r][4] = y.x, w[r][5] = y.y, w[r][6] = y.z, w[r][7] = y.w;
            }
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 first[WORDS], second[WORDS];
#pragma unroll
                    for (int x = 0; x < WORDS; x++) {
                        first[x] = row_of(v.word[n][x], base[j], pick[j]);
                        second[x] = row_of(v.word[n + 1][x], base[j], pick[j]);
                    }
                    u32 b0[V_HALVES], b1[V_HALVES];
#pragma unroll
                    for (int h = 0; h < V_HALVES; h++) {
                        const char *const table = shared + HALF_AT(K_HALVES + h);
                        b0[h] = *(const u32 *)(table + first[h / PAIRS]);
                        b1[h] = *(const u32 *)(table + second[h / PAIRS]);
                    }
#pragma unroll
                    for (int r = 0; r < QUERIES; r++) {
                        const u32 rows[4] = {__byte_perm(w[r][n], 0, place[j]), __byte_perm(w[r][n] >> 16, 0, place[j]),
                                             __byte_perm(w[r][n + 1], 0, place[j]),
                                             __byte_perm(w[r][n + 1] >> 16, 0, place[j])};
#pragma unroll
                        for (int h = 0; h < V_HALVES; h++) {
                            multiply_add(s[r].sum[h], rows, b0[h], b1[h]);
                        }
                    }
                }
            }
        };
        /* codes are read a chunk ahead */
        while (token < end) {
            if (token + stride < end) {
                load_keys(k_at, (int)a.k.token, token + stride + phase, end, &k[1]);
                load_codes(v_at, (int)a.v.token, token + stride + phase, end, &v[1]);
            }
            step(k[0], v[0]);
            token += stride;
            if (token >= end) {
                break;
            }
            if (token + stride < end) {
                load_keys(k_at, (int)a.k.token, token + stride + phase, end, &k[0]);
                load_codes(v_at, (int)a.v.token, token + stride + phase, end, &v[0]);
            }
            step(k[1], v[1]);
            token += stride;
        }
#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            float *const mine = merge + warp * PARTIAL;
            float total = s[r].total;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                total += __shfl_xor_sync(0xffffffffu, total, step);
            }
#pragma unroll
            for (int h = 0; h < V_HALVES; h++) {
                mine[channel_of(h, 2 * phase, lane)] = s[r].sum[h][0] + s[r].sum[h][2];
                mine[channel_of(h, 2 * phase + 1, lane)] = s[r].sum[h][1] + s[r].sum[h][3];
            }
            if (lane == 0) {
                mine[SIZE] = s[r].most;
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
    }
}
