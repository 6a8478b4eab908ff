/* vq_mm on CUDA: what a descriptor and a device allow, what the generator (src/vq) chooses of it, and with which
 * numbers each kernel is made. */
#include "backend/cuda/vq.h"
#include "format/lattice.h"

#include <math.h>

enum {
    MOST_LANE_BYTES = 32,
    MANY_LANE_BYTES = 24,
    EXCHANGE_BYTES = 16 * 80, /* of a warp */
    SUMS_CLUSTER = 8,
    BOOKS_CLUSTER = 8, /* most blocks of vq_books.cu that share K, */
    BOOKS_HALF = 8,    /* tiles of half of a block of rows, which four teams take, */
    BOOKS_TEAMS = 4,
    BOOKS_TILE = 128,        /* and bytes of a tile's sums: two rows of x */
    BOOKS_GROUP = 32,        /* of a group of spans, what is largest */
    BOOKS_BLOCKS = 192,      /* most blocks whose parts a launch adds */
    UNPACK_RUN = 32,         /* elements that a thread of qn_vq_unpack decodes at a time, of vptq; */
    UNPACK_NEAR = 32768,     /* bytes of a book of residuals that L1 holds; */
    UNPACK_FRONT = 1024,     /* of shared memory beside what is kept */
    EXCHANGE_ROWS = 4096,    /* of w, a task of vq_exchange.cu, */
    EXCHANGE_TASKS = 7,      /* of which its registers hold so many; */
    EXCHANGE_CHUNK = 512,    /* entries of the book, */
    EXCHANGE_REGISTERS = 96, /* and of a thread what sums and entries may take, */
    EXCHANGE_KEPT = 40,      /* entries alone */
    SUMS_SLOT = 16 * 2056,   /* a batch of rows on its way to a warp of vq_sums.cu: 128 bytes each, a barrier */
    TENSORS = 4,             /* programs of vq_tensor.cu: 8, 16, 32, 64 rows */
    WIDES = 3,               /* programs of vq_wide.cu: 64, 128, 256 rows */
    WIDE_STAGES = 8,
    WIDE_FRONT = 2048, /* bytes of barriers and of alignment */
    WIDE_TABLES = 128 << 10,
    TURN_PARTS = 8,         /* blocks that a row's transform takes, */
    TURN_ALONE = 64 << 10,  /* and additions of one that a block does alone */
    WHOLE_FAST = 8,         /* vq_turn_rows.cu: least columns of a row, */
    WHOLE_BESIDE = 1 << 10, /* shared memory beside what a block asks for, */
    WHOLE_LONG = 512 << 10, /* additions of a row that is long, */
    WHOLE_ROWS = 64,        /* and rows from which on it is taken, measured on an H200; */
    WHOLE_ROWS_LONG = 128,  /* of long ones, */
    WHOLE_ROWS_PLAIN = 256, /* and of those without a base */
    SPREAD_BLOCKS = 16,     /* most that each read all of a row: as many elements a thread */
    POINTS_TABLE = 65536 + 16 * 2304,
    POINTS_WARPS = 16,
    TURNED_LENGTH = 4096,   /* of rows of x that every block of a product transforms, */
    CUT_LENGTH = 32768,     /* of rows of x that blocks of vq_points_cut.cu transform in part, */
    CUT_BESIDE = 2048,      /* shared memory that two blocks on a multiprocessor cost beside their own, */
    CUT_ALONE = 16,         /* elements of the slow axis of which a thread of one block has all, */
    CUT_COLUMN = 272 * 4,   /* bytes of a row of that axis' matrix times x, in each of four groups, */
    CUT_STEP = 1024,        /* multiples of this */
    ALONG_ENTRY = 16,       /* bytes; */
    ALONG_COPIES = 8,       /* as many as lanes that are served together; */
    ALONG_BESIDE = 1024,    /* what vq_along.cu has beside its tables */
    FUSED_LENGTH = 4096,    /* of rows that blocks of a product transform, */
    FUSED_WEIGHTS = 3 << 20 /* and weights that one cluster reads */
};

int qn_cuda_vq_tensor_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    if (vq->k == 0 || vq->n == 0 || vq->k % 64 || vq->format == QN_VQ_VPTQ) {
        return 0;
    }
    if (vq->format != QN_VQ_AQLM) {
        return 1;
    }
    const int64_t v = vq->in_group;
    if (vq->out_group != 1 || v < 2 || v > 32 || (v & (v - 1)) || vq->codebooks > 8 ||
        qn_cuda_vq_tensor(desc, QN_VQ_CODEBOOKS)->format != QN_F16 ||
        64 / v * vq->codebooks * qn_cuda_vq_stored_bits(desc, vq) % 32) {
        return 0;
    }
    return qn_cuda_vq_lane_bytes(desc, vq) <= MOST_LANE_BYTES;
}

int qn_cuda_vq_sums_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    const int64_t c = vq->codebooks;
    return vq->format == QN_VQ_AQLM && vq->bits == 8 && qn_cuda_vq_stored_bits(desc, vq) == 8 && vq->out_group == 1 &&
           (c == 1 || c == 2 || c == 4) && vq->in_group <= (c == 4 ? 8 : 16) && vq->k > 0 && vq->n > 0 &&
           vq->k / vq->in_group * c % 4 == 0;
}

