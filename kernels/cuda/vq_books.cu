/* y = x w^T for one or two rows of x and gptvq weights in exact integers on tensor cores, as vq_bytes.cu has them
 * (sm_90a).
 *
 * A unit is 256 rows of w by four spans of 256 columns, one for each lane of a quad, which has the span's book to
 * itself: eight copies of four books are 32 KB, where 32 copies of one would be. An entry's place in bytes: its number
 * * 256 + side * 128 + span * 32 + copy * 4, so that no lanes of a warp meet in a bank and an address is one byte
 * permutation. One sum goes over four books: x is multiplied by their scales before it becomes digits, one power of two
 * for all 1024.
 *
 * Sixteen warps look up: eight of them take units in turn with eight others, two tiles of 16 rows each, for which
 * digits are read once. Four others make the next unit's tables and digits on the other side meanwhile. They meet at
 * barriers in shared memory, never all at once. Codes come by the copy engine into a ring of two slots a warp, 16 rows
 * of 256 bytes each, in 128-byte swizzles: a lane of the quad's upper half takes its pieces of 16 bytes in another
 * order, so that eight lanes meet eight groups of banks. Half of the teams ask for theirs before x is there, the others
 * behind it: what is asked for at once comes between a block, or the launch in front, and what they wait for.
 *
 * The blocks of a cluster share K and have the same rows; what each found is added in order of rank. A cluster may have
 * eight tiles or fewer, all of one block of rows (FEW). Of eight, the warps are four teams with two tiles a warp, so
 * that codes of three units are on their way while one is looked up; of fewer a warp has one.
 *
 * PARTS 1: no clusters; units, those of the same rows one after the other, are dealt to the blocks in runs of a.units,
 * and vq_books_join.cu adds what they find. So all units are whole, where no cluster is as large as it ought to be.
 *
 * Host contract
 *   Parameters: X_FORMAT, OUT, BIAS (format + 1, 0: none), CLUSTER, PARTS; TILES of a warp and TEAMS: 2 and 2, or
 *   where a cluster has few tiles 2 and 4 (eight of them) or 1 and 2; EARLY teams ask for codes before x is there
 *   K a multiple of 64; codes at multiples of 16, codebooks without gaps in an entry and a book; the map: bytes of
 *   codes, boxes of 16 rows of 128, swizzled
 *   tiles: of 16 rows of a cluster, which all but the last have, few: 1, 2, 4 or 8; PARTS: at most
 *   Launch: block QN_VQ_BOOKS_THREADS, grid {clusters * CLUSTER}, QN_VQ_BOOKS_SHARED, 8 for each span of a block and 4
 *   for each row of x and of `tiles` tiles, TEAMS times */
#include "vq_digits.h"

#define THREADS QN_VQ_BOOKS_THREADS
#define SPANS 4                 /* of a unit */
#define WARPS 16                /* that look up; */
#define MAKERS 4                /* and that make tables and digits, one a span of a unit */
#define WORKERS (WARPS / TEAMS) /* of a unit */
#define FEW (WORKERS * TILES < 16)
#define SLOTS 2
#define SLOT_BYTES (16 * 256)
#define RING_AT 65536                                    /* [warp][slot] */
#define DIGITS_AT (RING_AT + WARPS * SLOTS * SLOT_BYTES) /* [side][product] */
#define PRODUCT_PITCH 264                                /* 256, and 8 that keep products off each other's banks */
#define SIDE_DIGITS (32 * PRODUCT_PITCH)
#define BARRIERS_AT (DIGITS_AT + 2 * SIDE_DIGITS) /* [warp][slot], */
#define MADE_AT (BARRIERS_AT + WARPS * SLOTS * 8) /* of a team: its unit is made; */
#define DONE_AT (MADE_AT + 4 * 8)                 /* of a side: done with */
#define SCALES_AT (DONE_AT + 16)                  /* [side][row of x] */
#define MOST_AT (SCALES_AT + 16)                  /* [span][row of x]: bits of the largest element */

extern __shared__ __align__(1024) u8 memory[];

