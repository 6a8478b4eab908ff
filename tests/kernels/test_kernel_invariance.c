/* Law 2 at the operators: a row has the same bits whatever rows are beside it.
 *
 * Every row of the CPU registry that this machine can run, on every case of the
 * shared table whose rows are independent, with M raised to ROWS: rows alone (one
 * thread, dense operands; every third, of large weights every twelfth, all with
 * QN_TEST_DEALS) and the others as they are dealt at random into runs of random
 * sizes and orders give the bits wanted; then all are dealt anew, on 1 to 4 threads,
 * strided and off alignment, with packed weights and without. Which axis of an
 * operand counts rows is found by describing the case with two Ms and looking what
 * changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/operands.h"
#include "op/large.h"
#include "op/random_cases.h"

#define SEED 20241121u
#define ROWS 37
#define TEXT 512 /* of a case */
#define POISON_OUT 0xAA
#define POISON_IN 0xFF

static qn_ctx *ctx;
static qn_pool *pools[4];
static qn_rng rng = {SEED};
static int deals = 1;     /* times the rows are dealt anew: QN_TEST_DEALS */
static int32_t alone = 3; /* one of so many rows is run alone, of large weights one of four times as many */

static int64_t below(int64_t n)
{
    return (int64_t)(qn_rng_next(&rng) % (uint64_t)n);
}

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("seed %u, %s: %s: %s", SEED, what, qn_status_name(status), error->text);
    }
}

/* A case with all rows, and where its rows are. */
typedef struct subject {
    char text[TEXT];
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    const qn_op_info *info;
    int in_axis[QN_MAX_IN], out_axis[QN_MAX_OUT]; /* -1: none */
    void *in[QN_MAX_IN];                          /* dense */
    void *want[QN_MAX_OUT];                       /* dense, made row by row */
    int causal;                                   /* attention: row t sees keys up to n - ROWS + t */
    int32_t experts;                              /* grouped: more than one expert may own rows */
    int large;                                    /* its weights take long */
    qn_plan *plan;
    void *packed;
} subject;

/* The case's text with another M. */
static void with_rows(const char *text, int64_t m, char *to, size_t capacity)
{
    const char *at = strstr(text, " m=");
    assert_non_null(at);
    const char *rest = at + 3 + strspn(at + 3, "0123456789");
    snprintf(to, capacity, "%.*s m=%lld%s", (int)(at - text), text, (long long)m, rest);
}

static int differing_axis(const qn_shape *a, const qn_shape *b)
{
    for (int d = 0; a->format && d < a->ndim; d++) {
        if (a->dims[d] != b->dims[d]) {
            return d;
        }
    }
    return -1;
}

static int64_t element_bytes(const qn_shape *shape)
{
    return qn_format_get_info(shape->format)->block_bytes;
}

/* ---- parts of operands ---- */

/* Byte offset of element 0 of the last axis in row `row` (along axis) and outer index o, and how many bytes lie there.
 */
typedef struct slab {
    int64_t outer, rows, bytes; /* outer x rows x bytes, when dense */
    int64_t outer_stride, row_stride;
} slab;

static slab slab_of(const qn_shape *shape, const int64_t *strides, int axis)
{
    slab s = {.outer = 1, .rows = shape->dims[axis]};
    if (axis == shape->ndim - 1) { /* one element a row */
        s.bytes = element_bytes(shape);
        s.row_stride = s.bytes;
        for (int d = 0; d < axis; d++) {
            s.outer *= shape->dims[d];
        }
        s.outer_stride = axis ? strides[axis - 1] : 0;
    } else {
        size_t row;
        qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL);
        s.bytes = (int64_t)row;
        for (int d = axis + 1; d < shape->ndim - 1; d++) {
            s.bytes = strides[d] * (shape->dims[d] - 1) + s.bytes; /* inner axes are dense */
        }
        s.row_stride = strides[axis];
        for (int d = 0; d < axis; d++) {
            s.outer *= shape->dims[d];
        }
        s.outer_stride = axis ? strides[axis - 1] : 0;
    }
    return s;
}

