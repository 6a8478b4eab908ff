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
 *     of halves, 2 of neighbours, with SIZE at most 128; KV_HEADS, 1 or 2, and QUERIES, query heads of each, a block;
 *     WARPS a block, a multiple of KV_HEADS. At most 6 half tables (HALVES) and SIZE / VEC at most 64; those of turn.h
 *   Books f16; codes' rows begin at multiples of CODE_BYTES
 *   Launch: block 32 * WARPS, grid ceil(items / block_items), dynamic shared memory of SHARED_BYTES
 *   With more than one part qn_vq_attention_join follows (vq_attention_join.cu); with a window vq_attention_plain.cu
 *   makes its part before that */
#define MOST_TOGETHER 2
#include "turn.h"
#include "vq_attention_tables.h"

#define V_HALVES PAIR_HALVES
#if TURN
#define K_HALVES 2
#define K_WORDS 2
#else
#define K_HALVES (WORDS * QUERIES)
#define K_WORDS WORDS
#endif
#define HALVES (KV_HEADS * (K_HALVES + V_HALVES))
#define TABLES ((HALVES + 1) / 2)

#define WEIGHTS_AT (TABLES * TABLE_BYTES)                   /* [WARPS][QUERIES][32] pairs of f16 */
#define QUERY_AT (WEIGHTS_AT + WARPS * QUERIES * 128)       /* [KV_HEADS][QUERIES][SIZE] */
#define MERGE_AT (QUERY_AT + KV_HEADS * QUERIES * SIZE * 4) /* [WARPS][PARTIAL] */
#define TURNS_AT                                                                                                       \
    ((MERGE_AT + WARPS * PARTIAL * 4 + 15) / 16 * 16) /* [SIZE / 2] frequencies, then turns by four tokens */
#define SHARED_BYTES (TURN ? TURNS_AT + SIZE * 8 : TURNS_AT)

/* ---- tables ---- */

/* Queries whose products are made one after the other: then a query's channels are in registers. */
#define QUERY_ROUNDS (SHARERS == 1 && VEC <= 4 && SIZE <= 128 ? QUERIES : 1)

/* Products of a head's vectors with all queries at once or, in as many rounds, with one each. A lane that shares a word
 * with another has none of its own. */
template <int rounds> struct products_put {
    static const int ROUNDS = rounds;
    struct of_column {
        float q[rounds > 1 ? VEC : 1];
    };
    static __device__ __forceinline__ const float *queries(int kv, int word, int column)
    {
        return (const float *)(shared + QUERY_AT) + kv * QUERIES * SIZE + group_of(column, word) * VEC;
    }
    __device__ __forceinline__ of_column at(int kv, int word, int column, int round) const
    {
        of_column own = {};
#pragma unroll
        for (int j = 0; j < VEC && rounds > 1; j++) {
            own.q[j] = queries(kv, word, column)[round * SIZE + j];
        }
        return own;
    }
    __device__ __forceinline__ void operator()(const of_column &own, int round, int kv, int word, int column, int entry,
                                               const u32 *words) const
    {
        char *const to = shared + kv * 128 + (WORDS == 2 ? word * 128 : 0) + entry * 256 + column * 4;
#pragma unroll
        for (int i = 0; i < QUERIES / rounds; i++) {
            const int r = rounds > 1 ? round : i;
            const float *const mine = rounds > 1 ? own.q : queries(kv, word, column) + r * SIZE;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC / 2 && sharer_of(column) == 0; j++) {
                sum = __fmaf_rn(low_half(words[j]), mine[2 * j], sum);
                sum = __fmaf_rn(high_half(words[j]), mine[2 * j + 1], sum);
            }
            *(float *)(to + HALF_AT(r * WORDS)) = sum;
        }
    }
};

#if TURN
#define WORD_PAIRS (GROUPS / 8) /* words that have a partner half a head on */

/* Channel of the first half of a head that a column's pair begins with; SIZE: it has none. */
DEV int turned_channel(u32 column)
{
    const u32 part = column / 4 / WORD_PAIRS;
    return (int)(part < VEC / 2 ? column % (4 * WORD_PAIRS) * VEC + 2 * part : SIZE);
}

