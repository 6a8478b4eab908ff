/* vq_attention of keys that are not turned: values by tables of pairs of f16 channels, multiplied on tensor cores, keys
 * by tables of pairs too or of products with the query, codes by bulk copies into shared memory some chunks ahead.
 *
 * Keys by pairs: lanes are eight tokens of four quarters of a row. At one step the lanes of a token look up the groups
 * of other columns than those of the other tokens, so that 32 lanes meet 32 banks; what a lane looked up of two tokens
 * is an operand of the matrix instruction whose other operand has, in column n, the query's channels in the order of
 * token n: of the products of sixteen tokens and eight orders the diagonal is wanted. A query is divided by a power of
 * two; f32 ones are two f16 of 22 bits together. Tables do not depend on queries: they stay for all items of a head,
 * and a lookup serves all query heads of a group.
 *
 * Keys by products (PRODUCTS): a code is looked up once however many channels it has, and gives a summand of the score
 * in f32. The table is made of each query, for two items at once: one reading of the book serves both, and nothing is
 * made again between them.
 *
 * TEAMS of a block's warps do as many items of a head at once. Each warp has a ring of SLOTS buffers that hold the
 * codes of 32 keys or values, filled by the copy engine for its next chunks, those of its next item too: memory is read
 * while tables are made and while items end. Values: see vq_attention_tables.h.
 *
 * Host contract
 *   Parameters: Q_FORMAT; SIZE of a head: 64, 128, 256; VEC: 2, 4, 8, 16; BITS: 4 to 8; KV_HEADS 1, and QUERIES, query
 *     heads of it, a block; WARPS a block, TEAMS of them, two with one query only; SLOTS, even; PRODUCTS, with two
 *     teams and SIZE / VEC at most 32
 *   Books f16 and wide; SIZE / VEC at most 64 and a multiple of 16
 *   Maps: of bytes, [sequences, tokens, heads, groups], boxes of 32 tokens; or, tokens of a head being neighbours, of 8
 *     bytes, [sequences, 1, heads, tokens * groups / 8]; box_x and box_row say which; one sequence where codes
 *     are shared
 *   Launch: block 32 * WARPS, grid ceil(items / block_items), dynamic shared memory of SHARED_BYTES; with head_blocks,
 *     blocks of a head's items, clusters of two and grid {2, head_blocks, key heads / 2}
 *   What follows is as for vq_attention.cu */
#define MOST_TOGETHER 4
#define WIDE_VALUES (PAIRS % 2 == 0)
#define SETS (QUERIES == 1 && PAIR_HALVES == 2 ? 4 : 1)
#include "vq_attention_tables.h"

#define CHUNK_BYTES (32 * GROUPS)
#define PAIRED 64 /* bytes of a row of codes of which two are a line of L2 */
#define TEAM_WARPS (WARPS / TEAMS)
#define LOOKUPS (8 * PAIR_HALVES) /* of a lane by a key */
#define QUERY_LOADS ((TEAMS * QUERIES * SIZE + 32 * WARPS - 1) / (32 * WARPS))
#define STREAMS (QUERIES > 2 ? 1 : 2) /* of sixteen tokens each, interleaved */
#define VALUES_HALF (PRODUCTS ? TEAMS : PAIR_HALVES)
#define TABLES ((VALUES_HALF + PAIR_HALVES + 1) / 2)
#define RING_AT (TABLES * TABLE_BYTES)
#define WEIGHTS_AT (RING_AT + WARPS * SLOTS * CHUNK_BYTES) /* [WARPS][QUERIES][32] pairs of f16 */
#define QUERY_AT (WEIGHTS_AT + WARPS * QUERIES * 128)      /* [TEAMS][QUERIES][SIZE] */
#define MERGE_AT (QUERY_AT + TEAMS * QUERIES * SIZE * 4)   /* [WARPS][PARTIAL] */
#define BARRIERS_AT (MERGE_AT + WARPS * PARTIAL * 4)       /* [WARPS][SLOTS] */
#define SHARED_BYTES (BARRIERS_AT + WARPS * SLOTS * 8)
#if SHARERS == 1 && VEC <= 8 && TASKS <= TOGETHER * WARPS
#define WHOLE_BOOKS 1 /* a book is in a block's registers at once */
#define FILL(y, book, head, put) put_tasks<y>(thread_here() / 32, put())
#elif VEC <= 8
#define WHOLE_BOOKS 0
#define FILL(y, book, head, put) fill_wide(book, head, put())
#else
#define WHOLE_BOOKS 0
#define FILL(y, book, head, put) fill_any(book, head, put())
#endif

