/* Vector-quantised operators against decoders written here from docs/formats/vq.md
 * alone: every code point of every codebook bit for bit, packed layouts built
 * the other way round, transforms as dense matrices, and inputs that mean nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/experimental.h>

#include "base/rng.h"
#include "format/format.h"
#include "format/lattice.h"
#include "op/quip_reference.h"

#define LAST_BACKEND QN_BACKEND_CPU
static qn_ctx *ctx;
static qn_rng rng = {99};

static int64_t below(int64_t n)
{
    return (int64_t)(qn_rng_next(&rng) % (uint64_t)n);
}

static uint16_t half(float v)
{
    return qn_f32_to_f16(v);
}

/* A value that f16 has. */
static float some_half(void)
{
    return qn_f16_to_f32(half((float)(qn_rng_uniform(&rng) * 2.0 - 1.0)));
}

/* An operator's inputs by name, dense. */
typedef struct call {
    qn_op_desc desc;
    qn_args args;
} call;

static call call_make(const char *op, const char *const *attributes)
{
    call c;
    memset(&c, 0, sizeof c);
    qn_op_desc_init(&c.desc, qn_op_find(op));
    for (; attributes && *attributes; attributes += 2) {
        assert_int_equal(qn_op_desc_set(&c.desc, attributes[0], attributes[1], NULL), QN_OK);
    }
    return c;
}

static void give(call *c, const char *name, const void *data, qn_format format, int ndim, int64_t a, int64_t b,
                 int64_t d, int64_t e)
{
    const int32_t slot = qn_op_in_slot(c->desc.op, name);
    assert_true(slot >= 0);
    c->desc.in[slot] = qn_shape_make(format, ndim, a, b, d, e);
    c->args.in[slot] = qn_view_make(data, &c->desc.in[slot]);
}

/* Run on a backend; the status, and the sentence in error. */
static qn_status run(call *c, qn_backend backend, void *out0, void *out1, qn_error *error)
{
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    qn_plan_options options;
    qn_plan *plan = NULL;
    qn_plan_options_init(&options);
    options.backend = backend;
    qn_status status = qn_op_desc_check(&c->desc, out, &sizes, error);
    if (status != QN_OK) {
        return status;
    }
    status = qn_plan_create(ctx, &c->desc, &options, &plan, error);
    if (status != QN_OK) {
        return status;
    }
    void *outs[2] = {out0, out1};
    for (int i = 0; i < 2; i++) {
        if (out[i].format) {
            c->args.out[i] = qn_mut_view_make(outs[i], &out[i]);
        }
    }
    const size_t bytes = qn_plan_workspace_bytes(plan, sizes.m, 1);
    void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    status = qn_run(plan, &c->args, workspace, bytes, NULL, error);
    free(workspace);
    qn_plan_destroy(plan);
    return status;
}

static void must_run(call *c, qn_backend backend, void *out0, void *out1)
{
    qn_error error = {0};
    if (run(c, backend, out0, out1, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
}

static void refuse(call *c, qn_status want, const char *word)
{
    static float out[1 << 16];
    qn_error error = {0};
    const qn_status status = run(c, QN_BACKEND_REF, out, out, &error);
    if (status != want || !strstr(error.text, word)) {
        fail_msg("%s '%s', expected %s with '%s'", qn_status_name(status), error.text, qn_status_name(want), word);
    }
}

static void same_bits(const float *want, const float *got, int64_t count, const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&want[i], &got[i], 4) != 0) {
            fail_msg("%s: element %lld is %.9g, expected %.9g", what, (long long)i, (double)got[i], (double)want[i]);
        }
    }
}

/* ---- aqlm ---- */

enum { STORED_SIGNED, STORED_UNSIGNED, STORED_PACKED };