qn_cuda_vq_sums_cut qn_cuda_vq_sums_cut_of(const qn_vq *vq, const qn_cuda_device *device)
{
    const int64_t slabs = qn_cuda_vq_slabs(vq);
    const int together = device->major >= 9 && qn_vq_sums_in_turn(vq->n, vq->k, (double)slabs);
    qn_cuda_vq_sums_cut c = {.cluster = together ? (int32_t)qn_min_i64(slabs, SUMS_CLUSTER) : 1};
    /* Codes of the slab after come while the last rows are looked up; with one slab more on their way take longer. */
    c.slots = c.cluster > 1 && slabs > c.cluster ? 2 : 1;
    c.shared_bytes = QN_VQ_SUMS_SHARED + c.slots * SUMS_SLOT;
    const int64_t batches = qn_ceil_div(vq->n, QN_CUDA_VQ_SUMS_ROWS);
    if (c.cluster > 1) {
        c.parts = (int32_t)qn_max_i64(1, qn_min_i64(device->sms / c.cluster, batches));
        /* twice the rows of a group: the device may run fewer clusters than there is room for by number */
        const int64_t group = qn_ceil_div(batches, qn_max_i64(1, c.parts / 2));
        const int64_t bytes = c.shared_bytes + 16 + (2 * group + c.cluster) * QN_CUDA_VQ_SUMS_ROWS * 4;
        if (bytes <= device->shared_bytes) {
            c.shared_bytes = (int32_t)bytes;
            return c;
        }
        c.cluster = 1;
        c.slots = 1;
        c.shared_bytes = QN_VQ_SUMS_SHARED + SUMS_SLOT;
    }
    c.parts = (int32_t)qn_max_i64(1, qn_min_i64(device->sms / slabs, batches));
    return c;
}

/* The generator's problem for that many rows. */
static qn_vq_problem problem_for(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    const qn_sizes sizes = {.m = m, .n = vq->n, .k = vq->k};
    qn_vq_problem problem;
    (void)qn_vq_problem_of(desc, &sizes, &problem);
    return problem;
}

int qn_cuda_vq_sums_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int64_t rows)
{
    if (desc->attr[QN_ATTR_LEVEL].i != QN_VQ_LEVEL_AUTO || !qn_cuda_vq_sums_possible(desc, vq) ||
        device->shared_bytes < qn_cuda_vq_sums_cut_of(vq, device).shared_bytes) {
        return 0;
    }
    qn_vq_device d;
    const qn_vq_problem problem = problem_for(desc, vq, rows);
    qn_cuda_vq_device(device, &d);
    return qn_vq_choose(&problem, &d).form == QN_VQ_FORM_SUMS || !qn_cuda_vq_tensor_possible(desc, vq);
}

int qn_cuda_vq_exchange_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    if (device->target != QN_SM_90A || vq->format != QN_VQ_AQLM || !qn_cuda_vq_tensor_possible(desc, vq)) {
        return 0;
    }
    qn_vq_device d;
    const qn_vq_problem problem = problem_for(desc, vq, 1);
    qn_cuda_vq_device(device, &d);
    const qn_vq_choice c = qn_vq_choose(&problem, &d);
    return c.form == QN_VQ_FORM_SUMS && c.slices > 1 &&
           qn_cuda_vq_exchange_cut_of(vq, device).shared_bytes <= device->shared_bytes;
}

qn_cuda_vq_exchange_cut qn_cuda_vq_exchange_cut_of(const qn_vq *vq, const qn_cuda_device *device)
{
    const int64_t table = INT64_C(2) << vq->bits;
    qn_cuda_vq_exchange_cut c;
    c.ranges = (int32_t)qn_ceil_div(vq->n, EXCHANGE_ROWS * EXCHANGE_TASKS);
    c.tasks = (int32_t)qn_ceil_div(qn_ceil_div(vq->n, c.ranges), EXCHANGE_ROWS);
    const int64_t rows = (int64_t)c.tasks * EXCHANGE_ROWS;
    /* the table, whose room sums take at the end; codes; what warps tell of the book; a barrier */
    const int64_t front = qn_max_i64(table, rows * 4) + rows * 2 + QN_CUDA_VQ_EXCHANGE_CLUSTER * 16 * 4 + 16;
    const int64_t chunk = EXCHANGE_CHUNK * vq->in_group * 2, staged = rows / 64 * 16;
    const int64_t chunks = (INT64_C(1) << vq->bits) / QN_CUDA_VQ_EXCHANGE_CLUSTER / EXCHANGE_CHUNK;
    const int64_t room = qn_max_i64(0, device->shared_bytes - front);
    c.staged = (int32_t)qn_min_i64(8, room / staged);
    c.in_shared = (int32_t)qn_min_i64(chunks, (room - c.staged * staged) / chunk);
    /* of sums, of codes that have no room, and of an entry's words twice: beyond that registers spill */
    const int64_t words = vq->in_group / 8;
    const int64_t taken = 8 * c.tasks + 4 * (8 - c.staged) + 8 * (words - 1);
    const int64_t registers = qn_min_i64(EXCHANGE_KEPT, EXCHANGE_REGISTERS - taken);
    c.in_registers = (int32_t)qn_min_i64(chunks - c.in_shared, registers / (4 * words));
    if (c.in_registers > 0 && (chunks - c.in_shared - c.in_registers) % 2) {
        c.in_registers--; /* the others come two at a time */
    }
    c.shared_bytes = (int32_t)(front + c.staged * staged + c.in_shared * chunk);
    return c;
}

