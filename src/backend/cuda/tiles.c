/* Tiles and strips of the matrix product kernels for Hopper: see tiles.h. What the kernels expect, and which tile is
 * best where, is the host contract at the top of each source. */
#include "backend/cuda/tiles.h"

#include "base/checked.h"

/* Warpgroups of a tile that multiply. */
static int32_t tile_groups(const qn_tile *t)
{
    return t->bm == 64 ? 1 : t->bm == 192 ? 3 : QN_TILE_GROUPS;
}

int32_t qn_tile_shared(const qn_tile *t)
{
    const int32_t parts = (t->split - 1) * t->bm * (t->bn / t->split) * 4 + (t->split > 1 ? 8 * tile_groups(t) : 0);
    return 1024 + t->store * t->bm * t->bn * 2 + t->stages * (128 * (t->bm + t->bn) + 16) + 32 * (t->bm + 5) + parts +
           (t->told ? 16 + 32 * t->stages : 0) + (t->tickets ? 16 : 0);
}

/* Bytes of the partial sums on their way out. */
static int32_t sums_bytes(const qn_strip *s, int32_t rows)
{
    return (s->teams > 2 ? s->teams - 1 : 1) * 4 * rows * (64 * s->groups + 4);
}

int32_t qn_strip_shared(const qn_strip *s, int32_t rows, int32_t layout)
{
    const int32_t apart = layout == QN_ONE_MATRIX ? 0 : sums_bytes(s, rows);
    return 8 + apart + s->stages * (s->unroll * (8192 * s->groups + 128 * rows + 4 * (rows + 4)) + 24);
}

/* Weights and epilogues: a fit of measurements on an H200, M from 1024 to 4096, single calls and calls in a row alike;
 * on eleven shapes beside those it chooses the tile that was best. */
qn_tile qn_block_tile(int32_t i, int may_store, int32_t layout)
{
    static const qn_tile tiles[QN_BLOCK_TILES] = {
        [QN_TILE_TALL] = {256, 128, 4, 2, 1, 0, 1, 1.00, 3.5, 1, 0, 0},
        [QN_TILE_THREE] = {192, 128, 5, 2, 1, 0, 1, 1.04, 3.0, 1, 0, 0},
        [QN_TILE_THREE_STORED] = {192, 128, 4, 1, 1, 1, 1, 1.04, 1.6, 0, 0, 0},
        [QN_TILE_WIDE] = {128, 192, 4, 1, 1, 1, 1, 0.94, 1.3, 0, 0, 0},
        [QN_TILE_ANY] = {128, 160, 6, 1, 1, 0, 1, 0.86, 3.0, 0, 0, 0},
        [QN_TILE_SQUARE] = {128, 128, 6, 1, 2, 0, 1, 0.975, 3.4, 0, 0, 0},
        [QN_TILE_NARROW] = {128, 64, 9, 1, 2, 0, 1, 0.70, 3.0, 0, 0, 0}};
    qn_tile t = tiles[i];
    if (t.store && !may_store) {
        t.store = 0;
        t.stages++;
        t.epilogue = 3.5;
    }
    if (layout == QN_ONE_MATRIX || !may_store) {
        t.held = 0;
    }
    if (layout != QN_ONE_MATRIX) {
        t.parts = 1;
        t.told = 1;
    }
    return t;
}

int qn_few_tile(int32_t rows, int32_t columns, int32_t store, int32_t cluster, int32_t split, qn_tile *tile)
{
    *tile = (qn_tile){rows, columns, 12, cluster, columns > 128 ? 1 : 2, store, split, 1.0, 2.5, 0, 0, 0};
    if ((rows != 64 && rows != 128) || columns < 32 || columns % 16 != 0 || columns > (rows == 64 ? 128 : 192) ||
        store < 0 || store > 1 || (store && columns % 64 != 0) || cluster < 1 || cluster > 2 || split < 1 ||
        split > 8 || (split > 1 && (store || cluster > 1 || columns % (8 * split) != 0))) {
        return 0;
    }
    while (qn_tile_shared(tile) > QN_TILE_SHARED) {
        tile->stages--;
    }
    return 1;
}

double qn_tile_cost(const qn_tile *t, double tiles, int64_t blocks, int32_t sms)
{
    const double rounds = (double)(int64_t)((tiles + sms - 1) / sms);
    return rounds * t->bm * t->bn * ((double)blocks + t->epilogue) / t->weight;
}

int32_t qn_tile_clusters(int32_t blocks, int32_t sms)
{
    static const int32_t clusters[] = {0, 132, 66, 38, 28, 21, 16, 0, 14};
    return clusters[blocks] * sms / clusters[1];
}

