/* The tables of broken files: each case makes a file's bytes, its name, and
 * says whether a reader may accept it. Used by the parser tests and by the
 * test of the command. */
#ifndef TESTS_IO_IO_CASES_H
#define TESTS_IO_IO_CASES_H

#include "io_files.h"

typedef enum verdict { MUST_FAIL = 0, MUST_PASS, MAY_PASS } verdict;

/* ---- safetensors: members of a good header given other values ---- */

static const char *const st_members[] = {"metadata",  "k",         "a",       "a.dtype", "a.shape", "a.dim0",
                                         "a.offsets", "a.begin",   "a.end",   "b",       "b.dtype", "b.shape",
                                         "b.dim0",    "b.offsets", "b.begin", "b.end",   "a.extra"};
#define ST_MEMBERS ((int)(sizeof st_members / sizeof *st_members))

/* "name": value, with the value of case (member, value) in its place. */
static void st_member(qn_buffer *out, int *first, const char *json_name, const char *id, const char *good, int member,
                      const char *value)
{
    const int hit = member >= 0 && strcmp(st_members[member], id) == 0;
    if (hit && !value) {
        return;
    }
    qn_buffer_print(out, "%s", *first ? "" : ",");
    *first = 0;
    if (hit && strcmp(value, "twice") == 0) {
        qn_buffer_print(out, "\"%s\":%s,\"%s\":%s", json_name, good, json_name, good);
    } else if (hit && strcmp(value, "overlong") == 0) {
        qn_buffer_print(out, "\"%s\":\"%05000d\"", json_name, 0);
    } else {
        qn_buffer_print(out, "\"%s\":%s", json_name, hit ? value : good);
    }
}

/* An array of numbers with one element replaced, left out or doubled. */
static void st_array(qn_buffer *out, const char *const *good, const char *const *ids, int count, int member,
                     const char *value)
{
    int first = 1;
    qn_buffer_print(out, "[");
    for (int i = 0; i < count; i++) {
        const int hit = member >= 0 && ids[i] && strcmp(st_members[member], ids[i]) == 0;
        const char *text = hit ? value : good[i];
        if (text && strcmp(text, "overlong") == 0) {
            text = "\"overlong\"";
        }
        if (text && strcmp(text, "twice") == 0) {
            qn_buffer_print(out, "%s%s,%s", first ? "" : ",", good[i], good[i]);
        } else if (text) {
            qn_buffer_print(out, "%s%s", first ? "" : ",", text);
        }
        first = text ? 0 : first;
    }
    qn_buffer_print(out, "]");
}

static void st_tensor(qn_buffer *out, const char *tensor, const char *dtype, const char *const *dims, int rank,
                      const char *const *offsets, int member, const char *value)
{
    char id[5][20];
    static const char *const parts[] = {"dtype", "shape", "offsets", "begin", "end"};
    for (int i = 0; i < 5; i++) {
        snprintf(id[i], sizeof id[i], "%s.%s", tensor, parts[i]);
    }
    char dim_id[20], extra[20];
    snprintf(dim_id, sizeof dim_id, "%s.dim0", tensor);
    snprintf(extra, sizeof extra, "%s.extra", tensor);
    const char *const dim_ids[2] = {dim_id, NULL}, *const offset_ids[2] = {id[3], id[4]};
    qn_buffer shape = qn_buffer_make(out->ctx), range = qn_buffer_make(out->ctx);
    st_array(&shape, dims, dim_ids, rank, member, value);
    st_array(&range, offsets, offset_ids, 2, member, value);
    int first = 1;
    qn_buffer_print(out, "{");
    st_member(out, &first, "dtype", id[0], dtype, member, value);
    st_member(out, &first, "shape", id[1], shape.data, member, value);
    st_member(out, &first, "data_offsets", id[2], range.data, member, value);
    if (member >= 0 && strcmp(st_members[member], extra) == 0 && value) {
        qn_buffer_print(out, ",\"more\":%s",
                        strcmp(value, "twice") && strcmp(value, "overlong") ? value : "1,\"more\":1");
    }
    qn_buffer_print(out, "}");
    qn_buffer_free(&shape);
    qn_buffer_free(&range);
}