/* 16-row tiles a warp: two share the rows of x that they load, but take more registers. */
static int32_t tiles_for(const qn_vq *vq, int32_t tokens)
{
    return tokens == 16 || (vq->format == QN_VQ_GPTVQ && tokens > 8) ? 1 : 2;
}

/* The kernel for that many rows, from the cheapest candidate on tensor cores; all of a plan's read the same rows of x,
 * so they have the fusion of the first. */
qn_cuda_vq_cut qn_cuda_vq_cut_for(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t tokens)
{
    qn_vq_device d;
    qn_vq_choice list[QN_VQ_CANDIDATES];
    const int32_t first = qn_cuda_vq_tokens(0);
    const int32_t natural = tokens != first && qn_cuda_vq_cut_for(desc, vq, device, first).fusion == 1;
    const qn_vq_problem problem = problem_for(desc, vq, tokens);
    qn_cuda_vq_device(device, &d);
    const int32_t count = qn_vq_candidates(&problem, &d, list);
    int32_t i = 0;
    while (i + 1 < count && (list[i].form != QN_VQ_FORM_TENSOR ||
                             (tokens != first && (list[i].fusion == QN_VQ_FUSION_SHARED) != natural))) {
        i++;
    }
    const qn_vq_choice *c = &list[i];
    qn_cuda_vq_cut t = {.tokens = tokens < first ? first : tokens,
                        .tiles = tiles_for(vq, tokens),
                        .fusion = c->fusion == QN_VQ_FUSION_SHARED ? 1 : 3,
                        .hot = c->shared_entries,
                        .copies = c->copies,
                        .registers = c->register_entries > 0 && vq->format == QN_VQ_AQLM,
                        .split = c->level >= QN_VQ_LEVEL_O3,
                        .slices = c->slices};
    const int32_t entry = vq->format == QN_VQ_QUIP_E8P ? 4 : vq->format == QN_VQ_GPTVQ ? 8 : (int32_t)vq->in_group * 2;
    const int32_t books = vq->format == QN_VQ_GPTVQ ? 2 : vq->format == QN_VQ_QUIP_E8P ? 1 : (int32_t)vq->codebooks;
    if (t.hot < (vq->format == QN_VQ_AQLM ? 1 << vq->bits : 256) && tokens <= 16) {
        t.tiles = 1; /* lanes wait for global memory: more warps */
    }
    const int many = vq->format == QN_VQ_AQLM && qn_cuda_vq_lane_bytes(desc, vq) > MANY_LANE_BYTES;
    if (many) {
        t.tiles = 2; /* codes fill registers: fewer threads */
    }
    const int32_t exchange = t.fusion == 1 ? 16 / t.tiles * EXCHANGE_BYTES : 0;
    while (t.copies > 1 && t.hot * entry * t.copies * books + exchange > device->shared_bytes) {
        t.copies /= 2;
    }
    if (t.hot * entry * t.copies * books + exchange > device->shared_bytes) {
        t.hot = (device->shared_bytes - exchange) / (entry * books);
    }
    t.shared_bytes = t.hot * entry * t.copies * books + exchange;
    const int light =
        t.tiles == 2 && tokens <= 16 && !many && (vq->format != QN_VQ_QUIP_E8P || qn_cuda_vq_codebook(vq) == 1);
    const int spills = device->target == QN_SM_100A && vq->format == QN_VQ_AQLM && vq->codebooks == 2; /* with 128 */
    t.resident = light && !spills && t.shared_bytes <= device->shared_bytes / 2 ? 2 : 1;
    return t;
}

/* gptvq and E8P12 as exact integers, for one and two rows: the highest rung. */
static int exact_chosen(const qn_op_desc *desc, const qn_vq *vq)
{
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    return qn_cuda_vq_tensor_possible(desc, vq) && (level == QN_VQ_LEVEL_AUTO || level == QN_VQ_LEVEL_O4);
}

/* Microseconds of units, 256 rows of w by 1024 columns, with so many tiles of 16 rows in all: tables take nearly as
 * long for few rows as for many. What blocks of a cluster take beside to meet, and parts for a launch that adds them.
 * Measured on an H200. */
#define BOOKS_UNIT_US 0.75
#define BOOKS_TILE_US 0.085
#define BOOKS_JOIN_US 1.5
#define BOOKS_JOIN_ROWS 16384.0 /* of w that take a microsecond more */
#define BOOKS_GAIN 0.97         /* of the time, at most, that makes larger clusters or a launch more worth it */

