/* Cuts of strips by many rows: see wide.h. What the kernels expect is the host contract at the top of
 * kernels/cuda/wide.h. */
#include "backend/cuda/wide.h"

#include "base/checked.h"

enum { MOST_SPLIT = 8, MOST_STAGES = 12, BEGIN = 2048, LOADERS = 128 };

/* Numbers of rows whose best cut a plan has a program of; a run takes the one that suits its own best. */
static const int32_t fp4_heights[QN_WIDE_FP4_PROGRAMS] = {96, 128, 160, 208, 256, 384, 512, 1024};
static const int32_t byte_heights[QN_WIDE_BYTE_PROGRAMS] = {80, 96, 128, 160, 192};

/* Warpgroups of a block. */
static const struct {
    int32_t groups, wk;
} teams[] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {4, 1}};
enum { TEAMS = sizeof teams / sizeof *teams };

/* Kernels: of K in a stage, that parts are multiples of; bytes of a row of b in a stage, and beside the ring;
 * most rows for each of teams, 0: none. Then microseconds, fits to measurements on an H200: of a stage and of each row
 * of it, for each of `groups`; of a round, and where blocks are one (256 rows by 64) there; of parts of K that meet,
 * for such a block, and for each warpgroup in turn; of what is not reading b. FP4: 14 shapes of 72 to 1024 rows, 1,066
 * cuts, the choice 0.7 % from the best on average; bytes: 14 shapes of 72 to 256 rows, 1.8 % (INT8) and 0.7 %. */
typedef struct kind {
    const int32_t *heights;
    int32_t programs, depth, step, b_row, beside, most_rows[TEAMS];
    double stage, row, round, block, parts, part_block, part_turn, least;
} kind;

#define FP4_FIT 0.0955, 0.000872, 5.55, -0.09, -0.51, 0.19, 1.66, 3.0
#define I8_FIT 0.0134, 0.001246, 4.11, 0.55, -0.42, -0.56, 2.55, 5.3
#define E4M3_FIT 0.0306, 0.001215, 3.49, 1.09, -0.2, -0.95, 2.8, 5.2
static const kind kinds[QN_WIDE_KINDS] = {
    [QN_WIDE_NVFP4] = {fp4_heights, QN_WIDE_FP4_PROGRAMS, 64, 256, 32, 160, {256, 256, 128, 192, 128}, FP4_FIT},
    [QN_WIDE_MXFP4] = {fp4_heights, QN_WIDE_FP4_PROGRAMS, 64, 512, 32, 160, {256, 256, 128, 192, 128}, FP4_FIT},
    [QN_WIDE_I8] = {byte_heights, QN_WIDE_BYTE_PROGRAMS, 128, 128, 128, 0, {256, 256, 128, 192, 128}, I8_FIT},
    [QN_WIDE_E4M3] = {byte_heights, QN_WIDE_BYTE_PROGRAMS, 128, 128, 128, 0, {192, 192, 0, 112, 0}, E4M3_FIT}};
#define READ_BYTES_US 4.4e6 /* bytes of device memory in a microsecond */

static int32_t strip_of(const qn_wide_cut *c)
{
    return 64 * c->groups;
}

/* Strips by blocks of rows, and steps of K. */
static int64_t units_of(const qn_wide_cut *c, const qn_wide_form *f, int64_t m)
{
    return qn_ceil_div(f->n, strip_of(c)) * qn_ceil_div(m, c->rows);
}

static int64_t steps_of(const qn_wide_form *f)
{
    return qn_ceil_div(f->k, kinds[f->kind].step);
}

static int splits(const qn_wide_cut *c, const qn_wide_form *f, int64_t m, int32_t split)
{
    const int32_t clusters = qn_tile_clusters(split, f->sms);
    return clusters > 0 && (split == 1 || (units_of(c, f, m) <= clusters && split <= steps_of(f)));
}

