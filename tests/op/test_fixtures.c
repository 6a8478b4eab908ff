/* Every operator against outputs computed by tests/op/make_fixtures.py from
 * docs/operators.md alone: through a plan with the reference, through a plan
 * with the CPU backend, and through the command as a process (QN_CLI). Outputs
 * are filled with a pattern first, so an element left unwritten shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/experimental.h>
#include <quern/plan.h>
#include <quern/tensors.h>

#include "format/format.h"
#include "op/op.h"

#define FOLDER "tests/op/fixtures/"
#define EXPECTED_CASES 553 /* what make_fixtures.py printed */
#define TEXT 256

typedef struct fixture {
    char text[TEXT]; /* "op key=value ..." */
    char label[TEXT + 32];
    int tolerance;
    qn_op_desc desc;
    qn_shape out_shapes[QN_MAX_OUT];
    qn_view in[QN_MAX_IN], want[QN_MAX_OUT];
} fixture;

static const char *const file_names[] = {
    "attention", "block_scaled_mm", "dense_mm",      "dequantize",     "grouped_block_scaled_mm", "mxfp4_mm",
    "nvfp4_mm",  "quantize_fp8",    "quantize_int8", "quantize_mxfp4", "quantize_nvfp4",          "rmsnorm",
    "rope",      "scaled_mm",       "silu_mul",      "silu_mul_quant",
};

/* Cases that disagreed; a test goes through all of them and fails at its end. */
static int failures;

#define DISAGREE(...)                                                                                                  \
    do {                                                                                                               \
        if (++failures <= 20) {                                                                                        \
            print_error(__VA_ARGS__);                                                                                  \
        }                                                                                                              \
        return;                                                                                                        \
    } while (0)

static qn_ctx *make_ctx(void)
{
    failures = 0;
    qn_ctx *ctx = NULL;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    return ctx;
}

static int view_of(const qn_tensors *tensors, int number, const char *part, const char *name, qn_view *view)
{
    char full[TEXT];
    snprintf(full, sizeof full, "%03d/%s%s", number, part, name);
    const int32_t at = qn_tensors_find(tensors, full);
    return at >= 0 && qn_tensors_at(tensors, at, NULL, view, NULL) == QN_OK;
}

/* Case of that number; 0 when the file has no more. */
static int load(const qn_tensors *tensors, int number, fixture *f)
{
    qn_view view;
    memset(f, 0, sizeof *f);
    if (!view_of(tensors, number, "case", "", &view)) {
        return 0;
    }
    assert_true(view.shape.dims[0] < TEXT);
    memcpy(f->text, view.data, (size_t)view.shape.dims[0]);
    snprintf(f->label, sizeof f->label, "%03d: %s", number, f->text);
    assert_true(view_of(tensors, number, "tol", "", &view));
    f->tolerance = *(const uint8_t *)view.data;

    char words[TEXT];
    memcpy(words, f->text, sizeof words);
    char *save = NULL, *word = strtok_r(words, " ", &save);
    qn_op_desc_init(&f->desc, qn_op_find(word));
    const qn_op_info *op = qn_op_get_info(f->desc.op);
    assert_non_null(op);
    qn_error error;
    while ((word = strtok_r(NULL, " ", &save)) != NULL) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value = 0;
        if (qn_op_desc_set(&f->desc, word, value + 1, &error) != QN_OK) {
            fail_msg("%s: %s", f->label, error.text);
        }
    }
    for (int32_t i = 0; i < op->in_count; i++) {
        if (view_of(tensors, number, "in.", op->in[i].name, &f->in[i])) {
            f->desc.in[i] = f->in[i].shape;
        }
    }
    if (qn_op_desc_check(&f->desc, f->out_shapes, NULL, &error) != QN_OK) {
        fail_msg("%s: %s", f->label, error.text);
    }
    for (int32_t i = 0; i < op->out_count; i++) {
        const int there = view_of(tensors, number, "out.", op->out[i].name, &f->want[i]);
        assert_int_equal(there, f->out_shapes[i].format != QN_FORMAT_NONE);
    }
    return 1;
}

