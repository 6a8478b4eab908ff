/* vq_mm of aqlm with 8-bit codes by tables of partial sums.
 *
 * A table is made once and serves every row of w, so K is what tasks share out: a
 * task is a part of K (some slabs) by up to LINES_TASK lines of 128 rows of w, for all rows of x of a round, or, where
 * threads would wait, for some of either. It makes the tables of a slab, small enough for the first cache, and walks
 * the slab's codes, which stream; its sums over the part go to a buffer of parts, and a second pass adds the parts in
 * order. Parts are a function of K alone, so a row's bits depend on nothing but its values and the weights. More rows
 * of x go eight or sixteen at a time (kernels/common/vq.h: the same integers in wider tables), fewer one or two at a
 * time.
 *
 * Packed: codes [slabs][2 lines][lookups][64], codebooks as [books][vector][256] f32, their
 * longest vectors as [books][vector][16], three norms, and the side section. Rows of x whose products fit no 21-bit
 * integers are computed in double from single elements. */
#include "backend/cpu/run_vq_sums.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/sizes.h"
#include "backend/cpu/vq_side.h"
#include "base/checked.h"
#include "ref/slots.h"

#define SLABS_PART 16       /* slabs of a part of K */
#define LINES_TASK 64       /* lines of w a task */
#define TASKS_THREAD 4      /* of a thread, at most, where fewer lines are tried */
#define ADD_COLUMNS 1024    /* sums a task of the second pass, ... */
#define ADD_STEP 64         /* ... of them at a time */
#define ROWS_ROUND 16       /* rows of x whose parts are kept at a time, times ... */
#define MOST_ROUNDS 8       /* ... at most so many where K and w alone give no task for every thread */
#define LEAST_COLUMNS 100   /* rows of w; whatever M, as bits must not depend on it ... */
#define LEAST_OF_EIGHTS 256 /* ... where books look vectors up as registers, ... */
#define LEAST_OF_FOURS 136  /* ... or a table of four books' long vectors takes as long as one row does by books */
#define LEAST_K 800         /* with one book: rounded products are as exact as sums of f32 from there on */

/* ---- packed body ---- */

typedef struct sums_layout {
    qn_vq_side_layout side;
    int64_t n, books, vector, groups, slab_groups, slabs, lines, parts;
    size_t book, longest, side_at, total;
    size_t norms; /* of the longest vector, of the longest not among `longest`, of the least row of w but zeros */
} sums_layout;

static sums_layout layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    sums_layout l = {
        .side = qn_vq_side_layout_of(desc, vq), .n = vq->n, .books = vq->codebooks, .vector = vq->in_group};
    l.groups = vq->k / l.vector;
    l.slab_groups = qn_max_i64(1, QN_VQ_LOOKUPS / l.books);
    l.slabs = qn_ceil_div(l.groups, l.slab_groups);
    l.parts = qn_ceil_div(l.slabs, SLABS_PART);
    l.lines = qn_ceil_div(vq->n, QN_VQ_LINE);
    size_t at = 0;
    (void)qn_size_place(&at, qn_size_mul((size_t)l.lines, (size_t)(l.groups * l.books)), QN_VQ_LINE);
    l.book = qn_size_place(&at, (size_t)(l.books * l.vector), QN_VQ_TABLE_ENTRIES * sizeof(float));
    l.longest = qn_size_place(&at, (size_t)(l.books * l.vector), QN_VQ_LONGEST * sizeof(float));
    l.norms = qn_size_place(&at, 3, sizeof(float));
    l.side_at = at;
    l.total = qn_size_add(at, l.side.total);
    return l;
}

static int64_t slab_lookups(const sums_layout *l, int64_t slab)
{
    return qn_min_i64(l->slab_groups, l->groups - slab * l->slab_groups) * l->books;
}

/* Where the code of row n of w, group g, codebook c is. */
static int64_t code_at(const sums_layout *l, int64_t n, int64_t g, int64_t c)
{
    const int64_t slab = g / l->slab_groups, first = slab * l->slab_groups * l->books * l->lines * QN_VQ_LINE;
    const int64_t line = n / 64 * slab_lookups(l, slab) + g % l->slab_groups * l->books + c;
    return first + line * 64 + n % 16 * 4 + n % 64 / 16;
}