/* Every code of the first codebook occurs (k / v * n >= 2^bits); y of vq_mm follows the same weights. */
static void aqlm(int books, int bits, int v, int rows_together, int64_t n, int64_t k, int stored)
{
    const int64_t groups = k / v, rows = n / rows_together, entries = INT64_C(1) << bits;
    const int64_t row_bytes = (groups * books * bits + 7) / 8;
    uint16_t *book = calloc((size_t)(books * entries * rows_together * v), 2), *scale = calloc((size_t)rows, 2);
    uint32_t *code = calloc((size_t)(rows * groups * books), 4);
    uint8_t *bytes = calloc((size_t)(rows * groups * books * 2 + rows * row_bytes + 8), 1);
    float *want = calloc((size_t)(n * k), 4), *got = calloc((size_t)(n * k), 4);
    for (int64_t i = 0; i < books * entries * rows_together * v; i++) {
        book[i] = half((float)(qn_rng_uniform(&rng) - 0.5));
    }
    for (int64_t r = 0; r < rows; r++) {
        scale[r] = half((float)(0.5 + qn_rng_uniform(&rng)));
    }
    for (int64_t i = 0; i < rows * groups * books; i++) {
        code[i] = (uint32_t)(i % books == 0 && i / books < entries ? i / books : below(entries));
        const int64_t as_signed = code[i] >= (uint32_t)entries / 2 ? (int64_t)code[i] - entries : (int64_t)code[i];
        const uint16_t word = (uint16_t)(stored == STORED_UNSIGNED ? (int64_t)code[i] : as_signed);
        if (stored == STORED_PACKED) {
            const int64_t first = i % (groups * books) * bits;
            for (int b = 0; b < bits; b++) {
                const int64_t at = i / (groups * books) * row_bytes + (first + b) / 8;
                bytes[at] = (uint8_t)(bytes[at] | (code[i] >> b & 1) << (first + b) % 8);
            }
        } else if (bits <= 8) {
            bytes[i] = (uint8_t)word;
        } else {
            memcpy(bytes + 2 * i, &word, 2);
        }
    }
    for (int64_t o = 0; o < n; o++) {
        for (int64_t i = 0; i < k; i++) {
            double sum = 0.0;
            for (int64_t c = 0; c < books; c++) {
                const int64_t at = (o / rows_together * groups + i / v) * books + c;
                sum += (double)qn_f16_to_f32(
                    book[((c * entries + code[at]) * rows_together + o % rows_together) * v + i % v]);
            }
            want[o * k + i] = (float)(sum * (double)qn_f16_to_f32(scale[o / rows_together]));
        }
    }
    char features[24];
    snprintf(features, sizeof features, "%lld", (long long)k);
    const char *const attributes[] = {"in_features", features, NULL};
    call c = call_make("vq_dequantize", attributes);
    if (stored == STORED_PACKED) {
        give(&c, "codes", bytes, QN_U8, 2, rows, row_bytes, 1, 1);
    } else {
        const qn_format narrow = stored == STORED_SIGNED ? QN_I8 : QN_U8,
                        wide = stored == STORED_SIGNED ? QN_I16 : QN_U16;
        give(&c, "codes", bytes, bits <= 8 ? narrow : wide, 3, rows, groups, books, 1);
    }
    give(&c, "codebooks", book, QN_F16, 4, books, entries, rows_together, v);
    give(&c, "scales", scale, QN_F16, 4, rows, 1, 1, 1);
    char what[64];
    snprintf(what, sizeof what, "aqlm %dx%d in groups of %d, stored %d", books, bits, v, stored);
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        memset(got, 0xFF, (size_t)(n * k) * 4);
        must_run(&c, (qn_backend)b, got, NULL);
        same_bits(want, got, n * k, what);
    }
    free(book);
    free(scale);
    free(code);
    free(bytes);
    free(want);
    free(got);
}

static void aqlm_codes(void **state)
{
    (void)state;
    aqlm(1, 16, 8, 1, 64, 8192, STORED_SIGNED);
    aqlm(1, 16, 8, 1, 64, 8192, STORED_UNSIGNED);
    aqlm(2, 8, 8, 1, 19, 136, STORED_SIGNED);
    aqlm(2, 8, 8, 1, 19, 136, STORED_PACKED);
    aqlm(1, 8, 8, 1, 19, 136, STORED_UNSIGNED);
    aqlm(2, 12, 8, 1, 33, 1032, STORED_SIGNED);
    aqlm(2, 12, 8, 1, 33, 1032, STORED_PACKED);
    aqlm(1, 12, 8, 1, 64, 520, STORED_PACKED); /* rows end inside a byte */
    aqlm(8, 8, 32, 1, 16, 512, STORED_SIGNED);
    aqlm(3, 5, 4, 1, 9, 64, STORED_SIGNED);
    aqlm(3, 5, 4, 1, 9, 68, STORED_PACKED);
    aqlm(1, 16, 16, 1, 64, 16384, STORED_SIGNED);
    aqlm(2, 8, 8, 4, 24, 400, STORED_SIGNED);
}

/* ---- quip_e8p ---- */

/* The 256 points of the residual codebook of E8P12RVQ3B, in halves. */
static void e8_table(int table[256][8])
{
    int count = 0;
    for (int halves = 0; halves < 2; halves++) {
        for (int i = 0; i < 6561; i++) {
            int v[8], norm = 0, sum = 0, fits = 1;
            for (int j = 7, rest = i; j >= 0; j--, rest /= 3) { /* coordinate 7 varies fastest */
                v[j] = halves ? rest % 3 * 2 - 1 : rest % 3 * 2 - 2;
                fits &= !(halves && rest % 3 == 2);
                norm += v[j] * v[j];
                sum += v[j];
            }
            if (fits && norm <= 8 && sum % 4 == 0) {
                memcpy(table[count++], v, sizeof v);
            }
        }
    }
    assert_int_equal(count, 241);
    for (int i = 0; i < 15; i++) {
        memset(table[count], 0, sizeof table[count]);
        table[count++][i % 8] = i < 8 ? 4 : -4;
    }
}

