/* The cost model and the choice it makes. See generator.h and docs/vq.md.
 *
 * A prediction is the longest of what can overlap, and what cannot on top:
 *
 *     us = the longest of memory, lookups, instructions, multiply-adds, a share of the second longest,
 *          + fill + reduction + launches */
#include "vq/generator.h"

#include <math.h>
#include <string.h>

#define OVERLAP 0.35    /* measured on an H200, docs/vq.md */
#define MEETING 1.3     /* a trip through shared memory makes a warp's lanes wait for one another */
#define FAR 2.0         /* passes of 64 rows whose entries come from L2, for one of those */
#define SIDE_CLOCKS 1.7 /* a lookup for eight rows of x on a core of 256 bits; of one row it is 1 */
#define SLICED 1.15     /* accesses of a slice for one, where most lanes have codes of other slices */

enum {
    TOKENS = 8,             /* columns of a matrix instruction */
    MOST_TOKENS = 64,       /* rows of x that share a decoded vector */
    WIDE_FROM = 32,         /* and more than so many do on warpgroups */
    BLOCK_ROWS = 256,       /* rows of w a block keeps sums of */
    SUMS_CODES = 128,       /* codes along K whose tables a block keeps */
    EXCHANGE_CLUSTER = 8,   /* blocks that exchange tables, and vectors of x of a pass, */
    EXCHANGE_ROWS = 28672,  /* most rows of w whose sums their registers hold */
    SUMS_CLUSTER = 8,       /* blocks that take slabs of so many in turn */
    SUMS_ROWS = 2,          /* of x, one after the other, on a GPU */
    REGISTER_ENTRIES = 32,  /* one a lane */
    BOOKS_ROWS = 2,         /* of x whose clusters share books and K in one launch */
    ALONG_COPIES = 8,       /* most copies of entries along N, */
    ALONG_ROWS = 4,         /* rows of x that look them up together */
    DENSE_OPS = 110,        /* instructions that write a vector out, beside its elements'; */
    DENSE_OPS_ALONG_N = 70, /* an element's where each of a vector is of another row, */
    DENSE_OPS_WHOLE = 20    /* and where entries are loaded whole: vectors of 8 and of 16 */
};

/* Share of the multiprocessors that clusters of eight fill, and microseconds: a pass's meetings, and what is in front
 * of the first and behind the last. */
#define EXCHANGE_SHARE 0.92
#define EXCHANGE_MEETINGS 1.0
#define EXCHANGE_ENDS 6.0
/* What a byte of codes, which come from memory 16 a row, costs beside a byte of a table. */
#define EXCHANGE_CODES 3.0

/* Microseconds of x in the operands' places, before the first product, and of the sums' way behind the last; the share
 * of the L2 cache's rate at which entries come from it. */
#define ALONG_US 2.5
#define ALONG_FAR 0.6
/* Microseconds of making tables once, of a round of slabs in turn, in which nobody looks up until all tables are made,
 * and of adding parts in a launch of its own; share of a launch: one is enough. */
#define SUMS_ROUND 1.2
#define SUMS_TURN 2.2
#define SUMS_ADDED 2.5
#define SUMS_LAUNCH 0.68
/* us of weights that are written out, beside two launches: the one does not begin before the other has ended. */
#define DENSE_ENDS 6.0

static double max2(double a, double b)
{
    return a > b ? a : b;
}

static double min2(double a, double b)
{
    return a < b ? a : b;
}

/* ---- conflicts ---- */

double qn_vq_conflicts(const qn_vq_device *device, int32_t entry_bytes, int32_t copies)
{
    if (device->cpu) {
        return 1.0; /* loads of an L1 cache are one at a time anyway */
    }
    /* Bank groups as wide as an entry; as many lanes are served at once. */
    const int32_t width = entry_bytes < device->bank_bytes ? device->bank_bytes : entry_bytes;
    const int32_t slots =
        width < 16 ? device->banks * device->bank_bytes / width : device->banks * device->bank_bytes / 16;
    const int32_t sharing = slots / (copies > 0 ? copies : 1); /* lanes on the groups of one copy */
    /* Expected maximum of s balls in s bins, s = 2, 4, 8, 16, 32. */
    static const double expected[] = {1.0, 1.5, 2.13, 2.6, 3.08, 3.53};
    int32_t i = 0;
    while (i < 5 && 1 << i < sharing) {
        i++;
    }
    return expected[i];
}

