/* Host side of the matrix products with weights of any format: dense_mm, scaled_mm, block_scaled_mm, nvfp4_mm and
 * mxfp4_mm on every architecture.
 *
 * A plan has a kernel of tiles for many rows and one for up to 1, 2, 4 and 8 rows each, which read weights by whole
 * units (kernels/cuda/mm_unpack.h); and a kernel of tiles that reads any alignment and K. */
#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { TILE = 64, LARGE_TILE = 128, MOST_GRID_Y = 65535 };
enum { THREADS = 256 };

/* Programs of a plan; a kernel of its own has more where products are tensor cores': what joins parts of K, and large
 * tiles, one of a multiprocessor, then, where registers are enough, two; where tiles are products by digits, what makes
 * these and codes. */
enum { ANY = 0, TILES, FEW };
static const int32_t few_rows[] = {1, 2, 4, 8};
enum { FEW_COUNT = sizeof few_rows / sizeof *few_rows, JOIN = FEW + FEW_COUNT, LARGE };
enum { DIGITS_ROWS = LARGE, DIGITS_CODES };

/* Rows and bytes of codes that products by digits take at a time, so that a workspace has an end. */
enum { DIGITS_AT_ONCE = 2048, CODES_AT_ONCE = 128 << 20 };

/* Parts of K, for as many small tiles or, by digits, half as many, as large devices hold; and K of each. */
enum { MOST_PARTS = 8, BLOCKS_WANTED = 528, LEAST_DEPTH = 256, DEPTH_GRAIN = 128 };

/* What mma.sync multiplies: parameter TENSOR of mm_mma.cu. */
enum { TENSOR_NONE = 0, TENSOR_BF16, TENSOR_F16, TENSOR_I8 };

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *b = qn_cuda_mm_b(desc);
    if (qn_cuda_weight_format(desc) < 0) {
        return "weights of that format have no device code";
    }
    return b->dims[0] > INT32_MAX / 2 || qn_cuda_mm_depth(desc) > INT32_MAX / 2 ? "N or K is 2^30 or more" : NULL;
}

/* Elements as tensor cores take them: both operands' are exact in that type. */
static int32_t tensor_of(const qn_op_desc *desc)
{
    const int plain = qn_cuda_row_format(desc) == QN_MM_PLAIN;
    const qn_format x = qn_cuda_mm_x(desc)->format;
    switch (qn_cuda_weight_format(desc)) {
    case QN_MM_I8: return TENSOR_I8;
    case QN_MM_E4M3:
    case QN_MM_E4M3_BLOCK:
    case QN_MM_E5M2_BLOCK: return TENSOR_BF16;
    case QN_MM_F16: return x == QN_F16 ? TENSOR_F16 : TENSOR_NONE;
    case QN_MM_BF16: return x == QN_BF16 ? TENSOR_BF16 : TENSOR_NONE;
    case QN_MM_NVFP4: return !plain || x == QN_BF16 ? TENSOR_BF16 : x == QN_F16 ? TENSOR_F16 : TENSOR_NONE;
    case QN_MM_MXFP4: return !plain || x == QN_BF16 ? TENSOR_BF16 : TENSOR_NONE;
    default: return TENSOR_NONE;
    }
}

/* Whether many rows are multiplied as digits: by codes of GGUF blocks. */
static int by_digits(const qn_op_desc *desc)
{
    const int32_t format = qn_cuda_weight_format(desc);
    return desc->op == QN_OP_DENSE_MM && format >= QN_MM_Q4_0 && format <= QN_MM_I8_K;
}

/* Blocks of large tiles that a multiprocessor has registers for; block-scaled sums are twice as many. */
static int32_t most_large(const qn_op_desc *desc)
{
    return desc->op == QN_OP_BLOCK_SCALED_MM ? 1 : 2;
}