static void quip_codes(void **state)
{
    (void)state;
    static uint8_t table[256][8];
    static int roots[256][8];
    const int64_t n = 64, k = 8192, groups = k / 8;
    e8p_table(table);
    e8_table(roots);
    uint16_t *main = calloc((size_t)(n * groups), 2), *second = calloc((size_t)(n * groups), 2);
    uint64_t *words = calloc((size_t)(n * groups), 8);
    float *want = calloc((size_t)(n * k), 4), *got = calloc((size_t)(n * k), 4);
    for (int64_t i = 0; i < n * groups; i++) { /* n * groups = 65536: every code once, and again in another order */
        main[i] = (uint16_t)i;
        second[i] = (uint16_t)(i * 40503 + 7);
    }
    for (int kind = 0; kind < 3; kind++) {
        const int64_t columns = kind == 0 ? k / 32 : (kind == 1 ? k / 16 : k / 64 * 3);
        memset(words, 0, (size_t)(n * groups) * 8);
        e8p_pack(main, n, groups, words, columns, 0);
        if (kind == 1) {
            e8p_pack(second, n, groups, words, columns, k / 32);
        }
        for (int64_t i = 0; kind == 2 && i < n * groups; i++) {
            words[i / groups * columns + k / 32 + i % groups / 8] |= (uint64_t)(second[i] & 255) << (8 * (i % 8));
        }
        for (int64_t i = 0; i < n * groups; i++) {
            double a[8], b[8] = {0};
            e8p_value(table, main[i], a);
            if (kind == 1) {
                e8p_value(table, second[i], b);
            }
            for (int j = 0; j < 8; j++) {
                const double more =
                    kind == 2 ? roots[second[i] & 255][j] / 2.0 / 2.04 : (kind == 1 ? b[j] / 3.45 : 0.0);
                want[i * 8 + j] = (float)(a[j] + more);
            }
        }
        static const char *const names[] = {"E8P12", "E8P12RVQ4B", "E8P12RVQ3B"};
        const char *const attributes[] = {"format", "quip_e8p", "codebook", names[kind], NULL};
        call c = call_make("vq_dequantize", attributes);
        give(&c, "Qidxs", words, QN_I64, 2, n, columns, 1, 1);
        for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
            memset(got, 0xFF, (size_t)(n * k) * 4);
            must_run(&c, (qn_backend)b, got, NULL);
            same_bits(want, got, n * k, names[kind]);
        }
    }
    free(main);
    free(second);
    free(words);
    free(want);
    free(got);
}

/* Rows of the matrices of 12 and 28 as they are published, to hold the construction to. */
static const char *const had12[3] = {"+-----------", "++-+---+++-+", "+++-+---+++-"};
static const char *const had28[3] = {"++++++++++++++-+++++++++++++", "+++-++----++-++-+-++----++-+",
                                     "++++-++----++-++-+-++----++-"};
static const char had28_14[] = "-+++++++++++++--------------", had28_15[] = "+-+-++----++-+---+--++++--+-";

/* Every base: the matrix is the published one, and H H^T = n I. */
static void hadamard_bases(void **state)
{
    (void)state;
    static const int sizes[] = {1, 12, 20, 28, 36, 52, 60, 108, 116, 124, 140, 156, 172};
    static char base[172 * 172];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int size = sizes[s];
        base_matrix(size, base);
        assert_int_equal(qn_hadamard_base((int64_t)size << 7), size);
        for (int i = 0; i < size; i++) {
            for (int r = 0; r < size; r++) {
                int product = 0;
                for (int j = 0; j < size; j++) {
                    product += base[i * size + j] == base[r * size + j] ? 1 : -1;
                }
                assert_int_equal(product, i == r ? size : 0);
                assert_int_equal(qn_hadamard_sign(size, i, r), base[i * size + r] == '+' ? 1 : -1);
            }
        }
    }
    assert_int_equal(qn_hadamard_base(44 * 64), 0);
    assert_int_equal(qn_hadamard_base(0), 0);
}