DEV void multiply(int *sum, const u32 *w, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(b0), "r"(b1));
}

/* What a block does: tiles of 16 rows from t0 to t1, of each block of 256 the groups of four spans from g0 to g1;
 * `count` units, of the first block from group `start` on. */
struct share {
    int t0, t1, g0, g1, start, count;
};

/* A unit: a block of rows, a group of spans; its number. */
struct unit {
    int block, group, turn;
};

DEV unit first_unit(const share &s)
{
    return {s.t0 / 16, s.start, 0};
}

DEV unit after(const share &s, unit u)
{
    u.turn++;
    u.group++;
    if (u.group == s.g1) {
        u.group = s.g0;
        u.block++;
    }
    return u;
}

DEV bool is_there(const share &s, unit u)
{
    return u.turn < s.count;
}

/* Tile i of a warp in a unit. */
DEV int tile_of(const share &s, unit u, int warp, int i)
{
    return (FEW ? s.t0 : u.block * 16) + warp % WORKERS * TILES + i;
}

DEV bool has_tile(const share &s, unit u, int warp, int i)
{
    const int tile = tile_of(s, u, warp, i);
    return tile >= s.t0 && tile < s.t1;
}

DEV bool has_tiles(const share &s, unit u, int warp)
{
    return has_tile(s, u, warp, 0) || has_tile(s, u, warp, TILES - 1);
}

/* The next unit of a warp. */
DEV unit after_turns(const share &s, unit u)
{
    for (int i = 0; i < TEAMS; i++) {
        u = after(s, u);
    }
    return u;
}

/* Codes of the next unit in which the warp has a tile into a slot, or of two tiles into two, if there is one. */
DEV void ask(const tensor_map *map, const share &s, unit *u, u32 place)
{
    const int warp = (int)(place / SLOTS);
    while (is_there(s, *u) && !has_tiles(s, *u, warp)) {
        *u = after_turns(s, *u);
    }
    if (is_there(s, *u)) {
        if (warp_elect()) {
            const int at = u->group * 256;
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                const u32 base = shared_address(memory), slot = base + RING_AT + (place + i) * SLOT_BYTES;
                const u32 bar = base + BARRIERS_AT + (place + i) * 8;
                const int row = tile_of(s, *u, warp, (int)i) * 16;
                if (TILES == 1 || has_tile(s, *u, warp, (int)i)) {
                    barrier_arrive_expect(bar, SLOT_BYTES);
                    tensor_load_3d(slot, map, bar, at, row, 0, L2_EVICT_FIRST);
                    tensor_load_3d(slot + SLOT_BYTES / 2, map, bar, at + 128, row, 0, L2_EVICT_FIRST);
                }
            }
        }
        *u = after_turns(s, *u);
    }
}

DEV void fill_slots(const tensor_map *map, const share &s, unit *u, int warp)
{
#pragma unroll 1
    for (u32 i = 0; i < SLOTS; i += TILES) {
        ask(map, s, u, (u32)warp * SLOTS + i);
    }
}

/* ---- tables and digits ---- */

/* Of a unit, in a maker's registers ahead: eight entries of the book of span lane % 4 and its scale; eight elements of
 * each row of x of the maker's span. */
#define EACH (256 / (MAKERS * 8))
#define ROWS_OF_X 2
#define X_WORDS (X_FORMAT == QN_MM_F32 ? 8 : 4)
struct eight {
    u32 words[X_WORDS]; /* as they are stored */
};

struct ahead {
    u32 entry[EACH];
    float scale;
    eight x[ROWS_OF_X];
};

DEV eight eight_of(const char *row, int k, int limit)
{
    eight v = {};
    if (k >= limit) {
        return v;
    }
    if (((u64)row & 15) == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS; i += 4) {
            const uint4 four = ((const uint4 *)row)[(k * X_WORDS / 8 + i) / 4];
            v.words[i] = four.x, v.words[i + 1] = four.y, v.words[i + 2] = four.z, v.words[i + 3] = four.w;
        }
        return v;
    }
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        const int at = k * X_WORDS / 8 + i;
        v.words[i] = X_FORMAT == QN_MM_F32 ? ((const u32 *)row)[at]
                                           : ((const u16 *)row)[2 * at] | (u32)((const u16 *)row)[2 * at + 1] << 16;
    }
    return v;
}