static double cost_of(const qn_wide_cut *c, const qn_wide_form *f, int64_t m, int32_t split)
{
    const kind *w = &kinds[f->kind];
    const double groups = c->groups, block = c->rows * groups / 256.0;
    const int64_t stages =
        split > 1 ? qn_ceil_div(steps_of(f), split) * (w->step / w->depth) : qn_ceil_div(f->k, w->depth);
    const double rounds = (double)qn_ceil_div(units_of(c, f, m), qn_tile_clusters(split, f->sms));
    const double parts = split > 1 ? w->parts + (w->part_block + w->part_turn * c->wk) * block : 0.0;
    const double us =
        rounds * ((double)stages * groups * (w->stage + w->row * c->rows) + w->round + w->block * block) + parts;
    const double read = (double)f->n * (double)f->k / w->depth * w->b_row / READ_BYTES_US + w->least;
    return (us > read ? us : read) + 0.01 * us; /* of equals that has most to spare */
}

/* The number of parts of K with the least estimate. */
static void choose_split(qn_wide_cut *c, const qn_wide_form *f, int64_t m)
{
    c->split = 1;
    c->us = cost_of(c, f, m, 1);
    for (int32_t split = 2; split <= MOST_SPLIT; split++) {
        if (splits(c, f, m, split)) {
            const double us = cost_of(c, f, m, split);
            if (us < c->us) {
                c->us = us;
                c->split = split;
            }
        }
    }
}

/* The best cut of so many rows, which it has in one pass or in several of about the same. */
static qn_wide_cut cut_of(const qn_wide_form *f, int32_t m)
{
    qn_wide_cut best = {0};
    for (int32_t i = 0; i < TEAMS; i++) {
        const int32_t most = kinds[f->kind].most_rows[i];
        for (int32_t passes = most ? (int32_t)qn_ceil_div(m, most) : m; passes * 48 < m; passes++) {
            qn_wide_cut c = {
                .rows = (int32_t)qn_ceil_div(m, passes * 16) * 16, .groups = teams[i].groups, .wk = teams[i].wk};
            choose_split(&c, f, m);
            if (best.rows == 0 || c.us < best.us) {
                best = c;
            }
        }
    }
    return best;
}

/* Bytes of a stage. */
static int32_t stage_bytes(const qn_wide_cut *c, const kind *w)
{
    return strip_of(c) * w->b_row + 128 * c->rows;
}

/* As many stages as fit. */
static int32_t stages_of(const qn_wide_cut *c, const kind *w)
{
    const int32_t room = QN_TILE_SHARED - BEGIN - w->beside * strip_of(c);
    return (int32_t)qn_min_i64(room / stage_bytes(c, w), MOST_STAGES);
}

/* The ring's memory, or what sums take there. */
static int32_t shared_bytes(const qn_wide_cut *c, const kind *w, int32_t split)
{
    const int32_t strip = strip_of(c), ring = stages_of(c, w) * stage_bytes(c, w) + w->beside * strip;
    const int32_t own = 32 * (int32_t)qn_ceil_div(c->rows, 8 * split);
    const int32_t sums = split > 1 ? own * (strip * (split * c->wk + 1) + 4) : 4 * c->wk * c->rows * (strip + 4);
    return BEGIN + (ring > sums ? ring : sums);
}

void qn_wide_program(const qn_wide_form *f, int32_t i, qn_cuda_program *p)
{
    const qn_wide_cut c = cut_of(f, kinds[f->kind].heights[i]);
    for (int32_t split = 1; split <= MOST_SPLIT; split++) {
        const int32_t bytes = shared_bytes(&c, &kinds[f->kind], split);
        p->shared_bytes = bytes > p->shared_bytes ? bytes : p->shared_bytes;
    }
    p->kept[0] = c.rows;
    p->kept[1] = c.groups;
    p->kept[2] = c.wk;
    qn_cuda_define(p, "ROWS", c.rows);
    qn_cuda_define(p, "GROUPS", c.groups);
    qn_cuda_define(p, "WK", c.wk);
    qn_cuda_define(p, "STAGES", stages_of(&c, &kinds[f->kind]));
}

