/* Descriptors: the table is sound, case strings round-trip, and everything that
 * does not fit is refused with a sentence that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <quern/experimental.h>

#include "op/op.h"
#include "ref/ref.h"

static void table_is_sound(void **state)
{
    (void)state;
    int count = 0;
    for (int32_t i = 0; qn_op_at(i) != QN_OP_NONE; i++, count++) {
        const qn_op_info *op = qn_op_get_info(qn_op_at(i));
        assert_non_null(op);
        assert_int_equal(qn_op_find(op->name), op->op);
        assert_true(op->in_count <= QN_MAX_IN && op->out_count <= QN_MAX_OUT);
        assert_non_null(qn_op_get_family(op->op));
        assert_non_null(qn_ref_get(op->op));
        for (int32_t s = 0; s < op->in_count; s++) {
            assert_int_equal(qn_op_in_slot(op->op, op->in[s].name), s);
            assert_int_not_equal(qn_op_slot_default(&op->in[s]), QN_FORMAT_NONE);
        }
        qn_op_desc desc;
        qn_op_desc_init(&desc, op->op);
        for (int32_t a = 0; a < op->attr_count; a++) {
            char value[64];
            snprintf(value, sizeof value, "%.*s", (int)strcspn(op->attrs[a].values, "|"), op->attrs[a].values);
            if (op->attrs[a].kind != QN_ATTR_KIND_CHOICE) { /* the default as text is the default */
                assert_int_equal(qn_op_desc_set(&desc, op->attrs[a].name, value, NULL), QN_OK);
                assert_memory_equal(&desc.attr[op->attrs[a].attr], &op->attrs[a].initial, sizeof(qn_attr_value));
            }
        }
    }
    assert_int_equal(count, 21);
    assert_int_equal(qn_op_find("no_such_op"), QN_OP_NONE);
    assert_null(qn_op_get_info((qn_op)63));
}

static void slot_numbers(void **state)
{
    (void)state;
    assert_int_equal(qn_op_in_slot(QN_OP_QUANTIZE_INT8, "azp"), QN_QUANT_AZP);
    assert_int_equal(qn_op_out_slot(QN_OP_QUANTIZE_INT8, "azp"), QN_QUANT_OUT_AZP);
    assert_int_equal(qn_op_out_slot(QN_OP_QUANTIZE_NVFP4, "global_scale"), QN_FP4_OUT_GLOBAL);
    assert_int_equal(qn_op_in_slot(QN_OP_QUANTIZE_NVFP4, "global_scale"), QN_FP4_GLOBAL);
    assert_int_equal(qn_op_in_slot(QN_OP_DEQUANTIZE, "global_scale"), QN_DEQ_GLOBAL);
    assert_int_equal(qn_op_in_slot(QN_OP_SCALED_MM, "azp"), QN_SMM_AZP);
    assert_int_equal(qn_op_in_slot(QN_OP_SCALED_MM, "bias"), QN_SMM_BIAS);
    assert_int_equal(qn_op_in_slot(QN_OP_BLOCK_SCALED_MM, "scale_b"), QN_BMM_SCALE_B);
    assert_int_equal(qn_op_in_slot(QN_OP_GROUPED_BLOCK_SCALED_MM, "masked_m"), QN_BMM_MASKED_M);
    assert_int_equal(qn_op_in_slot(QN_OP_NVFP4_MM, "b_global"), QN_NVMM_B_GLOBAL);
    assert_int_equal(qn_op_in_slot(QN_OP_NVFP4_MM, "bias"), QN_NVMM_BIAS);
    assert_int_equal(qn_op_in_slot(QN_OP_MXFP4_MM, "bias"), QN_MXMM_BIAS);
    assert_int_equal(qn_op_in_slot(QN_OP_DENSE_MM, "bias"), QN_DMM_BIAS);
    assert_int_equal(qn_op_out_slot(QN_OP_SILU_MUL_QUANT, "azp"), QN_ACT_OUT_AZP);
    assert_int_equal(qn_op_in_slot(QN_OP_ATTENTION, "v"), QN_ATT_V);
    assert_int_equal(qn_op_in_slot(QN_OP_ATTENTION, "nothing"), -1);
}