/* Accesses of a warp's lookup when none conflict. */
static double accesses(const qn_vq_device *device, int32_t entry_bytes)
{
    if (device->cpu) { /* two loads a clock; where tables do not fit registers a code is an address, one a clock */
        return (double)device->lanes / (device->tensor > 0.0 ? 2.0 : 1.0) * ceil((double)entry_bytes / 64.0);
    }
    const double bytes = entry_bytes < device->bank_bytes ? device->bank_bytes : entry_bytes;
    return ceil(bytes * device->lanes / (device->banks * device->bank_bytes));
}

/* ---- sizes ---- */

static double weights_of(const qn_vq_problem *p)
{
    return p->use == QN_VQ_USE_ATTENTION ? 2.0 * (double)p->m * (double)p->n * (double)p->k * p->kv_heads
                                         : (double)p->n * (double)p->k;
}

static double sets_of(const qn_vq_problem *p)
{
    if (p->scope == QN_VQ_SCOPE_TILE) {
        return ceil((double)p->n / (double)p->scope_rows) * ceil((double)p->k / (double)p->scope_columns);
    }
    return p->scope == QN_VQ_SCOPE_CHANNELS ? 2.0 * p->kv_heads * ceil((double)p->k / p->vector) : 1.0;
}

static double set_bytes(const qn_vq_problem *p)
{
    const int shared = p->scope == QN_VQ_SCOPE_MODEL && p->element_bytes == 1; /* a table of points for all parts */
    return (double)(shared ? 1 : p->books) * p->entries * p->entry_bytes;
}

static double books_bytes(const qn_vq_problem *p)
{
    return p->scope == QN_VQ_SCOPE_MODEL ? 0.0 : sets_of(p) * set_bytes(p);
}

/* Bytes of tables that a block works with at a time: a head's sets for channels. */
static double working_set(const qn_vq_problem *p)
{
    return p->scope == QN_VQ_SCOPE_CHANNELS ? ceil((double)p->k / p->vector) * set_bytes(p) : set_bytes(p);
}

/* Rows that one decoding serves: rows of x, or the queries on a head of keys. */
static double rows_of(const qn_vq_problem *p)
{
    return p->use == QN_VQ_USE_ATTENTION ? (double)(p->heads / (p->kv_heads > 0 ? p->kv_heads : 1)) : (double)p->m;
}

static double memory_bytes(const qn_vq_problem *p)
{
    const double codes = weights_of(p) / p->vector * p->books * p->stored_bits / 8.0;
    const double io = p->use == QN_VQ_USE_ATTENTION ? 8.0 * (double)p->m * p->heads * (double)p->k
                                                    : 2.0 * (double)p->m * (double)(p->k + p->n);
    return codes + books_bytes(p) + io;
}

/* ---- one candidate ---- */

/* Share of accesses that the most frequent `count` of `all` entries serve, between an even distribution and the
 * measured one: a quarter serves `hot`. A power law through that point. */
static double served(const qn_vq_problem *p, double count, double all)
{
    const double hot = p->hot > 0.0 ? p->hot : 0.45;
    return count >= all ? 1.0 : count <= 0.0 ? 0.0 : pow(count / all, log(hot) / log(0.25));
}