static void quip_transforms(void **state)
{
    (void)state;
    static const int64_t lengths[][3] = {{64, 1, 0},   {192, 12, 0}, {320, 20, 0},   {448, 28, 0},
                                         {576, 36, 0}, {832, 52, 0}, {1984, 124, 0}, {2752, 172, 0}};
    static uint8_t table[256][8];
    e8p_table(table);
    for (size_t t = 0; t < sizeof lengths / sizeof *lengths; t++) {
        const int64_t k = lengths[t][0], size = lengths[t][1], n = 32, fast = k / size, groups = k / 8;
        char *base = calloc((size_t)(size * size), 1);
        base_matrix((int)size, base);
        for (int r = 0; r < 3 && (size == 12 || size == 28); r++) {
            assert_memory_equal(base + r * size, size == 12 ? had12[r] : had28[r], (size_t)size);
        }
        if (size == 28) {
            assert_memory_equal(base + 14 * 28, had28_14, 28);
            assert_memory_equal(base + 15 * 28, had28_15, 28);
        }
        for (int64_t i = 0; i < k; i++) { /* rows are orthogonal */
            int64_t product = 0;
            for (int64_t j = 0; j < k; j++) {
                product += dense_sign(base, size, fast, i, j) * dense_sign(base, size, fast, k / 3, j);
            }
            assert_int_equal(product, i == k / 3 ? k : 0);
        }
        uint16_t *codes = calloc((size_t)(n * groups), 2), *su = calloc((size_t)k, 2), *sv = calloc((size_t)n, 2);
        uint64_t *words = calloc((size_t)(n * groups), 8);
        double *q = calloc((size_t)(n * k), 8), *left = calloc((size_t)k, 8), *mid = calloc((size_t)n, 8);
        float *w = calloc((size_t)(n * k), 4), *x = calloc((size_t)k, 4), y[32], y2[32];
        const float wscale = 0.75f;
        for (int64_t i = 0; i < n * groups; i++) {
            codes[i] = (uint16_t)below(65536);
            e8p_value(table, codes[i], q + i * 8);
        }
        for (int64_t i = 0; i < k; i++) {
            su[i] = half(below(2) ? 1.25f : -0.75f);
            x[i] = some_half();
        }
        for (int64_t i = 0; i < n; i++) {
            sv[i] = half(below(2) ? 0.05f : -0.03f);
        }
        e8p_pack(codes, n, groups, words, k / 32, 0);
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = 0; j < k; j++) { /* transposed */
                left[i] +=
                    dense_sign(base, size, fast, j, i) * (double)qn_f16_to_f32(su[j]) * (double)x[j] / sqrt((double)k);
            }
        }
        for (int64_t r = 0; r < n; r++) {
            for (int64_t i = 0; i < k; i++) {
                mid[r] += q[r * k + i] * left[i];
            }
        }
        const char *const attributes[] = {"format", "quip_e8p", "out", "f32", NULL};
        call c = call_make("vq_mm", attributes);
        give(&c, "x", x, QN_F32, 2, 1, k, 1, 1);
        give(&c, "Qidxs", words, QN_I64, 2, n, k / 32, 1, 1);
        give(&c, "SU", su, QN_F16, 1, k, 1, 1, 1);
        give(&c, "SV", sv, QN_F16, 1, n, 1, 1, 1);
        give(&c, "Wscale", &wscale, QN_F32, 0, 1, 1, 1, 1);
        must_run(&c, QN_BACKEND_REF, y, NULL);
        must_run(&c, QN_BACKEND_CPU, y2, NULL);
        c = call_make("vq_dequantize", attributes[3] ? (const char *const[]){"format", "quip_e8p", NULL} : NULL);
        give(&c, "Qidxs", words, QN_I64, 2, n, k / 32, 1, 1);
        give(&c, "SU", su, QN_F16, 1, k, 1, 1, 1);
        give(&c, "SV", sv, QN_F16, 1, n, 1, 1, 1);
        give(&c, "Wscale", &wscale, QN_F32, 0, 1, 1, 1, 1);
        must_run(&c, QN_BACKEND_REF, w, NULL);
        for (int64_t r = 0; r < n; r++) {
            double want = 0.0, through = 0.0;
            for (int64_t i = 0; i < n; i++) {
                want += (__builtin_popcountll((uint64_t)(i & r)) % 2 ? -1.0 : 1.0) * mid[i];
            }
            want *= (double)qn_f16_to_f32(sv[r]) * 0.75 / sqrt((double)n);
            for (int64_t i = 0; i < k; i++) {
                through += (double)w[r * k + i] * (double)x[i];
            }
            assert_true(fabs((double)y[r] - want) < 1e-6 * (fabs(want) + 0.1));
            assert_true(fabs((double)y2[r] - want) < 1e-5 * (fabs(want) + 0.1));
            assert_true(fabs(through - want) < 1e-5 * (fabs(want) + 0.1));
        }
        free(base);
        free(codes);
        free(su);
        free(sv);
        free(words);
        free(q);
        free(left);
        free(mid);
        free(w);
        free(x);
    }
}

/* ---- vptq ---- */

static void put_bits(uint32_t *words, int64_t first, int count, uint64_t value)
{
    for (int i = 0; i < count; i++) {
        words[(first + i) / 32] |= (uint32_t)(value >> i & 1) << (first + i) % 32;
    }
}

/* kinds: 0 main only, every index of 65536; 1 with residual, perm, norm; 2 groups, outliers, a count that is no power
 * of two, rows that do not fill a vector. */