/* An operand of a run: own memory at an odd place, rows `gap` elements apart where they may be. */
typedef struct operand {
    char *memory;
    size_t bytes;
    char *data;
    qn_shape shape;
    int64_t strides[QN_MAX_DIMS];
} operand;

static operand operand_make(const qn_shape *shape, int64_t gap, int64_t shift, int poison)
{
    operand o = {.shape = *shape};
    size_t bytes = strides_of(shape, 0, o.strides);
    if (shape->ndim > 1 && shape->dims[0] > 0) { /* between rows; what is inside a row is dense */
        o.strides[0] += gap * element_bytes(shape);
        bytes += (size_t)(gap * element_bytes(shape) * (shape->dims[0] - 1));
    }
    o.bytes = bytes + (size_t)(shift * element_bytes(shape));
    o.memory = aligned_alloc(64, (o.bytes + 64) / 64 * 64);
    memset(o.memory, poison, (o.bytes + 64) / 64 * 64);
    o.data = o.memory + shift * element_bytes(shape);
    return o;
}

/* Rows [first, first + count) named by order between a whole dense tensor and a part of it. */
static void move_rows(const qn_shape *whole, char *dense, operand *part, int axis, const int32_t *order, int64_t count,
                      int to_part)
{
    int64_t strides[QN_MAX_DIMS];
    strides_of(whole, 0, strides);
    const slab w = slab_of(whole, strides, axis), p = slab_of(&part->shape, part->strides, axis);
    for (int64_t o = 0; o < w.outer; o++) {
        for (int64_t r = 0; r < count; r++) {
            char *const a = dense + o * w.outer_stride + order[r] * w.row_stride;
            char *const b = part->data + o * p.outer_stride + r * p.row_stride;
            memcpy(to_part ? b : a, to_part ? a : b, (size_t)w.bytes);
        }
    }
}

/* ---- runs ---- */

static int may_be_strided(const qn_shape *shape, int axis)
{
    return shape->ndim > 1 && axis == 0;
}

/* Memory for all workspaces, as new pages cost more than most kernels; AddressSanitizer takes what is not in use for
 * freed. */
static char *workspaces;
static size_t workspaces_bytes;

static void *workspace_take(const qn_plan *plan, int64_t m, const qn_exec *exec, size_t *bytes)
{
    *bytes = qn_plan_workspace_bytes(plan, m, qn_exec_threads(exec));
    if (*bytes == 0) {
        return NULL;
    }
    if (*bytes > workspaces_bytes) {
        free(workspaces);
        workspaces_bytes = (*bytes + 63) / 64 * 64;
        workspaces = aligned_alloc(64, workspaces_bytes);
        ASAN_POISON_MEMORY_REGION(workspaces, workspaces_bytes);
    }
    char *const p = workspaces + (workspaces_bytes - *bytes) / 64 * 64; /* as near the end as it may be */
    ASAN_UNPOISON_MEMORY_REGION(p, *bytes);
    memset(p, 0xFF, *bytes);
    return p;
}

static void workspace_give(void *p, size_t bytes)
{
    if (p) {
        ASAN_POISON_MEMORY_REGION(p, bytes);
    }
}

/* Which expert owns a row (offsets layout). */
static int32_t expert_of(const int32_t *offsets, int32_t experts, int64_t row)
{
    int32_t e = 0;
    while (e < experts && row >= offsets[e + 1]) {
        e++;
    }
    return e;
}

