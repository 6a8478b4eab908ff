/* Tiles of dense_mm.cu and which of them a product takes: see dense.h. What the kernel expects is the host contract at
 * the top of its source. */
#include "backend/cuda/dense.h"

#include "backend/cuda/tiles.h"
#include "base/checked.h"

/* A tile, and what it takes: microseconds of a k-block of 64, of a tile beside its k-blocks, and of one that a cluster
 * takes together; share of the card's arithmetic under its power limit. Fits of measurements on an H200: M from 16 to
 * 8192, nine N and K. */
typedef struct tile {
    int32_t bm, bn, cluster, stages;
    int32_t room; /* columns of 16-bit results on their way out at a time; 0: lanes store */
    double block_us, tile_us, part_us, share;
} tile;

static const tile tiles[] = {{128, 256, 2, 4, 128, 0.722, 1.2, 2.5, 1.00}, {128, 192, 2, 5, 64, 0.551, 1.2, 2.6, 0.95},
                             {128, 128, 2, 6, 64, 0.377, 0.6, 2.6, 0.93},  {128, 128, 1, 6, 64, 0.350, 1.2, 0.0, 0.93},
                             {128, 64, 2, 8, 64, 0.284, 0.0, 1.9, 0.70},   {128, 64, 1, 8, 64, 0.238, 0.9, 0.0, 0.70},
                             {64, 64, 2, 13, 0, 0.232, 1.5, 1.2, 0.60}};
enum { WIDEST = 0, TILES = sizeof tiles / sizeof *tiles, FEW = TILES };
_Static_assert(TILES + 1 == QN_DENSE_PROGRAMS, "one of the others for few rows beside them");

/* Of these the one that is best for few rows with a form's N and K. */
static const tile few_tiles[] = {{64, 64, 1, 13, 0, 0.139, 0.3, 0.0, 0.60},
                                 {64, 64, 2, 13, 0, 0.232, 1.5, 1.2, 0.60},
                                 {64, 64, 4, 13, 0, 0.262, 1.0, 2.6, 0.60},
                                 {64, 112, 1, 9, 0, 0.155, 1.3, 0.0, 0.60},
                                 {64, 128, 4, 8, 0, 0.302, 1.5, 3.2, 0.60}};
enum { FEW_TILES = sizeof few_tiles / sizeof *few_tiles, FEW_ROWS = 64, DEPTH = 64 };

/* Of planes: the widest tile whose sums leave room for those of a chain, and its k-blocks. */
enum { WIDEST_CHAINED = 2, CHAIN = 4 };

#define LAUNCH_US 2.5
#define READ_BYTES_US 4.3e6   /* bytes of device memory in a microsecond, */
#define FLOPS_US 7.6e8        /* and operations under the power limit */
#define BLOCK_PRODUCTS_US 3e6 /* products that a multiprocessor makes of planes in a microsecond */
#define MEETING_US 0.7        /* of a cluster that adds up: beside which nothing is read */

/* How the work is dealt: units taken whole, and all units (dense_mm.cu). */
typedef struct deal {
    int64_t whole, units;
    double us;
} deal;

/* Clusters that run at a time where the driver was not asked: larger ones leave some multiprocessors out. */
static int64_t clusters_of(const tile *t, const qn_cuda_device *device)
{
    return qn_max_i64(1, (t->cluster > 2 ? device->sms * 10 / 11 : device->sms) / t->cluster);
}

static int32_t planes_of(int32_t given)
{
    return given ? given : 1;
}