static __device__ void fill_turned(const qn_cuda_vq_book &book, int head)
{
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll 1
    for (u32 task = threadIdx.x / 32; task < KV_HEADS * K_HALVES * (ENTRIES / 8); task += WARPS) {
        const int entry = (int)(task % (ENTRIES / 8) * 8), half = (int)(task / (ENTRIES / 8) % K_HALVES);
        const int kv = (int)(task / (ENTRIES / 8) / K_HALVES), channel = turned_channel((u32)lane);
        const int group = channel / VEC + half % 2 * (GROUPS / 2);
        const char *from =
            book.data + (head + kv) * book.head + group * book.group + entry * book.entry + channel % VEC * 2;
        char *const to = shared + kv * 128 + entry * 256 + lane * 4;
        u32 v[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const u16 *const at = (const u16 *)from;
            v[e] = channel < SIZE ? (u32)at[0] | (u32)at[1] << 16 : 0u;
            from += book.entry;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            *(u32 *)(to + e * 256 + (KV_HEADS == 2 ? half * TABLE_BYTES : half / 2 * TABLE_BYTES + half % 2 * 128)) =
                v[e];
        }
    }
}
#endif

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
DEV const char *token_at(const char *at, u32 token_bytes, int token, int limit)
{
    return at + (u64)(u32)min(token, limit - 1) * token_bytes;
}

DEV void load_codes(const char *at, u32 token_bytes, int token, int limit, v_codes *c)
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

DEV void load_keys(const char *at, u32 token_bytes, int token, int limit, k_codes *c)
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

/* The next keys are asked for token by token: up to 5 % faster, with two words or turned keys slower. */
#define EARLY_KEYS (!TURN && WORDS == 1)

/* ---- the kernel ---- */

#if TURN
/* What a lane has of its queries at the position of its next token, as registers with names (names.h), since the
 * compiler takes long to follow so many through statement after statement. Of lookup j and query a or b two pairs that
 * turn together: (ax<j>, ay<j>) and (au<j>, av<j>), bx<j> and so on; their turns by four tokens: (c<j>, s<j>) and
 * (d<j>, t<j>). */
#define DECLARE_TURNED(q, r, j) ".reg .f32 " #q "x<4>, " #q "y<4>, " #q "u<4>, " #q "v<4>;\n"

/* Once, before everything else. */
DEV void declare_queries(void)
{
    asm volatile(EACH_QUERY(DECLARE_TURNED, ) ".reg .f32 c<4>, s<4>, d<4>, t<4>;");
}

/* The last one of four registers, those before having moved down. */
#define PUT_LAST(v, x)                                                                                                 \
    "mov.f32 " v "0, " v "1;\nmov.f32 " v "1, " v "2;\nmov.f32 " v "2, " v "3;\nmov.f32 " v "3, " x ";\n"
#define PUT_FOUR(q, x, y, u, v)                                                                                        \
    asm volatile(PUT_LAST(q x, "%0") PUT_LAST(q y, "%1") PUT_LAST(q u, "%2") PUT_LAST(q v, "%3")::"f"(own[0]),         \
                 "f"(own[1]), "f"(own[2]), "f"(own[3]))

/* The other way round: q . turned(k) = turned_back(q) . k */
DEV void turn_back(float *x, float *y, turn t)
{
    const float was = *x;
    *x = __fmaf_rn(was, t.c, *y * t.s);
    *y = __fmaf_rn(*y, t.c, -(was * t.s));
}

/* Texts of what begins a query: one for all where they would be long. */
#define QUERY_TEXTS (QUERIES > 1 ? 1 : 4)

/* Queries as they are in shared memory, turned to `position`; frequencies and turns by four tokens in shared memory
 * too. */