/* {"__metadata__":{"k":"v"},"a":F32[2,2],"b":U8[3]} with 19 bytes of data; value 0 of a member leaves it out. */
static void st_header(qn_buffer *out, int member, const char *value)
{
    static const char *const a_dims[] = {"2", "2"}, *const a_range[] = {"0", "16"};
    static const char *const b_dims[] = {"3"}, *const b_range[] = {"16", "19"};
    qn_buffer meta = qn_buffer_make(out->ctx), a = qn_buffer_make(out->ctx), b = qn_buffer_make(out->ctx);
    int first = 1;
    qn_buffer_print(&meta, "{");
    st_member(&meta, &first, "k", "k", "\"v\"", member, value);
    qn_buffer_print(&meta, "}");
    st_tensor(&a, "a", "\"F32\"", a_dims, 2, a_range, member, value);
    st_tensor(&b, "b", "\"U8\"", b_dims, 1, b_range, member, value);
    first = 1;
    qn_buffer_print(out, "{");
    st_member(out, &first, "__metadata__", "metadata", meta.data, member, value);
    st_member(out, &first, "a", "a", a.data, member, value);
    st_member(out, &first, "b", "b", b.data, member, value);
    qn_buffer_print(out, "}");
    qn_buffer_free(&meta);
    qn_buffer_free(&a);
    qn_buffer_free(&b);
}