DEV void load_box(u32 to, const tensor_map *map, u32 bar, const qn_cuda_vq_codes &codes, int head, int token,
                  int sequence)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(token * codes.box_x), "r"(head), "r"(token * codes.box_row),
                 "r"(codes.batch ? sequence : 0), "r"(bar), "l"(L2_EVICT_FIRST)
                 : "memory");
}

/* ---- rounds ---- */

/* The block by its items: those of a cluster of two have the same items of neighbouring heads. Asked for again where it
 * is needed. */
DEV int block_here(const qn_cuda_vq_attention &a)
{
    int x, y, z;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    if (GROUPS != PAIRED || !a.head_blocks) {
        return x;
    }
    asm volatile("mov.u32 %0, %%ctaid.y;\nmov.u32 %1, %%ctaid.z;" : "=r"(y), "=r"(z));
    return (2 * z + x) * a.head_blocks + y;
}

/* End of the block's items. */
DEV int last_item(const qn_cuda_vq_attention &a)
{
    return min((block_here(a) + 1) * a.block_items, a.items);
}

/* Items from i on that the teams do at once: of one head and the same queries. */
DEV int round_size(const qn_cuda_vq_attention &a, int i)
{
    const int left = (int)(a.of_queries.by - remainder_of((u32)i, a.of_queries));
    return TEAMS == 1 ? 1 : min(min(left, last_item(a) - i), TEAMS);
}

/* Tokens of an item that are read as codes. */
struct span {
    int begin, end;
};

DEV span span_of(const qn_cuda_vq_attention &a, const item &it, int length)
{
    const int coded = coded_of(a, length), begin = it.part * a.part_tokens;
    return {begin, min(begin + a.part_tokens, coded)};
}

/* ---- the ring ---- */

typedef pairs_put<VALUES_HALF, WIDE_VALUES> values_put;

#define STRIDE (TEAM_WARPS * 32) /* tokens from one chunk of a warp to its next */

/* What a warp asks for next: keys, then values, of its chunks of its team's items. */
struct cursor {
    int round, sequence, head, token, end;
};

struct ring {
    u32 slots, bars; /* addresses */
    int slot;
    u32 parity;
};

DEV void pass_slot(ring *r)
{
    r->slot++;
    if (r->slot == SLOTS) {
        r->slot = 0;
        r->parity ^= 1;
    }
}

/* The round's first chunk of this warp, as if all tokens were there. */
DEV void enter_item(const qn_cuda_vq_attention &a, cursor *c, int team, int stream_index)
{
    c->sequence = c->head = c->token = c->end = 0;
    if (team < round_size(a, c->round)) {
        const item it = item_of(a, c->round + team);
        c->sequence = it.sequence;
        c->head = it.head;
        c->token = it.part * a.part_tokens + stream_index * 32;
        c->end = (it.part + 1) * a.part_tokens;
    }
}

DEV void end_item(const qn_cuda_vq_attention &a, cursor *c)
{
    c->end = min(c->end, coded_of(a, length_of(a, c->sequence)));
}

/* On to the next round with tokens, if this one has no more. */
DEV void find_tokens(const qn_cuda_vq_attention &a, cursor *c, int team, int stream_index)
{
#pragma unroll 1
    while (c->token >= c->end) {
        const int next = c->round + round_size(a, c->round);
        if (next >= last_item(a)) {
            return;
        }
        c->round = next;
        enter_item(a, c, team, stream_index);
        end_item(a, c);
    }
}

/* Ask for the next keys or values into that slot, if there are any. They take turns; find_tokens goes before keys. */
template <bool of_values>
DEV bool ask(const qn_cuda_vq_attention &a, const tensor_map *map, cursor *c, const ring &r, int slot)
{
    if (c->token >= c->end) {
        return false;
    }
    if (warp_elect()) {
        barrier_arrive_expect(r.bars + slot * 8, CHUNK_BYTES);
        load_box(r.slots + slot * CHUNK_BYTES, map, r.bars + slot * 8, of_values ? a.v : a.k, c->head, c->token,
                 c->sequence);
    }
    if (of_values) {
        c->token += STRIDE;
    }
    return true;
}

#if PRODUCTS
/* ---- keys by products ---- */

#define QUARTER_WORDS (GROUPS / 16) /* words of four codes that a lane reads of a key */

/* One entry of a group's book times each team's query, into the table's halves. A group that has two columns is in
 * both. */