/* Run `count` rows in that order; results into got (dense, whole), at their rows. */
static void run_rows(const subject *s, const int32_t *order, int64_t count, int64_t gap, int64_t shift, int packed,
                     const qn_exec *exec, void *const got[QN_MAX_OUT])
{
    operand in[QN_MAX_IN] = {{0}}, out[QN_MAX_OUT] = {{0}};
    qn_args args;
    memset(&args, 0, sizeof args);
    int32_t offsets[64];
    for (int i = 0; i < s->info->in_count; i++) {
        const int axis = s->in_axis[i];
        qn_shape shape = s->desc.in[i];
        if (!shape.format || (packed && s->info->in[i].weight)) {
            continue;
        }
        if (axis >= 0) {
            shape.dims[axis] = count;
            in[i] = operand_make(&shape, may_be_strided(&shape, axis) ? gap : 0, shift, POISON_IN);
            move_rows(&s->desc.in[i], s->in[i], &in[i], axis, order, count, 1);
            args.in[i] = (qn_view){.data = in[i].data, .shape = shape};
            memcpy(args.in[i].strides, in[i].strides, sizeof in[i].strides);
        } else {
            const int recent = strstr(s->info->in[i].name, "_recent") != NULL; /* rows of a ring, not of keys */
            if (s->causal && i > 0 && !recent && shape.dims[0] == s->desc.in[1].dims[0]) {
                shape.dims[0] -= ROWS - 1 - order[count - 1];
            }
            args.in[i] = qn_view_make(s->in[i], &shape);
        }
        if (s->experts && strcmp(s->info->in[i].name, "offsets") == 0) {
            const int32_t *whole = s->in[i];
            memset(offsets, 0, sizeof offsets);
            for (int64_t r = 0; r < count; r++) {
                for (int32_t e = expert_of(whole, s->experts, order[r]); e < s->experts; e++) {
                    offsets[e + 1]++;
                }
            }
            args.in[i].data = offsets;
        }
    }
    for (int i = 0; i < s->info->out_count; i++) {
        qn_shape shape = s->out[i];
        if (shape.format) {
            const int axis = s->out_axis[i];
            shape.dims[axis < 0 ? 0 : axis] = axis < 0 ? shape.dims[0] : count;
            out[i] = operand_make(&shape, axis >= 0 && may_be_strided(&shape, axis) ? gap : 0, shift, POISON_OUT);
            args.out[i] = (qn_mut_view){.data = out[i].data, .shape = shape};
            memcpy(args.out[i].strides, out[i].strides, sizeof out[i].strides);
        }
    }
    args.packed = packed ? s->packed : NULL;
    size_t bytes;
    void *workspace = workspace_take(s->plan, count, exec, &bytes);
    qn_error error = {0};
    must(qn_run(s->plan, &args, workspace, bytes, exec, &error), &error, s->text);
    workspace_give(workspace, bytes);
    for (int i = 0; i < s->info->out_count; i++) {
        if (s->out[i].format && s->out_axis[i] >= 0) {
            move_rows(&s->out[i], got[i], &out[i], s->out_axis[i], order, count, 0);
        }
        free(out[i].memory);
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(in[i].memory);
    }
}

/* ---- subjects ---- */

/* Scales that rows share make rows depend on each other by definition. */
static int rows_are_independent(const qn_op_desc *d, const subject *s)
{
    const int32_t granularity = d->attr[QN_ATTR_GRANULARITY].i;
    switch ((int)d->op) {
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8: return granularity == QN_PER_TOKEN || granularity == QN_PER_GROUP;
    case QN_OP_DEQUANTIZE:
        if (d->attr[QN_ATTR_FORMAT].i == QN_QUANT_FP8 || d->attr[QN_ATTR_FORMAT].i == QN_QUANT_INT8) {
            return granularity == QN_PER_TOKEN || granularity == QN_PER_GROUP;
        }
        return !d->attr[QN_ATTR_SWIZZLED].i;
    case QN_OP_QUANTIZE_NVFP4:
        return !d->attr[QN_ATTR_SWIZZLED].i && d->in[qn_op_in_slot(d->op, "global_scale")].format;
    case QN_OP_GROUPED_BLOCK_SCALED_MM: return s->experts > 0; /* the masked layout's rows have fixed places */
    default: return 1;
    }
}