DEV void begin_query(const float *q, int position, int word_lane, int phase)
{
    const double *const frequency = (const double *)(shared + TURNS_AT);
    const turn *const four = (const turn *)(frequency + SIZE / 2);
#pragma unroll QUERY_TEXTS
    for (u32 j = 0; j < 4; j++) {
        float of_query[QUERIES][4], own_by[4];
        const int channel = turned_channel(4 * (u32)word_lane + ((u32)phase + j) % 4);
#pragma unroll
        for (int i = 0; i < 2; i++) { /* TURN 1: channels c + i and its partner; 2: c and c + 1 of either half */
            const int none = channel >= SIZE, c = none ? 0 : channel;
            const int first = TURN == 1 ? c + i : c + i * (SIZE / 2), angle = TURN == 1 ? c + i : first / 2;
            const int second = TURN == 1 ? first + SIZE / 2 : first + 1;
            const turn t = turn_by((double)position * frequency[angle]);
            own_by[2 * i] = four[angle].c;
            own_by[2 * i + 1] = four[angle].s;
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                float *const own = of_query[r] + 2 * i;
                own[0] = none ? 0.0f : q[r * SIZE + first];
                own[1] = none ? 0.0f : q[r * SIZE + second];
                turn_back(own, own + 1, t);
            }
        }
        const float *own = own_by;
        PUT_FOUR("", "c", "s", "d", "t");
        own = of_query[0];
        PUT_FOUR("a", "x", "y", "u", "v");
#if QUERIES == 2
        own = of_query[1];
        PUT_FOUR("b", "x", "y", "u", "v");
#endif
    }
}

/* Of one lookup of either half of the head, k0 to k3 in the channels' order: add the products, and turn on. */
#if TURN == 1
#define ORDER(q, j) #q "x" j, #q "u" j, #q "y" j, #q "v" j
#else
#define ORDER(q, j) #q "x" j, #q "y" j, #q "u" j, #q "v" j
#endif
#define ADD_FOUR(sum, order) ADD_FOUR_(sum, order)
#define ADD_FOUR_(sum, c0, c1, c2, c3)                                                                                 \
    "fma.rn.f32 " sum ", k0, " c0 ", " sum ";\nfma.rn.f32 " sum ", k1, " c1 ", " sum ";\n"                             \
    "fma.rn.f32 " sum ", k2, " c2 ", " sum ";\nfma.rn.f32 " sum ", k3, " c3 ", " sum ";\n"
#define TURN_BACK(x, y, c, s)                                                                                          \
    "mul.rn.f32 ys, " y ", " s ";\nmul.rn.f32 xs, " x ", " s ";\nneg.f32 xs, xs;\n"                                    \
    "fma.rn.f32 " x ", " x ", " c ", ys;\nfma.rn.f32 " y ", " y ", " c ", xs;\n"