static void place_entries(const qn_vq_problem *p, const qn_vq_device *d, qn_vq_choice *c)
{
    const double set = working_set(p);
    const int32_t slots = d->cpu ? 1 : p->entry_bytes >= 16 ? 8 : d->banks * d->bank_bytes / p->entry_bytes;
    c->copies = 1;
    c->global_entries = p->entries;
    if (c->level == QN_VQ_LEVEL_GC || (!d->cpu && p->use == QN_VQ_USE_MM && c->form == QN_VQ_FORM_DIRECT)) {
        return;
    }
    /* A third of the room stays for what the rest of the kernel keeps there. */
    const double slack = c->level == QN_VQ_LEVEL_SC ? d->shared_bytes : 0.9 * d->shared_bytes;
    const double share = set <= slack ? 1.0 : slack / set;
    c->shared_entries = (int32_t)floor(p->entries * share);
    if (c->level >= QN_VQ_LEVEL_O1 && share == 1.0) {
        while (c->copies * 2 <= slots && set * c->copies * 2 <= 0.6 * slack) {
            c->copies *= 2;
        }
    }
    /* A shuffle a lookup: the highest rung keeps registers only where they serve many. */
    const double served_by_registers = served(p, REGISTER_ENTRIES, p->entries);
    if (c->level >= QN_VQ_LEVEL_O2 && share < 1.0 && p->entries > REGISTER_ENTRIES &&
        (d->cpu || c->level < QN_VQ_LEVEL_O4 || served_by_registers > 0.1)) {
        c->register_entries = REGISTER_ENTRIES;
    }
    c->global_entries = p->entries - c->shared_entries;
    c->shared_bytes = (int32_t)min2(set * share * c->copies, d->shared_bytes);
}

/* The highest rung's dataflow for a book that shared memory does not hold: a slice of it a block, which passes over the
 * other slices' codes. */
static void slice_entries(const qn_vq_problem *p, const qn_vq_device *d, qn_vq_choice *c)
{
    const int32_t slices = (int32_t)ceil(set_bytes(p) / d->shared_bytes);
    if (d->cpu || p->use != QN_VQ_USE_MM || c->form != QN_VQ_FORM_TENSOR || c->level != QN_VQ_LEVEL_O4 ||
        p->scope != QN_VQ_SCOPE_TENSOR || p->books != 1 || p->entry_bytes != 16 || slices < 2 ||
        slices > QN_VQ_MOST_SLICES || rows_of(p) > QN_VQ_SLICED_ROWS) {
        return;
    }
    c->slices = slices;
    c->copies = 1;
    c->register_entries = c->global_entries = 0;
    c->shared_entries = (p->entries + slices - 1) / slices;
    c->shared_bytes = c->shared_entries * p->entry_bytes;
}

/* Threads that may be resident against what hides latency well: half of a unit's room is enough for one block. */
static double occupancy_of(const qn_vq_device *d, int32_t shared_bytes)
{
    const double blocks = shared_bytes > 0 ? floor((double)d->shared_bytes / shared_bytes) : 4.0;
    return min2(1.0, 0.25 * max2(1.0, blocks));
}

static double clocks_to_us(const qn_vq_device *d, double clocks)
{
    return clocks / (d->units * d->clock * 1e3);
}

/* Parts of the reduced axis so that all units have work, and its cost. */
static void split_work(const qn_vq_problem *p, const qn_vq_device *d, double tiles, qn_vq_choice *c)
{
    c->split = 1;
    if (d->cpu || c->level < QN_VQ_LEVEL_O3) {
        return;
    }
    const int64_t most = p->use == QN_VQ_USE_ATTENTION ? (p->n + 127) / 128 : (p->k + 511) / 512;
    const double traffic = books_bytes(p), output = 4.0 * (double)p->m * (double)p->n;
    /* The paper's rule, s = sqrt(codebook traffic / output), and at least so many parts that no unit is idle. */
    double split = max2(sqrt(traffic / max2(output, 1.0)), ceil(d->units / max2(tiles, 1.0)));
    split = max2(1.0, min2(split, (double)most));
    c->split = (int32_t)split;
    if (c->split > 1) {
        const double out =
            p->use == QN_VQ_USE_ATTENTION ? (double)p->m * p->heads * (double)p->k : (double)p->m * (double)p->n;
        c->reduce_us = d->launch + 8.0 * out * c->split / (d->l2_rate * 1e3);
    }
}

/* What overlaps: the longest part, and of the second longest a share that gets in its way. */
static double together(const qn_vq_choice *c)
{
    const double parts[4] = {c->memory_us, c->lookup_us, c->issue_us, c->math_us};
    double most = 0.0, second = 0.0;
    for (int i = 0; i < 4; i++) {
        second = parts[i] > most ? most : max2(second, parts[i]);
        most = max2(most, parts[i]);
    }
    return most + OVERLAP * second;
}