/* A fit to 35 cuts of 64 pairs of N and K each, on an H200: what it chooses takes 1.2 % (64 rows) and 1.4 % (128)
 * longer than the best on average, shapes left out of a fit no more. A k-block of a tile takes longer by the square of
 * its width, as many share what memory gives. */
double qn_few_tile_cost(int32_t rows, int32_t columns, int32_t split, int64_t n, int64_t k, int32_t sms)
{
    static const struct {
        double block, square; /* of a k-block */
        double tile, column;
        double parts, sent, part; /* of an exchange; of a column that goes to others; of each part */
    } fits[] = {{0.069, 6.7e-6, 0.53, 0.0006, 0.26, -0.0022, 0.072},
                {0.109, 6.3e-6, 0.475, 0.0053, -0.12, 0.0072, 0.16}};
    const int32_t i = rows > 64, room = qn_tile_clusters(split, sms);
    const int64_t tiles = qn_ceil_div(n, columns);
    if (room < 1 || (split > 1 && (tiles > room || columns % (8 * split) != 0))) {
        return 0.0;
    }
    const double rounds = (double)qn_ceil_div(tiles, room), width = columns, parts = split;
    const double blocks = (double)qn_ceil_div(qn_ceil_div(k, 128), split);
    return rounds *
               (blocks * (fits[i].block + fits[i].square * width * width) + fits[i].tile + fits[i].column * width) +
           (split > 1 ? fits[i].parts + fits[i].sent * width * (parts - 1.0) / parts + fits[i].part * parts : 0.0);
}

/* A fit to 60 shapes of 160 to 512 rows, 24 cuts of each, on an H200: 8 % of the time apart; what it chooses takes 1.6
 * % longer than the best on average, 11 % at most. */
double qn_several_tile_cost(int32_t several, int32_t columns, int32_t split, int64_t n, int64_t k, int32_t sms)
{
    const int32_t room = qn_tile_clusters(split, sms);
    if (room < 1 || columns % (8 * split) != 0) {
        return 0.0;
    }
    const int64_t tiles = several * qn_ceil_div(n, columns);
    if (split > 1 && tiles > room) {
        return 0.0;
    }
    const double rounds = (double)qn_ceil_div(tiles, room), width = columns, parts = split;
    const double blocks = (double)qn_ceil_div(qn_ceil_div(k, 128), split);
    return 2.31 + rounds * (blocks * (0.217 + 8.9e-6 * width * width) - 0.53 + 0.0124 * width) +
           (split > 1 ? 0.39 + 0.0071 * width * (parts - 1.0) / parts + 0.124 * parts : 0.0);
}

double qn_few_strip_cost(const qn_strip *s, int64_t n, int64_t k, int32_t sms)
{
    static const double block[] = {0.0, 0.117, 0.182, 0.265}, strip[] = {0.0, 0.0, 0.24, 0.0};
    const int64_t strips = qn_ceil_div(n, (int64_t)64 * s->groups);
    return strips > (int64_t)sms * s->occupancy
               ? 0.0
               : 0.22 + (double)qn_ceil_div(strips, (int64_t)sms) *
                            ((double)qn_ceil_div(k, 128) * block[s->groups] + strip[s->groups]);
}

int32_t qn_strip_height(int64_t rows)
{
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : QN_STRIP_ROWS;
}

int qn_strip_exists(const qn_strip *s, int32_t rows)
{
    const int32_t warpgroups = s->groups * s->teams;
    const int few_registers = rows <= 32 || s->occupancy == 1;
    if (s->groups < 1 || s->teams < 1 || s->groups > 4 || s->teams > 4 || warpgroups > 4 || s->split < 1 ||
        s->unroll < 1 || s->unroll > 4 || s->stages < 2 || s->occupancy < 1 || s->occupancy > 2 ||
        (s->pair != 1 && s->pair != 2 && s->pair != 4) || s->pair * s->split > 8 || rows % (8 * s->pair) != 0 ||
        s->late < 0 || s->late > 1 || s->parts < 1 || s->parts > 2) {
        return 0;
    }
    if (s->parts == 2 && warpgroups > 1 && (rows > 64 || warpgroups > 2 || !few_registers)) {
        return 0;
    }
    if (rows > 64 && (warpgroups > 2 || s->occupancy > 1)) {
        return 0;
    }
    qn_strip fit = *s;
    qn_strip_fit(&fit, rows, QN_ONE_MATRIX);
    const int32_t ring = fit.stages * fit.unroll * 128 * (64 * fit.groups + rows);
    return (s->occupancy == 1 || warpgroups < 3) && fit.stages >= 2 && sums_bytes(&fit, rows) <= ring;
}