/* A codebook as it is read from, and the squares of its vectors' norms. */
static void pack_book(const sums_layout *l, const qn_view *books, int64_t c, float *book,
                      double squares[QN_VQ_TABLE_ENTRIES])
{
    for (int64_t e = 0; e < QN_VQ_TABLE_ENTRIES; e++) {
        float entry[QN_VQ_MAX_VECTOR];
        squares[e] = 0.0;
        qn_vq_values(books, (c * QN_VQ_TABLE_ENTRIES + e) * l->vector, l->vector, entry);
        for (int64_t j = 0; j < l->vector; j++) {
            book[j * QN_VQ_TABLE_ENTRIES + e] = entry[j];
            squares[e] += (double)entry[j] * (double)entry[j];
        }
    }
}

static int64_t longest_of(const double squares[QN_VQ_TABLE_ENTRIES])
{
    int64_t most = 0;
    for (int64_t e = 1; e < QN_VQ_TABLE_ENTRIES; e++) {
        most = squares[e] > squares[most] ? e : most;
    }
    return most;
}

/* Codebooks and their longest vectors. */
static void pack_books(const sums_layout *l, const qn_vq *vq, char *body)
{
    float *const norms = (float *)(void *)(body + l->norms);
    for (int64_t c = 0; c < l->books; c++) {
        float *const book = (float *)(void *)(body + l->book) + c * l->vector * QN_VQ_TABLE_ENTRIES;
        float *const longest = (float *)(void *)(body + l->longest) + c * l->vector * QN_VQ_LONGEST;
        double squares[QN_VQ_TABLE_ENTRIES], sum = 0.0;
        pack_book(l, &vq->tensor[QN_VQ_CODEBOOKS], c, book, squares);
        for (int64_t e = 0; e < QN_VQ_TABLE_ENTRIES; e++) {
            sum += squares[e];
        }
        const double norm = sum < HUGE_VAL ? sqrt(squares[longest_of(squares)]) : HUGE_VAL; /* NaN: none */
        norms[0] = fmaxf(norms[0], (float)norm);
        for (int64_t i = 0; i < QN_VQ_LONGEST; i++) {
            const int64_t e = longest_of(squares);
            for (int64_t j = 0; j < l->vector; j++) {
                longest[j * QN_VQ_LONGEST + i] = book[j * QN_VQ_TABLE_ENTRIES + e];
            }
            squares[e] = 0.0;
        }
        norms[1] = fmaxf(norms[1], (float)sqrt(squares[longest_of(squares)]));
    }
}

/* Of a group of w: the square of its norm, magnitudes of an element's terms summed. */
static float group_square(const sums_layout *l, const float *book, const uint8_t *codes)
{
    float square = 0.0f;
    for (int64_t j = 0; j < l->vector; j++) {
        float sum = 0.0f;
        for (int64_t c = 0; c < l->books; c++) {
            sum += fabsf(book[(c * l->vector + j) * QN_VQ_TABLE_ENTRIES + codes[c]]);
        }
        square += sum * sum;
    }
    return square;
}

static void pack_body(const sums_layout *l, const qn_vq *vq, const qn_view *bias, char *body)
{
    memset(body, 0, l->total);
    const float *const book = (const float *)(const void *)(body + l->book);
    double least = HUGE_VAL;
    pack_books(l, vq, body);
    for (int64_t n = 0; n < vq->n; n++) {
        double square = 0.0;
        for (int64_t g = 0; g < l->groups; g++) {
            uint8_t codes[QN_VQ_LOOKUPS] = {0};
            for (int64_t c = 0; c < l->books; c++) {
                codes[c] = (uint8_t)qn_vq_aqlm_code(vq, n, g, c, NULL);
                body[code_at(l, n, g, c)] = (char)codes[c];
            }
            square += (double)group_square(l, book, codes);
        }
        least = square > 0.0 ? fmin(least, square) : least;
    }
    ((float *)(void *)(body + l->norms))[2] = least <= FLT_MAX ? (float)sqrt(least) : HUGE_VALF;
    qn_vq_side_pack(&l->side, vq, bias, body + l->side_at);
}