/* Whole headers that are wrong in another way, with the bytes of data after them. */
static const struct {
    const char *name, *header;
    size_t data;
} st_headers[] = {
    {"empty", "", 0},
    {"one space", " ", 0},
    {"leading space", " {}", 0},
    {"leading newline", "\n{}", 0},
    {"an array", "[]", 0},
    {"a string", "\"\"", 0},
    {"unclosed", "{", 0},
    {"unclosed string", "{\"a", 0},
    {"trailing text", "{} x", 0},
    {"two objects", "{}{}", 0},
    {"trailing comma", "{\"__metadata__\":{},}", 0},
    {"comment", "{/* */}", 0},
    {"bytes without tensors", "{}", 8},
    {"bad UTF-8 in a name", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"overlong UTF-8 in a name", "{\"\xc0\x80\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"surrogate in a name", "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"zero byte in a name", "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"line break in a name", "{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"empty name", "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"same name twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[1,2]}}",
     2},
    {"same name twice by escape",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[1,2]}}",
     2},
    {"same bytes twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[0,2]}}",
     2},
    {"overlap by one",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[1,3]}}",
     3},
    {"gap of one",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[3,5]}}",
     5},
    {"gap at the begin", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3},
    {"bytes left over", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3},
    {"data missing", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1},
    {"range backwards", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,0]}}", 2},
    {"three offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2,2]}}", 2},
    {"element count wraps to 0", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
     0},
    {"byte count wraps to 0", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0},
    {"byte count wraps to 4", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4},
    {"zero hides a wrap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0},
    {"33 dimensions",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
     "\"data_offsets\":[0,1]}}",
     1},
    {"shape is an object", "{\"a\":{\"dtype\":\"U8\",\"shape\":{\"0\":1},\"data_offsets\":[0,1]}}", 1},
    {"dtype in lower case", "{\"a\":{\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"dtype with a space", "{\"a\":{\"dtype\":\"U8 \",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    {"dtype C64", "{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8},
    {"dtype F6_E2M3", "{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3},
    {"metadata holds a number", "{\"__metadata__\":{\"a\":1}}", 0},
    {"metadata holds an object", "{\"__metadata__\":{\"a\":{}}}", 0},
    {"metadata key twice", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0},
    {"NaN as a dimension", "{\"a\":{\"dtype\":\"U8\",\"shape\":[NaN],\"data_offsets\":[0,1]}}", 1},
    {"hexadecimal dimension", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0x1],\"data_offsets\":[0,1]}}", 1},
    {"dimension with a leading zero", "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1},
    {"dimension 1.0", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1},
};
#define ST_HEADERS ((int)(sizeof st_headers / sizeof *st_headers))

/* Values of the length field of a good file. */
static const uint64_t st_lengths[] = {0,
                                      1,
                                      2,
                                      7,
                                      100000000,
                                      100000001,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      (uint64_t)1 << 53,
                                      INT64_MAX,
                                      (uint64_t)1 << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX - 8};
#define ST_LENGTHS ((int)(sizeof st_lengths / sizeof *st_lengths))

/* JSON nested so deep at one place. */
static const char *const st_nested[] = {"top", "metadata", "shape", "entry"};

static void put_times(qn_buffer *out, const char *text, int times)
{
    for (int i = 0; i < times; i++) {
        qn_buffer_print(out, "%s", text);
    }
}

#define ST_DEEP 8
#define ST_CASES (ST_MEMBERS * JSON_VALUES + ST_HEADERS + ST_LENGTHS + ST_DEEP)

/* Case i in [0, ST_CASES). */
__attribute__((unused)) static verdict st_case(const qn_ctx *ctx, int i, bytes *out, char name[120])
{
    qn_buffer header = qn_buffer_make(ctx);
    verdict result = MUST_FAIL;
    if (i < ST_MEMBERS * JSON_VALUES) {
        const int member = i / JSON_VALUES;
        const char *value = json_values[i % JSON_VALUES], *id = st_members[member];
        snprintf(name, 120, "%s is %s", id, value ? value : "missing");
        st_header(&header, member, value);
        const char *v = value ? value : "missing";
        if (strcmp(id, "metadata") == 0 && (strcmp(v, "missing") == 0 || strcmp(v, "{}") == 0)) {
            result = MUST_PASS;
        } else if (strcmp(id, "k") == 0 &&
                   (strcmp(v, "missing") == 0 || strcmp(v, "\"x\"") == 0 || strcmp(v, "overlong") == 0)) {
            result = MUST_PASS;
        } else if (strcmp(id, "a.extra") == 0 && !value) {
            result = MUST_PASS;
        } else if (strcmp(id, "a.begin") == 0 && strcmp(v, "0") == 0) {
            result = MUST_PASS; /* the good value itself */
        }
        put_safetensors(out, header.data, 19);
    } else if ((i -= ST_MEMBERS * JSON_VALUES) < ST_HEADERS) {
        snprintf(name, 120, "header: %s", st_headers[i].name);
        put_safetensors(out, st_headers[i].header, st_headers[i].data);
    } else if ((i -= ST_HEADERS) < ST_LENGTHS) {
        snprintf(name, 120, "header length %llu", (unsigned long long)st_lengths[i]);
        st_header(&header, -1, NULL);
        put_safetensors(out, header.data, 19);
        for (int j = 0; j < 8; j++) {
            out->data[j] = (unsigned char)(st_lengths[i] >> (8 * j));
        }
    } else {
        i -= ST_LENGTHS;
        const char *open = i & 1 ? "{\"a\":" : "[", *close = i & 1 ? "}" : "]";
        snprintf(name, 120, "%s nested 5000 deep in the %s", i & 1 ? "objects" : "arrays", st_nested[i / 2]);
        const char *before[] = {"", "{\"__metadata__\":{\"a\":", "{\"a\":{\"dtype\":\"U8\",\"shape\":", "{\"a\":"};
        const char *after[] = {"", "}}", ",\"data_offsets\":[0,1]}}", "}"};
        qn_buffer_print(&header, "%s", before[i / 2]);
        put_times(&header, open, 5000);
        qn_buffer_print(&header, i & 1 ? "1" : "");
        put_times(&header, close, 5000);
        qn_buffer_print(&header, "%s", after[i / 2]);
        put_safetensors(out, header.data, 1);
    }
    qn_buffer_free(&header);
    return result;
}

/* ---- GGUF: each field of the small model spoilt in each way ---- */

/* Fields of the file; GGUF_CASES(fields) cases. */
__attribute__((unused)) static int gguf_fields(void)
{
    static bytes scratch;
    return put_tiny_gguf(&scratch, -1, SPOIL_NONE, NULL, NULL);
}

__attribute__((unused)) static verdict gguf_case(int i, bytes *out, char name[120])
{
    int is_free = 0;
    const spoil how = (spoil)(1 + i % (SPOIL_COUNT - 1));
    put_tiny_gguf(out, i / (SPOIL_COUNT - 1), how, name, &is_free);
    if (strstr(name, "ffn_down.weight: offset = twice")) {
        return MAY_PASS; /* the last field before the padding, which takes it in */
    }
    if (strstr(name, "offset = 0") && strstr(name, "token_embd")) {
        return MUST_PASS; /* the good value itself */
    }
    if (strstr(name, ": type = plus 1") || strstr(name, "norm.weight: type = 2^53+1")) {
        return MAY_PASS; /* unsigned becomes signed; a vector's F32 becomes F16 */
    }
    return is_free ? MAY_PASS : MUST_FAIL;
}

#endif