static int is_nan_at(qn_format format, const char *at)
{
    float value = 0.0f;
    if (format == QN_I32 || format == QN_U8 || format == QN_I8) {
        return 0;
    }
    qn_format_get_row(format)->decode(at, 1, &value);
    return value != value;
}

/* Fails unless got has the bits of the fixture, any NaN standing for a NaN. */
static void compare_bits(const fixture *f, int32_t slot, const void *got, const char *who)
{
    const qn_view *want = &f->want[slot];
    const qn_format_info *info = qn_format_get_info(want->shape.format);
    const int64_t count = qn_shape_elements(&want->shape);
    for (int64_t i = 0; i < count; i++) {
        const char *a = (const char *)want->data + i * info->block_bytes;
        const char *b = (const char *)got + i * info->block_bytes;
        if (memcmp(a, b, (size_t)info->block_bytes) != 0 &&
            !(is_nan_at(want->shape.format, a) && is_nan_at(want->shape.format, b))) {
            uint32_t x = 0, y = 0;
            memcpy(&x, a, (size_t)info->block_bytes);
            memcpy(&y, b, (size_t)info->block_bytes);
            float u = 0.0f, v = 0.0f;
            qn_format_get_row(want->shape.format)->decode(a, 1, &u);
            qn_format_get_row(want->shape.format)->decode(b, 1, &v);
            DISAGREE("%s by %s: output %s element %lld is 0x%x (%g), expected 0x%x (%g)\n", f->label, who,
                     qn_op_get_info(f->desc.op)->out[slot].name, (long long)i, y, (double)v, x, (double)u);
        }
    }
}

static void compare(const fixture *f, const qn_view got[QN_MAX_OUT], int exact, const char *who)
{
    if (exact) {
        for (int32_t i = 0; i < QN_MAX_OUT; i++) {
            if (f->out_shapes[i].format != QN_FORMAT_NONE && qn_shape_elements(&f->out_shapes[i]) > 0) {
                compare_bits(f, i, got[i].data, who);
            }
        }
        return;
    }
    qn_case_result result;
    qn_error error;
    if (qn_case_judge(&f->desc, f->want, got, f->in, 0, &result, &error) != QN_OK) {
        fail_msg("%s by %s: %s", f->label, who, error.text);
    }
    if (!result.pass) {
        DISAGREE("%s by %s: output %d element %lld is %.9g, expected %.9g (%g times what the error model allows)\n",
                 f->label, who, result.slot, (long long)result.index, result.got, result.want, result.max_error);
    }
}

static void run_plan(qn_ctx *ctx, const fixture *f, qn_backend backend)
{
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = backend;
    qn_plan *plan = NULL;
    qn_error error;
    const char *who = qn_backend_name(backend);
    if (qn_plan_create(ctx, &f->desc, &options, &plan, &error) != QN_OK) {
        fail_msg("%s by %s: %s", f->label, who, error.text);
    }
    qn_args args;
    memset(&args, 0, sizeof args);
    memcpy(args.in, f->in, sizeof args.in);
    qn_view got[QN_MAX_OUT];
    void *buffers[QN_MAX_OUT] = {NULL};
    memset(got, 0, sizeof got);
    for (int32_t i = 0; i < QN_MAX_OUT; i++) {
        size_t bytes = 0;
        if (f->out_shapes[i].format != QN_FORMAT_NONE) {
            assert_int_equal(qn_shape_bytes(&f->out_shapes[i], &bytes, NULL), QN_OK);
            buffers[i] = aligned_alloc(64, (bytes + 64) / 64 * 64);
            memset(buffers[i], 0xA5, bytes);
            args.out[i] = qn_mut_view_make(buffers[i], &f->out_shapes[i]);
            got[i] = qn_view_of(&args.out[i]);
        }
    }
    qn_sizes sizes;
    assert_int_equal(qn_op_desc_check(&f->desc, NULL, &sizes, NULL), QN_OK);
    const size_t pack_bytes = qn_plan_pack_bytes(plan);
    void *blob = NULL;
    if (pack_bytes > 0) {
        blob = aligned_alloc(64, (pack_bytes + 63) / 64 * 64);
        if (qn_pack(plan, &args, blob, pack_bytes, &error) != QN_OK) {
            fail_msg("%s by %s: %s", f->label, who, error.text);
        }
        args.packed = blob;
    }
    const size_t workspace_bytes = qn_plan_workspace_bytes(plan, sizes.m, 1);
    void *workspace = aligned_alloc(64, (workspace_bytes + 64) / 64 * 64);
    if (qn_run(plan, &args, workspace, workspace_bytes, NULL, &error) != QN_OK) {
        fail_msg("%s by %s: %s", f->label, qn_plan_kernel(plan), error.text);
    }
    const int exact = f->tolerance == 0 || (f->tolerance == 1 && backend == QN_BACKEND_REF);
    if (sizes.m > 0) { /* M = 0 does nothing */
        compare(f, got, exact, qn_plan_kernel(plan));
    }
    free(workspace);
    free(blob);
    for (int32_t i = 0; i < QN_MAX_OUT; i++) {
        free(buffers[i]);
    }
    qn_plan_destroy(plan);
}

