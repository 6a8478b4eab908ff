/* What the tile kernels share: the walk of a persistent grid over the tiles of one matrix or of groups, and the ring of
 * stages that is filled for it. How a tile's sums leave is in tiles_out.h. The includer says, before both:
 *
 *   BM, BN    rows and columns of a tile;  WAVES 64-row products, 1 or 2, of each of GROUPS warpgroups
 *   STAGES    of the ring;  CLUSTER  blocks that take neighbouring tiles of a row
 *   SPLIT     blocks of a cluster that take one tile together, each a part of K (1 unless said; more: CLUSTER 1)
 *   STORE     1: tiles leave through the copy engine, see stage_rows, ROOM columns of a product at a time (all unless
 *             said); 2: out of the ring, see store_held;  BAND  tiles of M walked together
 *   TOLD      1: the loading thread says which tile comes, see tell
 *   OUT       0 bf16, 1 f16, 2 f32;  LAYOUT  0 one matrix, 1 offsets, 2 masked, as block_scaled_mm.cu explains
 *   KEEP      1: rows of d that a masked group does not have are not written (0 unless said)
 *   TICKETS   1: blocks take tiles as they are ready for them, see ask (0 unless said): TOLD 1, LAYOUT 2, WAVES 2
 *   RUNS      1: blocks take runs of tiles where the ring holds all of b that a column of tiles needs: it stays there
 *             (0 unless said): LAYOUT 0, SPLIT 1 */
#ifndef QN_KERNELS_CUDA_TILES_H
#define QN_KERNELS_CUDA_TILES_H

#include "ask.h"

#ifndef ROOM
#define ROOM BN
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef TICKETS
#define TICKETS 0
#endif
#ifndef RUNS
#define RUNS 0
#endif

#define ONE 0
#define OFFSETS 1
#define MASKED 2

/* Rows below a group's are another's or kept: what it has of a box of 64 leaves row by row. */
#define BY_ROWS (LAYOUT == OFFSETS || KEEP)

/* First row in the tile of a warpgroup's product. Masked groups are often smaller than a tile: there the warpgroups'
 * products alternate, so that whole ones can be left out of both. */
#if LAYOUT == MASKED
#define PRODUCT_ROW(group, v) (64 * (GROUPS * (v) + (group)))
#else
#define PRODUCT_ROW(group, v) (64 * (WAVES * (group) + (v)))
#endif

/* 1: some of the last tiles are cut, an upper and a lower half, which take about 0.6 of a tile's time each: by tickets
 * a quarter of the grid's, else those of a last round that would leave half of the grid or more without one. */
#ifndef HALVES
#define HALVES (LAYOUT == MASKED && WAVES == 2)
#endif

/* What there is to compute. */
typedef struct extent {
    const int *groups;
    int m, n, k, experts;
    int low; /* groups of no more rows than this are left out */
#if HALVES
    int whole, halved; /* so many tiles, then so many that are cut */
#endif
#if TICKETS
    u32 mail; /* in shared memory: the barrier of tickets, then two of them */
#endif
} extent;

/* Where a block stands in the list of tiles, and the tile in hand. */
typedef struct walk {
    int next, begin, end;
    int group, rows; /* rows of the group */
    int first;       /* its first row in a and d */
    int row, column; /* of the tile, within the group */
    u32 heights;     /* BY_HEIGHT: bit h: tiles of h 64-row products are still to come, now the highest */
#if TICKETS
    u32 turn; /* tiles so far */
#endif
#if RUNS
    int step, below; /* of a run: tiles that follow in the same column */
#endif
} walk;

#define MOST_HEIGHT (BM / 64)
/* 1: high tiles of all groups come before lower ones, so that the last, which some blocks take and others do not, are
 * the quickest: 1 to 2 % for masked groups of many tiles. Tiles of two products a warpgroup, for groups of hardly more
 * than one, lost as much, offsets 1 %. */
#define BY_HEIGHT (LAYOUT == MASKED && WAVES == 1)

/* Tiles side by side, those of a cluster as one. */
DEV u32 columns_of(const extent *p)
{
    return (u32)(p->n + BN * CLUSTER - 1) / (BN * CLUSTER);
}