qn_strip qn_tuned_strip(const qn_tuned *t)
{
    const int32_t *v = t->value;
    return (qn_strip){.groups = v[0],
                      .pair = v[1],
                      .split = v[2],
                      .unroll = v[3],
                      .stages = v[4],
                      .occupancy = v[5],
                      .parts = v[6],
                      .late = v[7],
                      .teams = v[8]};
}

int qn_tuned_tile(const qn_tuned *t, qn_tile *tile)
{
    const int32_t *v = t->value;
    if (t->m <= QN_STRIP_ROWS) {
        const int32_t cluster = v[3] ? v[3] : 1, split = v[4] ? v[4] : 1;
        return t->m > 32 && split <= qn_ceil_div(t->k, 128) &&
               qn_few_tile(qn_strip_height(t->m), v[1], v[2], cluster, split, tile) && tile->bm == v[0];
    }
    for (int32_t i = 0; i < QN_BLOCK_TILES; i++) {
        *tile = qn_block_tile(i, 1, QN_ONE_MATRIX);
        if (tile->bm == v[0] && tile->bn == v[1] && tile->store == v[2]) {
            return 1;
        }
    }
    return 0;
}

int qn_tile_may_store(int32_t out, int64_t n)
{
    return out != QN_OUT_F32 && n % 8 == 0;
}

void qn_block_tile_program(const qn_tile *t, int32_t out, int32_t layout, qn_cuda_program *p)
{
    p->source = "block_scaled_mm.cu";
    p->entry = "qn_block_scaled_mm";
    p->shared_bytes = qn_tile_shared(t);
    qn_cuda_define(p, "OUT", out);
    qn_cuda_define(p, "LAYOUT", layout);
    qn_cuda_define(p, "BM", t->bm);
    qn_cuda_define(p, "BN", t->bn);
    qn_cuda_define(p, "STAGES", t->stages);
    qn_cuda_define(p, "CLUSTER", t->cluster);
    qn_cuda_define(p, "GROUPS", tile_groups(t));
    qn_cuda_define(p, "PARTS", t->parts);
    qn_cuda_define(p, "STORE", t->held ? 2 : t->store);
    if (t->split > 1) {
        qn_cuda_define(p, "SPLIT", t->split);
    }
    if (t->tickets) {
        qn_cuda_define(p, "TICKETS", 1);
        p->cluster = t->cluster;
        p->threads = (int32_t)qn_tile_threads(t);
    }
}

void qn_strip_program(const qn_strip *s, int32_t rows, int32_t out, int32_t layout, qn_cuda_program *p)
{
    p->source = "block_scaled_mm_skinny.cu";
    p->entry = "qn_block_scaled_mm_skinny";
    p->shared_bytes = qn_strip_shared(s, rows, layout);
    qn_cuda_define(p, "OUT", out);
    qn_cuda_define(p, "LAYOUT", layout);
    qn_cuda_define(p, "ROWS", rows);
    qn_cuda_define(p, "GROUPS", s->groups);
    qn_cuda_define(p, "PAIR", s->pair);
    qn_cuda_define(p, "SPLIT", s->split);
    qn_cuda_define(p, "UNROLL", s->unroll);
    qn_cuda_define(p, "STAGES", s->stages);
    qn_cuda_define(p, "OCCUPANCY", s->occupancy);
    qn_cuda_define(p, "PARTS", s->parts);
    qn_cuda_define(p, "TEAMS", s->teams);
    qn_cuda_define(p, "STORE", s->store);
}

void qn_strip_fit(qn_strip *s, int32_t rows, int32_t layout)
{
    while (s->stages > 0 &&
           (qn_strip_shared(s, rows, layout) > QN_TILE_SHARED / s->occupancy - 512 || s->stages % s->teams != 0)) {
        s->stages--;
    }
}

/* A share of the work: strips of so many warpgroups, parts of K, k-blocks of a part at least. */
typedef struct share {
    int32_t groups, split, blocks;
} share;