static void vptq_codes(void **state)
{
    (void)state;
    static const int64_t shapes[3][9] = {
        /* n, k, v, entries, res, groups, outliers, outlier v, outlier entries */
        {512, 1024, 8, 65536, 0, 1, 0, 0, 0},
        {40, 260, 8, 512, 16, 1, 0, 0, 0},
        {26, 75, 6, 100, 7, 3, 9, 4, 33},
    };
    for (int kind = 0; kind < 3; kind++) {
        const int64_t *s = shapes[kind], n = s[0], k = s[1], v = s[2], entries = s[3], res = s[4], groups = s[5];
        const int64_t outliers = s[6], vo = s[7], outlier_entries = s[8], in_group = (k - outliers) / groups;
        int bits = 0, more = 0;
        while ((INT64_C(1) << bits) < entries) {
            bits++;
        }
        while ((INT64_C(1) << more) < res) {
            more++;
        }
        const int64_t rows = (n + v - 1) / v, words = (in_group * (bits + more) + 31) / 32;
        const int64_t rows_o = vo ? (n + vo - 1) / vo : 0;
        float *c = calloc((size_t)(groups * entries * v), 4), *cr = calloc((size_t)(groups * res * v + 1), 4);
        float *co = calloc((size_t)(outlier_entries * vo + 1), 4), *want = calloc((size_t)(n * k), 4);
        float *got = calloc((size_t)(n * k), 4), *scale = calloc((size_t)k, 4), *shift = calloc((size_t)k, 4);
        uint32_t *indices = calloc((size_t)(groups * rows * words), 4);
        uint16_t *io = calloc((size_t)(rows_o * outliers + 1), 2), *perm = calloc((size_t)k, 2);
        for (int64_t i = 0; i < groups * entries * v; i++) {
            c[i] = some_half();
        }
        for (int64_t i = 0; i < groups * res * v; i++) {
            cr[i] = some_half();
        }
        for (int64_t i = 0; i < outlier_entries * vo; i++) {
            co[i] = some_half();
        }
        for (int64_t i = 0; i < k; i++) {
            const int64_t j = below(i + 1);
            perm[i] = perm[j];
            perm[j] = (uint16_t)i;
            scale[i] = kind ? some_half() : 1.0f;
            shift[i] = kind ? some_half() : 0.0f;
        }
        for (int64_t i = 0; !kind && i < k; i++) {
            perm[i] = (uint16_t)i;
        }
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t p = outliers; p < k; p++) {
                const int64_t g = (p - outliers) / in_group, i = (p - outliers) % in_group;
                const int64_t a = kind ? below(entries) : r * k + p, b = res ? below(res) : 0;
                put_bits(indices + (g * rows + r) * words, i * (bits + more), bits + more, (uint64_t)(b << bits | a));
                for (int64_t j = 0; j < v && r * v + j < n; j++) {
                    const double sum =
                        (double)c[(g * entries + a) * v + j] + (res ? (double)cr[(g * res + b) * v + j] : 0.0);
                    want[(r * v + j) * k + perm[p]] = (float)((double)scale[perm[p]] * sum + (double)shift[perm[p]]);
                }
            }
        }
        for (int64_t r = 0; r < rows_o; r++) {
            for (int64_t p = 0; p < outliers; p++) {
                io[r * outliers + p] = (uint16_t)below(outlier_entries);
                for (int64_t j = 0; j < vo && r * vo + j < n; j++) {
                    want[(r * vo + j) * k + perm[p]] =
                        (float)((double)scale[perm[p]] * (double)co[io[r * outliers + p] * vo + j] +
                                (double)shift[perm[p]]);
                }
            }
        }
        char vector[8], out[24], in[24];
        snprintf(vector, sizeof vector, "%d", (int)v);
        snprintf(out, sizeof out, "%lld", (long long)n);
        snprintf(in, sizeof in, "%lld", (long long)k);
        const char *const attributes[] = {
            "format", "vptq", "vector_len", vector, "out_features", out, "in_features", in, "outlier_vector_len",
            "4",      NULL};
        call job = call_make("vq_dequantize", attributes);
        give(&job, "centroids.weight", c, QN_F32, 2, groups, entries * v, 1, 1);
        give(&job, "indices", indices, QN_I32, 3, groups, rows, words, 1);
        if (res) {
            give(&job, "res_centroids.weight", cr, QN_F32, 2, groups, res * v, 1, 1);
        }
        if (kind) {
            give(&job, "perm", perm, QN_I16, 1, k, 1, 1, 1);
            give(&job, "weight_scale", scale, QN_F32, 1, k, 1, 1, 1);
            give(&job, "weight_bias", shift, QN_F32, 1, k, 1, 1, 1);
        }
        if (outliers) {
            give(&job, "outlier_centroids.weight", co, QN_F32, 2, 1, outlier_entries * vo, 1, 1);
            give(&job, "outlier_indices", io, QN_U16, 3, 1, rows_o, outliers, 1);
        }
        for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
            memset(got, 0xFF, (size_t)(n * k) * 4);
            must_run(&job, (qn_backend)b, got, NULL);
            same_bits(want, got, n * k, "vptq");
        }
        if (kind == 2) {
            perm[3] = perm[4];
            refuse(&job, QN_E_ARGUMENT, "perm");
            perm[3] = 70;
            perm[4] = 75;
            refuse(&job, QN_E_ARGUMENT, "perm");
            give(&job, "perm", perm, QN_I16, 1, k - 1, 1, 1, 1);
            refuse(&job, QN_E_SHAPE, "perm");
            job.desc.in[qn_op_in_slot(job.desc.op, "perm")].format = QN_FORMAT_NONE;
            job.args.in[qn_op_in_slot(job.desc.op, "perm")].shape.format = QN_FORMAT_NONE;
            const uint32_t kept = indices[0];
            indices[0] |= 127;
            refuse(&job, QN_E_ARGUMENT, "indices");
            indices[0] = kept;
            io[0] = 33;
            refuse(&job, QN_E_ARGUMENT, "outlier_indices");
            io[0] = 0;
            c[5] = NAN;
            refuse(&job, QN_E_ARGUMENT, "centroids.weight");
        }
        free(c);
        free(cr);
        free(co);
        free(want);
        free(got);
        free(scale);
        free(shift);
        free(indices);
        free(io);
        free(perm);
    }
}

/* ---- gptvq ---- */