static double books_us(double units, double tiles)
{
    return BOOKS_UNIT_US * units + BOOKS_TILE_US * tiles;
}

/* By clusters with so many tiles; any: they share all, and begin and end within blocks of rows. Blocks with so little
 * to do that all their codes are asked for at once do so behind x. */
static void books_try(const qn_vq *vq, const qn_cuda_device *device, int32_t cluster, int64_t clusters, int64_t tiles,
                      int any, double *least, qn_cuda_vq_books_cut *best)
{
    const int64_t groups = qn_ceil_div(qn_ceil_div(vq->k, 4 * QN_VQ_SPAN), cluster);
    const double each = any ? (double)qn_ceil_div(vq->n, 16) / (double)clusters : (double)tiles;
    const double met = any ? each / 16.0 + 1.0 : ceil(each / 16.0); /* blocks of rows */
    const double meeting = cluster == 1 ? 0.0 : cluster == 2 ? 0.9 : cluster == 4 ? 1.3 : 2.5;
    const double us = (double)groups * books_us(met, each) + meeting;
    const int32_t teams = tiles == BOOKS_HALF && !any ? BOOKS_TEAMS : 2;
    const int64_t front = QN_VQ_BOOKS_SHARED + groups * BOOKS_GROUP;
    const int64_t room = qn_max_i64(0, device->shared_bytes - front) / (teams * BOOKS_TILE);
    const int64_t kept = any ? qn_min_i64(room, tiles) : tiles;
    if (kept > 0 && kept <= room && us < BOOKS_GAIN * *least) {
        *least = us;
        *best = (qn_cuda_vq_books_cut){.cluster = cluster,
                                       .each = tiles < BOOKS_HALF ? 1 : 2,
                                       .teams = teams,
                                       .early = each < BOOKS_HALF && groups <= teams ? 0 : teams / 2,
                                       .tiles = (int32_t)kept,
                                       .any = any,
                                       .shared_bytes = (int32_t)(front + teams * kept * BOOKS_TILE)};
    }
}

/* Clusters have half of a block of rows or less, or whole blocks of rows, or any rows; or there are none. Those of four
 * and more leave some of the device idle, and wait for each other. */
qn_cuda_vq_books_cut qn_cuda_vq_books_cut_of(const qn_vq *vq, const qn_cuda_device *device)
{
    const int64_t groups = qn_ceil_div(vq->k, 4 * QN_VQ_SPAN), tiles = qn_ceil_div(vq->n, 16);
    const int64_t rows = qn_ceil_div(vq->n, QN_VQ_BLOCK_ROWS);
    qn_cuda_vq_books_cut c = {.cluster = 1};
    double least = INFINITY;
    for (int32_t cluster = 1; cluster <= BOOKS_CLUSTER && cluster <= groups; cluster *= 2) {
        const double room = cluster < 4 ? 1.0 : cluster < 8 ? 0.91 : 0.75;
        const int64_t clusters = qn_max_i64((int64_t)(device->sms * room) / cluster, 1);
        int64_t few = 1;
        while (few <= BOOKS_HALF && few * clusters < tiles) {
            few *= 2;
        }
        books_try(vq, device, cluster, clusters, few <= BOOKS_HALF ? few : qn_ceil_div(rows, clusters) * 16, 0, &least,
                  &c);
        if (few > BOOKS_HALF) {
            books_try(vq, device, cluster, clusters, tiles, 1, &least, &c);
        }
    }
    const int64_t units = qn_ceil_div(rows * groups, qn_min_i64(device->sms, BOOKS_BLOCKS));
    const int64_t met = (units - 1) / qn_max_i64(groups, 1) + 2;
    const int64_t bytes = QN_VQ_BOOKS_SHARED + units * BOOKS_GROUP + met * (2 * 16 * BOOKS_TILE);
    const double join = BOOKS_JOIN_US + (double)vq->n / BOOKS_JOIN_ROWS;
    if (books_us((double)units, 16.0 * (double)units) + join < BOOKS_GAIN * least && bytes <= device->shared_bytes) {
        c = (qn_cuda_vq_books_cut){.cluster = 1,
                                   .each = 2,
                                   .teams = 2,
                                   .early = 1,
                                   .tiles = (int32_t)met * 16,
                                   .units = (int32_t)units,
                                   .shared_bytes = (int32_t)bytes};
    }
    return c;
}

static int books_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return vq->format == QN_VQ_GPTVQ && exact_chosen(desc, vq) && device->target == QN_SM_90A &&
           qn_cuda_vq_books_cut_of(vq, device).shared_bytes > 0;
}

static int bytes_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return vq->format == QN_VQ_GPTVQ && exact_chosen(desc, vq) && device->shared_bytes >= QN_VQ_BYTES_SHARED;
}

static int points_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return vq->format == QN_VQ_QUIP_E8P && qn_cuda_vq_points_planes(vq) > 0 && exact_chosen(desc, vq) &&
           (size_t)device->shared_bytes >=
               qn_cuda_vq_points_bytes(vq, QN_CUDA_VQ_POINTS_ROWS, qn_cuda_vq_points_tiles(vq, device, 0), 0, 0);
}