/* full: all that are resident at once will do; even: of equals the fewer parts. */
static int deal(const share *shares, size_t count, int full, int even, int64_t n, int64_t k, int32_t sms,
                int32_t *groups, int32_t *split)
{
    const int64_t blocks = qn_ceil_div(k, 128);
    double least = 0.0;
    for (size_t i = 0; i < count; i++) {
        const int32_t g = shares[i].groups, parts = shares[i].split;
        const int64_t all = qn_ceil_div(n, 64 * g) * parts, most = g > 2 ? 1 : 2;
        const int64_t room = full    ? most * parts * qn_tile_clusters(parts, sms)
                             : g > 2 ? sms
                                     : 2 * (int64_t)sms * 9 / 10;
        const double work = (double)(qn_ceil_div(all, (int64_t)sms) * g) / parts;
        if (all > room || (parts > 1 && blocks < (int64_t)shares[i].blocks * parts)) {
            continue;
        }
        if (least <= 0.0 || work < least || (work <= least && parts > *split && !even)) {
            least = work;
            *groups = g;
            *split = parts;
        }
    }
    return least > 0.0;
}

/* Measured on an H200 with nine N and K, 8 to 32 rows, strips of one team: parts of fewer k-blocks, three or six parts
 * and more blocks than nine tenths of what the card holds lose by it. */
int qn_strip_deal(int64_t n, int64_t k, int32_t sms, int even, int32_t *groups, int32_t *split)
{
    static const share shares[] = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}, {3, 2, 12}, {1, 2, 12}, {1, 4, 12}};
    return deal(shares, sizeof shares / sizeof *shares, 0, even, n, k, sms, groups, split);
}

/* The same with 33 N and K, narrow strips in parts of two teams: 3 % from the best of 43 cuts on average, 6 % by the
 * rule above. */
int qn_strip_deal_teams(int64_t n, int64_t k, int32_t sms, int32_t *groups, int32_t *split)
{
    static const share shares[] = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0},  {3, 2, 12},
                                   {1, 2, 6}, {1, 4, 6}, {3, 4, 16}, {1, 8, 8}};
    return deal(shares, sizeof shares / sizeof *shares, 1, 0, n, k, sms, groups, split);
}

int qn_strip_may_store(const qn_strip *s, int32_t rows)
{
    const int32_t stage = s->unroll * 128 * (64 * s->groups + rows);
    return rows % 64 == 0 && s->pair == 1 && s->split == 1 &&
           (s->teams == 1 || sums_bytes(s, rows) <= (s->stages - rows / 64) * stage);
}

qn_status qn_tile_byte_map(const qn_cuda_run *run, const void *data, int64_t k, int64_t rows, int64_t groups,
                           int64_t row_step, int64_t group_step, int32_t box, qn_tensor_map *map, qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = data,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .promotion = CU_L2_PROMOTION_128B,
                                   .dims = {(uint64_t)k, (uint64_t)rows, (uint64_t)groups},
                                   .strides = {(uint64_t)row_step, (uint64_t)group_step},
                                   .box = {128, (uint32_t)box, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

qn_status qn_tile_byte_boxes(const qn_cuda_run *run, const void *data, int64_t k, int64_t rows, int64_t groups,
                             int64_t row_step, int64_t group_step, int32_t box, qn_tile_boxes *boxes, qn_error *error)
{
    const int32_t first = (int32_t)qn_min_i64(box, rows), last = (int32_t)(rows % box);
    QN_TRY(qn_tile_byte_map(run, data, k, rows, groups, row_step, group_step, first, &boxes->all, error));
    boxes->last = boxes->all;
    return last == 0 || last == first
               ? QN_OK
               : qn_tile_byte_map(run, data, k, rows, groups, row_step, group_step, last, &boxes->last, error);
}

qn_status qn_tile_out_map(const qn_cuda_run *run, const void *data, int64_t n, int64_t rows, int64_t groups,
                          int64_t row_step, int64_t group_step, qn_tensor_map *map, qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = data,
                                   .type = CU_TENSOR_U16,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .dims = {(uint64_t)n, (uint64_t)rows, (uint64_t)groups},
                                   .strides = {(uint64_t)row_step, (uint64_t)group_step},
                                   .box = {64, 64, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

uint32_t qn_tile_threads(const qn_tile *t)
{
    return 128 + 128 * (uint32_t)tile_groups(t);
}

qn_cuda_geometry qn_tile_geometry(const qn_cuda_device *device, int32_t cluster, int64_t blocks, int32_t shared_bytes)
{
    const int64_t grid = qn_min_i64(device->sms / cluster, qn_ceil_div(blocks, cluster));
    return (qn_cuda_geometry){.grid = {(uint32_t)(qn_max_i64(grid, 1) * cluster), 1, 1},
                              .block = {QN_TILE_THREADS, 1, 1},
                              .shared_bytes = (uint32_t)shared_bytes,
                              .cluster = (uint32_t)cluster,
                              .dependent = 1};
}
