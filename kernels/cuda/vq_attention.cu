/* vq_attention by tables in shared memory, one lookup a code, no two lanes on a bank.
 *
 * Keys: a table for each group of channels of the 2^BITS products q . vector in f32, so that a key's score is a sum of
 * looked-up numbers. Values: a table of the vectors as pairs of f16 channels, which a lookup gives as an operand of the
 * matrix instruction that adds weight x pair to the sums; a weight is two f16 that hold 22 bits of it together.
 *
 * A table's row is one entry of 64 columns, 256 bytes: a lookup's offset is the code as the second byte of an address,
 * one byte permutation, and the column alone decides the bank. A lane reads four codes of a token at once, but at step s
 * looks up the ((token + s) % 4)-th of them: so the 32 lanes, four tokens of eight words, meet 32 banks. What a token's
 * columns are turned by is undone where the weights are laid out for the matrix instruction.
 *
 * A warp takes tokens in chunks of 32, keeps a running largest score, and joins the others at an item's end. Parts of
 * the tokens are joined by a second kernel. Codebooks stay for all items of a head.
 *
 * Host contract
 *   Parameters: Q_FORMAT; SIZE of a head: 64, 128, 256; VEC: 2, 4, 8, 16; BITS: 4 to 8; KV_HEADS, 1 or 2, and QUERIES,
 *     query heads of each, a block; WARPS a block, a multiple of KV_HEADS. At most 6 half tables (HALVES) and
 *     SIZE / VEC at most 64
 *   Books f16; codes' rows begin at multiples of CODE_BYTES
 *   Launch: block 32 * WARPS, grid ceil(items / block_items), dynamic shared memory of SHARED_BYTES
 *   With more than one part qn_vq_attention_join follows (vq_attention_join.cu) */
#include "formats.h"
#include "vq_parts.h"

#define GROUPS (SIZE / VEC)
#define ENTRIES (1 << BITS)
#define WORDS (GROUPS > 32 ? 2 : 1)           /* words of four codes that a lane reads of a token */
#define SHARERS (GROUPS < 32 ? 32 / GROUPS : 1) /* lanes that read the same word, and look up its parts */
#define PAIRS (VEC / 2 / SHARERS)             /* pairs of channels that a lane looks up by a value's code */
#define CODE_BYTES (4 * WORDS)
#define V_HALVES (WORDS * PAIRS)
#define HALVES (KV_HEADS * (WORDS * QUERIES + V_HALVES))
#define TABLE_BYTES (256 * ENTRIES)
#define TABLES ((HALVES + 1) / 2)
#define HEAD_WARPS (WARPS / KV_HEADS)
#define PARTIAL (SIZE + 2)

/* Half table h of a key head: side by side with the other head's, or with its own next one. */
#if KV_HEADS == 2
#define HALF_AT(h) ((h) * TABLE_BYTES)
#else
#define HALF_AT(h) ((h) / 2 * TABLE_BYTES + (h) % 2 * 128)
#endif

#define WEIGHTS_AT (TABLES * TABLE_BYTES)                  /* [WARPS][QUERIES][32] pairs of f16 */
#define QUERY_AT (WEIGHTS_AT + WARPS * QUERIES * 128)      /* [KV_HEADS][QUERIES][SIZE] */
#define MERGE_AT (QUERY_AT + KV_HEADS * QUERIES * SIZE * 4) /* [WARPS][PARTIAL] */
#define SHARED_BYTES (MERGE_AT + WARPS * PARTIAL * 4)

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
/* 64 bytes of 32 groups a warp: four lanes of 16 bytes a group. Lanes of a group then store different groups' columns:
 * what they loaded is turned by the lane first. */
#define LANE_ENTRIES (8 / VEC)
#define STEP_ENTRIES (4 * LANE_ENTRIES)

template <bool keys>
static __device__ void fill_wide(const qn_cuda_vq_book &book, int head)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, quarter = lane % 4, row = lane / 4;
    for (int task = warp; task < KV_HEADS * WORDS * (ENTRIES / STEP_ENTRIES); task += WARPS) {
        const int step = task % (ENTRIES / STEP_ENTRIES), word = task / (ENTRIES / STEP_ENTRIES) % WORDS;
        const int kv = task / (ENTRIES / STEP_ENTRIES) / WORDS;
        const char *const from = book.data + (head + kv) * book.head + step * 64 + quarter * 16;
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[k] = *(const uint4 *)(from + group_of(row + 8 * k, word) * book.group);
        }
        if (quarter & 1) {
            const uint4 kept = v[0];
            v[0] = v[1];
            v[1] = v[2];
            v[2] = v[3];
            v[3] = kept;
        }
        if (quarter & 2) {
            const uint4 a = v[0], b = v[1];
            v[0] = v[2];
            v[1] = v[3];
            v[2] = a;
            v[3] = b;
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
                        char *const at = WORDS == 2 && word ? to + HALF_AT(WORDS * QUERIES + PAIRS + p)
                                                            : to + HALF_AT(WORDS * QUERIES + p);
                        *(u32 *)(at + entry * 256 + column * 4) = words[e * (VEC / 2) + p];
                    }
                }
            }
        }
    }
}
#endif

/* Books of any stride: a lane a column. */
template <bool keys>
static __device__ void fill_any(const qn_cuda_vq_book &book, int head)
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
                char *const at = WORDS == 2 && word ? to + HALF_AT(WORDS * QUERIES + PAIRS + p)
                                                    : to + HALF_AT(WORDS * QUERIES + p);
                *(u32 *)(at + entry * 256 + lane * 4) = (u32)from[2 * pair] | (u32)from[2 * pair + 1] << 16;
            }
        }
    }
}

template <bool keys>
DEV void fill(const qn_cuda_vq_book &book, int head)
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