const char *qn_vq_sums_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    if (vq.format != QN_VQ_AQLM) {
        return "made for another vector format";
    }
    if (desc->attr[QN_ATTR_LEVEL].i != QN_VQ_LEVEL_AUTO) {
        return "partial sums are no rung of the ladder: level=auto alone takes them";
    }
    if (vq.bits != 8 || vq.codebooks > QN_VQ_LOOKUPS) {
        return "made for codes of 8 bits";
    }
    const int eights = vq.in_group == 8 && vq.codebooks <= 2; /* kernels/cpu/vq_eights.h */
    const int fours = vq.in_group >= 16 && vq.codebooks >= 4;
    if (vq.n > 0 && vq.n < (eights ? LEAST_OF_EIGHTS : fours ? LEAST_OF_FOURS : LEAST_COLUMNS)) {
        return "a table costs more than so few rows of w take from it";
    }
    /* Products are rounded by the largest there may be, 1 / K of the row's: their sum by 1 / sqrt(K) of a row of w,
     * which has sqrt(books) of one book's length. */
    if ((double)vq.k * sqrt((double)vq.codebooks) < LEAST_K) {
        return "sums of so few rounded products are too coarse";
    }
    return vq.out_group == 1 ? NULL : "made for vectors of single rows";
}

size_t qn_vq_sums_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    return layout_of(desc, &vq).total;
}

void qn_vq_sums_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    const sums_layout l = layout_of(desc, &vq);
    pack_body(&l, &vq, &args->in[QN_VQMM_BIAS], body);
}

/* ---- ways ---- */

static double table_cost(const sums_layout *l, const qn_vq_sums_way *way, int coarse)
{
    return way->table + (coarse ? 0.0 : way->table_fine) + way->table_element * (double)l->vector;
}

static double row_cost(const sums_layout *l, const qn_vq_sums_way *way)
{
    return way->row + way->row_element * (double)l->vector;
}

/* The cheapest way of some rows of x: making tables, 256 products of so many elements and their rounding, and taking
 * from them, or one product a row of w. */
static const qn_vq_sums_way *way_of(const qn_vq_sums_way *ways, const sums_layout *l, int64_t rows, int coarse)
{
    const int fits = l->slab_groups * l->vector * QN_VQ_MANY_ROWS <= QN_VQ_MANY_FLOATS;
    const qn_vq_sums_way *best = ways;
    double least = HUGE_VAL;
    for (const qn_vq_sums_way *way = ways; way->run; way++) {
        const double once = table_cost(l, way, coarse) + row_cost(l, way) * (double)l->n;
        const double cost = (double)qn_ceil_div(rows, way->each) * once;
        if (cost < least && (fits || way->row_element == 0.0)) {
            least = cost;
            best = way;
        }
    }
    return best;
}

/* The ways of this processor. */
qn_status qn_vq_sums_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                          qn_error *error)
{
    (void)ctx;
    (void)desc;
    (void)error;
    const qn_vq_sums_impl *impl = kernel->impl;
    *state = (void *)(uintptr_t)(impl->ways_halved && qn_cpu_halves_512() ? impl->ways_halved : impl->ways);
    return QN_OK;
}

/* Tasks along rows of x that every thread needs beside those that K and w give. */
static int64_t row_tasks_of(const sums_layout *l, int32_t threads)
{
    return qn_ceil_div(threads, qn_max_i64(1, l->parts * qn_ceil_div(l->lines, LINES_TASK)));
}

static int64_t round_of(const sums_layout *l, int32_t threads)
{
    return ROWS_ROUND * qn_min_i64(MOST_ROUNDS, row_tasks_of(l, threads));
}

/* ---- memory ---- */

typedef struct memory {
    size_t partial, scales, special, scratch, thread, totals, body, total; /* totals: in a thread's scratch */
} memory;