static void cases_round_trip(void **state)
{
    (void)state;
    int count = 0, benches = 0;
    int32_t bench = 0;
    for (const char *text; (text = qn_case_at(count, &bench)) != NULL; count++) {
        qn_op_desc desc, again;
        qn_error error = {QN_OK, ""};
        char printed[256];
        if (qn_op_desc_parse(text, &desc, &error) != QN_OK) {
            fail_msg("%s: %s", text, error.text);
        }
        assert_int_equal(qn_op_desc_print(&desc, printed, sizeof printed), strlen(text));
        assert_string_equal(printed, text);
        assert_int_equal(qn_op_desc_parse(printed, &again, NULL), QN_OK);
        assert_memory_equal(&desc, &again, sizeof desc);
        qn_case_cost cost;
        assert_int_equal(qn_case_get_cost(&desc, NULL, &cost, NULL), QN_OK);
        benches += bench > 0;
    }
    assert_true(count > 400);
    assert_true(benches > 150);
    assert_null(qn_case_at(-1, NULL));
}

static void print_is_like_snprintf(void **state)
{
    (void)state;
    qn_op_desc desc;
    char small[8];
    assert_int_equal(qn_op_desc_parse("dense_mm k=64 out=bf16 n=8 m=2 b=q4_0", &desc, NULL), QN_OK);
    assert_int_equal(qn_op_desc_print(&desc, small, sizeof small), strlen("dense_mm m=2 n=8 k=64 b=q4_0"));
    assert_string_equal(small, "dense_m");
    assert_int_equal(qn_op_desc_print(&desc, NULL, 0), strlen("dense_mm m=2 n=8 k=64 b=q4_0"));
}

/* Printing works on anything, also on what no check has seen. */
static void print_unchecked(void **state)
{
    (void)state;
    char text[256];
    qn_op_desc desc;
    qn_op_desc_init(&desc, QN_OP_NVFP4_MM);
    assert_true(qn_op_desc_print(&desc, text, sizeof text) > 0);
    desc.in[QN_NVMM_A] = qn_shape_make(QN_U8, 2, INT64_MAX, INT64_MAX, 1, 1);
    desc.in[QN_NVMM_B] = qn_shape_make(QN_U8, 2, INT64_MIN, -1, 1, 1);
    assert_true(qn_op_desc_print(&desc, text, sizeof text) > 0);
    desc.in[QN_NVMM_B].ndim = 77;
    desc.attr[QN_ATTR_OUT].i = -5;
    assert_true(qn_op_desc_print(&desc, text, sizeof text) > 0);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_E_ARGUMENT);
    qn_op_desc_init(&desc, QN_OP_NONE);
    assert_true(qn_op_desc_print(&desc, text, sizeof text) > 0);
}

typedef struct bad_text {
    const char *text;
    qn_status status;
    const char *word; /* what the sentence must hold */
} bad_text;