/* Its blocks transform x, each all of it: short rows without a base matrix, less than a launch more. */
static int turned_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return qn_cuda_vq_turns_in(desc, vq) && vq->k <= TURNED_LENGTH && qn_hadamard_base(vq->k) == 1 &&
           (size_t)device->shared_bytes >=
               qn_cuda_vq_points_bytes(vq, QN_CUDA_VQ_POINTS_ROWS, qn_cuda_vq_points_tiles(vq, device, 0), 1, 0);
}

/* They transform y too: less than two more launches cost. */
static int fused_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return device->target == QN_SM_90A && qn_cuda_vq_turns_in(desc, vq) && qn_cuda_vq_turns_out(desc, vq) &&
           vq->n <= FUSED_LENGTH && vq->k <= FUSED_LENGTH && vq->n * vq->k <= FUSED_WEIGHTS &&
           (size_t)device->shared_bytes >=
               qn_cuda_vq_points_bytes(vq, QN_CUDA_VQ_POINTS_ROWS, qn_cuda_vq_points_tiles(vq, device, 1), 1, 1);
}

static int64_t sign_bytes(int64_t length)
{
    const int64_t base = qn_hadamard_base(length);
    return base * qn_ceil_div(base, 32) * 4;
}

/* Whether axes are so long that blocks transform what they need of x, and y within their rows. */
static int cut_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    if (vq->format != QN_VQ_QUIP_E8P || qn_cuda_vq_points_planes(vq) != 1 || !qn_cuda_vq_turns_in(desc, vq) ||
        !qn_cuda_vq_turns_out(desc, vq) || qn_cuda_vq_given(desc, QN_VQ_SCALE_WH) || vq->n == 0 || vq->k == 0 ||
        vq->k % CUT_STEP || vq->k > CUT_LENGTH || vq->n > 256 * QN_VQ_CUT_ROWS) {
        return 0;
    }
    const int64_t base_in = qn_hadamard_base(vq->k), base_out = qn_hadamard_base(vq->n);
    return base_in <= QN_VQ_CUT_BASE && base_out <= QN_VQ_CUT_BASE && vq->k / base_in >= QN_VQ_SPAN &&
           vq->n / base_out >= QN_VQ_CUT_ROWS;
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b > 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

qn_cuda_vq_points_cut qn_cuda_vq_points_cut_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    qn_cuda_vq_points_cut c = {.units = 0};
    if (!cut_possible(desc, vq) || device->major < 9 || !points_chosen(desc, vq, device) ||
        fused_chosen(desc, vq, device)) {
        return c;
    }
    const int64_t spans = vq->k / QN_VQ_SPAN, all = vq->n / QN_VQ_CUT_ROWS * spans, slow = vq->k / CUT_STEP;
    const int64_t units = qn_ceil_div(all, qn_min_i64(device->sms, QN_CUDA_VQ_CUT_BLOCKS));
    const int64_t inner = qn_min_i64(vq->k / qn_hadamard_base(vq->k) / QN_VQ_SPAN, 4);
    const int64_t slots = QN_VQ_CUT_SLOTS(units, inner);
    /* After so many blocks another has the same spans: of all blocks, two by two, they are clusters. */
    const int64_t period = spans / greatest_divisor(units, spans);
    const int64_t pair = slow > CUT_ALONE && slow % 2 == 0 && all % (units * period * 2) == 0 ? 2 : 1;
    const int64_t signs = slots * 4 * pair * (qn_ceil_div(slow / pair, 4) * 4) * 4;
    const int64_t of_row = units * (QN_VQ_CUT_DIGITS + 8) + QN_VQ_CUT_SUMS; /* of x */
    const int64_t bytes = (1 << 16) + QN_CUDA_VQ_POINTS_ROWS * of_row + 16 + signs + slots * 4 * CUT_COLUMN;
    if (bytes <= device->shared_bytes) {
        const int64_t left = device->shared_bytes - bytes - CUT_BESIDE;
        c = (qn_cuda_vq_points_cut){.inner = (int32_t)inner,
                                    .units = (int32_t)units,
                                    .pair = (int32_t)pair,
                                    .period = (int32_t)period,
                                    .shared_bytes = (int32_t)bytes,
                                    .join_bytes = (int32_t)qn_max_i64(left, QN_VQ_JOIN_SHARED)};
    }
    return c;
}

int64_t qn_cuda_vq_points_cut_parts(const qn_op_desc *desc, const qn_vq *vq)
{
    if (!cut_possible(desc, vq)) {
        return 0;
    }
    const int64_t spans = vq->k / QN_VQ_SPAN,
                  units = qn_ceil_div(vq->n / QN_VQ_CUT_ROWS * spans, QN_CUDA_VQ_CUT_BLOCKS);
    return qn_min_i64(spans, qn_ceil_div(spans, units) + 1);
}

/* ---- transforms ---- */

size_t qn_cuda_vq_turn_bytes(int64_t length, int32_t parts)
{
    return parts ? (size_t)(length / parts * 8 + sign_bytes(length)) : 0;
}