DEV float element_of(const eight &v, int i)
{
    return load_float((const char *)v.words, i, X_FORMAT);
}

/* Entries are dealt to eight lanes of each of the makers at a time. */
DEV void load_books(const qn_cuda_vq &a, unit u, int maker, int lane, ahead *v)
{
    const int span = u.group * SPANS + lane % 4;
    const bool there = span < a.spans;
    const u32 *const book = (const u32 *)(a.books + (i64)u.block * a.book_step + (i64)span * a.entry_step);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v->entry[i] = there ? book[(i * MAKERS + maker) * 8 + lane / 4] : 0;
    }
    v->scale = there ? ((const float *)(a.scales + (i64)u.block * a.scales_row))[span] : 0.0f;
}

DEV void load_x(const qn_cuda_vq &a, unit u, int maker, int lane, ahead *v)
{
#pragma unroll
    for (int m = 0; m < ROWS_OF_X; m++) {
        v->x[m] = eight_of(a.x + m * a.x_row, (u.group * SPANS + maker) * QN_VQ_SPAN + lane * 8, m < a.m ? a.k : 0);
    }
}

/* Eight copies of each entry, of eight lanes no two at a bank. */
DEV void fill(u32 side, const u32 *entry, int maker, int lane)
{
    const u32 at = shared_address(memory) + side * 128 + (u32)(maker * 8 + lane / 4) * 256 + (u32)lane % 4 * 32;
    const u32 first = (u32)lane / 4 % 2 * 16;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
#pragma unroll
        for (u32 half = 0; half < 32; half += 16) {
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + i * (MAKERS * 8 * 256) + (first ^ half)),
                         "r"(entry[i])
                         : "memory");
        }
    }
}

/* The maker's span of rows of x times the books' scales as digits: chunk c of 64 elements is step c of lanes 0 and 1 of
 * a quad, c ^ 2 of the others. most_of: of the unit's spans. */
DEV void put_digits(const qn_cuda_vq &a, const ahead &v, const u32 *most_of, u32 side, int maker, int lane)
{
    const u32 base = shared_address(memory), t = (u32)maker;
    /* scales to below 1, so that products of x and them are not beyond f32 */
    const u32 large = min(__reduce_max_sync(~0u, __float_as_uint(v.scale) & 0x7fffffffu) >> 23, 252u);
    const float scale = v.scale * __uint_as_float((253 - large) << 23), mine = __shfl_sync(~0u, scale, (int)t);
    const u32 product = ((u32)lane / 8 ^ t / 2 * 2) * 8 + (u32)lane % 8;
#pragma unroll
    for (u32 m = 0; m < ROWS_OF_X; m++) {
        if ((int)m < a.m) {
            const float here = __uint_as_float(most_of[lane % 4 * 2 + (int)m]);
            const u32 most = __reduce_max_sync(~0u, __float_as_uint(here * fabsf(scale)));
            float of[8];
            u32 u[8];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                of[e] = element_of(v.x[m], e) * mine;
            }
            const float back = digits_below(of, most, u) * __uint_as_float((large + 1) << 23);
            const u32 at = base + DIGITS_AT + side * SIDE_DIGITS + product * PRODUCT_PITCH + m * 128 + t * 8;
#pragma unroll
            for (u32 d = 0; d < 3; d++) {
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + d * 32),
                             "r"(four_digits(u[0], u[1], u[2], u[3], d)), "r"(four_digits(u[4], u[5], u[6], u[7], d))
                             : "memory");
            }
            if (lane == 0 && t == 0) {
                store_shared_f32(base + SCALES_AT + (2 * side + m) * 4, back);
            }
        }
    }
}

/* The largest elements of the spans of a block's first units, which are those of all; of a warp all are on their way at
 * once. */
#define MOST_AHEAD 3