/* Describe the case with ROWS rows and fill it; 0 when its rows are not independent. */
static int subject_make(const char *text, subject *s)
{
    qn_error error = {0};
    qn_op_desc fewer;
    qn_shape fewer_out[QN_MAX_OUT];
    char shorter[TEXT];
    memset(s, 0, sizeof *s);
    with_rows(text, ROWS, s->text, sizeof s->text);
    with_rows(text, ROWS - 1, shorter, sizeof shorter);
    if (qn_op_desc_parse(s->text, &s->desc, &error) != QN_OK) {
        return 0;
    }
    s->info = qn_op_get_info(s->desc.op);
    const int attends = s->desc.op == QN_OP_ATTENTION || s->desc.op == QN_OP_SCALED_ATTENTION;
    if (attends && s->desc.in[1].dims[0] < ROWS) { /* every query sees a key */
        char longer[TEXT];
        snprintf(longer, sizeof longer, "%s", s->text);
        const char *at = strstr(longer, " n=");
        snprintf(s->text, sizeof s->text, "%.*s n=130%s", (int)(at - longer), longer,
                 at + 3 + strspn(at + 3, "0123456789"));
        snprintf(longer, sizeof longer, "%s", s->text);
        with_rows(longer, ROWS - 1, shorter, sizeof shorter);
        must(qn_op_desc_parse(s->text, &s->desc, &error), &error, s->text);
    }
    must(qn_op_desc_parse(shorter, &fewer, &error), &error, shorter);
    qn_sizes sizes;
    must(qn_op_desc_check(&s->desc, s->out, &sizes, &error), &error, s->text);
    s->large = !attends && has_large_weights(&sizes);
    must(qn_op_desc_check(&fewer, fewer_out, NULL, &error), &error, shorter);
    const int32_t offsets = qn_op_in_slot(s->desc.op, "offsets");
    if (offsets >= 0 && s->desc.in[offsets].format) {
        s->experts = (int32_t)s->desc.in[offsets].dims[0] - 1;
        assert_true(s->experts < 63);
    }
    s->causal = attends && s->desc.attr[QN_ATTR_CAUSAL].i;
    if (!rows_are_independent(&s->desc, s)) {
        return 0;
    }
    for (int i = 0; i < s->info->in_count; i++) {
        const int pages = s->desc.attr[QN_ATTR_PAGE].i > 0 && s->desc.in[i].ndim == 4 &&
                          strstr(s->info->in[i].name, "_codes"); /* which all rows share */
        s->in_axis[i] = s->info->in[i].weight || pages ? -1 : differing_axis(&s->desc.in[i], &fewer.in[i]);
        if (s->desc.in[i].format) {
            size_t bytes = 0;
            must(qn_shape_bytes(&s->desc.in[i], &bytes, &error), &error, s->text);
            s->in[i] = aligned_alloc(64, (bytes + 64) / 64 * 64);
        }
    }
    must(qn_case_fill(&s->desc, SEED, 0, s->in, &error), &error, s->text);
    int rows = 0;
    for (int i = 0; i < s->info->out_count; i++) {
        s->out_axis[i] = differing_axis(&s->out[i], &fewer_out[i]);
        rows += s->out_axis[i] >= 0;
        if (s->out[i].format) {
            size_t bytes = 0;
            must(qn_shape_bytes(&s->out[i], &bytes, &error), &error, s->text);
            s->want[i] = calloc(1, bytes + 1);
        }
    }
    assert_true(rows > 0);
    return 1;
}

static void subject_free(subject *s)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(s->in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(s->want[i]);
    }
}