/* Weights are decoded once, whatever the rows, and written; a product reads them. */
static qn_vq_choice evaluate_dense(const qn_vq_problem *p, const qn_vq_device *d)
{
    qn_vq_choice c = {
        .level = QN_VQ_LEVEL_O4, .form = QN_VQ_FORM_DENSE, .copies = 1, .split = 1, .slices = 1, .conflicts = 1.0};
    const double weights = weights_of(p), vectors = weights / p->vector, rows = rows_of(p);
    const int whole = !p->along_n || p->vector == 8 || p->vector == 16;
    const double per_vector =
        p->along_n ? (whole ? DENSE_OPS_WHOLE : DENSE_OPS_ALONG_N) * p->vector : DENSE_OPS + p->decode_ops + p->vector;
    const double read = (memory_bytes(p) - 2.0 * rows * (double)(p->k + p->n)) / (d->read_rate * 1e3);
    c.global_entries = p->entries;
    c.row_tile = (int32_t)rows;
    c.bytes = memory_bytes(p) + 4.0 * weights;
    c.lookups = vectors * p->books * (whole ? 1 : p->vector);
    c.occupancy = 1.0;
    c.memory_us = 2.0 * (weights + rows * (double)(p->k + p->n)) / (d->read_rate * 1e3);
    c.math_us = clocks_to_us(d, weights * ceil(rows / 8.0) * 8.0 / d->dense);
    /* a sector of L2 a lookup, or 16 bytes of a line of L1 a lane; along N neighbours read the same lines */
    c.lookup_us = working_set(p) > 64 << 10 ? c.lookups * 32.0 / (d->l2_rate * 1e3)
                  : p->along_n              ? 0.0
                                            : clocks_to_us(d, c.lookups * ceil(p->entry_bytes / 16.0));
    c.issue_us = clocks_to_us(d, vectors / d->lanes * per_vector / d->issue) / d->issue_share;
    /* in front: decoding (L2 takes what is written after what is looked up), and rows of x as f16 */
    c.fill_us = max2(c.lookup_us + read + 2.0 * weights / (d->write_rate * 1e3), c.issue_us) + d->launch + DENSE_ENDS +
                2.0 * rows * (double)p->k / (d->l2_rate * 1e3);
    c.us = max2(c.memory_us, c.math_us) + c.fill_us + d->launch;
    return c;
}

int qn_vq_may_write_out(const qn_vq_problem *p)
{
    const double most = QN_VQ_WRITTEN_FEW;
    return rows_of(p) > (p->direct_only || weights_of(p) <= most ? TOKENS : QN_VQ_PLENTY_ROWS);
}

/* Partial sums of a book that shared memory does not hold: a cluster makes the tables of eight vectors at a time, one a
 * block, and exchanges them, and codes too. */
static int exchange_possible(const qn_vq_problem *p, const qn_vq_device *d)
{
    return d->exchange > 0.0 && p->use == QN_VQ_USE_MM && p->scope == QN_VQ_SCOPE_TENSOR && !p->along_n &&
           !p->direct_only && p->books == 1 && p->bits > 12 && p->stored_bits == 16 && rows_of(p) <= 1.0 && p->n > 0 &&
           (p->vector == 8 || p->vector == 16) && p->k > 0 && p->k % (p->vector * EXCHANGE_CLUSTER) == 0;
}

static qn_vq_choice evaluate_exchange(const qn_vq_problem *p, const qn_vq_device *d)
{
    qn_vq_choice c = {.level = QN_VQ_LEVEL_O4,
                      .form = QN_VQ_FORM_SUMS,
                      .copies = 1,
                      .slices = EXCHANGE_CLUSTER,
                      .row_tile = 1,
                      .shared_entries = p->entries,
                      .shared_bytes = 2 * p->entries,
                      .occupancy = 0.25};
    const double ranges = ceil((double)p->n / EXCHANGE_ROWS), rows = (double)p->n / ranges;
    const double clusters = max2(1.0, floor(floor(d->units * EXCHANGE_SHARE / EXCHANGE_CLUSTER) / ranges));
    const double all = (double)p->k / (p->vector * EXCHANGE_CLUSTER), passes = ceil(all / clusters);
    c.split = (int32_t)min2(all, clusters);
    c.bytes = memory_bytes(p);
    c.lookups = weights_of(p) / p->vector;
    c.conflicts = qn_vq_conflicts(d, d->bank_bytes, 1);
    c.memory_us = c.bytes / (d->read_rate * 1e3);
    c.lookup_us = passes * rows / d->lanes * c.conflicts / (d->clock * 1e3) / d->lookup_share;
    const double bytes = 2.0 * ((double)p->entries + EXCHANGE_CODES * rows);
    c.fill_us = passes * (bytes / d->exchange / (d->clock * 1e3) + EXCHANGE_MEETINGS);
    c.reduce_us = EXCHANGE_ENDS;
    c.us = max2(c.memory_us, c.lookup_us + c.fill_us) + c.reduce_us + SUMS_LAUNCH * d->launch;
    return c;
}