DEV void find_most(const qn_cuda_vq &a, const share &s, u32 *most_of, int warp, int lane)
{
    const int all = min(s.count, s.g1 - s.g0) * SPANS * a.m;
#pragma unroll 1
    for (int first = warp; first < all; first += MOST_AHEAD * (THREADS / 32)) {
        eight v[MOST_AHEAD];
#pragma unroll
        for (int j = 0; j < MOST_AHEAD; j++) {
            const int i = first + j * (THREADS / 32), of = i >> (a.m - 1), group = s.start + of / SPANS;
            const int k = (group < s.g1 ? group : group - s.g1 + s.g0) * SPANS + of % SPANS;
            v[j] = eight_of(a.x + (i & (a.m - 1)) * a.x_row, k * QN_VQ_SPAN + lane * 8, i < all ? a.k : 0);
        }
#pragma unroll
        for (int j = 0; j < MOST_AHEAD; j++) {
            const int i = first + j * (THREADS / 32);
            if (i < all) {
                u32 most = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    most = max(most, __float_as_uint(element_of(v[j], e)) & 0x7fffffffu);
                }
                most_of[a.m == 2 ? i : i * 2] = __reduce_max_sync(~0u, most);
            }
        }
    }
}

/* ---- products ---- */

/* The lane's copy of the entry of byte i of a word; mine: where it is in an entry. */
#define ENTRY(word, mine, i) (*(const u32 *)(memory + __byte_perm(word, mine, (u32)(0x7704 | (i) << 4))))

DEV u32 word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A warp's tiles' sums of a unit, from slot on. Step j: 16 codes of rows g and g + 8 of the lane's span. */
DEV void look_up(u32 slot, u32 side, bool there, int lane, int (*all)[4])
{
    const u32 g = (u32)lane / 4, t = (u32)lane % 4, mine = side * 128 + t * 32 + g * 4;
    const u32 row = slot + t / 2 * (SLOT_BYTES / 2) + g * 128;
    u32 digits = shared_address(memory) + DIGITS_AT + side * SIDE_DIGITS + (u32)lane * 8;
    int sums[TILES][2][4] = {};
#pragma unroll 1
    for (u32 j = 0; j < 4; j++) {
        const u32 piece = (t % 2 * 4 + (j ^ t / 2 * 2)) ^ g;
        uint4 codes[TILES][2];
#pragma unroll
        for (u32 y = 0; y < TILES; y++) {
            codes[y][0] = load_shared_u32x4(row + y * SLOT_BYTES + piece * 16);
            codes[y][1] = load_shared_u32x4(row + y * SLOT_BYTES + piece * 16 + 8 * 128);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint2 b = there ? load_digits(digits + (u32)i * PRODUCT_PITCH) : make_uint2(0, 0);
#pragma unroll
            for (int y = 0; y < TILES; y++) {
                u32 w[4];
#pragma unroll
                for (int q = 0; q < 4; q++) { /* rows g and g + 8 of the first code, then of the second */
                    w[q] = ENTRY(word_of(codes[y][q % 2], i / 2), mine, i % 2 * 2 + q / 2);
                }
                multiply(sums[y][i % 2], w, b.x, b.y);
            }
        }
        digits += 8 * PRODUCT_PITCH;
    }
#pragma unroll
    for (int q = 0; q < 4 * TILES; q++) {
        all[q / 4][q % 4] = sums[q / 4][0][q % 4] + sums[q / 4][1][q % 4];
    }
}

/* Tables and digits of all units, the first side's tables before x is there. */
DEV void make(const qn_cuda_vq &a, const share &s, const u32 *most_of, ahead *of, int maker, int lane)
{
    const u32 base = shared_address(memory);
    const u32 *most = most_of;
    unit u = first_unit(s);
#pragma unroll 1
    while (is_there(s, u)) {
        const u32 turn = (u32)u.turn, side = turn % 2;
        if (turn >= 2) {
            barrier_wait(base + DONE_AT + side * 8, (turn / 2 - 1) % 2);
        }
        if (turn > 0) {
            fill(side, of->entry, maker, lane);
        }
        put_digits(a, *of, most, side, maker, lane);
        barrier_arrive(base + MADE_AT + turn % TEAMS * 8);
        u = after(s, u);
        most = u.group == s.start ? most_of : most + SPANS * 2;
        if (is_there(s, u)) {
            load_books(a, u, maker, lane, of);
            load_x(a, u, maker, lane, of);
        }
    }
}