struct keys_put {
    static const int ROUNDS = 1;
    struct of_column {
        float q[TEAMS][VEC];
    };
    __device__ __forceinline__ of_column at(int, int, int column, int) const
    {
        const float *const q = (const float *)(shared + QUERY_AT) + group_of(column, 0) * VEC;
        of_column own;
#pragma unroll
        for (int t = 0; t < TEAMS; t++) {
#pragma unroll
            for (int j = 0; j < VEC; j += 4) {
                const float4 part = *(const float4 *)(q + t * SIZE + j);
                own.q[t][j] = part.x, own.q[t][j + 1] = part.y, own.q[t][j + 2] = part.z, own.q[t][j + 3] = part.w;
            }
        }
        return own;
    }
    __device__ __forceinline__ void operator()(const of_column &own, int, int, int, int column, int entry,
                                               const u32 *words) const
    {
#pragma unroll
        for (int t = 0; t < TEAMS; t++) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) {
                sum = __fmaf_rn(low_half(words[j / 2]), own.q[t][j], sum);
                sum = __fmaf_rn(high_half(words[j / 2]), own.q[t][j + 1], sum);
            }
            *(float *)(shared + t * 128 + entry * 256 + column * 4) = sum;
        }
    }
};

/* Scores of a chunk: a lane ends with the one of token 8 * (lane % 4) + lane / 4. */
DEV float score_products(const char *chunk, const half_place *p)
{
    const int lane = (int)threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
    const char *const at = chunk + token * GROUPS + quarter * (4 * QUARTER_WORDS);
    float score[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        u32 words[QUARTER_WORDS];
#if QUARTER_WORDS == 2
        const uint2 v = *(const uint2 *)(at + g * 8 * GROUPS);
        words[0] = token >= 4 ? v.y : v.x;
        words[1] = token >= 4 ? v.x : v.y;
#else
        words[0] = *(const u32 *)(at + g * 8 * GROUPS);
#endif
        float part[2] = {};
#pragma unroll
        for (int u = 0; u < QUARTER_WORDS; u++) {
#pragma unroll
            for (int s = 0; s < 4; s++) {
                part[s % 2] += *(const float *)(shared + row_of(words[u], p[u], s));
            }
        }
        score[g] = part[0] + part[1];
    }
#pragma unroll
    for (int step = 2; step > 0; step /= 2) {
#pragma unroll
        for (int n = 0; n < step; n++) {
            score[n] = add_halves(score[n], score[n + step], quarter & step, step);
        }
    }
    return score[0];
}
#else
/* ---- keys by pairs ---- */

#define PIECES (Q_FORMAT == QN_MM_F32 ? 2 : 1) /* f16 that hold a channel of a query */

typedef pairs_put<0, false> keys_put;

/* Texts of what begins a query: one for all where they would be long. */
#define QUERY_TEXTS (QUERIES * PIECES * LOOKUPS > 24 ? 1 : QUERIES)

/* What a lane has of queries, as registers with names: of query a, for the lookup at step i of half table h, the two
 * channels as f16, ap<i>h<h>, and what is left of them, ar<i>h<h>. EACH_TWO(F, ...): F(i, h, j, g, ...) for every two
 * lookups, (i, h) and (j, g), that a product takes. Step i is of column 4 * word + byte. */
#if PAIR_HALVES == 1
#define EACH_TWO(F, ...)                                                                                               \
    F(0, 0, 1, 0, __VA_ARGS__) F(2, 0, 3, 0, __VA_ARGS__) F(4, 0, 5, 0, __VA_ARGS__) F(6, 0, 7, 0, __VA_ARGS__)
#elif PAIR_HALVES == 2
#define EACH_TWO(F, ...)                                                                                               \
    F(0, 0, 0, 1, __VA_ARGS__) F(1, 0, 1, 1, __VA_ARGS__) F(2, 0, 2, 1, __VA_ARGS__) F(3, 0, 3, 1, __VA_ARGS__)        \
    F(4, 0, 4, 1, __VA_ARGS__) F(5, 0, 5, 1, __VA_ARGS__) F(6, 0, 6, 1, __VA_ARGS__) F(7, 0, 7, 1, __VA_ARGS__)