/* All cases of all files, in order; returns how many. */
static int each_case(qn_ctx *ctx, void (*fn)(qn_ctx *ctx, const fixture *f, void *user), void *user)
{
    int count = 0;
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names; i++) {
        char path[TEXT];
        snprintf(path, sizeof path, FOLDER "%s.safetensors", file_names[i]);
        qn_tensors *tensors = NULL;
        qn_error error;
        if (qn_tensors_open(ctx, path, &tensors, &error) != QN_OK) {
            fail_msg("%s", error.text);
        }
        fixture f;
        for (int number = 0; load(tensors, number, &f); number++, count++) {
            fn(ctx, &f, user);
        }
        qn_tensors_close(tensors);
    }
    return count;
}

static void by_backend(qn_ctx *ctx, const fixture *f, void *user)
{
    run_plan(ctx, f, *(const qn_backend *)user);
}

static void reference_agrees(void **state)
{
    (void)state;
    qn_ctx *ctx = make_ctx();
    qn_backend backend = QN_BACKEND_REF;
    assert_true(each_case(ctx, by_backend, &backend) >= EXPECTED_CASES);
    qn_ctx_destroy(ctx);
    assert_int_equal(failures, 0);
}

static void by_cpu(qn_ctx *ctx, const fixture *f, void *user)
{
    int *without = user;
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CPU;
    qn_plan *plan = NULL;
    const qn_status status = qn_plan_create(ctx, &f->desc, &options, &plan, NULL);
    qn_plan_destroy(plan);
    if (status == QN_E_UNSUPPORTED) { /* only the reference serves it here */
        (*without)++;
        return;
    }
    run_plan(ctx, f, QN_BACKEND_CPU);
}

static void cpu_agrees(void **state)
{
    (void)state;
    qn_ctx *ctx = make_ctx();
    int without = 0;
    const int count = each_case(ctx, by_cpu, &without);
    assert_true(count >= EXPECTED_CASES);
    printf("cpu: %d cases, %d of them have no CPU kernel and were left to the reference\n", count, without);
    qn_ctx_destroy(ctx);
    assert_int_equal(failures, 0);
}

typedef struct command {
    const char *program;
    char folder[64];
} command;