static memory memory_of(const qn_op_desc *desc, const qn_vq *vq, int64_t m, int32_t threads)
{
    const sums_layout l = layout_of(desc, vq);
    const int64_t some = qn_min_i64(m, round_of(&l, threads));
    const int64_t rows = some > 1 ? qn_ceil_div(some, QN_VQ_MANY_ROWS) * QN_VQ_MANY_ROWS : 1; /* in any way */
    memory at = {.partial = qn_size_pad(qn_vq_side_bytes(vq, m, threads))};
    const size_t row = qn_size_mul((size_t)l.lines, QN_VQ_LINE * sizeof(float));
    const size_t slabs = qn_size_mul((size_t)l.slabs, sizeof(qn_vq_sums_scale));
    at.scales = qn_size_pad(qn_size_add(at.partial, qn_size_mul(qn_size_mul((size_t)l.parts, (size_t)rows), row)));
    at.special = qn_size_pad(qn_size_add(at.scales, qn_size_mul((size_t)rows, slabs)));
    at.scratch = qn_size_pad(qn_size_add(at.special, (size_t)rows));
    at.totals = QN_VQ_SUMS_SCRATCH;
    at.thread = at.totals;
    if (m > 1) {
        at.thread += (size_t)(qn_min_i64(l.lines, LINES_TASK) * QN_VQ_LINE * QN_VQ_MANY_ROWS) * sizeof(int32_t);
    }
    at.body = qn_size_add(at.scratch, qn_size_mul((size_t)threads, at.thread));
    at.total = qn_size_add(at.body, l.total);
    return at;
}

size_t qn_vq_sums_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    return memory_of(desc, &vq, m, threads).total;
}

/* ---- running ---- */

typedef struct sums_job {
    const qn_vq_sums_impl *impl;
    sums_layout l;
    memory at;
    qn_vq_side side;
    const char *body;
    char *workspace;
    int64_t m0, rows;              /* of this round */
    int64_t task_rows, task_lines; /* of a task: of x, of w */
    int coarse;                    /* the first slabs of all rows */
    const qn_vq_sums_way *way;
    float *partial;           /* [parts][rows / way->wide][lines * 128][way->wide] */
    qn_vq_sums_scale *scales; /* [rows][slabs] */
    uint8_t *special;         /* [rows]: computed from single elements */
} sums_job;

/* Sums of a part of K, rows of x from r on, rows of w from line0 on. */
static float *partial_at(const sums_job *job, int64_t part, int64_t r, int64_t line0)
{
    const int64_t groups = qn_ceil_div(job->rows, job->way->wide), group = part * groups + r / job->way->wide;
    return job->partial + (group * job->l.lines + line0) * QN_VQ_LINE * job->way->wide;
}

static void scale_task(void *user, int64_t r, int32_t thread)
{
    (void)thread;
    const sums_job *job = user;
    const sums_layout *l = &job->l;
    const float *const norms = (const float *)(const void *)(job->body + l->norms);
    const qn_vq_sums_row row = {.x = job->side.rows + (job->m0 + r) * job->side.k_pad,
                                .k = job->side.k,
                                .groups = l->groups,
                                .slab_groups = l->slab_groups,
                                .books = l->books,
                                .vector = l->vector,
                                .longest = (const float *)(const void *)(job->body + l->longest),
                                .longest_norm = norms[0],
                                .next_norm = norms[1],
                                .least = norms[2],
                                .coarse = job->impl->coarse,
                                .scales = job->scales + r * l->slabs};
    job->special[r] = (uint8_t)job->impl->set->scale(&row);
    if (job->special[r]) { /* its sums are not used */
        memset(row.scales, 0, (size_t)l->slabs * sizeof *row.scales);
    }
}

/* Codes of slab s, rows of w from line0 on; of the last slab for those behind it. */
static const uint8_t *codes_of(const sums_job *job, int64_t s, int64_t line0)
{
    const sums_layout *l = &job->l;
    const int64_t slab = qn_min_i64(s, l->slabs - 1), before = slab * l->slab_groups * l->books * l->lines;
    return (const uint8_t *)job->body + (before + line0 * slab_lookups(l, slab)) * QN_VQ_LINE;
}