int32_t qn_cuda_vq_turn_parts(int64_t length, const qn_cuda_device *device)
{
    const int64_t base = qn_hadamard_base(length), fast = length / base;
    int32_t parts = device->major >= 9 && length * (base + 8) > TURN_ALONE ? TURN_PARTS : 1;
    while (parts > 1 && fast < 4 * parts) {
        parts /= 2;
    }
    return qn_cuda_vq_turn_bytes(length, parts) <= (size_t)device->shared_bytes ? parts : 0;
}

qn_cuda_vq_whole qn_cuda_vq_whole_of(int64_t length, const qn_cuda_device *device)
{
    const int64_t base = qn_hadamard_base(length), bytes = (int64_t)qn_cuda_vq_turn_bytes(length, 1) + WHOLE_BESIDE;
    if (base == 0 || length / base < WHOLE_FAST || bytes > device->shared_bytes) {
        return (qn_cuda_vq_whole){.from = 0};
    }
    const int32_t fit = (int32_t)qn_min_i64(device->shared_bytes / bytes, 4);
    return (qn_cuda_vq_whole){.from = base == 1                          ? WHOLE_ROWS_PLAIN
                                      : length * (base + 8) > WHOLE_LONG ? WHOLE_ROWS_LONG
                                                                         : WHOLE_ROWS,
                              .threads = fit > 2   ? 256
                                         : fit > 1 ? 512
                                                   : 1024,
                              .blocks = device->sms * fit};
}

int32_t qn_cuda_vq_turn_spread(int64_t length, const qn_cuda_device *device)
{
    const int64_t fast = length / qn_hadamard_base(length), blocks = length / QN_CUDA_VQ_TURN_FAST;
    return device->major >= 9 && fast >= QN_CUDA_VQ_TURN_FAST && blocks <= SPREAD_BLOCKS ? (int32_t)blocks : 0;
}

int64_t qn_cuda_vq_points_tiles(const qn_vq *vq, const qn_cuda_device *device, int fused)
{
    const int64_t tiles = qn_ceil_div(vq->n / 16, fused ? QN_CUDA_VQ_POINTS_CLUSTER : device->sms);
    return fused ? tiles : qn_min_i64(tiles, QN_CUDA_VQ_POINTS_TILES);
}

size_t qn_cuda_vq_points_bytes(const qn_vq *vq, int64_t m, int64_t tiles, int turned, int fused)
{
    const int64_t unit = qn_cuda_vq_points_unit(tiles, fused);
    const int64_t sums = (POINTS_WARPS + fused) * m * qn_ceil_div(tiles, unit) * unit * 16;
    const int64_t rows = fused ? (1 + m) * qn_max_i64(vq->n, vq->k) : turned ? (1 + m) * vq->k : 0;
    return (size_t)(POINTS_TABLE + (sums + rows) * 4 + (fused ? sign_bytes(vq->k) + sign_bytes(vq->n) : 0));
}

/* ---- few rows, vectors along N: vq_along.cu ---- */

static int along_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    const int64_t bits = qn_vq_bits_for(vq->entries) + qn_vq_bits_for(vq->res_entries);
    const qn_format books = qn_cuda_vq_tensor(desc, QN_VQ_CENTROIDS)->format;
    return vq->format == QN_VQ_VPTQ && desc->attr[QN_ATTR_LEVEL].i == QN_VQ_LEVEL_AUTO && vq->vector_len == 8 &&
           vq->groups == 1 && vq->outlier_size == 0 && vq->n > 0 && vq->k > 0 && vq->k % 8 == 0 && bits % 8 == 0 &&
           bits >= 8 && bits <= 32 && (books == QN_F16 || books == QN_BF16) &&
           (vq->res_entries == 0 || qn_cuda_vq_tensor(desc, QN_VQ_RES_CENTROIDS)->format == books);
}

qn_cuda_vq_along_cut qn_cuda_vq_along_cut_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                             int32_t rows)
{
    qn_cuda_vq_along_cut c = {.rows = 0};
    if (!along_possible(desc, vq)) {
        return c;
    }
    const int64_t room = device->shared_bytes - ALONG_BESIDE, pairs = qn_ceil_div(vq->n, 16);
    const int64_t padded = qn_ceil_div(vq->k, QN_VQ_ALONG_CHUNK) * QN_VQ_ALONG_CHUNK;
    const int64_t first = vq->entries * ALONG_ENTRY, second = vq->res_entries * ALONG_ENTRY;
    c.blocks = (int32_t)qn_min_i64(pairs, device->sms);
    c.pairs = (int32_t)qn_ceil_div(pairs, c.blocks);
    for (c.rows = rows; c.rows > 0; c.rows /= 2) {
        for (c.far = 0; c.far < 2; c.far++) {
            const int64_t rest = QN_VQ_ALONG_SHARED(c.rows, padded, c.pairs, c.far), of_first = c.far ? 0 : first;
            for (c.copies = ALONG_COPIES; c.copies > 0; c.copies /= 2) {
                const int64_t bytes = rest + (of_first + second) * c.copies;
                if (bytes <= room) {
                    c.res_copies = c.copies;
                    c.shared_bytes = (int32_t)bytes;
                    return c;
                }
            }
        }
    }
    return c;
}