static void gptvq_codes(void **state)
{
    (void)state;
    const int64_t n = 300, k = 516, rows = 2, columns = 3;
    uint8_t *codes = calloc((size_t)(n * k / 4), 1);
    int8_t *books = calloc((size_t)(rows * columns * 1024), 1);
    float scales[6], *want = calloc((size_t)(n * k), 4), *got = calloc((size_t)(n * k), 4);
    for (int64_t i = 0; i < n * k / 4; i++) {
        codes[i] = (uint8_t)i; /* every code in every whole tile */
    }
    for (int64_t i = 0; i < rows * columns * 1024; i++) {
        books[i] = (int8_t)below(256);
    }
    for (int i = 0; i < 6; i++) {
        scales[i] = (float)(0.001 + qn_rng_uniform(&rng));
    }
    for (int64_t o = 0; o < n; o++) {
        for (int64_t i = 0; i < k; i++) {
            const int64_t tile = o / 256 * columns + i / 256;
            want[o * k + i] =
                (float)((double)scales[tile] * (double)books[tile * 1024 + codes[o * (k / 4) + i / 4] * 4 + i % 4]);
        }
    }
    call c = call_make("vq_dequantize", (const char *const[]){"format", "gptvq", NULL});
    give(&c, "codes", codes, QN_U8, 2, n, k / 4, 1, 1);
    give(&c, "codebooks", books, QN_I8, 4, rows, columns, 256, 4);
    give(&c, "codebook_scales", scales, QN_F32, 2, rows, columns, 1, 1);
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        memset(got, 0xFF, (size_t)(n * k) * 4);
        must_run(&c, (qn_backend)b, got, NULL);
        same_bits(want, got, n * k, "gptvq");
    }
    give(&c, "codebooks", books, QN_I8, 4, rows, columns, 255, 4);
    refuse(&c, QN_E_SHAPE, "codebooks");
    give(&c, "codebooks", books, QN_I8, 4, rows, columns, 256, 4);
    scales[4] = INFINITY;
    refuse(&c, QN_E_ARGUMENT, "codebook_scales");
    give(&c, "codes", codes, QN_I8, 2, n, k / 4, 1, 1);
    refuse(&c, QN_E_FORMAT, "codes");
    free(codes);
    free(books);
    free(want);
    free(got);
}

/* ---- inputs that mean nothing ---- */

static void refused(void **state)
{
    (void)state;
    static int8_t codes[4 * 8 * 2];
    static int16_t wide[4 * 8 * 2];
    static uint16_t books[2 * 4096 * 8], scales[4];
    call c = call_make("vq_dequantize", NULL);
    give(&c, "codes", codes, QN_I8, 3, 4, 8, 2, 1);
    give(&c, "codebooks", books, QN_F16, 4, 2, 256, 1, 8);
    refuse(&c, QN_E_FORMAT, "scales is missing");
    give(&c, "scales", scales, QN_F16, 4, 4, 1, 1, 1);
    static float w[4 * 64];
    must_run(&c, QN_BACKEND_REF, w, NULL);
    give(&c, "scales", scales, QN_F16, 4, 3, 1, 1, 1);
    refuse(&c, QN_E_SHAPE, "scales");
    give(&c, "scales", scales, QN_F16, 4, 4, 1, 1, 1);
    give(&c, "codebooks", books, QN_F16, 4, 2, 256, 1, 0);
    refuse(&c, QN_E_SHAPE, "group size");
    give(&c, "codebooks", books, QN_F16, 4, 0, 256, 1, 8);
    refuse(&c, QN_E_SHAPE, "codebooks");
    give(&c, "codebooks", books, QN_F16, 4, 2, 200, 1, 8);
    refuse(&c, QN_E_SHAPE, "codebooks");
    give(&c, "codebooks", books, QN_F16, 4, 1, 256, 1, 8);
    refuse(&c, QN_E_SHAPE, "codes");
    give(&c, "codebooks", books, QN_F16, 4, 2, 4096, 1, 8);
    refuse(&c, QN_E_FORMAT, "codes");
    give(&c, "codes", wide, QN_I16, 3, 4, 8, 2, 1);
    wide[37] = 2048; /* -2048 to 4095 are 12 bits, signed or not */
    wide[38] = -2048;
    wide[39] = 4095;
    must_run(&c, QN_BACKEND_REF, w, NULL);
    wide[37] = 4096;
    refuse(&c, QN_E_ARGUMENT, "codes[2,2,1]");
    wide[37] = -2049;
    refuse(&c, QN_E_ARGUMENT, "codes[2,2,1]");
    wide[37] = 0;
    books[77] = half(NAN);
    refuse(&c, QN_E_ARGUMENT, "element 77 of codebooks");
    books[77] = half(INFINITY);
    refuse(&c, QN_E_ARGUMENT, "element 77 of codebooks");
    books[77] = 0;
    give(&c, "SU", scales, QN_F16, 1, 4, 1, 1, 1);
    refuse(&c, QN_E_FORMAT, "SU");

    static int64_t q[32 * 4];
    static const int32_t seven = 17;
    c = call_make("vq_dequantize", (const char *const[]){"format", "quip_e8p", NULL});
    give(&c, "Qidxs", q, QN_I64, 2, 24, 2, 1, 1);
    refuse(&c, QN_E_SHAPE, "N is 24");
    give(&c, "Qidxs", q, QN_I64, 2, 32, 3, 1, 1);
    refuse(&c, QN_E_SHAPE, "K is 96");
    give(&c, "Qidxs", q, QN_I64, 2, 32, 2, 1, 1);
    give(&c, "codebook_id", &seven, QN_I32, 1, 1, 1, 1, 1);
    refuse(&c, QN_E_ARGUMENT, "codebook_id is 17");
    c = call_make("vq_dequantize", (const char *const[]){"format", "quip_e8p", NULL});
    static uint16_t su[64 * 44];
    static int64_t long_rows[16 * 88];
    give(&c, "Qidxs", long_rows, QN_I64, 2, 16, 88, 1, 1);
    give(&c, "SU", su, QN_F16, 1, 64 * 44, 1, 1, 1);
    refuse(&c, QN_E_SHAPE, "Hadamard");
}