/* Sums of the warp's tiles over this block's share of K. */
DEV void find(const qn_cuda_vq &a, const tensor_map *map, const share &s, unit next, float *found, int warp, int lane)
{
    const u32 base = shared_address(memory);
    const bool there = lane / 16 < a.m && lane % 16 < 12; /* columns of rows of x */
    const int token = lane % 4 / 2;
    const int team = warp / WORKERS; /* takes every so many-th unit */
    float total[TILES][2] = {};
    u32 used[TILES] = {};
    int begun = -1; /* block of rows */
#pragma unroll 1
    for (unit now = first_unit(s); is_there(s, now); now = after(s, now)) {
        const u32 turn = (u32)now.turn, side = turn % 2;
        if ((int)(turn % TEAMS) != team) {
            continue;
        }
        barrier_wait(base + MADE_AT + (u32)team * 8, turn / TEAMS % 2);
        if (!has_tiles(s, now, warp)) {
            barrier_arrive(base + DONE_AT + side * 8);
            continue;
        }
        const u32 place = (u32)warp * SLOTS + (TILES == 1 ? used[0] % SLOTS : 0);
        int sums[TILES][4];
#pragma unroll
        for (int y = 0; y < TILES; y++) {
            if (TILES == 1 || has_tile(s, now, warp, y)) {
                barrier_wait(base + BARRIERS_AT + (place + (u32)y) * 8, (TILES == 1 ? used[y] / SLOTS : used[y]) % 2);
                used[y]++;
            }
        }
        look_up(base + RING_AT + place * SLOT_BYTES, side, there, lane, sums);
        const float scale = load_shared_f32(base + SCALES_AT + (2 * side + (u32)(token < a.m ? token : 0)) * 4);
        barrier_arrive(base + DONE_AT + side * 8);
        __syncwarp();
        ask(map, s, &next, place);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            const int *const of = sums[i / 2] + i % 2 * 2;
            const float low = (float)of[0], high = (float)of[1];
            const float sum = lane & 1 ? low * 65536.0f : __fmaf_rn(high, 256.0f, low);
            total[i / 2][i % 2] = __fmaf_rn(sum, scale, now.block != begun ? 0.0f : total[i / 2][i % 2]);
        }
        begun = now.block;
        if (now.group + TEAMS >= s.g1 || now.turn + TEAMS >= s.count) {
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                const int tile = team * a.tiles + tile_of(s, now, warp, i / 2) - s.t0;
                const float all = total[i / 2][i % 2] + __shfl_xor_sync(~0u, total[i / 2][i % 2], 1);
                if (lane % 2 == 0 && token < a.m && (TILES == 1 || has_tile(s, now, warp, i / 2))) {
                    found[(token * TEAMS * a.tiles + tile) * 16 + lane / 4 + 8 * (i % 2)] = all;
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_books(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ tensor_map map)
{
    const int lane = (int)threadIdx.x % 32, warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* the same register */
    const int rank = (int)cluster_rank(), part = (int)blockIdx.x / CLUSTER;
    const int tiles = (a.n + 15) / 16, groups = (a.spans + SPANS - 1) / SPANS;
#if PARTS
    const int unit0 = part * a.units, count = min(a.units, (tiles + 15) / 16 * groups - unit0);
    const share s = {
        unit0 / groups * 16, min(((unit0 + count - 1) / groups + 1) * 16, tiles), 0, groups, unit0 % groups, count};
#else
    const int g0 = groups * rank / CLUSTER, g1 = groups * (rank + 1) / CLUSTER;
    const int t0 = part * a.tiles, t1 = min(t0 + a.tiles, tiles);
    const share s = {t0, t1, g0, g1, g0, ((t1 + 15) / 16 - t0 / 16) * (g1 - g0)};
#endif
    const u32 base = shared_address(memory);
    u32 *const most_of = (u32 *)(memory + MOST_AT);
    const int slots = PARTS ? a.units : (groups + CLUSTER - 1) / CLUSTER; /* for groups of spans */
    float *const found = (float *)(most_of + slots * SPANS * 2);          /* [row of x][team][row] */
    const int maker = warp - WARPS;
    unit first = first_unit(s);
    ahead of;
    release_next();
    if (maker < 0 && lane < SLOTS) {
        barrier_init(base + BARRIERS_AT + (u32)(warp * SLOTS + lane) * 8, 1);
        barrier_init_fence();
    } else if (maker == 0 && lane < TEAMS) {
        barrier_init(base + MADE_AT + (u32)lane * 8, MAKERS * 32);
        if (lane < 2) {
            barrier_init(base + DONE_AT + (u32)lane * 8, WORKERS * 32);
        }
    }
    __syncwarp();
    if (!a.early) { /* or weights may be read while the kernel in front works */
        wait_before();
    }
    if (maker < 0) {
        for (int i = 0; i < warp / WORKERS; i++) {
            first = after(s, first);
        }
        if (warp / WORKERS < EARLY) {
            fill_slots(&map, s, &first, warp);
        }
    } else {
        load_books(a, first, maker, lane, &of);
        fill(0, of.entry, maker, lane);
    }
    if (a.early) {
        wait_before();
    }
    if (maker >= 0) {
        load_x(a, first, maker, lane, &of);
    }
    find_most(a, s, most_of, warp, lane);
    if (maker < 0 && warp / WORKERS >= EARLY) {
        fill_slots(&map, s, &first, warp);
    }
    if (PARTS || s.g1 - s.g0 < TEAMS) { /* one of them may find nothing */
        for (int i = (int)threadIdx.x; i < a.m * TEAMS * a.tiles * 16; i += THREADS) {
            found[i] = 0.0f;
        }
    }
    __syncthreads();
    if (maker < 0) {
        find(a, &map, s, first, found, warp, lane);
    } else {
        make(a, s, most_of, &of, maker, lane);
    }
#if CLUSTER > 1
    __syncwarp();
    cluster_arrive();
    cluster_wait();
#else
    __syncthreads();
#endif
#if PARTS
    for (int i = (int)threadIdx.x; i < (s.t1 - s.t0) * 16; i += THREADS) {
        const int n = s.t0 * 16 + i, place = part - n / QN_VQ_BLOCK_ROWS * groups / a.units;
        for (int m = 0; m < a.m && n < a.n; m++) {
            const float *const of = found + m * TEAMS * a.tiles * 16 + i;
            a.parts[((i64)place * a.m + m) * a.n + n] = of[0] + of[a.tiles * 16];
        }
    }
#else
    const int all = (s.t1 - s.t0) * 16, row0 = all * rank / CLUSTER, row1 = all * (rank + 1) / CLUSTER;
    for (int i = row0 * a.m + (int)threadIdx.x; i < row1 * a.m; i += THREADS) {
        const int m = i % a.m, row = i / a.m, n = s.t0 * 16 + row;
        float sum = 0.0f;
#pragma unroll
        for (u32 r = 0; r < CLUSTER; r++) {
#pragma unroll
            for (int t = 0; t < TEAMS; t++) {
                float v;
                asm volatile("ld.shared::cluster.f32 %0, [%1];"
                             : "=f"(v)
                             : "r"(cluster_address(shared_address(found + (m * TEAMS + t) * a.tiles * 16 + row), r))
                             : "memory");
                sum = r == 0 && t == 0 ? v : sum + v;
            }
        }
        if (n < a.n) {
#if BIAS
            sum = __fadd_rn(sum, load_float(a.bias, n, BIAS - 1));
#endif
            store_float(a.y + (i64)m * a.y_row, n, sum, OUT);
        }
    }
#if CLUSTER > 1
    cluster_arrive_relaxed(); /* nobody leaves while its memory is read */
    cluster_wait();
#endif
#endif
}
