/* vq_attention of keys that are not turned: keys and values both by tables of pairs of f16 channels, both multiplied on
 * tensor cores, codes by bulk copies into shared memory some chunks ahead.
 *
 * Keys: lanes are eight tokens of four quarters of a row. At one step the lanes of a token look up the groups of other
 * columns than those of the other tokens, so that 32 lanes meet 32 banks; what a lane looked up is an operand of the
 * matrix instruction whose other operand has, in row n, the query's channels in the order of token n: of the products
 * of eight orders and eight tokens the diagonal is wanted. A query is two f16 of 22 bits together, divided by a power
 * of two, the lower parts in rows of their own. Tables do not depend on queries: they stay for all items of a head, and
 * a lookup serves all query heads of a group. Values: see vq_attention_tables.h.
 *
 * Each warp has a ring of SLOTS buffers that hold the codes of 32 keys or values, filled by the copy engine for its
 * next chunks, those of the block's next item too: memory is read while tables are made and while items end.
 *
 * Host contract
 *   Parameters: Q_FORMAT; SIZE of a head: 64, 128, 256; VEC: 2, 4, 8, 16; BITS: 4 to 8; KV_HEADS 1, and QUERIES, query
 *     heads of it, a block; WARPS a block; SLOTS
 *   Books f16; SIZE / VEC at most 64 and a multiple of 16
 *   Maps: of bytes, [sequences, tokens, heads, groups], boxes of 32 tokens; one sequence where codes are shared
 *   Launch: block 32 * WARPS, grid ceil(items / block_items), dynamic shared memory of SHARED_BYTES
 *   What follows is as for vq_attention.cu */
#define MOST_TOGETHER 4
#include "vq_attention_tables.h"

#define CHUNK_BYTES (32 * GROUPS)
#define LOOKUPS (8 * PAIR_HALVES)     /* of a lane by a key */
#define STREAMS (QUERIES > 2 ? 1 : 2) /* of eight tokens each, interleaved */
#define TABLES (KV_HEADS * PAIR_HALVES)
#define RING_AT (TABLES * TABLE_BYTES)
#define WEIGHTS_AT (RING_AT + WARPS * SLOTS * CHUNK_BYTES)  /* [WARPS][QUERIES][32] pairs of f16 */
#define QUERY_AT (WEIGHTS_AT + WARPS * QUERIES * 128)       /* [KV_HEADS][QUERIES][SIZE] */
#define MERGE_AT (QUERY_AT + KV_HEADS * QUERIES * SIZE * 4) /* [WARPS][PARTIAL] */
#define BARRIERS_AT (MERGE_AT + WARPS * PARTIAL * 4)        /* [WARPS][SLOTS] */
#define SHARED_BYTES (BARRIERS_AT + WARPS * SLOTS * 8)

/* The tables of values begin behind those of keys. */
#define VALUES_HALF PAIR_HALVES

DEV void load_box(u32 to, const tensor_map *map, u32 bar, int head, int token, int sequence)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(0), "r"(head), "r"(token), "r"(sequence), "r"(bar), "l"(L2_EVICT_FIRST)
                 : "memory");
}

/* ---- the ring ---- */

