/* Packed files: the same bits with and without one, no packing on the second
 * open, and a file that is stale, damaged or hostile is never used and never
 * harmful. On a small model of random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>

#include <quern/quern.h>

#include "io/packed_internal.h"
#include "model/model.h"
#include "plan/plan.h"
#include "quant/quantize.h"
#include "quant/synthetic.h"

#define TOKENS 12

static qn_ctx *ctx;
static char root[64], source[80], folder[80], weights[120], packed[120];
static char warning[600]; /* the last one */
static int warnings;

static void on_log(void *user, qn_log_level level, const char *line)
{
    (void)user;
    if (level == QN_LOG_WARN) {
        warnings++;
        snprintf(warning, sizeof warning, "%s", line);
    }
}

static void must(qn_status status, const qn_error *error)
{
    if (status != QN_OK) {
        fail_msg("%s: %s", qn_status_name(status), error->text);
    }
}

static int setup(void **state)
{
    (void)state;
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.log = on_log;
    assert_int_equal(qn_ctx_create(&options, &ctx, NULL), QN_OK);
    snprintf(root, sizeof root, "/tmp/quern-packed-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(folder, sizeof folder, "%s/model", root);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(packed, sizeof packed, "%s/quern.packed", folder);
    syn_tensor t[SYN_TENSORS];
    syn_make(t, 5);
    assert_int_equal(syn_write(ctx, source, t), 0);
    syn_free(t);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    syn_remove(root);
    qn_ctx_destroy(ctx);
    return 0;
}

static void quantize(const char *scheme)
{
    qn_error error = {QN_OK, ""};
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.force = 1;
    o.pack = 1;
    const qn_quant_tuning tuning = {.search = 0};
    qn_quantize_result result;
    must(qn_quantize_with(ctx, source, folder, &o, &tuning, &result, &error), &error);
    assert_true(result.packed_bytes > 0);
}

/* Logits after opening the model, and how its weights were made ready; the caller frees. */
static float *logits_of(int no_packed_file, qn_packing_info *packing)
{
    qn_error error = {QN_OK, ""};
    qn_model *model;
    qn_session *session;
    qn_model_options mo;
    qn_model_options_init(&mo);
    mo.no_packed_file = no_packed_file;
    warnings = 0;
    must(qn_model_open(ctx, folder, &mo, &model, &error), &error);
    qn_model_get_packing(model, packing);
    packing->file = packing->file ? packed : NULL;
    qn_session_options so;
    qn_session_options_init(&so);
    so.context_length = TOKENS;
    must(qn_session_create(model, &so, &session, &error), &error);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * i * 7 + 3) % 250;
    }
    float *logits = calloc(TOKENS * SYN_VOCAB, sizeof *logits);
    assert_non_null(logits);
    must(qn_session_eval(session, ids, TOKENS, 1, logits, &error), &error);
    qn_session_destroy(session);
    qn_model_close(model);
    return logits;
}

/* The file is used: wholly (refused 0) or but for that many weights. The bits are those of packing in memory. */
static void expect_used(int refused)
{
    qn_packing_info with, without;
    float *a = logits_of(0, &with);
    assert_int_equal(warnings, refused != 0);
    assert_true(with.weights > 0);
    assert_int_equal(with.from_file, with.weights - refused);
    assert_ptr_equal(with.file, packed);
    float *b = logits_of(1, &without);
    assert_int_equal(without.from_file, 0);
    assert_null(without.file);
    assert_int_equal(without.weights, with.weights);
    assert_true(without.bytes == with.bytes);
    assert_memory_equal(a, b, TOKENS * SYN_VOCAB * sizeof *a);
    free(a);
    free(b);
}

/* The file is not used, one warning holds `why`, and the bits are right. */
static void expect_refused(const char *why)
{
    qn_packing_info with, without;
    float *a = logits_of(0, &with);
    assert_int_equal(with.from_file, 0);
    assert_null(with.file);
    assert_int_equal(warnings, 1);
    if (!strstr(warning, why)) {
        fail_msg("'%s' does not say '%s'", warning, why);
    }
    float *b = logits_of(1, &without);
    assert_memory_equal(a, b, TOKENS * SYN_VOCAB * sizeof *a);
    free(a);
    free(b);
}