/* Run the program with these words; returns its exit code. errors: a file for its stderr, NULL: ours. */
static int run_process(char *const words[], const char *errors)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (errors && !freopen(errors, "w", stderr)) {
            _exit(126);
        }
        execv(words[0], words);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void by_command(qn_ctx *ctx, const fixture *f, void *user)
{
    const command *c = user;
    const qn_op_info *op = qn_op_get_info(f->desc.op);
    char in_path[96], out_path[96], text[TEXT];
    snprintf(in_path, sizeof in_path, "%s/in.safetensors", c->folder);
    snprintf(out_path, sizeof out_path, "%s/out.safetensors", c->folder);
    unlink(in_path);
    unlink(out_path);
    qn_named_view named[QN_MAX_IN];
    int32_t count = 0;
    for (int32_t i = 0; i < op->in_count; i++) {
        if (f->in[i].shape.format != QN_FORMAT_NONE) {
            named[count++] = (qn_named_view){op->in[i].name, f->in[i]};
        }
    }
    qn_error error;
    if (qn_tensors_write(ctx, in_path, named, count, NULL, 0, &error) != QN_OK) {
        fail_msg("%s: %s", f->label, error.text);
    }
    char *words[32];
    int n = 0;
    char program[1024];
    snprintf(program, sizeof program, "%s", c->program);
    words[n++] = program;
    words[n++] = (char[]){"op"};
    memcpy(text, f->text, sizeof text);
    char *save = NULL;
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        words[n++] = word;
    }
    words[n++] = (char[]){"--in"};
    words[n++] = in_path;
    words[n++] = (char[]){"--out"};
    words[n++] = out_path;
    words[n] = NULL;
    const int code = run_process(words, NULL);
    if (code != 0) {
        fail_msg("%s: the command ended with %d", f->label, code);
    }
    qn_tensors *tensors = NULL;
    if (qn_tensors_open(ctx, out_path, &tensors, &error) != QN_OK) {
        fail_msg("%s: %s", f->label, error.text);
    }
    qn_view got[QN_MAX_OUT];
    memset(got, 0, sizeof got);
    int32_t outputs = 0;
    for (int32_t i = 0; i < op->out_count; i++) {
        if (f->out_shapes[i].format == QN_FORMAT_NONE) {
            continue;
        }
        const int32_t at = qn_tensors_find(tensors, op->out[i].name);
        if (at < 0) {
            fail_msg("%s: the command's file has no tensor %s", f->label, op->out[i].name);
        }
        assert_int_equal(qn_tensors_at(tensors, at, NULL, &got[i], NULL), QN_OK);
        if (memcmp(&got[i].shape, &f->out_shapes[i], sizeof got[i].shape) != 0) {
            fail_msg("%s: the command's tensor %s has another shape or format", f->label, op->out[i].name);
        }
        outputs++;
    }
    assert_int_equal(qn_tensors_count(tensors), outputs);
    qn_sizes sizes;
    assert_int_equal(qn_op_desc_check(&f->desc, NULL, &sizes, NULL), QN_OK);
    if (sizes.m > 0) {
        compare(f, got, f->tolerance == 0, "the command");
    }
    qn_tensors_close(tensors);
}

typedef struct refusal {
    const char *text;    /* what the command is asked */
    const char *tensors; /* case string whose inputs it is given */
    int32_t slot;        /* input whose last int32 is set to value first; -1: none */
    int32_t value;
    const char *word; /* what the one line on stderr must name */
} refusal;

/* The command refuses with one line that names the trouble, and writes nothing. */
static void refuse(qn_ctx *ctx, const command *c, const refusal *r)
{
    char in_path[96], out_path[96], err_path[96], line[1024] = "", more[8];
    snprintf(in_path, sizeof in_path, "%s/in.safetensors", c->folder);
    snprintf(out_path, sizeof out_path, "%s/out.safetensors", c->folder);
    snprintf(err_path, sizeof err_path, "%s/err", c->folder);
    unlink(in_path);
    unlink(out_path);
    qn_op_desc desc;
    assert_int_equal(qn_op_desc_parse(r->tensors, &desc, NULL), QN_OK);
    void *in[QN_MAX_IN] = {NULL};
    qn_named_view named[QN_MAX_IN];
    int32_t count = 0;
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        size_t bytes = 0;
        if (desc.in[i].format != QN_FORMAT_NONE) {
            assert_int_equal(qn_shape_bytes(&desc.in[i], &bytes, NULL), QN_OK);
            in[i] = malloc(bytes + 1);
            named[count++] = (qn_named_view){qn_op_get_info(desc.op)->in[i].name, qn_view_make(in[i], &desc.in[i])};
        }
    }
    assert_int_equal(qn_case_fill(&desc, 1, 0, in, NULL), QN_OK);
    if (r->slot >= 0) {
        memcpy((int32_t *)in[r->slot] + qn_shape_elements(&desc.in[r->slot]) - 1, &r->value, sizeof r->value);
    }
    assert_int_equal(qn_tensors_write(ctx, in_path, named, count, NULL, 0, NULL), QN_OK);
    char text[TEXT], program[1024], *words[16];
    int n = 0;
    snprintf(program, sizeof program, "%s", c->program);
    snprintf(text, sizeof text, "%s", r->text);
    words[n++] = program;
    words[n++] = (char[]){"op"};
    char *save = NULL;
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        words[n++] = word;
    }
    words[n++] = (char[]){"--in"};
    words[n++] = in_path;
    words[n++] = (char[]){"--out"};
    words[n++] = out_path;
    words[n] = NULL;
    const int code = run_process(words, err_path);
    FILE *errors = fopen(err_path, "r");
    assert_non_null(errors);
    const int first = fgets(line, sizeof line, errors) != NULL, second = fgets(more, sizeof more, errors) != NULL;
    fclose(errors);
    unlink(err_path);
    if (code < 1 || code > 3 || !first || second || !strstr(line, r->word) || access(out_path, F_OK) == 0) {
        fail_msg("%s: exit code %d, stderr '%s'%s, %s output file", r->text, code, line, second ? " and more" : "",
                 access(out_path, F_OK) == 0 ? "an" : "no");
    }
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        free(in[i]);
    }
    unlink(in_path);
}