static void refused_texts(void **state)
{
    (void)state;
    static const bad_text bad[] = {
        {"", QN_E_ARGUMENT, "operator"},
        {"nothing m=1", QN_E_ARGUMENT, "nothing"},
        {"scaled_mm m=1 n=2", QN_E_ARGUMENT, "size k"},
        {"scaled_mm m=1 n=2 k", QN_E_ARGUMENT, "'k'"},
        {"scaled_mm m=1 n=2 k=3 out=f64", QN_E_ARGUMENT, "f64"},
        {"scaled_mm m=1 n=2 k=3 group=4", QN_E_ARGUMENT, "group"},
        {"scaled_mm m=1 n=2 k=3 a=f32", QN_E_ARGUMENT, "input a"},
        {"scaled_mm m=1 n=2 k=3 scale_a=channel", QN_E_ARGUMENT, "scale_a"},
        {"scaled_mm m=1 n=2 k=3 a=f8_e4m3 azp_adj=1", QN_E_FORMAT, "azp_adj"},
        {"scaled_mm m=1 n=2 k=3 a=f8_e4m3 b=i8", QN_E_FORMAT, "input b"},
        {"scaled_mm m=1 n=2 k=3 azp=1", QN_E_FORMAT, "azp"},
        {"scaled_mm m=999999999999999 n=2 k=3", QN_E_SHAPE, "size m"},
        {"scaled_mm m=9999999999999999 n=2 k=3", QN_E_ARGUMENT, "size m"},
        {"quantize_fp8 m=1 k=8 granularity=row", QN_E_ARGUMENT, "granularity"},
        {"quantize_fp8 m=1 k=8 granularity=group group=0", QN_E_ARGUMENT, "group"},
        {"quantize_fp8 m=1 k=8 granularity=group group=-1", QN_E_ARGUMENT, "group"},
        {"quantize_fp8 m=1 k=8 granularity=group group=12x", QN_E_ARGUMENT, "12x"},
        {"quantize_fp8 m=1 k=8 scale_ub=nan", QN_E_ARGUMENT, "scale_ub"},
        {"quantize_fp8 m=1 k=8 scale_ub=-1", QN_E_ARGUMENT, "scale_ub"},
        {"quantize_fp8 m=1 k=8 scale_layout=col", QN_E_ARGUMENT, "scale_layout"},
        {"quantize_fp8 m=1 k=8 mode=static scale_format=ue8m0", QN_E_ARGUMENT, "ue8m0"},
        {"quantize_fp8 m=1 k=8 mode=static scale_ub=1", QN_E_ARGUMENT, "scale_ub"},
        {"quantize_fp8 m=1 k=8 scale=1", QN_E_FORMAT, "scale"},
        {"quantize_fp8 m=1 k=8 symmetric=0", QN_E_ARGUMENT, "symmetric"},
        {"quantize_int8 m=1 k=8 symmetric=2", QN_E_ARGUMENT, "symmetric"},
        {"quantize_int8 m=1 k=8 granularity=block", QN_E_ARGUMENT, "block"},
        {"quantize_nvfp4 m=1 k=24", QN_E_SHAPE, "16"},
        {"quantize_nvfp4 m=1 k=7", QN_E_SHAPE, "16"},
        {"quantize_mxfp4 m=1 k=48", QN_E_SHAPE, "32"},
        {"nvfp4_mm m=1 n=1 k=24", QN_E_SHAPE, "16"},
        {"nvfp4_mm m=1 n=1 k=16 x=f32 a=1", QN_E_FORMAT, "input x"},
        {"nvfp4_mm m=1 n=1 k=16 a_scale=1", QN_E_FORMAT, "a_scale"},
        {"mxfp4_mm m=1 n=1 k=16", QN_E_SHAPE, "32"},
        {"dense_mm m=1 n=1 k=33 b=q4_0", QN_E_SHAPE, "32"},
        {"dense_mm m=1 n=1 k=128 b=q6_k", QN_E_SHAPE, "256"},
        {"dense_mm m=1 n=1 k=128 b=q8_1", QN_E_ARGUMENT, "input b"},
        {"grouped_block_scaled_mm m=1 n=1 k=1", QN_E_ARGUMENT, "size e"},
        {"silu_mul_quant m=1 k=8 symmetric=0", QN_E_ARGUMENT, "symmetric"},
        {"silu_mul_quant m=1 k=8 type=int8 symmetric=0 scale_ub=1", QN_E_ARGUMENT, "scale_ub"},
        {"dequantize m=1 k=8 type=int8", QN_E_ARGUMENT, "int8"},
        {"dequantize m=1 k=8 format=int8 granularity=block", QN_E_ARGUMENT, "block"},
        {"dequantize m=1 k=8 q=i8", QN_E_FORMAT, "input q"},
        {"dequantize m=1 k=16 format=nvfp4 scale=f32", QN_E_FORMAT, "input scale"},
        {"dequantize m=1 k=16 scale=e8m0", QN_E_FORMAT, "input scale"},
        {"dequantize m=1 k=16 format=int8 scale=u8", QN_E_FORMAT, "input scale"},
        {"rope m=1 k=7 e=1", QN_E_SHAPE, "even"},
        {"rope m=1 k=8 e=1 theta=0", QN_E_ARGUMENT, "theta"},
        {"rope m=1 k=8 e=1 factors=f16", QN_E_ARGUMENT, "factors"},
        {"vq_attention m=1 n=1 k=8 e=1 g=1 rope_factors=1", QN_E_FORMAT, "rope_factors"},
        {"attention m=1 n=1 k=8 e=3 g=2", QN_E_SHAPE, "heads"},
        {"attention m=1 n=1 k=8 e=3 g=0", QN_E_SHAPE, "heads"},
        {"rmsnorm m=1 k=1 0123456789012345678901234567890123456789012345678901234567890123=1", QN_E_ARGUMENT, "longer"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_op_desc desc;
        qn_error error = {QN_OK, ""};
        const qn_status status = qn_op_desc_parse(bad[i].text, &desc, &error);
        if (status != bad[i].status || !strstr(error.text, bad[i].word)) {
            fail_msg("'%s' gave %s '%s', expected %s with '%s'", bad[i].text, qn_status_name(status), error.text,
                     qn_status_name(bad[i].status), bad[i].word);
        }
    }
}

static void shape_mismatches(void **state)
{
    (void)state;
    qn_op_desc desc;
    qn_error error;
    assert_int_equal(qn_op_desc_parse("block_scaled_mm m=3 n=130 k=300", &desc, NULL), QN_OK);
    qn_op_desc bad = desc;
    bad.in[QN_BMM_SCALE_A] = qn_shape_make(QN_F32, 2, 3, 2, 1, 1);
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_SHAPE);
    assert_non_null(strstr(error.text, "scale_a is f32[3,2], expected f32[3,3]"));
    bad = desc;
    bad.in[QN_BMM_SCALE_B] = qn_shape_make(QN_F32, 2, 3, 2, 1, 1); /* transposed */
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_SHAPE);
    bad = desc;
    bad.in[QN_BMM_B].dims[1] = 299;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_SHAPE);
    assert_non_null(strstr(error.text, "input b"));
    bad = desc;
    bad.in[QN_BMM_A].ndim = 3;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_SHAPE);
    bad = desc;
    bad.in[QN_BMM_A].format = QN_BF16;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_FORMAT);
    bad = desc;
    bad.in[QN_BMM_A].format = (qn_format)1000;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_FORMAT);
    bad = desc;
    bad.in[QN_BMM_A].dims[0] = -1;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_SHAPE);
    bad = desc;
    bad.in[QN_BMM_B] = qn_shape_make(QN_FORMAT_NONE, 0, 1, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_FORMAT);
    assert_non_null(strstr(error.text, "input b is missing"));
    bad = desc;
    bad.in[6] = qn_shape_make(QN_F32, 1, 1, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_ARGUMENT);
    bad = desc;
    bad.attr[QN_ATTR_OUT].i = 3;
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_ARGUMENT);
    qn_op_desc_init(&bad, QN_OP_NONE);
    assert_int_equal(qn_op_desc_check(&bad, NULL, NULL, &error), QN_E_ARGUMENT);

    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    assert_int_equal(qn_op_desc_check(&desc, out, &sizes, &error), QN_OK);
    assert_int_equal(sizes.m, 3);
    assert_int_equal(sizes.n, 130);
    assert_int_equal(sizes.k, 300);
    assert_int_equal(out[0].format, QN_BF16);
    assert_int_equal(out[0].dims[1], 130);
    assert_int_equal(out[1].format, QN_FORMAT_NONE);
}