/* Pairs of planes that are multiplied; the product of both second ones is too small to count. */
static int32_t pairs_of(const qn_dense_form *f)
{
    const int32_t a = planes_of(f->a_planes), b = planes_of(f->b_planes);
    return a == 2 && b == 2 ? 3 : a * b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Microseconds of a k-block: of planes more bytes and more products. */
static double block_us(const tile *t, const qn_dense_form *f)
{
    const double rows = (double)t->bm * planes_of(f->a_planes) + (double)t->bn * planes_of(f->b_planes);
    const double products = f->a_planes ? (double)pairs_of(f) * t->bm * t->bn * DEPTH : 0.0;
    return larger(t->block_us * rows / (t->bm + t->bn), products / BLOCK_PRODUCTS_US);
}

/* The cheapest of: all units whole; those that fill the card whole and the rest in parts of K; all in parts. */
static deal deal_of(const tile *t, const qn_dense_form *f, int64_t m, int64_t clusters)
{
    const int64_t columns = qn_ceil_div(f->n, t->bn), all = qn_ceil_div(m, (int64_t)t->bm * t->cluster) * columns;
    const int64_t blocks = qn_ceil_div(f->k, DEPTH), full = all / clusters * clusters;
    const int64_t alone = qn_ceil_div(m, t->bm) * columns;
    const deal ways[] = {{all, all, 0.0}, {full, full + (all - full) * t->cluster, 0.0}, {0, alone, 0.0}};
    const double n = (double)f->n, k = (double)f->k, rows = (double)m;
    const double bytes = 2.0 * (n * k * planes_of(f->b_planes) + rows * (k * planes_of(f->a_planes) + n));
    const double least = larger(bytes / READ_BYTES_US, 2.0 * rows * n * k * pairs_of(f) / (FLOPS_US * t->share));
    const double block = block_us(t, f);
    deal best = {0, 0, 0.0};
    for (size_t i = 0; i < (t->cluster > 1 && blocks >= 2 * t->cluster ? 3 : 1); i++) {
        deal d = ways[i];
        if (i == 1 && (full == 0 || full == all)) {
            continue;
        }
        const double whole = (double)qn_ceil_div(d.whole, clusters) * ((double)blocks * block + t->tile_us);
        const double rounds = (double)qn_ceil_div(d.units - d.whole, clusters);
        const double parts = rounds * ((double)blocks / t->cluster * block + t->part_us);
        d.us = LAUNCH_US + larger(whole + parts, least) + rounds * MEETING_US;
        if (best.units == 0 || d.us < best.us) {
            best = d;
        }
    }
    return best;
}

static const tile *few_tile(const qn_dense_form *f, const qn_cuda_device *device)
{
    const tile *best = few_tiles;
    for (int32_t i = 1; i < FEW_TILES; i++) {
        const tile *t = &few_tiles[i];
        if (deal_of(t, f, FEW_ROWS, clusters_of(t, device)).us <
            deal_of(best, f, FEW_ROWS, clusters_of(best, device)).us) {
            best = t;
        }
    }
    return best;
}

static int32_t out_bytes(const qn_dense_form *f)
{
    return f->out == QN_OUT_F32 ? 4 : 2;
}

/* Whether results leave through the copy engine, as far as a plan knows. */
static int stores(const tile *t, const qn_dense_form *f)
{
    return t->room > 0 && f->n * out_bytes(f) % 16 == 0;
}

/* Tiles wider than 192 columns have too few registers where results do not leave by boxes, or as f32 with a bias. */
static const tile *tile_at(int32_t i, const qn_dense_form *f, const qn_cuda_device *device)
{
    const int crowded = !stores(&tiles[WIDEST], f) || (f->bias && f->out == QN_OUT_F32);
    if (i < WIDEST_CHAINED && f->a_planes) {
        return &tiles[WIDEST_CHAINED];
    }
    return i == FEW ? few_tile(f, device) : i == WIDEST && crowded ? &tiles[WIDEST + 1] : &tiles[i];
}

/* The program of the least estimated time. may_store: d is as the copy engine wants it; the tile for few rows takes
 * any. */
static int32_t choose(const qn_dense_form *f, const qn_cuda_device *device, int64_t m, int may_store, double *us)
{
    int32_t best = FEW;
    *us = 0.0;
    for (int32_t i = FEW; i >= 0 && (may_store || i == FEW); i--) {
        const tile *t = tile_at(i, f, device);
        const double cost = deal_of(t, f, m, clusters_of(t, device)).us;
        if (i == FEW || cost < *us) {
            *us = cost;
            best = i;
        }
    }
    return best;
}

/* Columns at a time. */
static int32_t room_of(const tile *t, const qn_dense_form *f)
{
    return stores(t, f) ? t->room * 2 / out_bytes(f) : t->bn;
}

static int32_t shared_of(const tile *t, const qn_dense_form *f)
{
    const int32_t out = stores(t, f)     ? t->bm * room_of(t, f) * out_bytes(f)
                        : t->cluster > 1 ? 4 * t->bm * t->bn / t->cluster
                                         : 0;
    const int32_t rows = t->bm * planes_of(f->a_planes) + t->bn * planes_of(f->b_planes); /* of a stage */
    return 1024 + out + t->stages * (128 * rows + 16) + t->bm / 64 * t->cluster * 8;
}

/* The stages that fit: without boxes a cluster's sums take more room. */
static tile fitted(const tile *t, const qn_dense_form *f)
{
    tile fit = *t;
    while (shared_of(&fit, f) > QN_TILE_SHARED) {
        fit.stages--;
    }
    return fit;
}

void qn_dense_programs(const qn_dense_form *f, const qn_cuda_device *device, qn_cuda_program *out)
{
    for (int32_t i = 0; i < QN_DENSE_PROGRAMS; i++) {
        qn_cuda_program *p = &out[i];
        const tile t = fitted(tile_at(i, f, device), f);
        p->source = "dense_mm.cu";
        p->entry = "qn_dense_mm";
        p->shared_bytes = shared_of(&t, f);
        p->cluster = t.cluster > 1 ? t.cluster : 0;
        p->threads = 128 + 2 * t.bm;
        qn_cuda_define(p, "F16", f->f16);
        qn_cuda_define(p, "OUT", f->out);
        qn_cuda_define(p, "SCALED", f->scaled);
        qn_cuda_define(p, "BIAS", f->bias);
        qn_cuda_define(p, "BM", t.bm);
        qn_cuda_define(p, "BN", t.bn);
        qn_cuda_define(p, "STAGES", t.stages);
        qn_cuda_define(p, "CLUSTER", t.cluster);
        qn_cuda_define(p, "GROUPS", t.bm / 64);
        qn_cuda_define(p, "STORE", stores(&t, f));
        qn_cuda_define(p, "ROOM", room_of(&t, f));
        if (f->a_planes) {
            qn_cuda_define(p, "A_PLANES", f->a_planes);
            qn_cuda_define(p, "B_PLANES", f->b_planes);
            qn_cuda_define(p, "CHAIN", CHAIN);
        }
    }
}

int qn_dense_takes(const qn_dense_operands *o)
{
    return qn_tile_aligned(o->a, o->a_row, 0) && qn_tile_aligned(o->b, o->b_row, 0);
}

/* Boxes of d as results leave. */
static qn_status out_map(const qn_cuda_run *run, const qn_dense_form *f, const qn_dense_operands *o, qn_tensor_map *map,
                         qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = o->d,
                                   .type = f->out == QN_OUT_F32 ? CU_TENSOR_F32 : CU_TENSOR_U16,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .dims = {(uint64_t)f->n, (uint64_t)o->m, 1},
                                   .strides = {(uint64_t)o->d_row, (uint64_t)(o->d_row * o->m)},
                                   .box = {128 / (uint32_t)out_bytes(f), 64, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

qn_status qn_dense_launch(const qn_cuda_run *run, int32_t first, const qn_dense_form *form, const qn_dense_operands *o,
                          qn_error *error)
{
    double us;
    const int32_t i = choose(form, run->device, o->m, qn_tile_aligned(o->d, o->d_row, 0), &us);
    const tile t = fitted(tile_at(i, form, run->device), form);
    qn_dense_form some = *form;
    some.n = o->n ? o->n : form->n;
    const qn_dense_form *f = &some;
    const int32_t at_a_time = run->functions[first + i].clusters;
    const int64_t most = clusters_of(&t, run->device), clusters = at_a_time > 0 ? qn_min_i64(at_a_time, most) : most;
    const deal d = deal_of(&t, f, o->m, clusters);
    qn_tile_boxes a, b;
    qn_tensor_map d_map;
    const int64_t a_plane = o->a_plane ? o->a_plane : o->a_row * o->m;
    const int64_t b_plane = o->b_plane ? o->b_plane : o->b_row * f->n;
    QN_TRY(qn_tile_byte_boxes(run, o->a, 2 * f->k, o->m, planes_of(f->a_planes), o->a_row, a_plane, t.bm, &a, error));
    QN_TRY(qn_tile_byte_boxes(run, o->b, 2 * f->k, f->n, planes_of(f->b_planes), o->b_row, b_plane, t.bn / t.cluster,
                              &b, error));
    d_map = b.all; /* not read without STORE */
    if (stores(&t, f)) {
        QN_TRY(out_map(run, f, o, &d_map, error));
    }
    qn_dense_operands own = *o;
    int64_t d_row = o->d_row / out_bytes(f);
    int32_t n = (int32_t)f->n, k = (int32_t)(2 * f->k), whole = (int32_t)d.whole;
    void *const arguments[] = {&a.all, &b.all, &d_map, &a.last, &b.last, &own.row_scale, &own.column_scale, &own.bias,
                               &own.d, &d_row, &own.m, &n,      &k,      &whole,         &own.constant,     &own.odd};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(qn_min_i64(clusters, d.units) * t.cluster), 1, 1},
                                .block = {(uint32_t)(128 + 2 * t.bm), 1, 1},
                                .shared_bytes = (uint32_t)shared_of(&t, f),
                                .cluster = (uint32_t)t.cluster,
                                .dependent = 1};
    return qn_cuda_launch(run, first + i, &g, arguments, error);
}

double qn_dense_us(const qn_dense_form *f, const qn_cuda_device *device, int64_t m)
{
    double us;
    (void)choose(f, device, m, 1, &us);
    return us;
}

/* ---- for people ---- */

void qn_dense_describe(const qn_dense_form *f, const qn_cuda_device *device, int64_t m, qn_text *text)
{
    double us;
    const int32_t chosen = choose(f, device, m, 1, &us);
    for (int32_t i = f->a_planes ? WIDEST_CHAINED : 0; i <= QN_DENSE_PROGRAMS; i++) {
        const tile *t = tile_at(i < QN_DENSE_PROGRAMS ? i : chosen, f, device);
        const deal d = deal_of(t, f, m, clusters_of(t, device));
        qn_text_add(text, "%s of %d x %d, clusters of %d", i < QN_DENSE_PROGRAMS ? "tiles" : "cut: tiles", t->bm, t->bn,
                    t->cluster);
        if (d.whole < d.units) {
            qn_text_add(text, ", %lld of %lld in %d parts of K", (long long)(d.units - d.whole), (long long)d.units,
                        t->cluster);
        }
        qn_text_add(text, ": estimate %.1f us\n", d.us);
    }
}
