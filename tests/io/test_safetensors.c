/* The safetensors reader and writer: round trips, the table of broken files,
 * every truncation and every flipped bit of a header. */
#include "io_cases.h"

#include <fcntl.h>

#include "format/format.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

#include <quern/tensors.h>

static bytes file;

/* Parse an exact-size heap copy, so that a read beyond the end is seen. */
static qn_status parse(qn_ctx *ctx, const bytes *b, size_t size, qn_safetensors *out, unsigned char **copy,
                       qn_error *error)
{
    *copy = malloc(size ? size : 1);
    assert_non_null(*copy);
    memcpy(*copy, b->data, size);
    return qn_safetensors_parse(ctx, *copy, size, "x.safetensors", out, error);
}

/* What every accepted file must be: ranges inside, touching, sizes right. */
static void check_invariants(const char *name, const qn_safetensors *st, size_t data_bytes)
{
    uint64_t at = 0;
    for (int32_t i = 0; i < st->count; i++) {
        size_t need = 0;
        assert_int_equal(qn_shape_bytes(&st->tensors[i].view.shape, &need, NULL), QN_OK);
        if (st->tensors[i].begin != at || st->tensors[i].end - at != need ||
            qn_safetensors_find(st, st->tensors[i].name) != i) {
            fail_msg("%s: tensor %s has a wrong range", name, st->tensors[i].name);
        }
        at = st->tensors[i].end;
    }
    if (at > data_bytes) {
        fail_msg("%s: ranges go beyond the file", name);
    }
}

static void test_broken(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    int failed = 0;
    for (int i = 0; i < ST_CASES; i++) {
        char name[120];
        qn_safetensors st;
        unsigned char *copy;
        qn_error error = {0};
        const verdict want = st_case(ctx, i, &file, name);
        const qn_status status = parse(ctx, &file, file.size, &st, &copy, &error);
        if ((status == QN_OK) != (want == MUST_PASS) || (status != QN_OK && !is_file_error(status))) {
            fail_msg("case %d, %s: status %s (%s)", i, name, qn_status_name(status), error.text);
        }
        if (status == QN_OK) {
            check_invariants(name, &st, file.size);
        } else {
            check_sentence(name, &error);
            failed++;
        }
        qn_safetensors_free(&st);
        free(copy);
    }
    print_message("%d broken files of %d cases\n", failed, ST_CASES);
    assert_true(failed >= 300);
    qn_ctx_destroy(ctx);
}

static void test_truncated(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    qn_buffer header = qn_buffer_make(ctx);
    st_header(&header, -1, NULL);
    put_safetensors(&file, header.data, 19);
    for (size_t size = 0; size <= file.size; size++) {
        qn_safetensors st;
        unsigned char *copy;
        qn_error error = {0};
        const qn_status status = parse(ctx, &file, size, &st, &copy, &error);
        assert_int_equal(status, size == file.size ? QN_OK : QN_E_FILE);
        if (status != QN_OK) {
            check_sentence("truncated", &error);
        }
        qn_safetensors_free(&st);
        free(copy);
    }
    qn_buffer_free(&header);
    qn_ctx_destroy(ctx);
}

static void test_flipped(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    qn_buffer header = qn_buffer_make(ctx);
    st_header(&header, -1, NULL);
    put_safetensors(&file, header.data, 19);
    for (size_t bit = 0; bit < 8 * (8 + header.length); bit++) {
        file.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        qn_safetensors st;
        unsigned char *copy;
        qn_error error = {0};
        const qn_status status = parse(ctx, &file, file.size, &st, &copy, &error);
        if (status == QN_OK) {
            check_invariants("flipped bit", &st, file.size);
        } else {
            assert_true(is_file_error(status));
            check_sentence("flipped bit", &error);
        }
        qn_safetensors_free(&st);
        free(copy);
        file.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    qn_buffer_free(&header);
    qn_ctx_destroy(ctx);
}

/* A name of 4096 bytes is fine, one more is not. */
static void test_long_names(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    for (int length = 4096; length <= 4097; length++) {
        qn_buffer header = qn_buffer_make(ctx);
        qn_buffer_print(&header, "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", length, 0);
        put_safetensors(&file, header.data, 1);
        qn_safetensors st;
        unsigned char *copy;
        qn_error error = {0};
        assert_int_equal(parse(ctx, &file, file.size, &st, &copy, &error), length == 4096 ? QN_OK : QN_E_FILE);
        qn_safetensors_free(&st);
        free(copy);
        qn_buffer_free(&header);
    }
    qn_ctx_destroy(ctx);
}

static void test_merged_dimensions(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    put_safetensors(&file, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,3,1,2,2],\"data_offsets\":[0,24]}}", 24);
    qn_safetensors st;
    unsigned char *copy;
    assert_int_equal(parse(ctx, &file, file.size, &st, &copy, NULL), QN_OK);
    const qn_shape *s = &st.tensors[0].view.shape;
    assert_int_equal(s->ndim, 4);
    assert_int_equal(s->dims[0], 6);
    assert_int_equal(s->dims[1], 1);
    assert_int_equal(s->dims[3], 2);
    qn_safetensors_free(&st);
    free(copy);
    qn_ctx_destroy(ctx);
}