static char *read_all(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static void write_all(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* What reading the file at `packed` gives, its blobs included. */
static qn_status try_read(qn_error *error)
{
    qn_checkpoint *c;
    qn_packed *p = NULL;
    must(qn_checkpoint_open(ctx, folder, &c, error), error);
    qn_status status = qn_packed_open(c, packed, 1, NULL, &p, error);
    if (status == QN_OK) {
        assert_non_null(p);
        status = qn_packed_check(p, NULL, error);
    }
    qn_packed_close(p);
    qn_checkpoint_close(c);
    return status;
}

static void same_bits_and_no_packing(void **state)
{
    (void)state;
    static const char *const schemes[] = {"int8", "int8-azp", "nvfp4", "mxfp4", "fp8", "fp8-block", "bf16"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        quantize(schemes[i]);
        expect_used(0);
    }
}

static void written_by_an_open_model(void **state)
{
    (void)state;
    quantize("int8");
    assert_int_equal(unlink(packed), 0);
    qn_packing_info packing;
    free(logits_of(0, &packing));
    assert_int_equal(packing.from_file, 0);
    assert_int_equal(warnings, 0); /* having none is nothing to warn of */
    qn_error error = {QN_OK, ""};
    qn_model *model;
    qn_packed_file file;
    qn_pool *pool;
    must(qn_pool_create(ctx, 3, &pool, &error), &error);
    qn_model_options mo;
    qn_model_options_init(&mo);
    mo.exec.pool = pool;
    must(qn_model_open(ctx, folder, &mo, &model, &error), &error);
    must(qn_model_write_packed(model, NULL, 0, &mo.exec, &file, &error), &error);
    assert_string_equal(file.path, packed);
    assert_int_equal(file.blobs, packing.weights);
    size_t first_bytes, bytes;
    char *first = read_all(packed, &first_bytes);
    assert_true(file.bytes == first_bytes);
    assert_int_equal(qn_model_write_packed(model, NULL, 0, NULL, &file, &error), QN_E_EXISTS);
    assert_int_equal(qn_model_write_packed(model, weights, 1, NULL, &file, &error), QN_E_ARGUMENT); /* the model */
    must(qn_model_write_packed(model, NULL, 1, NULL, &file, &error), &error);
    char *again = read_all(packed, &bytes); /* the blobs do not depend on threads; the times are known better by now */
    qn_packed_header header;
    memcpy(&header, again, sizeof header);
    assert_int_equal(bytes, first_bytes);
    assert_memory_equal(again + header.data_offset, first + header.data_offset, bytes - header.data_offset);
    free(first);
    free(again);
    qn_model_close(model);
    qn_pool_destroy(pool);
    expect_used(0);

    mo = (qn_model_options){0};
    qn_model_options_init(&mo);
    mo.plan.backend = QN_BACKEND_REF; /* packs nothing */
    must(qn_model_open(ctx, folder, &mo, &model, &error), &error);
    assert_int_equal(qn_model_write_packed(model, NULL, 1, NULL, &file, &error), QN_E_UNSUPPORTED);
    qn_model_close(model);
}

static void flip(const char *path, long offset)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x04;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    assert_int_equal(close(fd), 0);
}

/* One bit of a weight in place, size and time of writing as they were. */
static void a_changed_source_is_noticed(void **state)
{
    (void)state;
    quantize("int8");
    struct stat st;
    assert_int_equal(stat(weights, &st), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    const long middle = (long)st.st_size / 2;
    flip(weights, middle);
    assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
    expect_refused("model.safetensors is not what it was made from");
    flip(weights, middle);
    expect_used(0); /* other times, the same content */

    /* written when the weights had rested: the times alone vouch for it, until they change */
    usleep(2100000);
    qn_error error = {QN_OK, ""};
    qn_model *model;
    qn_packed_file file;
    must(qn_model_open(ctx, folder, NULL, &model, &error), &error);
    must(qn_model_write_packed(model, NULL, 1, NULL, &file, &error), &error);
    qn_model_close(model);
    qn_packed_source record;
    size_t bytes;
    char *data = read_all(packed, &bytes);
    memcpy(&record, data + sizeof(qn_packed_header), sizeof record);
    assert_true(record.changed_ns != 0 && record.inode != 0);
    free(data);
    expect_used(0);
    assert_int_equal(stat(weights, &st), 0);
    const struct timespec later[2] = {st.st_atim, st.st_mtim};
    flip(weights, middle);
    assert_int_equal(utimensat(AT_FDCWD, weights, later, 0), 0);
    expect_refused("model.safetensors is not what it was made from");
    flip(weights, middle);
    expect_used(0);

    /* another config.json decides differently what the weights mean */
    char config[120];
    snprintf(config, sizeof config, "%s/config.json", folder);
    data = read_all(config, &bytes);
    data[bytes] = ' ';
    write_all(config, data, bytes + 1);
    expect_refused("config.json has");
    free(data);
}

static void damage_is_noticed(void **state)
{
    (void)state;
    quantize("int8");
    size_t bytes;
    char *good = read_all(packed, &bytes);
    qn_packed_header header;
    memcpy(&header, good, sizeof header);
    qn_error error = {QN_OK, ""};
    must(try_read(&error), &error);
    int tried = 0;
    for (size_t at = 0; at < bytes; at += at < sizeof header + header.index_bytes ? 3 : 3 + bytes / 150) {
        flip(packed, (long)at);
        if (try_read(&error) == QN_OK) {
            fail_msg("byte %zu of %zu is changed and nothing is said", at, bytes);
        }
        flip(packed, (long)at);
        tried++;
    }
    flip(packed, (long)bytes - 1);
    expect_refused("checksum");
    write_all(packed, good, bytes);
    expect_used(0);
    for (size_t length = 0; length < bytes; length += length < 200 ? 9 : 1 + bytes / 60) {
        write_all(packed, good, length);
        assert_int_not_equal(try_read(&error), QN_OK);
        tried++;
    }
    expect_refused("quern.packed");
    good[bytes] = 0;
    write_all(packed, good, bytes + 1);
    expect_refused("bytes, its header says");
    print_message("%d damaged files refused\n", tried);
    free(good);
}

static void put_u32(char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

/* Header and index with their checksum made right again. */
static void seal(char *data)
{
    qn_packed_header header;
    memcpy(&header, data, sizeof header);
    header.sum = qn_packed_sum_index(&header, data + sizeof header);
    memcpy(data, &header, sizeof header);
}

static void other_versions_are_refused(void **state)
{
    (void)state;
    quantize("int8");
    size_t bytes;
    char *data = read_all(packed, &bytes);
    put_u32(data + offsetof(qn_packed_header, version), QN_PACKED_VERSION + 1);
    seal(data);
    write_all(packed, data, bytes);
    expect_refused("version 2");
    free(data);
}

/* Every 32-bit word of header and index set to values that lie, with right checksums. */
static void hostile_numbers_are_refused(void **state)
{
    (void)state;
    quantize("int8");
    size_t bytes;
    char *good = read_all(packed, &bytes), *data = malloc(bytes);
    assert_non_null(data);
    qn_packed_header header;
    memcpy(&header, good, sizeof header);
    static const uint32_t values[] = {0, 1, 63, 4095, 0x7fffffff, 0x80000000, 0xffffffff};
    int tried = 0, read = 0;
    for (size_t at = 0; at + 4 <= sizeof header + header.index_bytes; at += 4) {
        if (at >= offsetof(qn_packed_header, sum) && at < sizeof header) {
            continue;
        }
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            memcpy(data, good, bytes);
            put_u32(data + at, values[v]);
            memcpy(&header, data, sizeof header);
            if (header.index_bytes <= bytes - sizeof header) {
                seal(data);
            }
            memcpy(&header, good, sizeof header);
            write_all(packed, data, bytes);
            qn_error error = {QN_OK, ""};
            read += try_read(&error) == QN_OK; /* a layout id or a name may be anything */
            tried++;
        }
    }
    print_message("%d lies, %d of them harmless\n", tried, read);
    assert_true(read < tried / 2);
    free(good);
    free(data);
}

/* A blob that the chosen kernel does not read is packed in memory, the others are used. */
static void other_layouts_are_packed_again(void **state)
{
    (void)state;
    quantize("int8");
    qn_error error = {QN_OK, ""};
    qn_model *model;
    qn_packed_blob blobs[64];
    int32_t count = 0;
    uint64_t bytes;
    must(qn_model_open(ctx, folder, NULL, &model, &error), &error);
    for (size_t i = 0; i < model->step_count; i++) {
        const qn_step *step = &model->steps[i];
        if (step->packed) {
            qn_blob_header header;
            memcpy(&header, step->packed, sizeof header);
            assert_true(count < 64);
            blobs[count++] =
                (qn_packed_blob){step->label, header.layout, header.fingerprint, step->packed, header.bytes};
        }
    }
    for (int kind = 0; kind < 3; kind++) {
        const qn_packed_blob whole = blobs[2];
        char *copy = aligned_alloc(64, (whole.bytes + 63) / 64 * 64);
        assert_non_null(copy);
        memcpy(copy, whole.data, whole.bytes);
        qn_blob_header header;
        memcpy(&header, copy, sizeof header);
        header.layout += kind == 0;
        header.fingerprint += kind == 1;
        memcpy(copy, &header, sizeof header);
        blobs[2].data = copy;
        blobs[2].bytes = kind == 2 ? 8 : whole.bytes; /* not even a header */
        must(qn_packed_write(ctx, model->checkpoint, packed, blobs, count, 1, NULL, &bytes, &error), &error);
        expect_used(1);
        blobs[2] = whole;
        free(copy);
    }
    qn_packed_blob twice[2] = {blobs[0], blobs[0]};
    assert_int_equal(qn_packed_write(ctx, model->checkpoint, packed, twice, 2, 1, NULL, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_packed_write(ctx, model->checkpoint, packed, NULL, 0, 1, NULL, &bytes, &error), QN_OK);
    qn_packing_info packing;
    free(logits_of(0, &packing));
    assert_int_equal(packing.from_file, 0);
    qn_model_close(model);
}

/* Logits of layers that share a multiplication, or of layers by themselves; the caller frees. */
static float *logits_of_layers(int unfused, int joined)
{
    qn_error error = {QN_OK, ""};
    qn_model *model;
    qn_session *session;
    qn_model_options mo;
    qn_model_options_init(&mo);
    mo.unfused = unfused;
    must(qn_model_open(ctx, folder, &mo, &model, &error), &error);
    int count = 0;
    for (size_t i = 0; i < model->step_count; i++) {
        count += model->steps[i].second != NULL;
    }
    assert_int_equal(count, joined);
    must(qn_session_create(model, NULL, &session, &error), &error);
    float *logits = calloc(SYN_VOCAB, sizeof *logits);
    assert_non_null(logits);
    const int32_t ids[] = {3, 141, 59, 26};
    must(qn_session_eval(session, ids, 4, 0, logits, &error), &error);
    qn_session_destroy(session);
    qn_model_close(model);
    return logits;
}

/* Query and key, gate and up: one multiplication each, the same bits. */
static void joined_layers_give_the_same_bits(void **state)
{
    (void)state;
    quantize("f32");
    assert_int_equal(unlink(packed), 0); /* its blobs are those of joined layers */
    float *joined = logits_of_layers(0, 2 * SYN_LAYERS), *single = logits_of_layers(1, 0);
    assert_memory_equal(joined, single, SYN_VOCAB * sizeof *joined);
    free(joined);
    free(single);
}

static void verify_and_inspect_know_it(void **state)
{
    (void)state;
    quantize("int8");
    qn_error error = {QN_OK, ""};
    qn_checkpoint *c;
    qn_packed_file file;
    int64_t errors = -1;
    must(qn_checkpoint_open(ctx, folder, &c, &error), &error);
    must(qn_checkpoint_packed_file(c, NULL, &file, &error), &error);
    assert_string_equal(file.path, packed);
    assert_true(file.bytes > 0 && file.blobs > 0);
    must(qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, &error), &error);
    assert_int_equal(errors, 0);
    flip(packed, (long)file.bytes - 70);
    must(qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, &error), &error);
    assert_int_equal(errors, 1);
    flip(packed, 100);
    assert_int_equal(qn_checkpoint_packed_file(c, NULL, &file, &error), QN_E_FILE);
    assert_int_equal(unlink(packed), 0);
    must(qn_checkpoint_packed_file(c, NULL, &file, &error), &error);
    assert_true(file.bytes == 0);
    qn_checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_and_no_packing),       cmocka_unit_test(written_by_an_open_model),
        cmocka_unit_test(a_changed_source_is_noticed),    cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(other_versions_are_refused),     cmocka_unit_test(hostile_numbers_are_refused),
        cmocka_unit_test(other_layouts_are_packed_again), cmocka_unit_test(joined_layers_give_the_same_bits),
        cmocka_unit_test(verify_and_inspect_know_it),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