/* ---- many rows: vq_wide.cu ---- */

/* Bytes of an entry of its tables, and of all entries once. */
static int64_t wide_entry(const qn_vq *vq)
{
    return vq->format == QN_VQ_AQLM ? vq->in_group * 2 : vq->format == QN_VQ_QUIP_E8P ? 4 : 8;
}

static int64_t wide_bytes(const qn_vq *vq)
{
    const int aqlm = vq->format == QN_VQ_AQLM;
    const int64_t books = aqlm ? vq->codebooks : vq->format == QN_VQ_GPTVQ ? 2 : 1;
    return books * wide_entry(vq) * (aqlm ? INT64_C(1) << vq->bits : 256);
}

int qn_cuda_vq_wide_possible(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return device->target == QN_SM_90A && desc->attr[QN_ATTR_LEVEL].i == QN_VQ_LEVEL_AUTO &&
           qn_cuda_vq_tensor_possible(desc, vq) && wide_bytes(vq) <= WIDE_TABLES;
}

qn_cuda_vq_wide_cut qn_cuda_vq_wide_cut_of(const qn_vq *vq, const qn_cuda_device *device, int32_t tokens)
{
    const int64_t entry = wide_entry(vq), bytes = wide_bytes(vq);
    const int64_t slots = entry >= 16 ? 8 : 128 / entry; /* lanes that are served together */
    qn_cuda_vq_wide_cut c = {.copies = 1};
    while (c.copies < slots && bytes * c.copies * 2 <= WIDE_TABLES / 2) {
        c.copies *= 2;
    }
    c.table_bytes = (int32_t)bytes * c.copies;
    c.stages = (device->shared_bytes - WIDE_FRONT - c.table_bytes) / (tokens * 128);
    c.stages = c.stages < WIDE_STAGES ? c.stages : WIDE_STAGES;
    c.shared_bytes = WIDE_FRONT + c.table_bytes + c.stages * tokens * 128;
    /* Few rows leave registers for four warpgroups, which hide lookups, but for many books of long entries; else two
     * blocks share what they bring of x. */
    const int heavy = vq->format == QN_VQ_AQLM && vq->codebooks > 3 && vq->in_group > 8;
    c.groups = tokens <= QN_VQ_MOST_TOKENS && !heavy ? 4 : 2;
    c.pair = QN_VQ_BLOCK_ROWS / (64 * c.groups);
    return c;
}

/* ---- weights written out: dense_mm.cu ---- */

/* Two or three blocks of a multiprocessor where what they keep leaves them room, else one. */
qn_cuda_vq_unpack_cut qn_cuda_vq_unpack_cut_of(const qn_vq *vq, const qn_cuda_device *device)
{
    const int64_t entry = vq->vector_len * 2, run = UNPACK_RUN / vq->vector_len;
    const int32_t far = vq->res_entries * entry > UNPACK_NEAR;
    const int64_t column = entry << far, room = device->shared_bytes - UNPACK_FRONT;
    qn_cuda_vq_unpack_cut c = {.threads = vq->k * column > room / 2 ? 512 : 256, .res_far = far};
    if (vq->vector_len == 8 || vq->vector_len == 16) {
        const int64_t runs = run * column * c.threads;
        c.kept = (int32_t)qn_min_i64(qn_ceil_div(vq->k * column, runs), room / runs);
        c.shared_bytes = (int32_t)(c.kept * runs);
    }
    return c;
}

int qn_cuda_vq_dense_chosen(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    const qn_cuda_device typical = qn_cuda_plain_device(QN_SM_90A);
    qn_vq_device d;
    if (desc->attr[QN_ATTR_LEVEL].i != QN_VQ_LEVEL_AUTO || vq->n == 0 || vq->k == 0 || m < 1) {
        return 0;
    }
    const qn_vq_problem problem = problem_for(desc, vq, m);
    if (!qn_vq_may_write_out(&problem)) {
        return 0;
    }
    qn_cuda_vq_device(&typical, &d);
    return qn_vq_choose(&problem, &d).form == QN_VQ_FORM_DENSE;
}

int qn_cuda_vq_dense_room(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    const qn_vq_problem problem = problem_for(desc, vq, m);
    return desc->attr[QN_ATTR_LEVEL].i == QN_VQ_LEVEL_AUTO && qn_vq_may_write_out(&problem);
}

/* Whether it is for some number of rows. */
static int dense_ever(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    int chosen = 0;
    for (int64_t m = 16; m <= 4096 && device->target == QN_SM_90A && !chosen; m *= 2) {
        chosen = qn_cuda_vq_dense_chosen(desc, vq, m);
    }
    return chosen;
}

qn_dense_form qn_cuda_vq_dense_form(const qn_op_desc *desc, const qn_vq *vq)
{
    const int turned = qn_cuda_vq_turns_out(desc, vq);
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    return (qn_dense_form){.n = vq->n,
                           .k = vq->k,
                           .f16 = 1,
                           .out = turned ? QN_OUT_F32 : desc->attr[QN_ATTR_OUT].i,
                           .scaled = 1,
                           .bias = bias && !turned ? qn_cuda_float_format(bias) + 1 : 0};
}