/* Rows of tiles of the group, by height those of the height in hand, and the first of them. */
DEV u32 row_tiles_of(const walk *w, u32 *from)
{
#if !BY_HEIGHT
    *from = 0;
    return (u32)(w->rows + BM - 1) / BM;
#else
    const u32 whole = (u32)w->rows / BM, rest = ((u32)w->rows % BM + 63) / 64;
    *from = w->heights >> MOST_HEIGHT ? 0 : whole;
    return w->heights >> MOST_HEIGHT ? whole + rest / MOST_HEIGHT : w->heights >> rest == 1;
#endif
}

/* Tiles are counted from the first one that is cut on. */
#if HALVES
#define FIRST_TILE(p) (p)->whole
#else
#define FIRST_TILE(p) 0
#endif

#if RUNS
/* Whether a stage has the same k-block of every tile. */
DEV int keeps_b(const extent *p)
{
    const u32 blocks = (u32)(p->k + 127) / 128;
    return blocks <= STAGES && STAGES % blocks == 0;
}
#endif

DEV void walk_start(walk *w, const extent *p)
{
    w->next = (int)blockIdx.x / (CLUSTER * SPLIT) - FIRST_TILE(p);
    w->begin = 0;
    w->first = 0;
#if TICKETS
    w->turn = 0;
#endif
#if LAYOUT == ONE
    u32 from;
    w->group = 0;
    w->rows = p->m;
    w->end = (int)(row_tiles_of(w, &from) * columns_of(p));
#if RUNS
    w->step = (int)gridDim.x / CLUSTER;
    w->below = 0;
    if (keeps_b(p)) {
        const u32 each = (u32)w->end / (u32)w->step, more = (u32)w->end % (u32)w->step, own = blockIdx.x / CLUSTER;
        w->next = (int)(own * each + (own < more ? own : more));
        w->end = w->next + (int)(each + (own < more));
        w->step = 1;
    }
#endif
#else
    w->group = -1;
    w->rows = 0;
    w->end = -FIRST_TILE(p);
    w->heights = 1 << MOST_HEIGHT;
#endif
}

#if LAYOUT != ONE
/* To the next group, by height all of them once for each; 0 at the end. */
DEV int walk_groups(walk *w, const extent *p)
{
    if (++w->group >= p->experts) {
#if !BY_HEIGHT
        return 0;
#else
        w->group = 0;
        w->heights &= ~(0x80000000u >> __clz((int)w->heights));
        if (w->heights == 0) {
            return 0;
        }
#endif
    }
#if LAYOUT == OFFSETS
    w->first = __ldg(p->groups + w->group);
    w->rows = __ldg(p->groups + w->group + 1) - w->first;
#else
    w->rows = __ldg(p->groups + w->group);
#endif
    w->begin = w->end;
    if (w->rows > p->low) {
        u32 from;
        w->end += (int)(row_tiles_of(w, &from) * columns_of(p));
#if BY_HEIGHT
        if (w->heights >> MOST_HEIGHT) {
            w->heights |= 1 << ((u32)w->rows % BM + 63) / 64 & ~1;
        }
#endif
    }
    return 1;
}
#endif

#if HALVES
/* A warp: which tiles are cut. */
DEV void cut_last(extent *p, u32 lane)
{
    const u32 grid = gridDim.x / CLUSTER;
    u32 tiles = 0;
    for (int e = (int)lane; e < p->experts; e += 32) {
        const int rows = __ldg(p->groups + e);
        tiles += rows > p->low ? (u32)(rows + BM - 1) / BM : 0;
    }
    tiles = __reduce_add_sync(~0u, tiles) * columns_of(p);
#if TICKETS
    p->halved = (int)(tiles < grid / 4 ? tiles : grid / 4);
#else
    p->halved = 2 * (tiles % grid) <= grid ? (int)(tiles % grid) : 0;
#endif
    p->whole = (int)tiles - p->halved;
}
#endif

#if TICKETS
/* A cluster has its first tile by its number. While it loads one, it takes a ticket for the next, a count on the word
 * of a cooperative launch: so tiles begin in the order of the list, and blocks end together, whatever tiles take. One
 * ticket is taken a tile, and who takes the last turns the word's highest bit, as if blocks had met on it: the others
 * are zero again. Walks hear of tickets by mail. */
DEV u32 ask(void)
{
    return atomicAdd(grid_word(), 1);
}

/* k-block of a tile with whose loading the ticket is sent: the second one's stages have been given back then, and for
 * these all walks have read the ticket before. */
#define ANSWERED (STAGES + 1)