static void pack(subject *s)
{
    const size_t bytes = qn_plan_pack_bytes(s->plan);
    s->packed = NULL;
    if (bytes) {
        qn_args args;
        qn_error error = {0};
        memset(&args, 0, sizeof args);
        for (int i = 0; i < s->info->in_count; i++) {
            if (s->desc.in[i].format) {
                args.in[i] = qn_view_make(s->in[i], &s->desc.in[i]);
            }
        }
        s->packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
        memset(s->packed, 0xFF, bytes);
        must(qn_pack(s->plan, &args, s->packed, bytes, &error), &error, s->text);
    }
}

/* All rows, in runs of random sizes, few on request; any order where the operator has none of its own. */
static void deal(const subject *s, const qn_exec *exec, int packed, int few, void *const got[QN_MAX_OUT])
{
    int32_t order[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        const int64_t j = s->causal || s->experts ? i : below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t first = 0; first < ROWS;) {
        enum { SIZES = 9, LONG = 3 };
        static const int64_t sizes[SIZES] = {ROWS, 17, 16, 9, 8, 7, 3, 2, 1};
        const int64_t some = sizes[below(few ? LONG : SIZES)];
        const int64_t count = some < ROWS - first ? some : ROWS - first;
        run_rows(s, order + first, count, below(4), below(4), packed, exec, got);
        first += count;
    }
}

static void compare(const subject *s, void *const got[QN_MAX_OUT], int32_t threads, int packed)
{
    for (int i = 0; i < s->info->out_count; i++) {
        size_t bytes = 0;
        if (!s->out[i].format || s->out_axis[i] < 0) {
            continue;
        }
        qn_shape_bytes(&s->out[i], &bytes, NULL);
        for (size_t b = memcmp(got[i], s->want[i], bytes) ? 0 : bytes; b < bytes; b++) {
            if (((const char *)got[i])[b] != ((const char *)s->want[i])[b]) {
                fail_msg("seed %u, %s, %s: byte %zu of output %d differs beside other rows (%d threads, %s weights)",
                         SEED, qn_plan_kernel(s->plan), s->text, b, i, threads, packed ? "packed" : "stored");
            }
        }
    }
}

/* One kernel on one case. */
static void check_kernel(subject *s)
{
    void *got[QN_MAX_OUT] = {NULL};
    for (int i = 0; i < s->info->out_count; i++) {
        size_t bytes = 0;
        if (s->out[i].format) {
            qn_shape_bytes(&s->out[i], &bytes, NULL);
            got[i] = calloc(1, bytes + 1);
        }
    }
    pack(s);
    const int32_t step = alone > 1 && s->large ? 4 * alone : alone;
    if (alone > 1) {
        deal(s, NULL, s->packed != NULL, s->large, s->want); /* a run with stored weights packs them first */
    }
    for (int32_t row = (int32_t)below(step); row < ROWS; row += step) {
        run_rows(s, &row, 1, 0, 0, s->packed != NULL, NULL, s->want);
    }
    for (int packed = 0; packed <= (s->packed != NULL); packed++) {
        for (int i = 0; i < deals; i++) {
            const int32_t threads = (int32_t)below(4);
            const qn_exec exec = {.pool = pools[threads]};
            for (int o = 0; o < QN_MAX_OUT; o++) {
                size_t bytes = 0;
                if (got[o]) {
                    qn_shape_bytes(&s->out[o], &bytes, NULL);
                    memset(got[o], POISON_OUT, bytes);
                }
            }
            deal(s, &exec, packed, s->large || (s->packed && !packed), got); /* those runs pack */
            compare(s, got, threads + 1, packed);
        }
    }
    free(s->packed);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(got[i]);
    }
}

/* 1 when the CPU backend has rows for the operator of a case; vq_dequantize's rows are weights, not a batch. */
static int has_kernels(const char *text)
{
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " "), text);
    const qn_op op = qn_op_find(name);
    qn_kernel_info k;
    for (int32_t i = 0; op != QN_OP_VQ_DEQUANTIZE && kernel_at(ctx, i, &k) == QN_OK; i++) {
        if (k.op == op && k.backend == QN_BACKEND_CPU) {
            return 1;
        }
    }
    return 0;
}

