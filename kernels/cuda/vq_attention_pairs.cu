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

/* Ask for the next keys or values into that slot, if there are any. They take turns. */
template <bool of_values>
DEV void ask(const qn_cuda_vq_attention &a, const tensor_map *map, cursor *c, int team, int stream_index, const ring &r,
             int slot)
{
    if (c->token >= c->end) {
        return;
    }
    if (warp_elect()) {
        barrier_arrive_expect(r.bars + slot * 8, CHUNK_BYTES);
        load_box(r.slots + slot * CHUNK_BYTES, map, r.bars + slot * 8, of_values ? a.v : a.k, c->head, c->token,
                 c->sequence);
    }
    if (of_values) {
        c->token += STRIDE;
        find_tokens(a, c, team, stream_index);
    }
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

/* A lane's part of a query: of each of its lookups the two channels, as f16 and what is left of them. */
struct part_of_query {
    u32 piece[PIECES][LOOKUPS];
};

/* Lookup l of a lane: half table l % PAIR_HALVES, column 4 * word + byte. */
DEV int word_of(int l, int quarter, int token)
{
    return 2 * quarter + ((l / PAIR_HALVES / 4) ^ token / 4);
}

/* *unit: what scores are multiplied by. */
DEV void begin_query(const float *q, float scale, part_of_query *part, float *unit)
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
#pragma unroll
    for (int l = 0; l < LOOKUPS; l++) {
        const int h = l % PAIR_HALVES, column = 4 * word_of(l, quarter, token) + (token + l / PAIR_HALVES) % 4;
        const int channel = group_of(column, h / PAIRS) * VEC + 2 * (sharer_of(column) * PAIRS + h % PAIRS);
        const float x = q[channel] * by, y = q[channel + 1] * by;
        const u32 high = pack_f16(x, y);
        part->piece[0][l] = high;
#if PIECES == 2
        part->piece[1][l] = pack_f16(x - low_half(high), y - high_half(high));
#endif
    }
}

/* Codes of a lane's token: words 2 * quarter and the next, the second first for tokens 4 to 7. */
DEV void read_keys(const char *at, u32 (*words)[WORDS], bool swapped)
{
#if WORDS == 2
    const uint4 v = *(const uint4 *)at;
    words[0][0] = swapped ? v.z : v.x, words[0][1] = swapped ? v.w : v.y;
    words[1][0] = swapped ? v.x : v.z, words[1][1] = swapped ? v.y : v.w;
#else
    const uint2 v = *(const uint2 *)at;
    words[0][0] = swapped ? v.y : v.x;
    words[1][0] = swapped ? v.x : v.y;
#endif
}

/* Sums of streams, as registers with names (vq_attention_sums.h): of query a ak<stream>x0 to x3, and so on. */
#define DECLARE_KEYS(q, r, x) ".reg .f32 " #q "k0x<4>, " #q "k1x<4>;\n"
#define CLEAR_KEYS(q, r, x) OF_FOUR(CLEAR_ONE, #q "k0x") OF_FOUR(CLEAR_ONE, #q "k1x")
#define TAKE_KEYS(q, r, i)                                                                                             \
    asm volatile("mov.f32 %0, " #q "k" #i "x0;\nmov.f32 %1, " #q "k" #i "x1;\n"                                        \
                 "mov.f32 %2, " #q "k" #i "x2;\nmov.f32 %3, " #q "k" #i "x3;"                                          \
                 : "=f"(d[i][r][0]), "=f"(d[i][r][1]), "=f"(d[i][r][2]), "=f"(d[i][r][3]));

/* Texts of add_keys, whose operands they name. */
#define LOOK_UP_KEY(value, word, pick, at)                                                                             \
    FIND_ROW("row", word, "%1", pick, "%0") "ld.shared.u32 " value ", [row+" at "];\n"
#define LOOK_UP_KEYS(w0, w1, w2, w3)                                                                                   \
    LOOK_UP_KEY("v0", w0, "%2", "%4") LOOK_UP_KEY("v1", w1, "%2", "%4")                                                \
    LOOK_UP_KEY("v2", w2, "%3", "%5") LOOK_UP_KEY("v3", w3, "%3", "%5")
#if PIECES == 2
#define PIECE_OPERANDS(q, r, x)                                                                                        \
    , "r"(part[r].piece[0][l]), "r"(part[r].piece[0][l + 1]), "r"(part[r].piece[1][l]), "r"(part[r].piece[1][l + 1])