DEV void answer(const extent *p, const walk *w, u32 word)
{
    const u32 ticket = word & 0x7fffffff, all = (u32)(p->whole + 2 * p->halved);
    if (ticket + 1 == all) {
        atomicAdd(grid_word(), 0x80000000u - all);
    }
    for (u32 i = 0; i < CLUSTER; i++) {
        send_cluster_u32(cluster_address(p->mail + 8 + 4 * (w->turn % 2), i), cluster_address(p->mail, i), ticket);
    }
}

DEV int ticket_of(const extent *p, u32 turn)
{
    barrier_wait(p->mail, (turn - 1) % 2);
    return (int)load_shared_u32(p->mail + 8 + 4 * (turn % 2));
}
#endif

/* To the next tile of this block; 0 at the end. The order is the same for every role. */
DEV int walk_on(walk *w, const extent *p)
{
#if TICKETS
    if (w->turn > 0) {
        w->next = (int)(gridDim.x / CLUSTER) - FIRST_TILE(p) + ticket_of(p, w->turn);
    }
    w->turn++;
#endif
#if HALVES
    const int over = w->next, index = over < 0 ? over : over / 2;
    if (over >= 2 * p->halved) {
        return 0;
    }
#else
    const int index = w->next;
#endif
#if RUNS
    w->next += w->step;
#elif !TICKETS
    w->next += (int)gridDim.x / (CLUSTER * SPLIT);
#elif HALVES
    if (over > 0 && w->group >= 0) {
        w->rows = __ldg(p->groups + w->group); /* a half has changed it */
    }
#endif
#if LAYOUT != ONE
    while (index >= w->end) {
        if (!walk_groups(w, p)) {
            return 0;
        }
    }
#else
    if (index >= w->end) {
        return 0;
    }
#endif
#if RUNS
    if (w->below > 0) {
        w->below--;
        w->row += BM;
        return 1;
    }
#endif
    u32 from;
    const u32 local = (u32)(index - w->begin); /* unsigned: their division is the shorter one */
    const u32 columns = columns_of(p), row_tiles = row_tiles_of(w, &from);
    const u32 band = local / (BAND * columns), in_band = local - band * (BAND * columns);
    const u32 left = row_tiles - band * BAND, high = left < BAND ? left : BAND;
    const u32 column = in_band / high;
    w->row = (int)(from + band * BAND + in_band - column * high) * BM;
#if RUNS
    w->below = w->step == 1 ? (int)(high - 1 - (in_band - column * high)) : 0;
#endif
#if CLUSTER > 1
    w->column = (int)(column * CLUSTER + cluster_rank()) * BN;
#else
    w->column = (int)column * BN;
#endif
#if HALVES
    if (over >= 0) { /* without tickets the block's last tile: what has changed here is not asked for again */
        w->row += over % 2 * (BM / 2);
        w->rows = w->rows < w->row + BM / 2 ? w->rows : w->row + BM / 2;
    }
    return TICKETS || w->row < w->rows;
#else
    return 1;
#endif
}

/* k-blocks: [first, end). */
typedef struct span {
    int first, end;
} span;

/* Those of this block. */
DEV span span_of(const extent *p)
{
    const u32 blocks = (u32)(p->k + 127) / 128;
#if SPLIT > 1
    const u32 part = cluster_rank();
    const span s = {(int)(blocks * part / SPLIT), (int)(blocks * (part + 1) / SPLIT)};
#else
    const span s = {0, (int)blocks};
#endif
    return s;
}

/* Those of a tile of which the group has so many rows; a half without any still takes a ticket. */
DEV span tile_span(const span *k, int rows)
{
    const span s = {k->first, TICKETS && rows <= 0 ? k->first + STAGES + 2 : k->end};
    return s;
}

/* Place in the ring. */
typedef struct place {
    u32 stage, parity;
} place;

DEV void place_on(place *at)
{
    if (++at->stage == STAGES) {
        at->stage = 0;
        at->parity ^= 1;
    }
}

/* ---- the ring ---- */

#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define EARLY_STAGES (EARLY_BYTES / B_BYTES < STAGES ? EARLY_BYTES / B_BYTES : STAGES) /* with few rows */

typedef struct ring {
    u32 a, b, full, empty; /* + stage * size */
#if TOLD
    u32 told; /* the same, a multiple of 16 */
#endif
} ring;