/* What a warp asks for next: keys, then values, of its chunks of its block's items. */
struct cursor {
    int i, sequence, head, token, end;
    bool values;
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

/* The item's first chunk of this warp. */
DEV void enter(const qn_cuda_vq_attention &a, cursor *c, int kv, int stream_index)
{
    const item it = item_of(a, c->i);
    const int coded = coded_of(a, length_of(a, it.sequence)), begin = it.part * a.part_tokens;
    c->sequence = it.sequence;
    c->head = it.head + kv;
    c->token = begin + stream_index * 32;
    c->end = begin + a.part_tokens < coded ? begin + a.part_tokens : coded;
}

/* Ask for the next into that slot, if there is one. */
DEV void ask(const qn_cuda_vq_attention &a, const tensor_map *keys, const tensor_map *values, cursor *c, int last,
             int kv, int stream_index, const ring &r, int slot)
{
    while (c->token >= c->end) {
        if (c->i + 1 >= last) {
            return;
        }
        c->i++;
        enter(a, c, kv, stream_index);
    }
    if (threadIdx.x % 32 == 0) {
        const bool v = c->values;
        const int sequence = (v ? a.v.batch : a.k.batch) ? c->sequence : 0;
        barrier_arrive_expect(r.bars + slot * 8, CHUNK_BYTES);
        load_box(r.slots + slot * CHUNK_BYTES, v ? values : keys, r.bars + slot * 8, c->head, c->token, sequence);
    }
    c->token += c->values ? HEAD_WARPS * 32 : 0;
    c->values = !c->values;
}

/* ---- keys ---- */

/* A lane's part of a query: of each of its lookups the two channels, as f16 and what is left of them. */
struct part_of_query {
    u32 high[LOOKUPS], low[LOOKUPS];
};

/* Lookup l of a lane: half table l % PAIR_HALVES, column 4 * word + byte. */
DEV int word_of(int l, int quarter, int token)
{
    return 2 * quarter + ((l / PAIR_HALVES / 4) ^ token / 4);
}

/* *unit: what scores are multiplied by. */
DEV void begin_query(const float *q, part_of_query *part, float *unit)
{
    const int lane = (int)threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < SIZE; i += 32) {
        most = fmaxf(most, fabsf(q[i + lane]));
    }
    most = warp_max(most);
    int power = (int)(__float_as_uint(most) >> 23);
    power = power < 1 ? 1 : power > 253 ? 253 : power;
    const float by = __uint_as_float((u32)(254 - power) << 23);
    *unit = __uint_as_float((u32)power << 23);
#pragma unroll
    for (int l = 0; l < LOOKUPS; l++) {
        const int h = l % PAIR_HALVES, column = 4 * word_of(l, quarter, token) + (token + l / PAIR_HALVES) % 4;
        const int channel = group_of(column, h / PAIRS) * VEC + 2 * (sharer_of(column) * PAIRS + h % PAIRS);
        const float x = q[channel] * by, y = q[channel + 1] * by;
        part->high[l] = pack_f16(x, y);
        part->low[l] = pack_f16(x - low_half(part->high[l]), y - high_half(part->high[l]));
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

DEV u32 look_up_key(const u32 (*words)[WORDS], int l, const place *p)
{
    const int h = l % PAIR_HALVES, s = l / PAIR_HALVES % 4, u = l / PAIR_HALVES / 4;
    const u32 at = row_of(words[u][h / PAIRS], p[u], s);
    return *(const u32 *)(shared + HALF_AT(h) + at);
}

/* Scores of a chunk, one a lane, without the query's unit. */
DEV void score_keys(const char *chunk, const part_of_query *part, const place *p, float *scores)
{
    const int lane = (int)threadIdx.x % 32, token = lane / 4, quarter = lane % 4;
    const char *const at = chunk + token * GROUPS + quarter % (4 / SHARERS > 0 ? 4 / SHARERS : 1) * (2 * CODE_BYTES);
    const int from = 4 * (lane % 8) + lane % 8 / 2; /* the lane that has the diagonal's element of this lane's token */
#pragma unroll
    for (int g = 0; g < 4; g += STREAMS) {
        u32 words[STREAMS][2][WORDS];
        float d[STREAMS][QUERIES][4];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            read_keys(at + (g + i) * 8 * GROUPS, words[i], token >= 4);
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                d[i][r][0] = d[i][r][1] = d[i][r][2] = d[i][r][3] = 0.0f;
            }
        }
#pragma unroll
        for (int l = 0; l < LOOKUPS; l += 2) {
#pragma unroll
            for (int i = 0; i < STREAMS; i++) {
                const u32 b0 = look_up_key(words[i], l, p), b1 = look_up_key(words[i], l + 1, p);
#pragma unroll
                for (int r = 0; r < QUERIES; r++) {
                    const u32 rows[4] = {part[r].high[l], part[r].low[l], part[r].high[l + 1], part[r].low[l + 1]};
                    multiply_add(d[i][r], rows, b0, b1);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                const float mine = token % 2 ? d[i][r][1] + d[i][r][3] : d[i][r][0] + d[i][r][2];
                const float score = __shfl_sync(0xffffffffu, mine, from);
                scores[r] = lane / 8 == g + i ? score : scores[r];
            }
        }
    }
}

/* ---- the kernel ---- */

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    qn_vq_attention_pairs(const __grid_constant__ qn_cuda_vq_attention a, const __grid_constant__ tensor_map keys,
                          const __grid_constant__ tensor_map values)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int kv = warp / HEAD_WARPS, stream_index = warp % HEAD_WARPS;
    const int word_lane = lane / 4, phase = lane % 4;
    place of_key[2];
#pragma unroll
    for (int u = 0; u < 2; u++) {
        of_key[u] = place_of(kv, 2 * phase + (u ^ word_lane / 4), word_lane);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        of_key[1].pick[i] = of_key[0].pick[i]; /* the same */
    }
    const place of_value = place_of(kv, word_lane, phase);
    u32 rows_of[4];
    order_weights(rows_of);
    u32 *const weights = (u32 *)(shared + WEIGHTS_AT) + warp * QUERIES * 32;
    float *const q = (float *)(shared + QUERY_AT);
    float *const units = (float *)(shared + MERGE_AT) + warp * PARTIAL; /* until the item ends */
    const char *const chunks = shared + RING_AT + warp * SLOTS * CHUNK_BYTES;
    ring r = {shared_address(chunks), shared_address(shared + BARRIERS_AT + warp * SLOTS * 8), 0, 0};
    if (lane == 0) {
        tensor_map_prefetch(&keys);
        tensor_map_prefetch(&values);
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(r.bars + i * 8, 1);
        }
        barrier_init_fence();
    }
    __syncwarp();
    release_next();
    wait_before();

    const int last = ((int)blockIdx.x + 1) * a.block_items < a.items ? ((int)blockIdx.x + 1) * a.block_items : a.items;
    cursor next;
    next.i = (int)blockIdx.x * a.block_items;
    next.values = false;
    enter(a, &next, kv, stream_index);