/* Few rows of x by vectors along N: entries are rows of matrix loads, in as many copies as there is room for beside x,
 * once as floats and once as operands; a first book that has none is read from the L2 cache, in sectors. */
static qn_vq_choice evaluate_along(const qn_vq_problem *p, const qn_vq_device *d)
{
    qn_vq_choice c = {.level = QN_VQ_LEVEL_O4,
                      .form = QN_VQ_FORM_TENSOR,
                      .fusion = QN_VQ_FUSION_PERMUTED,
                      .copies = ALONG_COPIES,
                      .split = 1,
                      .slices = 1,
                      .row_tile = (int32_t)min2(rows_of(p), ALONG_ROWS),
                      .occupancy = 0.25};
    const double first = (double)p->entries * p->entry_bytes, room = d->shared_bytes - 8.0 * (double)p->k;
    const double second = p->books > 1 ? exp2((double)(p->books * p->stored_bits - p->bits)) * p->entry_bytes : 0.0;
    const double passes = ceil(rows_of(p) / ALONG_ROWS), vectors = weights_of(p) / p->vector;
    const int far = first + second > room;
    while (c.copies > 1 && ((far ? 0.0 : first) + second) * c.copies > room) {
        c.copies /= 2;
    }
    c.shared_entries = far ? 0 : p->entries;
    c.global_entries = far ? p->entries : 0;
    c.shared_bytes = (int32_t)(((far ? 0.0 : first) + second) * c.copies);
    c.bytes = memory_bytes(p);
    c.lookups = vectors * p->books * passes;
    c.conflicts = qn_vq_conflicts(d, p->entry_bytes, c.copies);
    const double each = accesses(d, p->entry_bytes) * c.conflicts, busy = min2(1.0, (double)p->n / 16.0 / d->units);
    const double of_first = far ? 2.0 * accesses(d, p->entry_bytes) : each;
    const double all = of_first + (p->books > 1 ? each : 0.0) + 1.0;
    const double sectors = far ? vectors * passes * 32.0 / (d->l2_rate * 1e3 * ALONG_FAR) : 0.0;
    c.memory_us = c.bytes / (d->read_rate * 1e3);
    c.lookup_us = max2(clocks_to_us(d, vectors * passes / d->lanes * all / busy) / d->lookup_share, sectors);
    c.issue_us = clocks_to_us(d, vectors * passes / d->lanes * 6.0 * p->books / d->issue / busy) / d->issue_share;
    c.fill_us = ALONG_US;
    c.us = together(&c) + c.fill_us + d->launch / 2.0;
    return c;
}