#else
#define TWO_OF_STEP(F, i, ...) F(i, 0, i, 1, __VA_ARGS__) F(i, 2, i, 3, __VA_ARGS__)
#define EACH_TWO(F, ...)                                                                                               \
    TWO_OF_STEP(F, 0, __VA_ARGS__) TWO_OF_STEP(F, 1, __VA_ARGS__) TWO_OF_STEP(F, 2, __VA_ARGS__)                       \
    TWO_OF_STEP(F, 3, __VA_ARGS__) TWO_OF_STEP(F, 4, __VA_ARGS__) TWO_OF_STEP(F, 5, __VA_ARGS__)                       \
    TWO_OF_STEP(F, 6, __VA_ARGS__) TWO_OF_STEP(F, 7, __VA_ARGS__)
#endif
#define EACH_STEP(F, ...)                                                                                              \
    F(0, __VA_ARGS__) F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__)                                            \
    F(4, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__) F(7, __VA_ARGS__)
#define DECLARE_STEP(i, q) ".reg .b32 " #q "p" #i "h<4>, " #q "r" #i "h<4>;\n"
#define DECLARE_PART(q, r, x) EACH_STEP(DECLARE_STEP, q)

/* Texts of begin_query, whose operands they name: all queries' move to the one before, the last one's are new. */
#if QUERIES == 1
#define LAST_QUERY "a"
#elif QUERIES == 2
#define LAST_QUERY "b"
#elif QUERIES == 3
#define LAST_QUERY "c"
#else
#define LAST_QUERY "d"
#endif
#define MOVE_LOOKUP(q, i, h) "mov.b32 " BEFORE_##q "p" #i "h" #h ", " #q "p" #i "h" #h ";\n"
#define BEGIN_LOOKUP(i, h)                                                                                             \
    "ld.shared.v2.f32 {x, y}, [%" #i "+" FURTHER_##h "];\nmul.rn.f32 x, x, %8;\nmul.rn.f32 y, y, %8;\n"                \
    "cvt.rn.f16x2.f32 " LAST_QUERY "p" #i "h" #h ", y, x;\n"
#if PIECES == 2
#define MOVE_TWO(i, h, j, g, q)                                                                                        \
    MOVE_LOOKUP(q, i, h) MOVE_LOOKUP(q, j, g)                                                                          \
    "mov.b32 " BEFORE_##q "r" #i "h" #h ", " #q "r" #i "h" #h ";\n"                                                    \
    "mov.b32 " BEFORE_##q "r" #j "h" #g ", " #q "r" #j "h" #g ";\n"
#define LEAVE_REST(i, h)                                                                                               \
    "mov.b32 {low, high}, " LAST_QUERY "p" #i "h" #h ";\ncvt.f32.f16 z, low;\nsub.rn.f32 x, x, z;\n"                   \
    "cvt.f32.f16 z, high;\nsub.rn.f32 y, y, z;\ncvt.rn.f16x2.f32 " LAST_QUERY "r" #i "h" #h ", y, x;\n"
#else
#define MOVE_TWO(i, h, j, g, q) MOVE_LOOKUP(q, i, h) MOVE_LOOKUP(q, j, g)
#define LEAVE_REST(i, h)
#endif
#define BEGIN_TWO(i, h, j, g, x) BEGIN_LOOKUP(i, h) LEAVE_REST(i, h) BEGIN_LOOKUP(j, g) LEAVE_REST(j, g)
#define MOVE_PART(q) EACH_TWO(MOVE_TWO, q)

#define FURTHER(h) ((4 * ((h) / PAIRS) * VEC + 2 * ((h) % PAIRS)) * 4) /* bytes from half table 0's channels */
#define FURTHER_0 "%9"
#define FURTHER_1 "%10"
#define FURTHER_2 "%11"
#define FURTHER_3 "%12"

/* *unit: what scores are multiplied by. */
DEV void begin_query(const float *q, float scale, float *unit)
{
    const int lane = (int)(thread_here() % 32), token = lane / 4, quarter = lane % 4;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < SIZE; i += 32) {
        most = fmaxf(most, fabsf(q[i + lane]));
    }
    most = warp_max(most);
    int power = (int)(__float_as_uint(most) >> 23);
    power = power < 1 ? 1 : power > 253 ? 253 : power;
    const float by = __uint_as_float((u32)(254 - power) << 23);
    *unit = __uint_as_float((u32)power << 23) * scale;
    u32 at[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = 4 * (2 * quarter + (i / 4 ^ token / 4)) + (token + i) % 4;
        at[i] = shared_address(q + first_channel(0, column));
    }
    asm volatile("{\n.reg .f32 x, y, z;\n.reg .b16 low, high;\n" LATER_QUERY(MOVE_PART)
                     EACH_TWO(BEGIN_TWO, ) "}" ::"r"(at[0]),
                 "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(at[5]), "r"(at[6]), "r"(at[7]), "f"(by),
                 "n"(FURTHER(0)), "n"(FURTHER(1)), "n"(FURTHER(2)), "n"(FURTHER(3))
                 : "memory");
}