#if TOLD
/* Which tile begins in a stage, from the thread that loads it to the warps that multiply: a walk of their own would
 * take them hundreds of cycles between tiles. It comes with the stage, and goes with it. */
#define TOLD_BYTES 32
DEV void tell(const ring *r, u32 stage, const walk *w, int rows)
{
    const u32 to = r->told + stage * TOLD_BYTES;
    store_shared_i32x4(to, w->row, w->column, rows, w->group);
    store_shared_i32(to + 16, w->first);
}

/* Waits for the next tile's first stage; 0: there is none. The lane reads whose arrival gives the stage back to this
 * block's loading thread, see release, and tells the others: what they had read themselves, nothing would order before
 * that arrival. */
DEV int hear(const ring *r, const place *at, walk *w, u32 lane)
{
    const u32 from = r->told + at->stage * TOLD_BYTES, reader = CLUSTER > 1 ? cluster_rank() : 0;
    barrier_wait(r->full + 8 * at->stage, at->parity);
    const uint4 v = load_shared_u32x4_if(from, lane == reader);
    w->row = (int)__shfl_sync(~0u, v.x, reader);
    w->column = (int)__shfl_sync(~0u, v.y, reader);
    w->rows = (int)__shfl_sync(~0u, v.z, reader);
    w->group = (int)__shfl_sync(~0u, v.w, reader);
    w->first = 0;
#if LAYOUT == OFFSETS
    w->first = (int)__shfl_sync(~0u, load_shared_u32_if(from + 16, lane == reader), reader);
#endif
    return w->rows >= 0;
}
#endif

/* An operand's boxes: of all rows of a part of a tile, and of those that are left at the operand's end. Rows out of
 * bounds would take time to fill, 2 to 2.7 ns each on an H200; in their place lies what was there before, and the
 * products of that are not stored. */
typedef struct boxes {
    const tensor_map *all, *last;
} boxes;

/* Rows of the `count` from `first` on that are among `all`. */
DEV int rows_in(int all, int first, int count)
{
    const int left = all - first;
    return left >= count ? count : left > 0 ? left : 0;
}

/* Bytes of a tile of a and b as far as there are rows. Of groups a's boxes are all whole, but for masked ones. */
DEV u32 tile_bytes(const extent *p, const walk *w)
{
    const int a_rows = LAYOUT == ONE ? rows_in(p->m, w->row, BM) : BM;
    return (u32)(a_rows + rows_in(p->n, w->column, BN)) * 128;
}

/* One thread, before the kernels ahead have ended: b of the first tile's first k-blocks, up to `most`. How many. */
DEV int load_early(const extent *p, const ring *r, const boxes *b_boxes, int most)
{
    const span k = span_of(p);
    int i = 0;
    walk w;
    walk_start(&w, p);
    if (walk_on(&w, p)) {
        const u32 bytes = tile_bytes(p, &w);
        const int b_rows = rows_in(p->n, w.column, BN);
        const tensor_map *const b_map = b_rows == BN ? b_boxes->all : b_boxes->last;
#pragma unroll 1
        for (; i < most && k.first + i < k.end; i++) {
            const u32 full = r->full + 8 * (u32)i;
#if TOLD
            if (i == 0) {
                tell(r, 0, &w, w.rows);
            }
#endif
            barrier_arrive_expect(full, bytes);
            if (b_rows > 0) {
                tensor_load_3d(r->b + (u32)i * B_BYTES, b_map, full, (k.first + i) * 128, w.column, w.group,
                               L2_EVICT_NORMAL);
            }
        }
    }
    return i;
}

#if LAYOUT == MASKED
#define MASKED_BOX_BYTES (64 * 128)

/* Boxes of 64 rows of the tile in which the group has rows. */
DEV u32 masked_boxes(const walk *w)
{
    const u32 left = (u32)(w->rows - w->row);
    return left < BM ? (left + 63) / 64 : TICKETS && w->rows < w->row ? 0 : BM / 64;
}