static qn_vq_choice evaluate(const qn_vq_problem *p, const qn_vq_device *d, qn_vq_level level, qn_vq_form form)
{
    qn_vq_choice c = {.level = level, .form = form, .copies = 1, .split = 1, .slices = 1, .conflicts = 1.0};
    const double weights = weights_of(p), rows = rows_of(p), vectors = weights / p->vector;
    /* many rows on warpgroups, where nothing less is asked for */
    const int wide = form == QN_VQ_FORM_TENSOR && p->use == QN_VQ_USE_MM && p->level == QN_VQ_LEVEL_AUTO &&
                     level == QN_VQ_LEVEL_O4 && rows > WIDE_FROM && d->wide > 0.0 &&
                     working_set(p) <= 0.6 * d->shared_bytes;
    const double tokens = wide                        ? (rows > 128.0         ? 256.0
                                                         : rows > MOST_TOKENS ? 128.0
                                                                              : MOST_TOKENS)
                          : form == QN_VQ_FORM_TENSOR ? (rows > TOKENS ? MOST_TOKENS : TOKENS)
                          : form == QN_VQ_FORM_SUMS   ? 1.0
                                                      : 4.0;
    const double passes = ceil(max2(rows, 1.0) / tokens);
    c.row_tile = (int32_t)tokens;
    c.bytes = memory_bytes(p);
    /* a device's direct kernel has a warp a row of w, which looks every element of it up */
    const double each = !d->cpu && form == QN_VQ_FORM_DIRECT && p->along_n ? p->vector : 1.0;
    c.lookups = vectors * each * p->books * passes;
    c.memory_us = c.bytes / (d->read_rate * 1e3);
    double units_busy = 1.0;
    if (form == QN_VQ_FORM_SUMS) {
        /* 4 bytes an entry, one vector of x a lane: no conflicts; a block keeps the tables of SUMS_CODES codes. */
        const double slabs = ceil((double)p->k / p->vector * p->books / SUMS_CODES);
        const double rounds = ceil(slabs / SUMS_CLUSTER);
        const double table = (double)p->books * p->entries * (double)p->k * rows;
        c.shared_entries = p->entries;
        c.shared_bytes = d->cpu ? 0 : SUMS_CODES * p->entries * 4;
        c.split = (int32_t)max2(slabs, 1.0);
        c.lookup_us = clocks_to_us(d, c.lookups / d->lanes * (d->cpu ? 6.0 / d->issue : 1.6));
        c.issue_us = clocks_to_us(d, c.lookups / d->lanes * 5.3 / d->issue);
        if (d->cpu && !(d->tensor > 0.0)) { /* a load and an addition a code, of one row of x or of eight */
            const double codes = vectors * p->books, eights = ceil(rows / 8.0);
            const int one = rows <= eights * SIDE_CLOCKS;
            c.row_tile = one ? 1 : 8;
            c.lookup_us = clocks_to_us(d, codes * (one ? rows : eights * SIDE_CLOCKS));
            c.issue_us = clocks_to_us(d, codes * 2.0 * (one ? rows : eights) / d->issue);
        }
        /* Blocks of a cluster take slabs in turn, or every slab has blocks of its own and its parts are added. */
        const double in_turn = SUMS_ROUND * rounds, added = SUMS_ROUND + SUMS_ADDED;
        c.fill_us = d->cpu                                  ? clocks_to_us(d, table / d->fma)
                    : qn_vq_sums_in_turn(p->n, p->k, slabs) ? in_turn * passes
                                                            : SUMS_ROUND * passes;
        c.reduce_us = d->cpu || qn_vq_sums_in_turn(p->n, p->k, slabs) ? 0.0 : (added - SUMS_ROUND) * passes;
        c.occupancy = d->cpu ? 1.0 : occupancy_of(d, c.shared_bytes);
        c.us = (d->cpu ? max2(c.memory_us, c.lookup_us) : together(&c)) + c.fill_us + c.reduce_us +
               (d->cpu ? d->launch : SUMS_LAUNCH * d->launch);
        return c;
    }
    place_entries(p, d, &c);
    slice_entries(p, d, &c);
    c.fusion = form == QN_VQ_FORM_DIRECT ? QN_VQ_FUSION_NONE
               : level >= QN_VQ_LEVEL_O4 ? QN_VQ_FUSION_PERMUTED
                                         : QN_VQ_FUSION_SHARED;
    const double tries = c.slices; /* of a lookup, one of which finds its entry */
    const double in_shared = c.slices > 1 ? 1.0 : served(p, c.shared_entries, p->entries), in_global = 1.0 - in_shared;
    c.conflicts = c.slices > 1 ? SLICED : c.shared_entries ? qn_vq_conflicts(d, p->entry_bytes, c.copies) : 1.0;
    double access = in_shared * tries * accesses(d, p->entry_bytes) * c.conflicts;
    /* Global entries: L1 where the set fits beside the rest, else a sector of 32 bytes from L2 each. */
    const int in_l1 = working_set(p) <= 64 << 10;
    const double far = rows > MOST_TOKENS && form == QN_VQ_FORM_TENSOR ? FAR : 1.0;
    const double sector_us = in_l1 ? 0.0 : far * c.lookups * in_global * 32.0 / (d->l2_rate * 1e3);
    access += in_global * (d->cpu ? accesses(d, p->entry_bytes) * (working_set(p) > (double)d->shared_bytes ? 3.0 : 1.0)
                                  : (in_l1 ? 16.0 : 32.0));
    if (c.fusion == QN_VQ_FUSION_SHARED) { /* decoded values are written and read again */
        access = (access + 2.0 * accesses(d, p->vector * 2) / p->books) * MEETING;
    }
    const double tiles = p->use == QN_VQ_USE_ATTENTION ? (double)p->m * p->kv_heads : ceil((double)p->n / BLOCK_ROWS);
    const int filled = wide && tiles * passes >= d->units; /* by tiles of w by x: those are not cut */
    if (!filled) {
        split_work(p, d, tiles, &c);
    }
    if (!d->cpu && form == QN_VQ_FORM_TENSOR && p->use == QN_VQ_USE_MM && !wide && c.split == 1) {
        c.reduce_us = d->launch; /* scales and the output's format are the second pass's too */
    }
    if (!d->cpu && !filled && (form == QN_VQ_FORM_TENSOR || p->use == QN_VQ_USE_ATTENTION)) {
        units_busy = min2(1.0, tiles * c.split / d->units); /* the direct kernel of products has a warp a row */
    }
    c.lookup_us = max2(clocks_to_us(d, c.lookups / d->lanes * access / units_busy), sector_us);
    const double product = form == QN_VQ_FORM_DIRECT ? p->vector * (1.0 + min2(rows, tokens))
                           : p->element_bytes == 1   ? 2.0
                                                     : p->vector * p->books / 2.0 + 4.0;
    const double ops = each * (p->decode_ops + 2.0 * p->books) + product;
    c.issue_us = clocks_to_us(d, tries * vectors * passes / d->lanes * ops / d->issue / units_busy);
    const double math_rows = form == QN_VQ_FORM_TENSOR ? TOKENS * ceil(max2(rows, 1.0) / TOKENS) : rows;
    const double rate = wide ? d->wide : form == QN_VQ_FORM_TENSOR ? d->tensor : d->fma;
    c.math_us =
        clocks_to_us(d, tries * weights * (wide ? ceil(rows / tokens) * tokens : math_rows) / rate / units_busy);
    c.occupancy = d->cpu ? 1.0 : occupancy_of(d, c.shared_bytes);
    if (!d->cpu && c.shared_bytes) { /* each block fills its copies, from L2, once a set it walks over */
        const double fills = p->scope == QN_VQ_SCOPE_TILE       ? sets_of(p) / d->units
                             : p->scope == QN_VQ_SCOPE_CHANNELS ? ceil(tiles * c.split / d->units) * 2.0
                                                                : 1.0;
        c.fill_us = fills * (double)c.shared_bytes / (128.0 * d->clock * 1e3) +
                    min2((double)c.shared_bytes / c.copies * d->units, 64e6) / (d->l2_rate * 1e3);
    }
    const int exact = form == QN_VQ_FORM_TENSOR && p->use == QN_VQ_USE_MM && level == QN_VQ_LEVEL_O4 && !d->cpu;
    const int points = exact && p->scope == QN_VQ_SCOPE_MODEL && p->element_bytes == 1;
    const int books = exact && p->scope == QN_VQ_SCOPE_TILE && rows <= BOOKS_ROWS && d->exchange > 0.0;
    if (books) { /* a lane of a quad has a book to itself: a quarter of the copies */
        c.fill_us /= 4.0;
    }
    const int alone = books || points; /* one launch */
    c.reduce_us = alone ? 0.0 : c.reduce_us;
    const double hidden = c.occupancy < 0.5 && level < QN_VQ_LEVEL_O3 ? 1.15 : 1.0;
    c.lookup_us /= d->lookup_share;
    c.issue_us /= d->issue_share;
    c.math_us /= form == QN_VQ_FORM_TENSOR && !wide ? d->math_share : 1.0;
    if (form == QN_VQ_FORM_TENSOR && !d->cpu && !alone) { /* a pass in front lays rows of x out */
        c.fill_us += d->launch / 2.0 + 2.0 * rows * (double)p->k / (d->l2_rate * 1e3);
    }
    c.us = together(&c) * hidden + c.fill_us + c.reduce_us + d->launch;
    return c;
}