/* Parameters that all these programs have. */
static void define_operands(const qn_op_desc *desc, int32_t aligned, qn_cuda_program *p)
{
    const int32_t act = qn_cuda_row_format(desc);
    qn_cuda_mm_define(desc, qn_cuda_mm_bias(desc), p);
    qn_cuda_define(p, "A_FORMAT", act);
    qn_cuda_define(p, "X_FORMAT", act ? 0 : qn_cuda_float_format(qn_cuda_mm_x(desc)->format));
    qn_cuda_define(p, "ALIGNED", aligned);
}

/* The program of mm_digits.cu, mm_mma.cu or mm_tile.cu; tiles of the last are always of TILE. */
static void program_of(const qn_op_desc *desc, int32_t aligned, int32_t tile, int32_t blocks, qn_cuda_program *p)
{
    const int32_t tensor = tensor_of(desc);
    if (aligned && by_digits(desc)) {
        p->source = "mm_digits.cu";
        p->entry = "qn_mm_digits";
        p->shared_bytes = (int32_t)QN_CUDA_DIGITS_SHARED(qn_cuda_code_group(qn_cuda_weight_format(desc)));
        define_operands(desc, 1, p);
        return;
    }
    p->source = tensor ? "mm_mma.cu" : "mm_tile.cu";
    p->entry = tensor ? "qn_mm_mma" : "qn_mm_tile";
    define_operands(desc, aligned, p);
    if (tensor) {
        qn_cuda_define(p, "TENSOR", tensor);
        qn_cuda_define(p, "TILE", tile);
        qn_cuda_define(p, "BLOCKS", blocks);
    }
}

void qn_cuda_mm_any_program(const qn_op_desc *desc, qn_cuda_program *program)
{
    program_of(desc, 0, TILE, 1, program);
}

void qn_cuda_mm_group_program(const qn_op_desc *desc, int32_t aligned, int32_t tile, qn_cuda_program *program)
{
    program_of(desc, aligned, tile, 1, program);
    qn_cuda_define(program, "LAYOUT", desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED ? 2 : 1);
}

int32_t qn_cuda_mm_program_count(const qn_op_desc *desc)
{
    return qn_cuda_mm_depth(desc) % qn_cuda_weight_unit(qn_cuda_weight_format(desc)) ? 1 : JOIN;
}

int32_t qn_cuda_mm_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out)
{
    const int32_t format = qn_cuda_weight_format(desc), count = qn_cuda_mm_program_count(desc);
    const int64_t n = qn_cuda_mm_b(desc)->dims[0], k = qn_cuda_mm_depth(desc);
    for (int32_t i = 0; i < count; i++) {
        qn_cuda_program *p = &out[i];
        if (i < FEW) {
            program_of(desc, i != ANY, TILE, 1, p);
        } else {
            const int32_t rows = few_rows[i - FEW];
            const qn_cuda_few few = qn_cuda_few_shape(format, n, k, rows, 0, device->sms);
            p->source = "mm_few.cu";
            p->entry = "qn_mm_few";
            define_operands(desc, 1, p);
            qn_cuda_few_define(&few, rows, p);
            qn_cuda_define(p, "CHAIN", 0);
            p->shared_bytes = few.shared_bytes;
        }
    }
    return count;
}

/* Whether a plan has the programs from JOIN on. */
static int has_parts(const qn_op_desc *desc)
{
    return qn_cuda_mm_program_count(desc) == JOIN && (tensor_of(desc) || by_digits(desc));
}

int32_t qn_cuda_mm_own_count(const qn_op_desc *desc)
{
    return !has_parts(desc)  ? qn_cuda_mm_program_count(desc)
           : by_digits(desc) ? DIGITS_CODES + 1
                             : LARGE + most_large(desc);
}