/* Sums of streams, as registers with names (vq_attention_sums.h): of query a ak<stream>x0 to x3, and so on. */
#define DECLARE_KEYS(q, r, x) ".reg .f32 " #q "k0x<4>, " #q "k1x<4>;\n"
#define CLEAR_KEYS(q, r, x) OF_FOUR(CLEAR_ONE, #q "k0x") OF_FOUR(CLEAR_ONE, #q "k1x")
#define TAKE_KEYS(q, r, i)                                                                                             \
    asm volatile("mov.f32 %0, " #q "k" #i "x0;\nmov.f32 %1, " #q "k" #i "x1;\n"                                        \
                 "mov.f32 %2, " #q "k" #i "x2;\nmov.f32 %3, " #q "k" #i "x3;"                                          \
                 : "=f"(d[i][r][0]), "=f"(d[i][r][1]), "=f"(d[i][r][2]), "=f"(d[i][r][3]));

/* Texts of add_keys, whose operands they name. A lane's codes of token t of a stream s are words w<s><t><u>x<x>: u is 0
 * for the first four steps, 1 for the others; with two of them, x. */
#if WORDS == 2
#define READ_TOKEN(s, t)                                                                                               \
    ".reg .b32 w" s t "0x<2>, w" s t "1x<2>;\n"                                                                        \
    "ld.shared.v4.u32 {e, f, g, h}, [%7+(" s "*16+" t "*8)*" TEXT(GROUPS) "];\n"                                       \
    "selp.b32 w" s t "0x0, g, e, swapped;\nselp.b32 w" s t "0x1, h, f, swapped;\n"                                     \
    "selp.b32 w" s t "1x0, e, g, swapped;\nselp.b32 w" s t "1x1, f, h, swapped;\n"
#else
#define READ_TOKEN(s, t)                                                                                               \
    ".reg .b32 w" s t "0x<1>, w" s t "1x<1>;\n"                                                                        \
    "ld.shared.v2.u32 {e, f}, [%7+(" s "*16+" t "*8)*" TEXT(GROUPS) "];\n"                                             \
    "selp.b32 w" s t "0x0, f, e, swapped;\nselp.b32 w" s t "1x0, e, f, swapped;\n"
#endif
#define OF_STEP_0(F, ...) F("0", "%1", "%3", __VA_ARGS__)
#define OF_STEP_1(F, ...) F("0", "%1", "%4", __VA_ARGS__)
#define OF_STEP_2(F, ...) F("0", "%1", "%5", __VA_ARGS__)
#define OF_STEP_3(F, ...) F("0", "%1", "%6", __VA_ARGS__)
#define OF_STEP_4(F, ...) F("1", "%2", "%3", __VA_ARGS__)
#define OF_STEP_5(F, ...) F("1", "%2", "%4", __VA_ARGS__)
#define OF_STEP_6(F, ...) F("1", "%2", "%5", __VA_ARGS__)
#define OF_STEP_7(F, ...) F("1", "%2", "%6", __VA_ARGS__)
#define OF_HALF_0 "0", "%9"
#if WORDS == 2 && PAIRS == 1
#define OF_HALF_1 "1", "%10"
#else
#define OF_HALF_1 "0", "%10"
#endif
#if WORDS == 2
#define OF_HALF_2 "1", "%11"
#define OF_HALF_3 "1", "%12"
#else
#define OF_HALF_2 "0", "%11"
#define OF_HALF_3 "0", "%12"
#endif
#define LOOK_UP_KEY(u, base, pick, value, s, t, ...) LOOK_UP_WORD(u, base, pick, value, s, t, __VA_ARGS__)
#define LOOK_UP_WORD(u, base, pick, value, s, t, x, at)                                                                \
    FIND_ROW("row", "w" s t u "x" x, base, pick, "%0") "ld.shared.u32 " value ", [row+" at "];\n"