/* ---- the choice ---- */

static int sums_possible(const qn_vq_problem *p, const qn_vq_device *d)
{
    if (p->scope != QN_VQ_SCOPE_TENSOR || p->along_n || p->bits > 8 || p->use != QN_VQ_USE_MM) {
        return 0;
    }
    const double bytes = (double)SUMS_CODES * p->entries * 4;
    const int takes = p->stored_bits == 8 && (p->books == 1 || p->books == 2 || p->books == 4) &&
                      p->vector <= (p->books == 4 ? 8 : 16); /* what vq_sums.cu does */
    return d->cpu ? p->bits == 8 : takes && rows_of(p) <= SUMS_ROWS && bytes <= d->shared_bytes;
}

int qn_vq_sums_in_turn(int64_t n, int64_t k, double slabs)
{
    /* Fewer blocks read at a time, which lookups gain by: 0.3e-8 us a weight (measured). */
    return SUMS_TURN * ceil(slabs / SUMS_CLUSTER) - SUMS_ADDED <= 0.3e-8 * (double)n * (double)k;
}

static void insert(qn_vq_choice *list, int32_t *count, const qn_vq_choice *c)
{
    int32_t i = *count;
    while (i > 0 && list[i - 1].us > c->us) {
        list[i] = list[i - 1];
        i--;
    }
    list[i] = *c;
    ++*count;
}