/* ---- the cache ---- */

static void cache(void **state)
{
    (void)state;
    /* one head of four channels in pairs; the second pair's third and fourth centroids are the same */
    const float book[2][4][2] = {{{0, 0}, {1, 0}, {0, 1}, {2, 2}}, {{5, 5}, {-1, 0}, {0, 3}, {0, 3}}};
    const float x[3][4] = {{0.9f, 0.2f, -3, 0}, {NAN, 1, 0, 2.5f}, {0.5f, 0, 4, 4}};
    uint8_t codes[3][2];
    call c = call_make("vq_encode", NULL);
    give(&c, "x", x, QN_F32, 4, 1, 3, 1, 4);
    give(&c, "codebook", book, QN_F32, 4, 1, 2, 4, 2);
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        memset(codes, 0xFF, sizeof codes);
        must_run(&c, (qn_backend)b, codes, NULL);
        const uint8_t want[3][2] = {{1, 1}, {0, 2}, {0, 0}}; /* ties go to the first, NaN to 0 */
        assert_memory_equal(codes, want, sizeof want);
    }
    /* scores: q . k = 1 * 1 + 0 = 1 twice and 0 once: weights e, e, 1 */
    const uint8_t k_codes[2][3][2] = {{{1, 1}, {1, 2}, {2, 2}}, {{9, 9}, {9, 9}, {9, 9}}};
    const uint8_t v_codes[2][3][2] = {{{1, 0}, {2, 0}, {3, 0}}, {{9, 9}, {9, 9}, {9, 9}}};
    const float q[2][4] = {{1, 0, 0, 0}, {1, 1, 1, 1}};
    int32_t lens[2] = {3, 0};
    float o[2][4], lse[2];
    c = call_make("vq_attention", (const char *const[]){"scale", "1", NULL});
    give(&c, "q", q, QN_F32, 3, 2, 1, 4, 1);
    give(&c, "k_codes", k_codes, QN_U8, 4, 2, 3, 1, 2);
    give(&c, "v_codes", v_codes, QN_U8, 4, 2, 3, 1, 2);
    give(&c, "k_codebook", book, QN_F32, 4, 1, 2, 4, 2);
    give(&c, "v_codebook", book, QN_F32, 4, 1, 2, 4, 2);
    give(&c, "seq_lens", lens, QN_I32, 1, 2, 1, 1, 1);
    const double e = exp(1.0), total = 2.0 * e + 1.0;
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        must_run(&c, (qn_backend)b, o, lse); /* codes beyond the book where no token is are not read */
        assert_true(fabs((double)o[0][0] - (e + 2.0) / total) < 1e-6 &&
                    fabs((double)o[0][1] - (e + 2.0) / total) < 1e-6);
        assert_true(fabs((double)o[0][2] - 5.0) < 1e-6 && fabs((double)lse[0] - log(total)) < 1e-6);
        assert_true(o[1][0] == 0.0f && o[1][3] == 0.0f && isinf(lse[1]) && lse[1] < 0);
    }
    lens[1] = 1;
    refuse(&c, QN_E_ARGUMENT, "k_codes[1,0,0,0] is 9");
    lens[1] = 4;
    refuse(&c, QN_E_ARGUMENT, "seq_lens[1] is 4");
    lens[1] = -1;
    refuse(&c, QN_E_ARGUMENT, "seq_lens[1] is -1");
    lens[1] = 0;
    /* keys before RoPE: token 1 turned by one radian; halves pair channels 0, 2 and 1, 3 */
    const uint8_t one_key[1][2][2] = {{{1, 1}, {1, 1}}};
    const float q1[1][4] = {{0, 0, 1, 0}};
    const int32_t two = 2;
    c = call_make("vq_attention", (const char *const[]){"scale", "1", "rope_theta", "10000", NULL});
    give(&c, "q", q1, QN_F32, 3, 1, 1, 4, 1);
    give(&c, "k_codes", one_key, QN_U8, 4, 1, 2, 1, 2);
    give(&c, "v_codes", one_key, QN_U8, 4, 1, 2, 1, 2);
    give(&c, "k_codebook", book, QN_F32, 4, 1, 2, 4, 2);
    give(&c, "v_codebook", book, QN_F32, 4, 1, 2, 4, 2);
    give(&c, "seq_lens", &two, QN_I32, 1, 1, 1, 1, 1);
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        must_run(&c, (qn_backend)b, o, lse);
        /* key (1, 0, -1, 0): q . k is -1 at token 0, sin 1 - cos 1 at token 1 */
        assert_true(fabs((double)lse[0] - log(exp(-1.0) + exp(sin(1.0) - cos(1.0)))) < 1e-6);
    }
    float factors[2] = {4.0f, 1.0f}; /* by a quarter of a radian */
    give(&c, "rope_factors", factors, QN_F32, 1, 2, 1, 1, 1);
    for (int b = QN_BACKEND_REF; b <= LAST_BACKEND; b++) {
        must_run(&c, (qn_backend)b, o, lse);
        assert_true(fabs((double)lse[0] - log(exp(-1.0) + exp(sin(0.25) - cos(0.25)))) < 1e-6);
    }
    factors[1] = 0.0f;
    refuse(&c, QN_E_ARGUMENT, "rope_factors[1] is 0, expected a finite number above 0");
    factors[1] = NAN;
    refuse(&c, QN_E_ARGUMENT, "rope_factors[1] is nan");
}