#define ADD_TURNED(q, r, j)                                                                                            \
    ADD_FOUR("%" #r, ORDER(q, j))                                                                                      \
    TURN_BACK(#q "x" j, #q "y" j, "c" j, "s" j) TURN_BACK(#q "u" j, #q "v" j, "d" j, "t" j)

#define LOOK_UP_TURNED(word, base, pick, at, low_half, high_half)                                                      \
    FIND_ROW("row", word, base, pick, "%12")                                                                           \
    "ld.shared.u32 row, [row+" at "];\nmov.b32 {low, high}, row;\n"                                                    \
    "cvt.f32.f16 " low_half ", low;\ncvt.f32.f16 " high_half ", high;\n"
#define TURNED_STEP(base, pick, j)                                                                                     \
    LOOK_UP_TURNED("%2", base, pick, "0", "k0", "k1")                                                                  \
    LOOK_UP_TURNED("%3", base, pick, "%13", "k2", "k3") EACH_QUERY(ADD_TURNED, j)

/* Scores of one token, of those of its words that the lane has; queries are turned on by four tokens. */
DEV void score_turned(const u32 *words, const place &p, float *sums)
{
    asm volatile(
        "{\n.reg .b32 row;\n.reg .b16 low, high;\n.reg .f32 k0, k1, k2, k3, xs, ys;\n" TURNED_STEP("%4", "%8", "0")
            TURNED_STEP("%5", "%9", "1") TURNED_STEP("%6", "%10", "2") TURNED_STEP("%7", "%11", "3") "}"
        : "+f"(sums[0]), "+f"(sums[1])
        : "r"(words[0]), "r"(words[1]), "r"(base_of(p, 0)), "r"(base_of(p, 1)), "r"(base_of(p, 2)), "r"(base_of(p, 3)),
          "r"(p.pick[0]), "r"(p.pick[1]), "r"(p.pick[2]), "r"(p.pick[3]), "r"(shared_address(shared)), "n"(HALF_AT(1)));
}
#else
/* Of a code of either word a product for each query. */
#if WORDS == 2
#define PRODUCT_a0 "%15"
#define PRODUCT_a1 "%16"
#define PRODUCT_b0 "%17"
#define PRODUCT_b1 "%18"
#else
#define PRODUCT_a0 "%15"
#define PRODUCT_b0 "%16"
#define PRODUCT_c0 "%17"
#define PRODUCT_d0 "%18"
#endif
#define ADD_PRODUCT(sum, at) "ld.shared.f32 x, [row+" at "];\nadd.rn.f32 " sum ", " sum ", x;\n"
#define ADD_FIRST(q, r, x) ADD_PRODUCT("%" #r, PRODUCT_##q##0)
#define ADD_SECOND(q, r, x) ADD_PRODUCT("%" #r, PRODUCT_##q##1)
#define FIRST_STEP(base, pick) FIND_ROW("row", "%4", base, pick, "%14") EACH_QUERY(ADD_FIRST, )
#if WORDS == 2
#define SECOND_STEP(base, pick) FIND_ROW("row", "%5", base, pick, "%14") EACH_QUERY(ADD_SECOND, )
#else
#define SECOND_STEP(base, pick)
#endif

/* Scores of one token, of those of its words that the lane has. */
DEV void score_products(const u32 *words, const place &p, float *sums)
{
    asm volatile("{\n.reg .b32 row;\n.reg .f32 x;\n" FIRST_STEP("%6", "%10") FIRST_STEP("%7", "%11")
                     FIRST_STEP("%8", "%12") FIRST_STEP("%9", "%13") SECOND_STEP("%6", "%10") SECOND_STEP("%7", "%11")
                         SECOND_STEP("%8", "%12") SECOND_STEP("%9", "%13") "}"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(words[0]), "r"(words[WORDS - 1]), "r"(base_of(p, 0)), "r"(base_of(p, 1)), "r"(base_of(p, 2)),
                   "r"(base_of(p, 3)), "r"(p.pick[0]), "r"(p.pick[1]), "r"(p.pick[2]), "r"(p.pick[3]),
                   "r"(shared_address(shared)), "n"(HALF_AT(0)), "n"(HALF_AT(1)), "n"(HALF_AT(2)), "n"(HALF_AT(3)));
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    qn_vq_attention(const __grid_constant__ qn_cuda_vq_attention a)
{
    declare_sums();
    declare_tasks();
#if TURN
    declare_queries();
#endif
    const u32 warp = warp_here();
    const int lane = (int)threadIdx.x % 32, kv = (int)(warp / HEAD_WARPS), stream_index = (int)(warp % HEAD_WARPS);
    const int word_lane = lane / 4, phase = lane % 4;
    const place at_step = place_of(kv, word_lane, phase);
    u32 rows_of[ORDERS];
    order_weights(rows_of);
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
    if (!a.early) {
        wait_before();
    }
#if TURN
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < SIZE / 2; i += 32 * WARPS) {
        const double frequency = frequency_of(i, SIZE, a.log2_theta, a.factors);
        ((double *)(shared + TURNS_AT))[i] = frequency;
        ((turn *)(shared + TURNS_AT + SIZE * 4))[i] = turn_by(4.0 * frequency);
    }
#endif

    const int last = ((int)blockIdx.x + 1) * a.block_items < a.items ? ((int)blockIdx.x + 1) * a.block_items : a.items;
#pragma unroll 1
    for (int i = (int)blockIdx.x * a.block_items; i < last; i++) {
        const item it = item_of(a, i);
        if (it.head != tables_head) { /* those that depend on no query; the last item's are no longer read */
#if TURN
            fill_turned(a.k_book, it.head);
#endif
            fill_pairs<K_HALVES, false>(a.v_book, it.head);
            tables_head = it.head;
        }
        if (i == (int)blockIdx.x * a.block_items) {
            wait_before(); /* books may have been read before */
        }
        const int coded = coded_of(a, length_of(a, it.sequence));
        const int begin = it.part * a.part_tokens;
        int end = begin + a.part_tokens < coded ? begin + a.part_tokens : coded;
        const char *k_at = a.k.data + it.sequence * a.k.batch + (it.head + kv) * a.k.head + k_offset;
        const char *v_at = a.v.data + it.sequence * a.v.batch + (it.head + kv) * a.v.head + word_offset;
        asm("" : "+l"(k_at), "+l"(v_at)); /* kept, not made again */
#if TURN /* neighbouring chunks, so that every turn is by four tokens */
        const int chunks = (end - begin + 32 * HEAD_WARPS - 1) / (32 * HEAD_WARPS), stride = 32;
        int token = begin + stream_index * chunks * 32;
        end = token + chunks * 32 < end ? token + chunks * 32 : end;
#else
        const int stride = HEAD_WARPS * 32;
        int token = begin + stream_index * 32;
#endif
        k_codes k;
        if (token < end) {
            load_keys(k_at, (u32)a.k.token, token + phase, end, &k);
        }
        float *const q = (float *)(shared + QUERY_AT);
#pragma unroll 1
        for (u32 x = threadIdx.x; x < KV_HEADS * QUERIES * SIZE; x += 32 * WARPS) {
            const int head = (it.head + (int)(x / (QUERIES * SIZE))) * a.group + it.first + (int)(x / SIZE % QUERIES);
            q[x] = load_float(a.q + it.sequence * a.q_row + head * a.q_head, x % SIZE, Q_FORMAT) * a.scale;
        }
        __syncthreads();
#if !TURN
        fill(a.k_book, it.head, products_put<QUERY_ROUNDS>(), products_put<1>());
#endif
        __syncthreads();

        stream s[QUERIES];
        begin_streams(s);
#if TURN
        begin_query(q + kv * QUERIES * SIZE, token + phase, word_lane, phase);
#endif
        /* values are asked for while keys are looked up, the next keys behind a token's lookups or while values are */
#pragma unroll 1
        for (; token < end; token += stride) {
            v_codes v;
            load_codes(v_at, (u32)a.v.token, token + phase, end, &v);
            float score[QUERIES][8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float sums[4] = {};
#if TURN
                score_turned(k.word[n], at_step, sums);
#else
                score_products(k.word[n], at_step, sums);
#endif
#pragma unroll
                for (int r = 0; r < QUERIES; r++) {
                    score[r][n] = sums[r];
                }
                if (EARLY_KEYS) {
                    k.word[n][0] = load_word(token_at(k_at, (u32)a.k.token, token + stride + phase + 4 * n, end));
                }
            }
            if (!EARLY_KEYS && token + stride < end) {
                load_keys(k_at, (u32)a.k.token, token + stride + phase, end, &k);
            }
            __syncwarp();
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                /* add over the lanes of a token's words: a lane ends with token `lane` of the chunk */
#pragma unroll
                for (int step = 4; step > 0; step /= 2) {
#pragma unroll
                    for (int n = 0; n < step; n++) {
                        score[r][n] = add_halves(score[r][n], score[r][n + step], word_lane & step, 4 * step);
                    }
                }
                const float value = token + lane < end ? score[r][0] : NONE;
                weigh(value, lane, r, &s[r], weights + r * 32);
            }
            __syncwarp();
            add_values<K_HALVES>(v.word, weights + phase * 8, at_step, rows_of);
        }
#pragma unroll 1
        for (int y = 0; y < QUERIES; y++) {
            leave_sums(s, merge + warp * PARTIAL); /* one text for all */
            __syncthreads();
#pragma unroll 1
            for (u32 x = warp * 32; x < KV_HEADS * SIZE; x += 32 * WARPS) { /* length: registers are few */
                const int of_block = (int)(x / SIZE), head = (it.head + of_block) * a.group + it.first + y;
                join_sums<HEAD_WARPS>(a, it, head, (int)(x % SIZE) + lane, length_of(a, it.sequence),
                                      merge + of_block * HEAD_WARPS * PARTIAL);
            }
            __syncthreads();
        }
    }
}