/* 1 when an earlier test case is the same but for its M. */
static int seen_before(int32_t at, const char *text)
{
    char with[TEXT], other[TEXT];
    with_rows(text, ROWS, with, sizeof with);
    const char *earlier;
    for (int32_t i = 0, bench; i < at && (earlier = qn_case_at(i, &bench)); i++) {
        if (!bench && strstr(earlier, " m=")) {
            with_rows(earlier, ROWS, other, sizeof other);
            if (strcmp(with, other) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

/* Every kernel of this machine that takes the case; how many there are, -1 when its rows are not independent. */
static int check_case(const char *text)
{
    subject s;
    if (!subject_make(text, &s)) {
        subject_free(&s);
        return -1;
    }
    int kernels = 0;
    qn_kernel_info k;
    for (int32_t i = 0; kernel_at(ctx, i, &k) == QN_OK; i++) {
        if (k.op != s.desc.op || k.backend != QN_BACKEND_CPU || k.refusal) {
            continue;
        }
        qn_plan_options options;
        qn_plan_options_init(&options);
        options.backend = QN_BACKEND_CPU;
        options.kernel = k.name;
        qn_error error = {0};
        const qn_status status = qn_plan_create(ctx, &s.desc, &options, &s.plan, &error);
        if (status == QN_E_UNSUPPORTED) {
            continue;
        }
        must(status, &error, s.text);
        check_kernel(&s);
        qn_plan_destroy(s.plan);
        kernels++;
    }
    subject_free(&s);
    return kernels;
}

static void rows_do_not_know_what_is_beside_them(void **state)
{
    (void)state;
    int32_t cases = 0, runs = 0, bench;
    const char *text;
    for (int32_t c = 0; (text = qn_case_at(c, &bench)); c++) {
        if (bench) {
            continue;
        }
        if (!has_kernels(text)) {
            print_message("skipped %s: the reference alone computes it, or it has no rows of a batch\n", text);
            continue;
        }
        const int kernels = seen_before(c, text) ? -1 : check_case(text);
        if (kernels == 0) {
            fail_msg("%s: no kernel of this machine takes it", text);
        }
        cases += kernels > 0;
        runs += kernels > 0 ? kernels : 0;
    }
    assert_true(cases > 0);
    print_message("seed %u: %d cases of %d rows, %d with their kernels\n", SEED, cases, ROWS, runs);
}

/* The same of cases drawn at random; QN_TEST_CASES: how many of an operator, QN_TEST_SEED. */
static void rows_of_random_cases_do_not_either(void **state)
{
    (void)state;
    const char *const many = getenv("QN_TEST_CASES"), *const seed = getenv("QN_TEST_SEED");
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = 1 << (many ? 22 : 20)};
    int runs = 0;
    for (int c = many ? atoi(many) : 2; c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char text[TEXT];
            random_case(&r, qn_op_at(o), text, sizeof text);
            const int kernels = has_kernels(text) ? check_case(text) : 0;
            runs += kernels > 0 ? kernels : 0;
        }
    }
    assert_true(runs > 0);
    print_message("%d random cases of %d rows\n", runs, ROWS);
}

static int start(void **state)
{
    (void)state;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    for (int i = 0; i < 4; i++) {
        if (qn_pool_create(ctx, i + 1, &pools[i], NULL) != QN_OK) {
            return 1;
        }
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    free(workspaces);
    for (int i = 0; i < 4; i++) {
        qn_pool_destroy(pools[i]);
    }
    qn_ctx_destroy(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    const char *const more = getenv("QN_TEST_DEALS");
    deals = more && atoi(more) > 0 ? atoi(more) : 1;
    alone = more ? 1 : alone;
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_do_not_know_what_is_beside_them),
                                       cmocka_unit_test(rows_of_random_cases_do_not_either)};
    return cmocka_run_group_tests(tests, start, stop);
}