static void scale_alternatives(void **state)
{
    (void)state;
    qn_op_desc desc;
    assert_int_equal(qn_op_desc_parse("scaled_mm m=3 n=5 k=7", &desc, NULL), QN_OK);
    desc.in[QN_SMM_SCALE_A] = qn_shape_make(QN_F32, 1, 3, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_OK);
    desc.in[QN_SMM_SCALE_A] = qn_shape_make(QN_F32, 2, 3, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_OK);
    desc.in[QN_SMM_SCALE_A] = qn_shape_make(QN_F32, 0, 1, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_OK);
    desc.in[QN_SMM_SCALE_A] = qn_shape_make(QN_F32, 2, 1, 3, 1, 1);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_E_SHAPE);
    desc.in[QN_SMM_SCALE_A] = qn_shape_make(QN_F32, 1, 5, 1, 1, 1);
    assert_int_equal(qn_op_desc_check(&desc, NULL, NULL, NULL), QN_E_SHAPE);
}

static void output_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *out[3];
    } rows[] = {
        {"quantize_fp8 m=130 k=300", {"f8_e4m3[130,300]", "f32[1]", NULL}},
        {"quantize_fp8 m=130 k=300 granularity=token type=e5m2", {"f8_e5m2[130,300]", "f32[130,1]", NULL}},
        {"quantize_fp8 m=130 k=300 granularity=group type=e4m3fnuz", {"u8[130,300]", "f32[130,3]", NULL}},
        {"quantize_fp8 m=130 k=300 granularity=group scale_layout=col", {"f8_e4m3[130,300]", "f32[3,130]", NULL}},
        {"quantize_fp8 m=130 k=300 granularity=block", {"f8_e4m3[130,300]", "f32[2,3]", NULL}},
        {"quantize_int8 m=4 k=300 granularity=token symmetric=0", {"i8[4,300]", "f32[4,1]", "i32[4,1]"}},
        {"quantize_nvfp4 m=130 k=80", {"u8[130,40]", "f8_e4m3[130,5]", "f32[1]"}},
        {"quantize_nvfp4 m=130 k=80 swizzled=1", {"u8[130,40]", "u8[256,8]", "f32[1]"}},
        {"quantize_mxfp4 m=3 k=96", {"u8[3,48]", "u8[3,3]", NULL}},
        {"dequantize m=3 k=96 format=mxfp4", {"f32[3,96]", NULL, NULL}},
        {"silu_mul_quant m=3 k=200 scale_layout=col", {"f8_e4m3[3,200]", "f32[2,3]", NULL}},
        {"silu_mul_quant m=3 k=200 group=0 type=int8 symmetric=0", {"i8[3,200]", "f32[3,1]", "i32[3,1]"}},
        {"grouped_block_scaled_mm m=9 n=33 k=70 e=3 layout=masked", {"bf16[3,9,33]", NULL, NULL}},
        {"attention m=5 n=17 k=64 e=9 g=3", {"f32[5,9,64]", NULL, NULL}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_op_desc desc;
        qn_shape out[QN_MAX_OUT];
        char text[128];
        assert_int_equal(qn_op_desc_parse(rows[i].text, &desc, NULL), QN_OK);
        assert_int_equal(qn_op_desc_check(&desc, out, NULL, NULL), QN_OK);
        for (int s = 0; s < 3; s++) {
            if (rows[i].out[s]) {
                assert_string_equal(qn_shape_text(&out[s], text), rows[i].out[s]);
            } else {
                assert_int_equal(out[s].format, QN_FORMAT_NONE);
            }
        }
    }
}