/* Rows r to r + rows - 1 of x by the codes of slab s. */
static void rows_by_slab(const sums_job *job, int64_t s, int64_t r, int64_t rows, int64_t line0, char *scratch)
{
    const sums_layout *l = &job->l;
    const int64_t lookups = slab_lookups(l, s), lines = qn_min_i64(job->task_lines, l->lines - line0);
    qn_vq_sums_call c = {.codes = codes_of(job, s, line0),
                         .next = codes_of(job, (r + rows) % job->task_rows && r + rows < job->rows ? s : s + 1, line0),
                         .lines = lines,
                         .lookups = lookups,
                         .books = l->books,
                         .vector = l->vector,
                         .blocks = qn_min_i64(2 * lines, qn_ceil_div(l->n - line0 * QN_VQ_LINE, 64)),
                         .first = s * l->slab_groups * l->books,
                         .x = job->side.rows + (job->m0 + r) * job->side.k_pad + s * l->slab_groups * l->vector,
                         .x_stride = job->side.k_pad,
                         .rows = rows,
                         .scales = job->scales + r * l->slabs + s,
                         .scale_stride = l->slabs,
                         .book = (const float *)(const void *)(job->body + l->book),
                         .tables = scratch,
                         .totals = (int32_t *)(void *)(scratch + job->at.totals),
                         .sums = partial_at(job, s / SLABS_PART, r, line0),
                         .sums_stride = l->lines * QN_VQ_LINE};
    (*job->way->run)(&c);
}

static void part_task(void *user, int64_t index, int32_t thread)
{
    const sums_job *job = user;
    const sums_layout *l = &job->l;
    const int64_t across = qn_ceil_div(l->lines, job->task_lines), line0 = index % across * job->task_lines;
    const int64_t part = index / across % l->parts, first = index / across / l->parts * job->task_rows;
    const int64_t last = qn_min_i64(job->rows, first + job->task_rows), side = job->way->wide;
    const int64_t lines = qn_min_i64(job->task_lines, l->lines - line0);
    char *const scratch = job->workspace + job->at.scratch + (size_t)thread * job->at.thread;
    for (int64_t r = first; r < last; r += side) {
        memset(partial_at(job, part, r, line0), 0, (size_t)(lines * QN_VQ_LINE * side) * sizeof(float));
    }
    for (int64_t s = part * SLABS_PART; s < qn_min_i64(l->slabs, (part + 1) * SLABS_PART); s++) {
        for (int64_t r = first; r < last; r += job->way->rows) {
            rows_by_slab(job, s, r, qn_min_i64(job->way->rows, last - r), line0, scratch);
        }
    }
}

/* A row that fits no integers. */
static void special_row(const sums_job *job, int64_t r, int64_t n0, int64_t count)
{
    const sums_layout *l = &job->l;
    const float *const x = job->side.rows + (job->m0 + r) * job->side.k_pad;
    const float *const book = (const float *)(const void *)(job->body + l->book);
    if (qn_vq_side_put_nan(&job->side, job->m0 + r, n0, count)) {
        return;
    }
    for (int64_t n = n0; n < n0 + count; n++) {
        double sum = 0.0;
        for (int64_t i = 0; i < l->groups * l->vector; i++) {
            const int64_t g = i / l->vector, j = i % l->vector;
            double w = 0.0; /* one weight, so that an infinity meets one sign */
            for (int64_t c = 0; c < l->books; c++) {
                const uint8_t code = (uint8_t)job->body[code_at(l, n, g, c)];
                w += (double)book[(c * l->vector + j) * QN_VQ_TABLE_ENTRIES + code];
            }
            sum += w * (double)x[i];
        }
        job->side.sums[(job->m0 + r) * job->side.n + n] = (float)sum;
    }
}

/* Parts of some rows of x beside each other, columns n0 to n0 + count - 1: added in order, put into rows. */
static void add_parts(const sums_job *job, int64_t r, int64_t n0, int64_t count)
{
    const int64_t side = job->way->wide, rows = qn_min_i64(side, job->rows - r);
    for (int64_t n = n0; n < n0 + count; n += ADD_STEP) {
        const int64_t some = qn_min_i64(ADD_STEP, n0 + count - n);
        float sums[ADD_STEP * QN_VQ_MANY_ROWS] = {0};
        for (int64_t p = 0; p < job->l.parts; p++) {
            const float *const from = partial_at(job, p, r, 0) + n * side;
            for (int64_t i = 0; i < some * side; i++) {
                sums[i] += from[i];
            }
        }
        for (int64_t i = 0; i < rows; i++) {
            float *const to = job->side.sums + (job->m0 + r + i) * job->side.n + n;
            for (int64_t j = 0; j < some; j++) {
                to[j] = sums[j * side + i];
            }
        }
    }
}