/* One thread: `bytes` of a in such boxes, which blocks of a cluster load in turn for all. */
DEV void load_masked(u32 to, const tensor_map *a_map, u32 full, int kb, const walk *w, u32 bytes)
{
    const u32 first = CLUSTER > 1 ? cluster_rank() : 0;
#pragma unroll 1
    for (u32 at = first * MASKED_BOX_BYTES; at < bytes; at += CLUSTER * MASKED_BOX_BYTES) {
        const int row = w->row + (int)(at / 128);
#if CLUSTER > 1
        tensor_load_3d_multicast(to + at, a_map, full, kb * 128, row, w->group, (1 << CLUSTER) - 1, L2_EVICT_NORMAL);
#else
        tensor_load_3d(to + at, a_map, full, kb * 128, row, w->group, L2_EVICT_NORMAL);
#endif
    }
}
#else
#define masked_boxes(w) 0u
#define MASKED_BOX_BYTES 0u
#endif

/* One thread: the tiles of a and b of every k-block of every tile of the walk, but b of the `early` first. */
DEV void load_tiles(const extent *p, const ring *r, const boxes *a_boxes, const boxes *b_boxes, int early)
{
    const span own = span_of(p);
    place at = {0, 1};
    walk w;
#if RUNS
    const int keeps = keeps_b(p);
    int column = -1, kept = 0; /* k-blocks of b of that column in the ring */
#endif
    walk_start(&w, p);
    while (walk_on(&w, p)) {
#if RUNS
        kept = w.column == column ? kept : 0;
        column = w.column;
#endif
        const span k = tile_span(&own, w.rows - w.row);
        const int b_rows = rows_in(p->n, w.column, BN); /* none: a tile beside the last one, of the same cluster */
        const tensor_map *const b_map = b_rows == BN ? b_boxes->all : b_boxes->last;
#if LAYOUT == MASKED
        const u32 a_bytes = masked_boxes(&w) * MASKED_BOX_BYTES, bytes = a_bytes + (u32)b_rows * 128;
#else
        const int part = CLUSTER > 1 ? (int)cluster_rank() * (BM / CLUSTER) : 0;
        const int a_rows = LAYOUT == ONE ? rows_in(p->m, w.row + part, BM / CLUSTER) : BM / CLUSTER;
        const tensor_map *const a_map = a_rows == BM / CLUSTER ? a_boxes->all : a_boxes->last;
        const u32 bytes = tile_bytes(p, &w);
#endif
#if TICKETS
        u32 word = 0;
        barrier_arrive_expect(p->mail, 4);
#endif
#pragma unroll 1
        for (int kb = k.first; kb < k.end; kb++, early--) {
            const u32 full = r->full + 8 * at.stage;
            int fresh = 1; /* its b is not there yet */
#if RUNS
            fresh = !keeps || kept++ < STAGES;
#endif
            barrier_wait(r->empty + 8 * at.stage, at.parity);
            if (early <= 0) {
#if TOLD
                if (kb == k.first) {
                    tell(r, at.stage, &w, w.rows);
                }
#endif
                barrier_arrive_expect(full, fresh ? bytes : bytes - (u32)b_rows * 128);
                if (fresh && b_rows > 0) {
                    tensor_load_3d(r->b + at.stage * B_BYTES, b_map, full, kb * 128, w.column, w.group,
                                   L2_EVICT_NORMAL);
                }
            }
#if LAYOUT == MASKED
            load_masked(r->a + at.stage * A_BYTES, a_boxes->all, full, kb, &w, a_bytes);
#elif CLUSTER > 1
            if (a_rows > 0) {
                tensor_load_3d_multicast(r->a + at.stage * A_BYTES + part * 128, a_map, full, kb * 128,
                                         w.first + w.row + part, 0, (1 << CLUSTER) - 1, L2_EVICT_NORMAL);
            }
#else
            tensor_load_3d(r->a + at.stage * A_BYTES, a_map, full, kb * 128, w.first + w.row, 0, L2_EVICT_NORMAL);
#endif
            place_on(&at);
#if TICKETS
            if (CLUSTER == 1 || cluster_rank() == 0) {
                if (kb == k.first) {
                    word = ask();
                } else if (kb == k.first + ANSWERED) {
                    answer(p, &w, word);
                }
            }
#endif
        }
    }
#if TOLD
    barrier_wait(r->empty + 8 * at.stage, at.parity);
    tell(r, at.stage, &w, -1);
    barrier_arrive(r->full + 8 * at.stage);
#endif
}

/* This warp has read the stage of that barrier. */
DEV void release(u32 empty, u32 lane)
{
#if CLUSTER > 1
    if (lane < CLUSTER) {
        barrier_arrive_cluster(cluster_address(empty, lane));
    }
#else
    if (lane == 0) {
        barrier_arrive(empty);
    }
#endif
}

#endif