/* Codes in pages, wherever they lie, give the bits of codes in one piece. */
static void pages(void **state)
{
    (void)state;
    enum { B = 2, T = 45, HEADS = 2, SIZE = 32, GROUPS = 8, PAGE = 16, OF_EACH = 3, PAGES = 8 };
    static uint8_t k[B][T][HEADS][GROUPS], v[B][T][HEADS][GROUPS];
    static uint8_t paged_k[PAGES][PAGE][HEADS][GROUPS], paged_v[PAGES][PAGE][HEADS][GROUPS];
    static float book[HEADS][GROUPS][16][4], q[B][4][SIZE], o[2][B][4][SIZE], lse[2][B][4];
    int32_t table[B][OF_EACH] = {{6, 0, 3}, {7, 2, 5}};
    const int32_t lens[B] = {T, 19};
    memset(paged_k, 0xFF, sizeof paged_k); /* codes beyond the book: nobody reads them */
    memset(paged_v, 0xFF, sizeof paged_v);
    qn_rng drawn = {.state = 5};
    for (size_t i = 0; i < sizeof book / sizeof(float); i++) {
        (&book[0][0][0][0])[i] = (float)qn_rng_uniform(&drawn) - 0.5f;
    }
    for (size_t i = 0; i < sizeof q / sizeof(float); i++) {
        (&q[0][0][0])[i] = (float)qn_rng_uniform(&drawn) - 0.5f;
    }
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < lens[b]; t++) {
            for (int i = 0; i < HEADS * GROUPS; i++) {
                (&k[b][t][0][0])[i] = (uint8_t)(qn_rng_uniform(&drawn) * 16);
                (&v[b][t][0][0])[i] = (uint8_t)(qn_rng_uniform(&drawn) * 16);
            }
            memcpy(paged_k[table[b][t / PAGE]][t % PAGE], k[b][t], sizeof k[b][t]);
            memcpy(paged_v[table[b][t / PAGE]][t % PAGE], v[b][t], sizeof v[b][t]);
        }
    }
    for (int backend = QN_BACKEND_REF; backend <= LAST_BACKEND; backend++) {
        for (int paged = 0; paged < 2; paged++) {
            call c = call_make("vq_attention", paged ? (const char *const[]){"rope_theta", "10000", "page", "16", NULL}
                                                     : (const char *const[]){"rope_theta", "10000", NULL});
            give(&c, "q", q, QN_F32, 3, B, 4, SIZE, 1);
            give(&c, "k_codes", paged ? (void *)paged_k : (void *)k, QN_U8, 4, paged ? PAGES : B, paged ? PAGE : T,
                 HEADS, GROUPS);
            give(&c, "v_codes", paged ? (void *)paged_v : (void *)v, QN_U8, 4, paged ? PAGES : B, paged ? PAGE : T,
                 HEADS, GROUPS);
            give(&c, "k_codebook", book, QN_F32, 4, HEADS, GROUPS, 16, 4);
            give(&c, "v_codebook", book, QN_F32, 4, HEADS, GROUPS, 16, 4);
            give(&c, "seq_lens", lens, QN_I32, 1, B, 1, 1, 1);
            if (paged) {
                give(&c, "pages", table, QN_I32, 2, B, OF_EACH, 1, 1);
            }
            must_run(&c, (qn_backend)backend, o[paged], lse[paged]);
            if (paged && backend == QN_BACKEND_REF) {
                table[1][2] = 99; /* behind the sequence's end */
                must_run(&c, (qn_backend)backend, o[paged], lse[paged]);
                table[1][1] = PAGES;
                refuse(&c, QN_E_ARGUMENT, "pages[1,1] is 8, expected 0 to 7");
                table[1][1] = -1;
                refuse(&c, QN_E_ARGUMENT, "pages[1,1] is -1");
                table[1][1] = 2;
                paged_k[2][2][1][3] = 16;
                refuse(&c, QN_E_ARGUMENT, "k_codes[2,2,1,3] is 16");
                paged_k[2][2][1][3] = k[1][18][1][3];
            }
        }
        assert_memory_equal(o[0], o[1], sizeof o[0]);
        assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
    }
}

static int start(void **state)
{
    (void)state;
    return qn_ctx_create(NULL, &ctx, NULL) != QN_OK;
}

static int stop(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aqlm_codes),      cmocka_unit_test(quip_codes), cmocka_unit_test(hadamard_bases),
        cmocka_unit_test(quip_transforms), cmocka_unit_test(vptq_codes), cmocka_unit_test(gptvq_codes),
        cmocka_unit_test(refused),         cmocka_unit_test(pages),      cmocka_unit_test(cache),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