qn_wide_cut qn_wide_choose(const qn_wide_form *f, const qn_cuda_function *functions, int64_t m)
{
    qn_wide_cut best = {0};
    for (int32_t i = 0; i < kinds[f->kind].programs; i++) {
        const int32_t *kept = functions[i].kept;
        qn_wide_cut c = {.rows = kept[0], .groups = kept[1], .wk = kept[2], .program = i};
        choose_split(&c, f, m);
        if (i == 0 || c.us < best.us) {
            best = c;
        }
    }
    return best;
}

/* Boxes of b as it is, without a swizzle: a box of all rows of a strip, one of those that are left. */
static qn_status plain_boxes(const qn_cuda_run *run, const void *data, int64_t row_bytes, int64_t rows,
                             int64_t row_step, int32_t box_bytes, int32_t box, qn_tile_boxes *boxes, qn_error *error)
{
    const uint32_t first = (uint32_t)qn_min_i64(box, rows), last = (uint32_t)(rows % box);
    qn_cuda_tensor tensor = {.data = data,
                             .type = CU_TENSOR_U8,
                             .rank = 3,
                             .promotion = CU_L2_PROMOTION_256B,
                             .dims = {(uint64_t)row_bytes, (uint64_t)rows, 1},
                             .strides = {(uint64_t)row_step, (uint64_t)(row_step * rows)},
                             .box = {(uint32_t)box_bytes, first, 1}};
    QN_TRY(qn_cuda_tensor_map(run->cuda, &tensor, &boxes->all, error));
    boxes->last = boxes->all;
    tensor.box[1] = last;
    return last == 0 || last == first ? QN_OK : qn_cuda_tensor_map(run->cuda, &tensor, &boxes->last, error);
}

qn_status qn_wide_maps(const qn_cuda_run *run, const qn_wide_form *f, const qn_wide_cut *c, const void *b,
                       int64_t b_row, const void *x, int64_t x_row, int64_t m, qn_wide_boxes *boxes, qn_error *error)
{
    const int32_t box = kinds[f->kind].b_row, depth = kinds[f->kind].depth;
    QN_TRY(qn_tile_byte_boxes(run, x, f->k * 128 / depth, m, 1, x_row, x_row * m, c->rows, &boxes->x, error));
    return box == 128 ? qn_tile_byte_boxes(run, b, f->k * 128 / depth, f->n, 1, b_row, b_row * f->n, strip_of(c),
                                           &boxes->b, error)
                      : plain_boxes(run, b, f->k * box / depth, f->n, b_row, box, strip_of(c), &boxes->b, error);
}

qn_cuda_geometry qn_wide_geometry(const qn_wide_form *f, const qn_wide_cut *c, int64_t m)
{
    return (qn_cuda_geometry){.grid = {(uint32_t)(units_of(c, f, m) * c->split), 1, 1},
                              .block = {(uint32_t)(128 * c->groups * c->wk + LOADERS), 1, 1},
                              .shared_bytes = (uint32_t)shared_bytes(c, &kinds[f->kind], c->split),
                              .cluster = (uint32_t)c->split,
                              .dependent = 1};
}

/* ---- for people ---- */

void qn_wide_describe_cut(const char *what, const qn_wide_cut *c, qn_text *text)
{
    qn_text_add(text, "%s of %d columns by %d rows, %d warpgroups, %d part%s of K: estimate %.1f us\n", what,
                strip_of(c), c->rows, c->groups * c->wk, c->split, c->split > 1 ? "s" : "", c->us);
}

qn_wide_cut qn_wide_describe(const qn_wide_form *f, int64_t m, qn_text *text)
{
    qn_wide_cut best = {0};
    for (int32_t i = 0; i < kinds[f->kind].programs; i++) {
        qn_wide_cut c = cut_of(f, kinds[f->kind].heights[i]);
        choose_split(&c, f, m);
        qn_wide_describe_cut("strips", &c, text);
        if (i == 0 || c.us < best.us) {
            best = c;
        }
    }
    return best;
}