struct codes {
    u32 word[8][WORDS]; /* of tokens 4 n + lane % 4 */
};

/* Zeros from token `limit` on: those are not read. */
DEV void load_codes(const char *at, i64 token_bytes, int token, int limit, codes *c)
{
    const char *from = at + (i64)token * token_bytes;
#pragma unroll
    for (int n = 0; n < 8; n++, from += 4 * token_bytes) {
        asm volatile("" : "+l"(from)); /* one address, not eight */
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            c->word[n][w] = 0;
        }
        if (token + 4 * n < limit) {
#if WORDS == 2
            asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                         : "=r"(c->word[n][0]), "=r"(c->word[n][1])
                         : "l"(from));
#else
            asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(c->word[n][0]) : "l"(from));
#endif
        }
#if BITS < 8
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            c->word[n][w] &= (ENTRIES - 1) * 0x01010101u;
        }
#endif
    }
}

/* ---- numbers ---- */

/* Largest of a warp; of NaN a NaN or the largest, which is told by the sums. */
DEV float warp_max(float v)
{
#if __CUDA_ARCH__ >= 800
    int key = __float_as_int(v), most;
    key ^= key >> 31 & 0x7fffffff;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(key));
    return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
#endif
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
    const int word_lane = lane / 4, turn = lane % 4;
    u32 base[4], pick[4], place[4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const u32 byte = (u32)(turn + s) % 4;
        base[s] = (u32)kv * 128 + 4 * (4 * (u32)word_lane + byte);
        pick[s] = 0x5504u | byte << 4;
        /* rows of the weights' operand: which of the four codes, and which channel of its pair */
        const bool here = (u32)word_lane / 2 == byte;
        place[s] = !here ? 0x4444u : word_lane % 2 ? 0x1044u : 0x4410u;
    }
    u32 *const weights = (u32 *)(shared + WEIGHTS_AT) + warp * QUERIES * 32;
    float *const merge = (float *)(shared + MERGE_AT);
    const i64 word_offset = word_lane % (8 / SHARERS) * CODE_BYTES;
    int tables_head = -1;
    release_next();
    wait_before();

    const int last = ((int)blockIdx.x + 1) * a.block_items < a.items ? ((int)blockIdx.x + 1) * a.block_items : a.items;
    for (int i = (int)blockIdx.x * a.block_items; i < last; i++) {
        const item it = item_of(a, i);
        int length = a.lens[it.sequence];
        length = length < 0 ? 0 : length < a.room ? length : a.room;
        const int begin = it.part * a.part_tokens;
        const int end = begin + a.part_tokens < length ? begin + a.part_tokens : length;
        const char *const k_at = a.k.data + it.sequence * a.k.batch + (it.head + kv) * a.k.head + word_offset;
        const char *const v_at = a.v.data + it.sequence * a.v.batch + (it.head + kv) * a.v.head + word_offset;
        int token = begin + stream_index * 32;
        codes k, v;
        load_codes(k_at, a.k.token, token + turn, end, &k);

        float *const q = (float *)(shared + QUERY_AT);
        for (int x = (int)threadIdx.x; x < KV_HEADS * QUERIES * SIZE; x += 32 * WARPS) {
            const int head = (it.head + x / (QUERIES * SIZE)) * a.group + it.first + x / SIZE % QUERIES;
            q[x] = load_float(a.q + it.sequence * a.q_row + head * a.q_head, x % SIZE, Q_FORMAT) * a.scale;
        }
        __syncthreads();
        fill<true>(a.k_book, it.head);
        if (it.head != tables_head) {
            fill<false>(a.v_book, it.head);
            tables_head = it.head;
        }
        load_codes(v_at, a.v.token, token + turn, end, &v);
        __syncthreads();

        stream s[QUERIES];
#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            begin_stream(&s[r]);
        }
        for (; token < end; token += HEAD_WARPS * 32) {
            const int next = token + HEAD_WARPS * 32 + turn;
            float score[QUERIES][8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < QUERIES; r++) {
                    score[r][n] = 0.0f;
                }
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const u32 at = __byte_perm(k.word[n][w], base[j], pick[j]);
#pragma unroll
                        for (int r = 0; r < QUERIES; r++) {
                            score[r][n] += *(const float *)(shared + HALF_AT(r * WORDS + w) + at);
                        }
                    }
                }
            }
            load_codes(k_at, a.k.token, next, end, &k);
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
                weights[r * 32 + turn * 8 + word_lane] = two_halves(weight);
            }
            __syncwarp();
            u32 w[QUERIES][8];
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                const uint4 x = *(const uint4 *)(weights + r * 32 + turn * 8);
                const uint4 y = *(const uint4 *)(weights + r * 32 + turn * 8 + 4);
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
                        first[x] = __byte_perm(v.word[n][x], base[j], pick[j]);
                        second[x] = __byte_perm(v.word[n + 1][x], base[j], pick[j]);
                    }
                    u32 b0[V_HALVES], b1[V_HALVES];
#pragma unroll
                    for (int h = 0; h < V_HALVES; h++) {
                        const char *const table = shared + HALF_AT(WORDS * QUERIES + h);
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
            load_codes(v_at, a.v.token, next, end, &v);
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
                mine[channel_of(h, 2 * turn, lane)] = s[r].sum[h][0] + s[r].sum[h][2];
                mine[channel_of(h, 2 * turn + 1, lane)] = s[r].sum[h][1] + s[r].sum[h][3];
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
                if (a.parts == 1) {
                    put_result(a, it.sequence, head, x % SIZE, length, most, all, sum);
                } else {
                    put_part(a, it.sequence, head, it.part, x % SIZE, most, all, sum);
                }
            }
            __syncthreads();
        }
    }
}