#pragma unroll 1
    for (int i = 0; i < SLOTS; i++) {
        ask(a, &keys, &values, &next, last, kv, stream_index, r, i);
    }
    int tables_head = -1;
    for (int i = (int)blockIdx.x * a.block_items; i < last; i++) {
        const item it = item_of(a, i);
        const int coded = coded_of(a, length_of(a, it.sequence)), begin = it.part * a.part_tokens;
        const int end = begin + a.part_tokens < coded ? begin + a.part_tokens : coded;
        for (int x = (int)threadIdx.x; x < KV_HEADS * QUERIES * SIZE; x += 32 * WARPS) {
            const int head = (it.head + x / (QUERIES * SIZE)) * a.group + it.first + x / SIZE % QUERIES;
            q[x] = load_float(a.q + it.sequence * a.q_row + head * a.q_head, x % SIZE, Q_FORMAT) * a.scale;
        }
        if (it.head != tables_head) { /* the last item's are no longer read */
            fill_pairs<0>(a.k_book, it.head);
            fill_pairs<VALUES_HALF>(a.v_book, it.head);
            tables_head = it.head;
        }
        __syncthreads();
        part_of_query part[QUERIES];
        stream s[QUERIES];
#pragma unroll
        for (int y = 0; y < QUERIES; y++) {
            begin_query(q + (kv * QUERIES + y) * SIZE, &part[y], units + y);
            begin_stream(&s[y]);
        }
        __syncwarp();
        for (int token = begin + stream_index * 32; token < end; token += HEAD_WARPS * 32) {
            float scores[QUERIES] = {};
            barrier_wait(r.bars + r.slot * 8, r.parity);
            score_keys(chunks + r.slot * CHUNK_BYTES, part, of_key, scores);
            __syncwarp();
            ask(a, &keys, &values, &next, last, kv, stream_index, r, r.slot);
            pass_slot(&r);
#pragma unroll
            for (int y = 0; y < QUERIES; y++) {
                weigh(token + lane < end ? scores[y] * units[y] : NONE, &s[y], weights + y * 32);
            }
            __syncwarp();
            barrier_wait(r.bars + r.slot * 8, r.parity);
            const char *const at =
                chunks + r.slot * CHUNK_BYTES + phase * GROUPS + word_lane % (8 / SHARERS) * CODE_BYTES;
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 words[2][WORDS];
#pragma unroll
                for (int y = 0; y < 2; y++) {
#if WORDS == 2
                    const uint2 v = *(const uint2 *)(at + (n + y) * 4 * GROUPS);
                    words[y][0] = v.x, words[y][1] = v.y;
#else
                    words[y][0] = *(const u32 *)(at + (n + y) * 4 * GROUPS);
#endif
                }
                add_values<VALUES_HALF>(words[0], words[1], weights + phase * 8, n, of_value, rows_of, s);
            }
            __syncwarp();
            ask(a, &keys, &values, &next, last, kv, stream_index, r, r.slot);
            pass_slot(&r);
        }
#pragma unroll
        for (int y = 0; y < QUERIES; y++) {
            merge_item(a, item_of(a, i), y, length_of(a, it.sequence), s[y], (float *)(shared + MERGE_AT));
        }
    }
}