#define PIECE_a "%14, %15"
#define REST_a "%16, %17"
#define PIECE_b "%18, %19"
#define REST_b "%20, %21"
#define PIECE_c "%22, %23"
#define REST_c "%24, %25"
#define PIECE_d "%26, %27"
#define REST_d "%28, %29"
#define ADD_KEYS(q, r, i)                                                                                              \
    MULTIPLY_ADD(#q "k" i "x", "v0, v1, v2, v3", PIECE_##q) MULTIPLY_ADD(#q "k" i "x", "v0, v1, v2, v3", REST_##q)
#else
#define PIECE_OPERANDS(q, r, x) , "r"(part[r].piece[0][l]), "r"(part[r].piece[0][l + 1])
#define PIECE_a "%14, %15"
#define PIECE_b "%16, %17"
#define PIECE_c "%18, %19"
#define PIECE_d "%20, %21"
#define ADD_KEYS(q, r, i) MULTIPLY_ADD(#q "k" i "x", "v0, v1, v2, v3", PIECE_##q)
#endif
#define ADD_STREAM_0 LOOK_UP_KEYS("%6", "%7", "%8", "%9") EACH_QUERY(ADD_KEYS, "0")
#if STREAMS == 2
#define ADD_STREAM_1 LOOK_UP_KEYS("%10", "%11", "%12", "%13") EACH_QUERY(ADD_KEYS, "1")
#else
#define ADD_STREAM_1
#endif

/* Lookups l and l + 1 of all streams' keys, of the half tables h and g, times every query's channels; words[stream] of
 * either token. */
template <int h, int g>
DEV void add_keys(const u32 (*words)[2][2][WORDS], int l, const place *p, const part_of_query *part)
{
    const int u = l / PAIR_HALVES / 4, x = h / PAIRS, y = g / PAIRS;
    const u32(*const first)[2][WORDS] = words[0], (*const second)[2][WORDS] = words[STREAMS - 1];
    asm volatile("{\n.reg .b32 row, v0, v1, v2, v3;\n" ADD_STREAM_0 ADD_STREAM_1 "}" ::"r"(shared_address(shared)),
                 "r"(p[u].base), "r"(p[u].pick[l / PAIR_HALVES % 4]), "r"(p[u].pick[(l + 1) / PAIR_HALVES % 4]),
                 "n"(HALF_AT(h)), "n"(HALF_AT(g)), "r"(first[0][u][x]), "r"(first[1][u][x]), "r"(first[0][u][y]),
                 "r"(first[1][u][y]), "r"(second[0][u][x]), "r"(second[1][u][x]), "r"(second[0][u][y]),
                 "r"(second[1][u][y]) EACH_QUERY(PIECE_OPERANDS, ));
}

/* Scores of a chunk, one a lane, without the query's unit. */
DEV void score_keys(const char *chunk, const part_of_query *part, const place *p, float *scores)
{
    const int lane = (int)threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
    const char *const at = chunk + token * GROUPS + quarter % (4 / SHARERS > 0 ? 4 / SHARERS : 1) * (2 * CODE_BYTES);
    const int from = 4 * (lane % 8) + lane % 8 / 2; /* the lane that has the diagonal's element of this lane's token */
#pragma unroll
    for (int g = 0; g < 2; g += STREAMS) {
        u32 words[STREAMS][2][2][WORDS];
        float d[STREAMS][QUERIES][4];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            read_keys(at + (g + i) * 16 * GROUPS, words[i][0], token >= 4);
            read_keys(at + (g + i) * 16 * GROUPS + 8 * GROUPS, words[i][1], token >= 4);
        }
        asm volatile(EACH_QUERY(CLEAR_KEYS, ));
#pragma unroll
        for (int l = 0; l < LOOKUPS; l += 2) {
#if PAIR_HALVES == 4
            if (l % 4 < 2) {
                add_keys<0, 1>(words, l, p, part);
            } else {
                add_keys<2, 3>(words, l, p, part);
            }
#else
            add_keys<0, PAIR_HALVES - 1>(words, l, p, part);
#endif
        }
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
    asm volatile(EACH_QUERY(DECLARE_KEYS, ));
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
            find_tokens(a, &next, team, stream_index);
        }
        load_queries(&queries);
        if (begins) {
#pragma unroll 1
            for (int n = 0; n < SLOTS; n += 2) {
                ask<false>(a, &keys, &next, team, stream_index, r, n);
                ask<true>(a, &values, &next, team, stream_index, r, n + 1);
            }
        }
        if (new_tables) {
            FILL(true, a.v_book, first.head, values_put);
        }
        put_queries(a, queries);
        if (PRODUCTS || new_tables) {
            FILL(false, a.k_book, first.head, keys_put);
        }
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
            part_of_query part[QUERIES];
#endif
#if !PRODUCTS
#pragma unroll QUERY_TEXTS
            for (int y = 0; y < QUERIES; y++) {
                part_of_query own;
                begin_query(q + (team * QUERIES + y) * SIZE, a.scale, &own, mine + y);
#pragma unroll
                for (int r = 1; r < QUERIES; r++) {
                    part[r - 1] = part[r];
                }
                part[QUERIES - 1] = own;
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
                score_keys(chunks + r.slot * CHUNK_BYTES, part, of_key, scores);
#endif
                __syncwarp();
                ask<false>(a, &keys, &next, team, stream_index, r, r.slot);
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
                ask<true>(a, &values, &next, team, stream_index, r, r.slot);
                pass_slot(&r);
            }
            int done = i + team;
            asm volatile("" : "+r"(done)); /* found again: registers are few */
            const item ended = item_of(a, done);
            const float *const sums = (const float *)(shared + MERGE_AT) + team * TEAM_WARPS * PARTIAL;
#pragma unroll 1
            for (int y = 0; y < QUERIES; y++) {
                leave_sums(s, mine); /* one text for all */
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