int32_t qn_vq_candidates(const qn_vq_problem *problem, const qn_vq_device *device,
                         qn_vq_choice candidates[QN_VQ_CANDIDATES])
{
    int32_t count = 0;
    for (int32_t level = QN_VQ_LEVEL_GC; level <= QN_VQ_LEVEL_O4; level++) {
        if (problem->level != QN_VQ_LEVEL_AUTO && problem->level != (qn_vq_level)level) {
            continue;
        }
        for (int32_t form = QN_VQ_FORM_DIRECT; form <= QN_VQ_FORM_TENSOR; form++) {
            /* a device's direct kernel of products is for what others cannot take */
            const int direct = device->cpu || problem->use == QN_VQ_USE_ATTENTION || problem->direct_only;
            const int fits =
                form == QN_VQ_FORM_DIRECT ? direct
                : form == QN_VQ_FORM_TENSOR
                    ? device->tensor > 0.0 && !problem->direct_only
                    : level == QN_VQ_LEVEL_O4 && problem->level == QN_VQ_LEVEL_AUTO && sums_possible(problem, device);
            if (fits && count < QN_VQ_CANDIDATES) {
                const qn_vq_choice c = evaluate(problem, device, (qn_vq_level)level, (qn_vq_form)form);
                insert(candidates, &count, &c);
            }
        }
        if (level == QN_VQ_LEVEL_O4 && problem->level == QN_VQ_LEVEL_AUTO && problem->turned && device->tensor > 0.0 &&
            !device->cpu && rows_of(problem) <= TOKENS && count < QN_VQ_CANDIDATES) {
            const qn_vq_choice c = evaluate_along(problem, device);
            insert(candidates, &count, &c);
        }
        if (level == QN_VQ_LEVEL_O4 && problem->level == QN_VQ_LEVEL_AUTO && exchange_possible(problem, device) &&
            count < QN_VQ_CANDIDATES) {
            const qn_vq_choice c = evaluate_exchange(problem, device);
            insert(candidates, &count, &c);
        }
        if (level == QN_VQ_LEVEL_O4 && problem->level == QN_VQ_LEVEL_AUTO && problem->use == QN_VQ_USE_MM &&
            device->dense > 0.0 && qn_vq_may_write_out(problem) && count < QN_VQ_CANDIDATES) {
            const qn_vq_choice c = evaluate_dense(problem, device);
            insert(candidates, &count, &c);
        }
    }
    return count;
}

qn_vq_choice qn_vq_choose(const qn_vq_problem *problem, const qn_vq_device *device)
{
    qn_vq_choice candidates[QN_VQ_CANDIDATES];
    (void)qn_vq_candidates(problem, device, candidates);
    return candidates[0];
}