#if PIECES == 2
#define ADD_KEYS(q, r, i, h, j, g, s)                                                                                  \
    MULTIPLY_ADD(#q "k" s "x", "v0, v1, v2, v3", #q "p" #i "h" #h ", " #q "p" #j "h" #g)                               \
    MULTIPLY_ADD(#q "k" s "x", "v0, v1, v2, v3", #q "r" #i "h" #h ", " #q "r" #j "h" #g)
#else
#define ADD_KEYS(q, r, i, h, j, g, s)                                                                                  \
    MULTIPLY_ADD(#q "k" s "x", "v0, v1, v2, v3", #q "p" #i "h" #h ", " #q "p" #j "h" #g)
#endif
#define ADD_STREAM(i, h, j, g, s)                                                                                      \
    OF_STEP_##i(LOOK_UP_KEY, "v0", s, "0", OF_HALF_##h) OF_STEP_##i(LOOK_UP_KEY, "v1", s, "1", OF_HALF_##h)            \
    OF_STEP_##j(LOOK_UP_KEY, "v2", s, "0", OF_HALF_##g) OF_STEP_##j(LOOK_UP_KEY, "v3", s, "1", OF_HALF_##g)            \
    EACH_QUERY(ADD_KEYS, i, h, j, g, s)
#if STREAMS == 2
#define READ_TOKENS READ_TOKEN("0", "0") READ_TOKEN("0", "1") READ_TOKEN("1", "0") READ_TOKEN("1", "1")
#define ADD_TWO(i, h, j, g, x) ADD_STREAM(i, h, j, g, "0") ADD_STREAM(i, h, j, g, "1")
#else
#define READ_TOKENS READ_TOKEN("0", "0") READ_TOKEN("0", "1")
#define ADD_TWO(i, h, j, g, x) ADD_STREAM(i, h, j, g, "0")
#endif

/* Products of every query with the keys of all streams, codes of the first of which begin at `at` for this lane: words
 * 2 * quarter and the next of its token, the second one first for tokens 4 to 7. */
DEV void add_keys(u32 at, int swapped, const place *p)
{
    asm volatile("{\n.reg .b32 row, v0, v1, v2, v3, e, f, g, h;\n.reg .pred swapped;\nsetp.ne.s32 swapped, %8, 0;\n"
                 READ_TOKENS EACH_QUERY(CLEAR_KEYS, ) EACH_TWO(ADD_TWO, ) "}" ::"r"(shared_address(shared)),
                 "r"(p[0].base), "r"(p[1].base), "r"(p[0].pick[0]), "r"(p[0].pick[1]), "r"(p[0].pick[2]),
                 "r"(p[0].pick[3]), "r"(at), "r"(swapped), "n"(HALF_AT(0)), "n"(HALF_AT(1)), "n"(HALF_AT(2)),
                 "n"(HALF_AT(3))
                 : "memory");
}

/* Scores of a chunk, one a lane, without the query's unit. */
DEV void score_keys(const char *chunk, const place *p, float *scores)
{
    const int lane = (int)threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
    const char *const at = chunk + token * GROUPS + quarter % (4 / SHARERS > 0 ? 4 / SHARERS : 1) * (2 * CODE_BYTES);
    const int from = 4 * (lane % 8) + lane % 8 / 2; /* the lane that has the diagonal's element of this lane's token */
#pragma unroll
    for (int g = 0; g < 2; g += STREAMS) {
        float d[STREAMS][QUERIES][4];
        add_keys(shared_address(at) + g * 16 * GROUPS, token >= 4, p);
        EACH_QUERY(TAKE_KEYS, 0)
#if STREAMS == 2
        EACH_QUERY(TAKE_KEYS, 1)
#endif
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
#pragma unroll
                for (int y = 0; y < 2; y++) {
                    const float mine = token % 2 ? d[i][r][2 * y + 1] : d[i][r][2 * y];
                    const float score = __shfl_sync(0xffffffffu, mine, from);
                    scores[r] = lane / 8 == 2 * (g + i) + y ? score : scores[r];
                }
            }
        }
    }
}
#endif

/* ---- queries ---- */

/* Elements of a round's queries that a thread brings: where they are, NULL: there is none; then their bits. */
struct query_part {
    const char *at[QUERY_LOADS];
    u32 bits[QUERY_LOADS];
};

DEV void find_queries(const qn_cuda_vq_attention &a, int i, int size, query_part *part)
{
    const item first = item_of(a, i);
    const u32 thread = thread_here();
#pragma unroll
    for (int n = 0; n < QUERY_LOADS; n++) {
        const u32 x = thread + n * 32 * WARPS;
        const int t = (int)(x / (QUERIES * SIZE));
        const int head = first.head * a.group + first.first + (int)(x / SIZE % QUERIES);
        part->at[n] = t < size ? a.q + item_of(a, i + t).sequence * a.q_row + head * a.q_head +
                                     x % SIZE * (Q_FORMAT == QN_MM_F32 ? 4 : 2)
                               : NULL;
    }
}

DEV void load_queries(query_part *part)
{
#pragma unroll
    for (int n = 0; n < QUERY_LOADS; n++) {
        part->bits[n] = 0;
        if (part->at[n]) {
            part->bits[n] = Q_FORMAT == QN_MM_F32 ? *(const u32 *)part->at[n] : *(const u16 *)part->at[n];
        }
    }
}

/* Into shared memory; tables of products are made of them. */
DEV void put_queries(const qn_cuda_vq_attention &a, const query_part &part)
{
    float *const q = (float *)(shared + QUERY_AT);
    const u32 thread = thread_here();
#pragma unroll
    for (int n = 0; n < QUERY_LOADS; n++) {
        const u32 x = thread + n * 32 * WARPS;
        if (x < TEAMS * QUERIES * SIZE) {
            q[x] = load_float((const char *)&part.bits[n], 0, Q_FORMAT) * (PRODUCTS ? a.scale : 1.0f);
        }
    }
    if (PRODUCTS) {
        __syncthreads();
    }
}

/* ---- the kernel ---- */

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    qn_vq_attention_pairs(const __grid_constant__ qn_cuda_vq_attention a, const __grid_constant__ tensor_map keys,
                          const __grid_constant__ tensor_map values)
{
    declare_sums();
    declare_tasks();
#if !PRODUCTS
    asm volatile(EACH_QUERY(DECLARE_KEYS, ) EACH_QUERY(DECLARE_PART, ));
#endif
    const u32 warp = warp_here();
    const int lane = (int)threadIdx.x % 32, team = (int)(warp / TEAM_WARPS), stream_index = (int)(warp % TEAM_WARPS);
    const int word_lane = lane / 4, phase = lane % 4;
    u32 *const weights = (u32 *)(shared + WEIGHTS_AT) + warp * QUERIES * 32;
    float *const q = (float *)(shared + QUERY_AT);
    float *const mine = (float *)(shared + MERGE_AT) + warp * PARTIAL; /* until the item ends, units of queries */
    const char *const chunks = shared + RING_AT + warp * SLOTS * CHUNK_BYTES;
    ring r = {shared_address(chunks), shared_address(shared + BARRIERS_AT + warp * SLOTS * 8), 0, 0};
    if (lane == 0) {
        tensor_map_prefetch(&keys);
        tensor_map_prefetch(&values);
#pragma unroll
        for (int n = 0; n < SLOTS; n++) {
            barrier_init(r.bars + n * 8, 1);
        }
        barrier_init_fence();
    }
    __syncwarp();
    release_next();
    if (!a.early) {
        wait_before();
    }

    cursor next;
    next.round = block_here(a) * a.block_items;
    int tables_head = -1;
#pragma unroll 1
    for (int i = next.round; i < last_item(a);) {
        const int size = round_size(a, i);
        const item first = item_of(a, i);
        const bool new_tables = first.head != tables_head, begins = tables_head < 0;
        tables_head = first.head;
#if WHOLE_BOOKS
        clear_tasks();
        if (PRODUCTS || new_tables) {
            load_tasks<false>(a.k_book, first.head, thread_here() / 32);
        }
        if (new_tables) {
            load_tasks<true>(a.v_book, first.head, thread_here() / 32);
        }
#endif
        query_part queries;
        find_queries(a, i, size, &queries);
        if (begins) {
            enter_item(a, &next, team, stream_index);
            wait_before();
            end_item(a, &next);
        }
        load_queries(&queries);
        if (begins) {
#pragma unroll 1
            for (int n = 0;; n += 2) {
                find_tokens(a, &next, team, stream_index);
                if (n == SLOTS) {
                    break;
                }
                ask<false>(a, &keys, &next, r, n);
                ask<true>(a, &values, &next, r, n + 1);
            }
        }
#if WHOLE_BOOKS && !PRODUCTS && !WIDE_VALUES
        if (new_tables) { /* one text: keys' book passes to where that of values was */
            keys_put put;
            put.further = HALF_AT(VALUES_HALF);
#pragma unroll 1
            for (int book = (int)lazy(0);; book++) {
                put_tasks<true>(thread_here() / 32, put);
                if (book > 0) {
                    break;
                }
                pass_tasks();
                put.further = 0;
            }
        }
        put_queries(a, queries);
#else
        if (new_tables) {
            FILL(true, a.v_book, first.head, values_put);
        }
        put_queries(a, queries);
        if (PRODUCTS || new_tables) {
            FILL(false, a.k_book, first.head, keys_put);
        }
#endif
        __syncthreads();
        if (team < size) {
            const item it = item_of(a, i + team);
#if PRODUCTS
            half_place of_key[2];
#else
            place of_key[2];
#endif
#pragma unroll
            for (int u = 0; u < 2; u++) {
#if PRODUCTS
                of_key[u] = half_place_of(
                    team, GROUPS == 16 ? phase + (word_lane & 4) : 2 * phase + (u ^ word_lane / 4), word_lane);
#else
                of_key[u] = place_of(0, 2 * phase + (u ^ word_lane / 4), word_lane);
#endif
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                of_key[1].pick[n] = of_key[0].pick[n]; /* the same */
            }
#if WIDE_VALUES
            const wide_place of_value = wide_place_of(value_word(word_lane, phase), phase);
#else
            const place of_value = place_of(0, value_word(word_lane, phase), phase);
#endif
            u32 rows_of[ORDERS];
            order_weights(rows_of);
            const span tokens = span_of(a, it, length_of(a, it.sequence));
            stream s[QUERIES];
#if !PRODUCTS
#pragma unroll QUERY_TEXTS
            for (int y = 0; y < QUERIES; y++) {
                begin_query(q + (team * QUERIES + y) * SIZE, a.scale, mine + y);
            }
#endif
            begin_streams(s);
            __syncwarp();
#pragma unroll 1
            for (int token = tokens.begin + stream_index * 32; token < tokens.end; token += STRIDE) {
                barrier_wait(r.bars + r.slot * 8, r.parity);
#if PRODUCTS
                const float score = score_products(chunks + r.slot * CHUNK_BYTES, of_key);
#else
                float scores[QUERIES] = {};
                score_keys(chunks + r.slot * CHUNK_BYTES, of_key, scores);
#endif
                __syncwarp();
                ask<false>(a, &keys, &next, r, r.slot);
                pass_slot(&r);
#if PRODUCTS
                const int of_lane = 8 * phase + word_lane;
                weigh(token + of_lane < tokens.end ? score : NONE, of_lane, 0, s, weights);
#else
#pragma unroll
                for (int y = 0; y < QUERIES; y++) {
                    weigh(token + lane < tokens.end ? scores[y] * mine[y] : NONE, lane, y, &s[y], weights + y * 32);
                }
#endif
                __syncwarp();
                barrier_wait(r.bars + r.slot * 8, r.parity);
                const char *const at = chunks + r.slot * CHUNK_BYTES + phase * GROUPS +
                                       value_word(word_lane, phase) % (8 / SHARERS) * CODE_BYTES;
                u32 words[8][WORDS];
#pragma unroll
                for (int n = 0; n < 8; n++) {
#if WORDS == 2
                    const uint2 v = *(const uint2 *)(at + n * 4 * GROUPS);
                    words[n][0] = v.x, words[n][1] = v.y;
#else
                    words[n][0] = *(const u32 *)(at + n * 4 * GROUPS);
#endif
                }
                add_values<VALUES_HALF>(words, weights + phase * 8, of_value, rows_of);
                __syncwarp();
                if (ask<true>(a, &values, &next, r, r.slot)) {
                    find_tokens(a, &next, team, stream_index);
                }
                pass_slot(&r);
            }
            int done = i + team;
            asm volatile("" : "+r"(done)); /* found again: registers are few */
            const item ended = item_of(a, done);
            const float *const sums = (const float *)(shared + MERGE_AT) + team * TEAM_WARPS * PARTIAL;
#pragma unroll 1
            for (int y = (int)lazy(0); y < QUERIES; y++) { /* one text: counted rounds are peeled */
                leave_sums(s, mine);
                threads_sync(1 + (u32)team, 32 * TEAM_WARPS);
#pragma unroll 1
                for (int d = stream_index * 32; d < SIZE; d += 32 * TEAM_WARPS) {
                    join_sums<TEAM_WARPS>(a, ended, ended.head * a.group + ended.first + y, d + lane,
                                          length_of(a, ended.sequence), sums);
                }
                if (y + 1 < QUERIES) {
                    threads_sync(1 + (u32)team, 32 * TEAM_WARPS);
                }
            }
        } else { /* a team without an item keeps step: racecheck takes its wait below for the other team's barrier */
            threads_sync(1 + (u32)team, 32 * TEAM_WARPS);
        }
        i += size;
        if (i < last_item(a)) {
            __syncthreads();
        }
    }
}