/* Many tensors in time that grows like their number: 100,000 in well under a second without sanitizers. */
static void test_many(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    qn_buffer text = qn_buffer_make(ctx);
    const int count = 100000;
    qn_buffer_add(&text, "\0\0\0\0\0\0\0\0{", 9);
    for (int i = 0; i < count; i++) {
        qn_buffer_print(&text, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i);
    }
    qn_buffer_print(&text, "}");
    const uint64_t length = text.length - 8;
    memcpy(text.data, &length, 8);
    qn_safetensors st;
    qn_error error = {0};
    assert_int_equal(qn_safetensors_parse(ctx, text.data, text.length, "many", &st, &error), QN_OK);
    assert_int_equal(st.count, count);
    qn_safetensors_free(&st);
    qn_buffer_free(&text);
    qn_ctx_destroy(ctx);
}

static void test_round_trip(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    char *folder = make_folder(), path[300];
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    static const uint64_t data[64] = {1, 2, 3, 0x7f7f, 5};
    qn_named_view views[32];
    char names[32][16];
    int32_t count = 0;
    for (int f = 1; f < QN_FORMAT_LIMIT; f++) {
        const qn_format_row *row = qn_format_get_row((qn_format)f);
        if (row && row->safetensors) {
            const qn_shape shape = qn_shape_make((qn_format)f, f % 4, 2, 3, 4, 1);
            snprintf(names[count], sizeof names[count], "x\"\\%d", 50 - f);
            views[count] = (qn_named_view){names[count], qn_view_make(data, &shape)};
            count++;
        }
    }
    const char *metadata[] = {"format", "pt", "k\n", "v\"\x01"};
    qn_error error = {0};
    assert_int_equal(qn_tensors_write(ctx, path, views, count, metadata, 2, &error), QN_OK);
    qn_tensors *t = NULL;
    if (qn_tensors_open(ctx, path, &t, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(qn_tensors_count(t), count);
    for (int32_t i = 0; i < count; i++) {
        const char *name;
        qn_view view;
        const int32_t at = qn_tensors_find(t, views[i].name);
        assert_true(at >= 0);
        assert_int_equal(qn_tensors_at(t, at, &name, &view, &error), QN_OK);
        assert_string_equal(name, views[i].name);
        assert_memory_equal(&view.shape, &views[i].view.shape, sizeof view.shape);
        size_t size = 0;
        assert_int_equal(qn_shape_bytes(&view.shape, &size, NULL), QN_OK);
        assert_memory_equal(view.data, data, size);
    }
    assert_int_equal(qn_tensors_find(t, "none"), -1);
    assert_int_equal(qn_tensors_at(t, count, NULL, NULL, &error), QN_E_ARGUMENT);
    qn_tensors_close(t);
    /* refusals leave nothing behind */
    views[0].name = views[1].name;
    assert_int_equal(qn_tensors_write(ctx, path, views, count, NULL, 0, &error), QN_E_ARGUMENT);
    views[0].name = "";
    assert_int_equal(qn_tensors_write(ctx, path, views, count, NULL, 0, &error), QN_E_ARGUMENT);
    views[0].name = "__metadata__";
    assert_int_equal(qn_tensors_write(ctx, path, views, count, NULL, 0, &error), QN_E_ARGUMENT);
    views[0].name = "q";
    views[0].view.shape.format = QN_Q4_0;
    assert_int_equal(qn_tensors_write(ctx, path, views, count, NULL, 0, &error), QN_E_FORMAT);
    assert_int_equal(qn_tensors_open(ctx, "/nonexistent/x.safetensors", &t, &error), QN_E_IO);
    assert_null(t);
    assert_int_equal(qn_tensors_open(ctx, folder, &t, &error), QN_E_IO);
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

/* Header bytes as the reference writer makes them, and the writer's pieces in any order. */
static void test_writer(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    char *folder = make_folder(), path[300];
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    const qn_safetensors_item items[] = {{"b", qn_shape_make(QN_U8, 1, 3, 1, 1, 1)},
                                         {"z", qn_shape_make(QN_F32, 2, 1, 1, 1, 1)},
                                         {"a", qn_shape_make(QN_F32, 1, 1, 1, 1, 1)}};
    qn_safetensors_writer *w = NULL;
    qn_error error = {0};
    assert_int_equal(qn_safetensors_writer_create(ctx, path, items, 3, NULL, 0, 0, &w, &error), QN_OK);
    assert_int_equal(qn_safetensors_writer_put(w, 0, "x", 1, &error), QN_OK);
    assert_int_equal(qn_safetensors_writer_put(w, 1, "1234", 4, &error), QN_OK);
    assert_int_equal(qn_safetensors_writer_put(w, 1, "5", 1, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_safetensors_writer_put(w, 2, "abcd", 4, &error), QN_OK);
    assert_int_equal(qn_safetensors_writer_finish(w, &error), QN_E_INTERNAL);
    assert_int_equal(qn_safetensors_writer_put(w, 0, "yz", 2, &error), QN_OK);
    assert_int_equal(qn_safetensors_writer_finish(w, &error), QN_OK);
    const uint64_t total = qn_safetensors_writer_bytes(w);
    qn_safetensors_writer_destroy(w);
    static const char want[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                               "\"z\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    static unsigned char got[1000];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t size = fread(got, 1, sizeof got, f);
    fclose(f);
    const size_t padded = (sizeof want - 1 + 7) / 8 * 8;
    assert_int_equal(size, total);
    assert_int_equal(size, 8 + padded + 11);
    assert_int_equal(got[0] | got[1] << 8, padded);
    assert_memory_equal(got + 8, want, sizeof want - 1);
    for (size_t i = sizeof want - 1; i < padded; i++) {
        assert_int_equal(got[8 + i], ' ');
    }
    assert_memory_equal(got + 8 + padded, "abcd1234xyz", 11);
    /* a writer that is dropped leaves no file */
    assert_int_equal(qn_safetensors_writer_create(ctx, path, items, 3, NULL, 0, 1, &w, &error), QN_OK);
    qn_safetensors_writer_destroy(w);
    assert_int_not_equal(access(path, F_OK), 0);
    /* what is no plain file is refused and stays */
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(qn_safetensors_writer_create(ctx, path, items, 3, NULL, 0, 0, &w, &error), QN_E_IO);
    assert_int_equal(access(path, F_OK), 0);
    close(reader);
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

/* The format lets an element begin at any byte; views are aligned, with the same bytes, and an aligned one stays. */
static void test_unaligned(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]},"
                                 "\"c\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[11,11]},"
                                 "\"d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[11,19]}}";
    const size_t padded = (sizeof header - 1 + 7) / 8 * 8;
    unsigned char *const copy = calloc(1, 8 + padded + 19);
    assert_non_null(copy);
    copy[0] = (unsigned char)padded;
    copy[1] = (unsigned char)(padded >> 8);
    memset(copy + 8, ' ', padded);
    memcpy(copy + 8, header, sizeof header - 1);
    for (size_t i = 0; i < 19; i++) {
        copy[8 + padded + i] = (unsigned char)(i + 1);
    }
    qn_safetensors st;
    qn_error error = {0};
    assert_int_equal(qn_safetensors_parse(ctx, copy, 8 + padded + 19, "x.safetensors", &st, &error), QN_OK);
    assert_int_equal(st.count, 4);
    for (int32_t i = 0; i < st.count; i++) {
        const qn_view *const view = &st.tensors[i].view;
        assert_int_equal((uintptr_t)view->data % (uintptr_t)qn_format_get_info(view->shape.format)->block_bytes, 0);
        assert_memory_equal(view->data, copy + 8 + padded + st.tensors[i].begin,
                            st.tensors[i].end - st.tensors[i].begin);
    }
    assert_ptr_equal(st.tensors[0].view.data, copy + 8 + padded);
    qn_safetensors_free(&st);
    free(copy);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_merged_dimensions),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