int32_t qn_cuda_mm_own_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out)
{
    (void)qn_cuda_mm_programs(desc, device, out);
    if (!has_parts(desc)) {
        return qn_cuda_mm_own_count(desc);
    }
    out[JOIN].source = "mm_join.cu";
    out[JOIN].entry = "qn_mm_join";
    define_operands(desc, 1, &out[JOIN]);
    if (by_digits(desc)) {
        static const char *const sources[] = {"mm_digits_rows.cu", "mm_digits_codes.cu"};
        static const char *const entries[] = {"qn_mm_digits_rows", "qn_mm_digits_codes"};
        for (int32_t i = 0; i < 2; i++) {
            out[DIGITS_ROWS + i].source = sources[i];
            out[DIGITS_ROWS + i].entry = entries[i];
            define_operands(desc, 1, &out[DIGITS_ROWS + i]);
        }
        return qn_cuda_mm_own_count(desc);
    }
    for (int32_t i = 0; i < most_large(desc); i++) {
        program_of(desc, 1, LARGE_TILE, i + 1, &out[LARGE + i]);
    }
    return qn_cuda_mm_own_count(desc);
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    return qn_cuda_mm_own_programs(desc, device, out);
}

/* ---- the run ---- */

/* Depth of parts of K, the same on every device, as the workspace is made for it: of so many tiles of wanted ones. */
static int64_t depth_of(int64_t tiles, int64_t wanted, int64_t k)
{
    const int64_t parts = qn_min_i64(qn_min_i64(MOST_PARTS, k / LEAST_DEPTH), wanted / qn_max_i64(tiles, 1));
    return parts > 1 ? qn_ceil_div(qn_ceil_div(k, DEPTH_GRAIN), parts) * DEPTH_GRAIN : INT32_MAX;
}

static int64_t tiles_depth(int64_t m, int64_t n, int64_t k)
{
    return depth_of(qn_ceil_div(m, TILE) * qn_ceil_div(n, TILE), BLOCKS_WANTED, k);
}

/* Of the sums of m rows and n columns in parts; 0: there is one. */
static int64_t parts_bytes(int64_t m, int64_t n, int64_t k, int64_t depth)
{
    return depth < k ? qn_ceil_div(k, depth) * m * n * (int64_t)sizeof(float) : 0;
}

/* Enqueue a product and, of parts, what joins them. */
static qn_status launch_parts(const qn_cuda_run *run, int32_t program, int32_t join_program, uint32_t across,
                              uint32_t down, int64_t shared_bytes, void *const *arguments, qn_error *error)
{
    const qn_cuda_mm *a = arguments[0];
    const qn_cuda_mm_cut *cut = arguments[1];
    const uint32_t parts = (uint32_t)qn_max_i64(1, qn_ceil_div(a->k, cut->depth));
    const qn_cuda_geometry g = {.grid = {across, down, parts},
                                .block = {THREADS, 1, 1},
                                .shared_bytes = (uint32_t)shared_bytes,
                                .dependent = 1};
    const qn_cuda_geometry join = {.grid = {(uint32_t)qn_ceil_div(a->part[0].n, THREADS), (uint32_t)a->m, 1},
                                   .block = {THREADS, 1, 1},
                                   .dependent = 1};
    QN_TRY(qn_cuda_launch(run, program, &g, arguments, error));
    return parts == 1 ? QN_OK : qn_cuda_launch(run, join_program, &join, arguments, error);
}

/* memory: for parts of K, NULL: there are none. */
static qn_status launch_tiles(const qn_cuda_run *run, int32_t program, int32_t tile, qn_cuda_mm *a, void *memory,
                              qn_error *error)
{
    QN_FAIL_IF(a->m > TILE * MOST_GRID_Y, error, QN_E_UNSUPPORTED, "%s: %d rows are more than one launch takes",
               run->kernel->name, a->m);
    qn_cuda_mm_cut cut = {.parts = memory, .depth = memory ? (int)tiles_depth(a->m, a->n, a->k) : INT32_MAX};
    void *const arguments[] = {a, &cut};
    return a->n == 0 ? QN_OK
                     : launch_parts(run, program, JOIN, (uint32_t)qn_ceil_div(a->n, tile),
                                    (uint32_t)qn_ceil_div(a->m, tile), 0, arguments, error);
}