static void add_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const sums_job *job = user;
    const int64_t pieces = qn_ceil_div(job->side.n, ADD_COLUMNS), first = index / pieces * job->way->wide;
    const int64_t n0 = index % pieces * ADD_COLUMNS, count = qn_min_i64(ADD_COLUMNS, job->side.n - n0);
    add_parts(job, first, n0, count);
    for (int64_t r = first; r < qn_min_i64(job->rows, first + job->way->wide); r++) {
        if (job->special[r]) {
            special_row(job, r, n0, count);
        }
    }
}

/* Lines of w of a task, of which there are `beside` otherwise: what ends first, where each makes its tables. */
static int64_t lines_of_task(const sums_job *job, int64_t beside, int32_t threads)
{
    const int64_t all = job->l.lines, fewest = qn_ceil_div(all, LINES_TASK);
    const int64_t most = qn_max_i64(fewest, qn_min_i64(all, TASKS_THREAD * threads / qn_max_i64(1, beside)));
    int64_t best = 1;
    double least = HUGE_VAL;
    for (int64_t pieces = fewest; pieces <= most; pieces++) {
        const int64_t lines = qn_ceil_div(all, pieces), rounds = qn_ceil_div(beside * qn_ceil_div(all, lines), threads);
        const double time = (double)rounds * (table_cost(&job->l, job->way, job->coarse) +
                                              row_cost(&job->l, job->way) * (double)(lines * QN_VQ_LINE));
        if (time < least) {
            least = time;
            best = lines;
        }
    }
    return best;
}

void qn_vq_sums_run(const qn_kernel *kernel, const qn_run_call *call)
{
    sums_job job = {.impl = kernel->impl, .workspace = call->workspace, .body = call->packed};
    qn_vq vq;
    qn_vq_bind(call->desc, call->args, &vq);
    if (call->sizes.m == 0 || vq.n == 0) {
        return;
    }
    job.l = layout_of(call->desc, &vq);
    job.at = memory_of(call->desc, &vq, call->sizes.m, qn_exec_threads(call->exec));
    job.partial = (float *)(void *)(job.workspace + job.at.partial);
    job.scales = (qn_vq_sums_scale *)(void *)(job.workspace + job.at.scales);
    job.special = (uint8_t *)job.workspace + job.at.special;
    if (!job.body) {
        pack_body(&job.l, &vq, &call->args->in[QN_VQMM_BIAS], job.workspace + job.at.body);
        job.body = job.workspace + job.at.body;
    }
    qn_vq_side_bind(call, &vq, job.impl->parts, job.body + job.l.side_at, job.workspace, &job.side);
    qn_vq_side_prepare(&job.side, call->exec);
    const int32_t threads = qn_exec_threads(call->exec);
    const int64_t round = round_of(&job.l, threads);
    for (; job.m0 < job.side.m; job.m0 += round) {
        job.rows = qn_min_i64(round, job.side.m - job.m0);
        qn_parallel_for(job.rows == 1 ? NULL : call->exec, job.rows, scale_task, &job);
        job.coarse = 1;
        for (int64_t r = 0; r < job.rows; r++) {
            job.coarse &= job.scales[r * job.l.slabs].coarse;
        }
        job.way = way_of(call->state, &job.l, job.rows, job.coarse);
        const int64_t calls = qn_ceil_div(job.rows, job.way->rows);
        job.task_rows = qn_ceil_div(calls, qn_min_i64(calls, row_tasks_of(&job.l, threads))) * job.way->rows;
        const int64_t beside = qn_ceil_div(job.rows, job.task_rows) * job.l.parts;
        job.task_lines = lines_of_task(&job, beside, threads);
        qn_parallel_for(call->exec, beside * qn_ceil_div(job.l.lines, job.task_lines), part_task, &job);
        qn_parallel_for(call->exec, qn_ceil_div(job.rows, job.way->wide) * qn_ceil_div(job.side.n, ADD_COLUMNS),
                        add_task, &job);
    }
    qn_vq_side_finish(&job.side, call->exec);
}