static void hostile_offsets(void **state)
{
    (void)state;
    static const struct {
        int32_t values[4];
        qn_status status;
    } rows[] = {
        {{0, 3, 3, 9}, QN_OK},
        {{2, 3, 4, 8}, QN_OK},
        {{0, 4, 3, 9}, QN_E_ARGUMENT},
        {{-1, 3, 4, 9}, QN_E_ARGUMENT},
        {{0, 3, 4, 10}, QN_E_ARGUMENT},
        {{0, INT32_MAX, 4, 9}, QN_E_ARGUMENT},
        {{0, 3, INT32_MIN, 9}, QN_E_ARGUMENT},
    };
    qn_op_desc desc;
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=9 n=4 k=8 e=3", &desc, NULL), QN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_args args;
        memset(&args, 0, sizeof args);
        args.in[QN_BMM_A].shape = desc.in[QN_BMM_A];
        args.in[QN_BMM_OFFSETS] = qn_view_make(rows[i].values, &desc.in[QN_BMM_OFFSETS]);
        assert_int_equal(qn_op_args_check(&desc, &args, NULL), rows[i].status);
    }
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=9 n=4 k=8 e=3 layout=masked", &desc, NULL), QN_OK);
    static const int32_t masked[][4] = {{0, 9, 3, QN_OK}, {0, 10, 3, QN_E_ARGUMENT}, {0, -1, 3, QN_E_ARGUMENT}};
    for (size_t i = 0; i < 3; i++) {
        qn_args args;
        memset(&args, 0, sizeof args);
        args.in[QN_BMM_A].shape = desc.in[QN_BMM_A];
        args.in[QN_BMM_MASKED_M] = qn_view_make(masked[i], &desc.in[QN_BMM_MASKED_M]);
        assert_int_equal((int32_t)qn_op_args_check(&desc, &args, NULL), masked[i][3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),   cmocka_unit_test(slot_numbers),
        cmocka_unit_test(cases_round_trip), cmocka_unit_test(print_is_like_snprintf),
        cmocka_unit_test(print_unchecked),  cmocka_unit_test(refused_texts),
        cmocka_unit_test(shape_mismatches), cmocka_unit_test(scale_alternatives),
        cmocka_unit_test(output_shapes),    cmocka_unit_test(hostile_offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