qn_status qn_cuda_mm_launch_any(const qn_cuda_run *run, int32_t program, qn_error *error)
{
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    return launch_tiles(run, program, TILE, &a, NULL, error);
}

/* Blocks of large tiles that a multiprocessor takes, of which it may have `most`: they read operands half as often, but
 * want to be one for most multiprocessors. */
static int32_t large_blocks(int32_t most, int64_t m, int64_t n, int32_t sms)
{
    const int64_t tiles = qn_ceil_div(n, LARGE_TILE) * qn_ceil_div(m, LARGE_TILE);
    return 4 * tiles < 3 * (int64_t)sms ? 0 : tiles > sms ? most : 1;
}

/* ---- products of planes ---- */

enum { PLANES_TILE = 0, PLANES_LARGE, PLANES_JOIN };

void qn_cuda_mm_planes_programs(const qn_op_desc *desc, int32_t f16, int32_t x_planes, int32_t b_planes,
                                qn_cuda_program *out)
{
    const int32_t form = desc->attr[QN_ATTR_OUT].i, format = f16 ? QN_MM_F16 : QN_MM_BF16;
    const qn_format bias = qn_cuda_mm_bias(desc);
    for (int32_t i = 0; i < QN_CUDA_MM_PLANES_PROGRAMS; i++) {
        qn_cuda_program *p = &out[i];
        p->source = i == PLANES_JOIN ? "mm_join.cu" : "mm_mma.cu";
        p->entry = i == PLANES_JOIN ? "qn_mm_join" : "qn_mm_mma";
        qn_cuda_define(p, "B_FORMAT", format);
        qn_cuda_define(p, "OUT", form == QN_OUT_F32 ? QN_MM_F32 : form == QN_OUT_F16 ? QN_MM_F16 : QN_MM_BF16);
        qn_cuda_define(p, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
        qn_cuda_define(p, "AZP", 0);
        qn_cuda_define(p, "A_FORMAT", QN_MM_PLAIN);
        qn_cuda_define(p, "X_FORMAT", format);
        qn_cuda_define(p, "ALIGNED", 1);
        if (i != PLANES_JOIN) {
            qn_cuda_define(p, "TENSOR", f16 ? TENSOR_F16 : TENSOR_BF16);
            qn_cuda_define(p, "TILE", i == PLANES_LARGE ? LARGE_TILE : TILE);
            qn_cuda_define(p, "BLOCKS", 1);
            qn_cuda_define(p, "A_PLANES", x_planes);
            qn_cuda_define(p, "B_PLANES", b_planes);
        }
    }
}

size_t qn_cuda_mm_planes_workspace(int64_t m, int64_t n, int64_t k)
{
    int64_t most = 0, rows = 0, depth; /* more rows have fewer parts */
    do {
        rows = qn_min_i64(rows + TILE, m);
        depth = tiles_depth(rows, n, k);
        most = qn_max_i64(most, parts_bytes(rows, n, k, depth));
    } while (rows < m && depth < k);
    return (size_t)most;
}

qn_status qn_cuda_mm_planes_launch(const qn_cuda_run *run, int32_t first, qn_cuda_mm *a, qn_cuda_mm_planes *planes,
                                   void *workspace, qn_error *error)
{
    const int large = large_blocks(1, a->m, a->n, run->device->sms);
    const int32_t tile = large ? LARGE_TILE : TILE;
    qn_cuda_mm_cut cut = {.parts = workspace, .depth = large ? INT32_MAX : (int)tiles_depth(a->m, a->n, a->k)};
    void *const arguments[] = {a, &cut, planes};
    return launch_parts(run, first + (large ? PLANES_LARGE : PLANES_TILE), first + PLANES_JOIN,
                        (uint32_t)qn_ceil_div(a->n, tile), (uint32_t)qn_ceil_div(a->m, tile), 0, arguments, error);
}

void qn_cuda_mm_planes_describe(const qn_cuda_device *device, const qn_sizes *sizes, qn_text *text)
{
    const int large = large_blocks(1, sizes->m, sizes->n, device->sms), tile = large ? LARGE_TILE : TILE;
    const int64_t depth = large ? INT32_MAX : tiles_depth(sizes->m, sizes->n, sizes->k);
    const int64_t parts = qn_ceil_div(sizes->k, depth);
    qn_text_add(text, "cut: tiles of %d x %d by mma.sync, %lld part%s of K\n", tile, tile, (long long)parts,
                parts > 1 ? "s" : "");
}

/* ---- products by digits ---- */

/* How a product of m rows is cut: rows and columns that are done at a time, and K. */
typedef struct digits_cut {
    int64_t rows, columns, down, across, steps, depth;
    int64_t b, sums, end; /* where a workspace has them behind the rows' digits */
} digits_cut;

static digits_cut digits_cut_of(const qn_op_desc *desc, int64_t m)
{
    const int64_t n = desc->in[QN_DMM_B].dims[0], k = qn_cuda_mm_depth(desc);
    const int64_t steps = qn_ceil_div(k, QN_CUDA_DIGITS_STEP);
    const int64_t tile = steps * QN_CUDA_DIGITS_B_BYTES(qn_cuda_code_group(qn_cuda_weight_format(desc)));
    const int64_t most = qn_max_i64(1, qn_min_i64(CODES_AT_ONCE / tile, MOST_GRID_Y / 8)) * QN_CUDA_DIGITS_COLUMNS;
    digits_cut c = {.rows = qn_min_i64(m, DIGITS_AT_ONCE), .columns = qn_min_i64(n, most), .steps = steps};
    c.down = qn_ceil_div(c.rows, QN_CUDA_DIGITS_ROWS);
    c.across = qn_ceil_div(c.columns, QN_CUDA_DIGITS_COLUMNS);
    c.depth = depth_of(c.down * c.across, BLOCKS_WANTED / 2, k);
    c.b = c.down * steps * QN_CUDA_DIGITS_X_BYTES;
    c.sums = c.b + c.across * tile;
    c.end = c.sums + parts_bytes(c.rows, c.columns, k, c.depth);
    return c;
}

/* Of any number of rows up to m: more of them have fewer parts. */
size_t qn_cuda_mm_own_workspace(const qn_op_desc *desc, int64_t m)
{
    const int64_t n = qn_cuda_mm_b(desc)->dims[0], k = qn_cuda_mm_depth(desc);
    const int digits = by_digits(desc);
    if (m <= few_rows[FEW_COUNT - 1] || n == 0 || k == 0 || !has_parts(desc)) {
        return 0;
    }
    int64_t end = digits ? digits_cut_of(desc, m).end : 0, rows = 0, depth;
    do {
        rows = qn_min_i64(rows + TILE, m);
        depth = digits ? digits_cut_of(desc, rows).depth : tiles_depth(rows, n, k);
        end = qn_max_i64(end, digits ? digits_cut_of(desc, rows).end : parts_bytes(rows, n, k, depth));
    } while (rows < m && depth < k);
    return (size_t)end;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    return qn_cuda_mm_own_workspace(desc, m);
}

/* At most as many rows and columns as a workspace has room for; x: rows are to be made digits. */
static qn_status launch_cut(const qn_cuda_run *run, qn_cuda_mm *a, const digits_cut *c, int x, qn_error *error)
{
    char *const memory = run->call->workspace;
    const int32_t format = qn_cuda_weight_format(run->call->desc);
    const int64_t across = qn_ceil_div(a->part[0].n, QN_CUDA_DIGITS_COLUMNS);
    const int64_t span = 16 * qn_cuda_weight_unit(format); /* of K, of a block that makes codes */
    qn_cuda_mm_cut cut = {.parts = memory + c->sums, .depth = (int)c->depth};
    qn_cuda_digits by = {.x = memory, .b = memory + c->b, .steps = (int)c->steps};
    void *const arguments[] = {a, &cut, &by};
    const qn_cuda_geometry rows = {
        .grid = {(uint32_t)qn_ceil_div(c->steps, 16), (uint32_t)(c->down * QN_CUDA_DIGITS_ROWS), 1},
        .block = {THREADS, 1, 1},
        .dependent = 1};
    const qn_cuda_geometry codes = {.grid = {(uint32_t)qn_ceil_div(c->steps * QN_CUDA_DIGITS_STEP, span),
                                             (uint32_t)(across * QN_CUDA_DIGITS_COLUMNS / 16), 1},
                                    .block = {THREADS, 1, 1},
                                    .dependent = 1};
    if (x) {
        QN_TRY(qn_cuda_launch(run, DIGITS_ROWS, &rows, arguments, error));
    }
    QN_TRY(qn_cuda_launch(run, DIGITS_CODES, &codes, arguments, error));
    return launch_parts(run, TILES, JOIN, (uint32_t)across, (uint32_t)c->down,
                        QN_CUDA_DIGITS_SHARED(qn_cuda_code_group(format)), arguments, error);
}

static qn_status launch_digits(const qn_cuda_run *run, qn_cuda_mm *a, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const int64_t n = a->n, item = desc->attr[QN_ATTR_OUT].i == QN_OUT_F32 ? 4 : 2;
    const qn_format bias = qn_cuda_mm_bias(desc);
    const int64_t bias_item = bias == QN_F32 ? 4 : 2;
    for (int32_t left = a->m; left > 0; left -= a->m) {
        const digits_cut c = digits_cut_of(desc, qn_min_i64(left, DIGITS_AT_ONCE));
        a->m = (int32_t)c.rows;
        qn_cuda_mm some = *a;
        for (int64_t column = 0; column < n; column += c.columns) {
            some.n = some.part[0].n = (int32_t)qn_min_i64(n - column, c.columns);
            QN_TRY(launch_cut(run, &some, &c, column == 0, error));
            some.part[0].b += c.columns * some.part[0].b_row;
            some.part[0].d += c.columns * item;
            some.part[0].bias += bias ? c.columns * bias_item : 0;
        }
        a->x += a->m * a->x_row;
        a->part[0].d += a->m * a->part[0].d_row;
    }
    return QN_OK;
}

/* own: of a plan of this file's kernels. */
static qn_status launch_with(const qn_cuda_run *run, int own, qn_error *error)
{
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    void *const arguments[] = {&a};
    const int32_t format = qn_cuda_weight_format(run->call->desc);
    int aligned = qn_cuda_mm_aligned(format, &a.part[0], a.k);
    if (format == QN_MM_I8) {
        aligned = aligned && ((uint64_t)(uintptr_t)a.x | (uint64_t)a.x_row) % 4 == 0;
    }
    if (aligned && a.m > few_rows[FEW_COUNT - 1] && by_digits(run->call->desc)) {
        if (a.n > 0 && a.k > 0) {
            return launch_digits(run, &a, error);
        }
        aligned = 0; /* there are no tiles for it but those of any operands */
    }
    if (!aligned || a.m > few_rows[FEW_COUNT - 1] || a.n == 0) {
        const qn_op_desc *desc = run->call->desc;
        const int tensor = own && tensor_of(desc) && has_parts(desc);
        const int32_t blocks = tensor && aligned ? large_blocks(most_large(desc), a.m, a.n, run->device->sms) : 0;
        const int parts = tensor && !blocks && a.m > few_rows[FEW_COUNT - 1] && a.k > 0;
        return launch_tiles(run,
                            blocks    ? LARGE + blocks - 1
                            : aligned ? TILES
                                      : ANY,
                            blocks ? LARGE_TILE : TILE, &a, parts ? run->call->workspace : NULL, error);
    }
    int32_t i = 0;
    while (few_rows[i] < a.m) {
        i++;
    }
    const qn_cuda_few few = qn_cuda_few_shape(format, a.n, a.k, few_rows[i], 0, run->device->sms);
    const qn_cuda_geometry g = {.grid = {qn_cuda_few_blocks(&few, a.n), 1, 1},
                                .block = {THREADS, 1, 1},
                                .shared_bytes = (uint32_t)few.shared_bytes,
                                .dependent = 1};
    return qn_cuda_launch(run, FEW + i, &g, arguments, error);
}

qn_status qn_cuda_mm_launch(const qn_cuda_run *run, qn_error *error)
{
    return launch_with(run, 0, error);
}

qn_status qn_cuda_mm_own_launch(const qn_cuda_run *run, qn_error *error)
{
    return launch_with(run, 1, error);
}

/* What aligned operands take. */
void qn_cuda_mm_own_describe(const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes, qn_text *text)
{
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const int64_t m = sizes->m, n = sizes->n, k = qn_cuda_mm_depth(desc);
    if (!cuda || m < 1 || n < 1 || k < 1) {
        return;
    }
    if (m <= few_rows[FEW_COUNT - 1]) {
        const qn_cuda_few few = qn_cuda_few_shape(qn_cuda_weight_format(desc), n, k, (int32_t)m, 0, cuda->device.sms);
        qn_text_add(text, "cut: %d row%s of b a warp, %d warp%s a row of b, by fused multiply-adds or byte dots\n",
                    few.columns, few.columns > 1 ? "s" : "", few.split, few.split > 1 ? "s" : "");
        return;
    }
    int64_t depth = INT32_MAX, tile = TILE;
    if (by_digits(desc)) {
        const digits_cut c = digits_cut_of(desc, m);
        depth = c.depth;
        qn_text_add(text, "cut: three int8 digits of x by int8 codes of b, by mma.sync: tiles of %d x %d",
                    QN_CUDA_DIGITS_ROWS, QN_CUDA_DIGITS_COLUMNS);
    } else if (tensor_of(desc)) {
        tile = large_blocks(most_large(desc), m, n, cuda->device.sms) ? LARGE_TILE : TILE;
        depth = tile == TILE && has_parts(desc) ? tiles_depth(m, n, k) : depth;
        qn_text_add(text, "cut: tiles of %lld x %lld by mma.sync", (long long)tile, (long long)tile);
    } else {
        qn_text_add(text, "cut: tiles of %d x %d by fused multiply-adds", TILE, TILE);
    }
    const int64_t parts = qn_ceil_div(k, depth);
    qn_text_add(text, ", %lld part%s of K\n", (long long)parts, parts > 1 ? "s" : "");
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    qn_cuda_mm_own_describe(ctx, desc, sizes, text);
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = qn_cuda_mm_own_launch};

#define ROW(op_, contract)                                                                                             \
    {                                                                                                                  \
        QN_CUDA_HOOKS, .name = "qn_" contract "__sm80_64x64", .op = (op_), .level = "sm_80 and later",                 \
                       .status = QN_CUDA_TESTED, .accepts = accepts, .describe = describe,                             \
                       .workspace_bytes = workspace, .impl = &impl                                                     \
    }

static const qn_kernel kernels[] = {
    ROW(QN_OP_DENSE_MM, "dense_mm_fp_any_fp"),
    ROW(QN_OP_SCALED_MM, "scaled_mm_q8_q8_fp_any"),
    ROW(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm_e4m3_f8_fp"),
    ROW(QN_OP_NVFP4_MM, "nvfp4_mm_any_nvfp4_fp"),
    ROW(QN_OP_MXFP4_MM, "mxfp4_mm_fp_mxfp4_fp"),
};

const qn_cuda_family qn_cuda_mm_family = {kernels, sizeof kernels};