static void command_refuses(void **state)
{
    (void)state;
    static const refusal refusals[] = {
        {"no_such_op", "silu_mul m=1 k=8", -1, 0, "no_such_op"},
        {"silu_mul size=3", "silu_mul m=1 k=8", -1, 0, "size"},
        {"quantize_fp8 granularity=row", "quantize_fp8 m=2 k=8", -1, 0, "granularity"},
        {"quantize_fp8 mode=static", "quantize_fp8 m=2 k=8", -1, 0, "scale"},
        {"quantize_nvfp4", "quantize_fp8 m=2 k=24", -1, 0, "K is 24"},
        {"quantize_mxfp4", "quantize_fp8 m=2 k=48", -1, 0, "K is 48"},
        {"block_scaled_mm scale_layout=col", "block_scaled_mm m=2 n=4 k=300", -1, 0, "scale_a"},
        {"scaled_mm", "block_scaled_mm m=2 n=4 k=8", -1, 0, "scale_b"},
        {"rmsnorm", "quantize_fp8 m=2 k=8", -1, 0, "w"},
        {"grouped_block_scaled_mm", "grouped_block_scaled_mm m=4 n=3 k=8 e=2", QN_BMM_OFFSETS, 5, "offsets[2]"},
        {"grouped_block_scaled_mm", "grouped_block_scaled_mm m=4 n=3 k=8 e=2", QN_BMM_OFFSETS, -1, "offsets[2]"},
        {"grouped_block_scaled_mm layout=masked", "grouped_block_scaled_mm m=4 n=3 k=8 e=2 layout=masked",
         QN_BMM_MASKED_M, 5, "masked_m[1]"},
    };
    command c = {getenv("QN_CLI"), "/tmp/quern-op-XXXXXX"};
    struct stat info;
    if (!c.program || stat(c.program, &info) != 0) {
        printf("skipped: QN_CLI does not name a command that is built\n");
        skip();
    }
    assert_non_null(mkdtemp(c.folder));
    qn_ctx *ctx = make_ctx();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        refuse(ctx, &c, &refusals[i]);
    }
    qn_ctx_destroy(ctx);
    assert_int_equal(rmdir(c.folder), 0);
}

static void command_agrees(void **state)
{
    (void)state;
    command c = {getenv("QN_CLI"), "/tmp/quern-op-XXXXXX"};
    if (!c.program) {
        printf("skipped: QN_CLI does not name the command\n");
        skip();
    }
    struct stat info;
    if (stat(c.program, &info) != 0) {
        printf("skipped: QN_CLI names %s, which is not built\n", c.program);
        skip();
    }
    assert_non_null(mkdtemp(c.folder));
    qn_ctx *ctx = make_ctx();
    const int count = each_case(ctx, by_command, &c);
    assert_true(count >= EXPECTED_CASES);
    qn_ctx_destroy(ctx);
    char path[96];
    snprintf(path, sizeof path, "%s/in.safetensors", c.folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/out.safetensors", c.folder);
    unlink(path);
    assert_int_equal(rmdir(c.folder), 0);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_agrees),
        cmocka_unit_test(cpu_agrees),
        cmocka_unit_test(command_agrees),
        cmocka_unit_test(command_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