/* full: beside the direct kernel those that the generator chooses. */
qn_cuda_vq_places qn_cuda_vq_places_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int full)
{
    qn_cuda_vq_places p = {.direct = 0,
                           .rows = -1,
                           .finish = -1,
                           .turn_in = -1,
                           .turn_out = -1,
                           .whole_in = -1,
                           .whole_out = -1,
                           .spread_in = -1,
                           .spread_out = -1,
                           .sums = -1,
                           .exchange = -1,
                           .books = -1,
                           .books_join = -1,
                           .bytes = -1,
                           .points = -1,
                           .points_cut = -1,
                           .points_join = -1,
                           .along = -1,
                           .few = -1,
                           .sliced = -1,
                           .tensor = -1,
                           .wide_rows = -1,
                           .wide = -1,
                           .unpack = -1,
                           .dense_rows = -1,
                           .dense = -1};
    p.count = 1;
    if (qn_cuda_vq_turns_in(desc, vq)) {
        p.turn_in = p.count++;
        p.whole_in = qn_cuda_vq_whole_of(vq->k, device).from > 0 ? p.count++ : -1;
    }
    if (qn_cuda_vq_turns_out(desc, vq)) {
        p.turn_out = p.count++;
        p.whole_out = qn_cuda_vq_whole_of(vq->n, device).from > 0 ? p.count++ : -1;
    }
    if (full && qn_cuda_vq_sums_chosen(desc, vq, device, 1)) {
        p.sums = p.count++;
    }
    if (full && qn_cuda_vq_exchange_chosen(desc, vq, device)) {
        p.exchange = p.count++;
    }
    if (full && books_chosen(desc, vq, device)) {
        p.books = p.count++;
        if (qn_cuda_vq_books_cut_of(vq, device).units > 0) {
            p.books_join = p.count++;
        }
    } else if (full && bytes_chosen(desc, vq, device)) {
        p.bytes = p.count++;
    }
    if (full && qn_cuda_vq_points_cut_of(desc, vq, device).units > 0) {
        p.points_cut = p.count++;
        p.points_join = p.count++;
    } else if (full && points_chosen(desc, vq, device)) {
        p.points = p.count++;
        p.fused = fused_chosen(desc, vq, device);
        p.turned = p.fused || turned_chosen(desc, vq, device);
        if (p.turn_in >= 0 && !p.turned && qn_cuda_vq_turn_spread(vq->k, device)) {
            p.spread_in = p.count++;
        }
        if (p.turn_out >= 0 && !p.fused && qn_cuda_vq_turn_spread(vq->n, device)) {
            p.spread_out = p.count++;
        }
    }
    if (full && qn_cuda_vq_along_cut_of(desc, vq, device, 1).rows > 0) {
        p.along = p.count;
        p.count += QN_CUDA_VQ_FEW_PROGRAMS;
    }
    if (full && qn_cuda_vq_few_chosen(desc, vq, device)) {
        p.few = p.count;
        p.count += QN_CUDA_VQ_FEW_PROGRAMS;
    }
    if (full && qn_cuda_vq_tensor_possible(desc, vq)) {
        p.rows = p.count++;
        if (qn_cuda_vq_cut_for(desc, vq, device, QN_VQ_SLICED_ROWS).slices > 1) {
            p.sliced = p.count++;
        }
        p.tensor = p.count;
        /* more than 16 bytes of codes a lane, or sums apart for a book, and 64 rows of x need too many registers */
        const int heavy = vq->format == QN_VQ_GPTVQ || (vq->format == QN_VQ_QUIP_E8P && qn_cuda_vq_codebook(vq) != 1) ||
                          (vq->format == QN_VQ_AQLM && qn_cuda_vq_lane_bytes(desc, vq) > 16);
        /* or 33 to 64 have a kernel of their own */
        const int wide = qn_cuda_vq_wide_possible(desc, vq, device);
        /* and through shared memory 64 rows spill, which rungs show as they are */
        const int natural = desc->attr[QN_ATTR_LEVEL].i == QN_VQ_LEVEL_AUTO &&
                            qn_cuda_vq_cut_for(desc, vq, device, qn_cuda_vq_tokens(0)).fusion == 1;
        p.tensors = heavy || wide || natural ? TENSORS - 1 : TENSORS;
        p.count += p.tensors;
    }
    if (full && qn_cuda_vq_wide_possible(desc, vq, device)) {
        p.wide_rows = p.count++;
        p.wide = p.count;
        p.wides = WIDES; /* the most rows first */
        p.count += p.wides;
    }
    if (full && dense_ever(desc, vq, device)) {
        p.unpack = p.count++;
        p.dense_rows = p.count++;
        p.dense = p.count;
        p.count += QN_DENSE_PROGRAMS;
    }
    if (p.sums >= 0 || p.tensor >= 0 || p.wide >= 0) {
        p.finish = p.count++;
    }
    return p;
}
