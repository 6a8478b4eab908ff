/* Operators: what can be computed, described as data.
 *
 * An operator has named input and output tensors (slots) and named attributes;
 * docs/operators.md is its normative text, qn_op_get_info() the same as a table.
 * A qn_op_desc is plain data without padding holes that matter: operator,
 * attribute values and the shapes of all inputs. Fill it in three steps:
 *
 *     qn_op_desc d;
 *     qn_op_desc_init(&d, QN_OP_SCALED_MM);           // defaults
 *     d.in[slot] = qn_shape_make(...);                // or qn_op_desc_set_sizes
 *     d.attr[QN_ATTR_OUT].i = QN_OUT_BF16;            // or qn_op_desc_set
 *
 * Sizes: M rows (tokens), N outputs, K reduction, E experts; KB = ceil(K/128),
 * NB = ceil(N/128). All of these functions are thread-safe. */
#ifndef QUERN_OP_H
#define QUERN_OP_H

#include <quern/context.h>
#include <quern/view.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_MAX_IN 20
#define QN_MAX_OUT 4

/* Pinned values. */
typedef enum qn_op {
    QN_OP_NONE = 0,
    QN_OP_QUANTIZE_FP8 = 1,
    QN_OP_QUANTIZE_INT8 = 2,
    QN_OP_QUANTIZE_NVFP4 = 3,
    QN_OP_QUANTIZE_MXFP4 = 4,
    QN_OP_DEQUANTIZE = 5,
    QN_OP_SCALED_MM = 10,
    QN_OP_BLOCK_SCALED_MM = 11,
    QN_OP_GROUPED_BLOCK_SCALED_MM = 12,
    QN_OP_NVFP4_MM = 13,
    QN_OP_MXFP4_MM = 14, /* weight-only MXFP4: x[M,K] b[N,K/2] b_scale[N,K/32] */
    QN_OP_DENSE_MM = 15, /* x[M,K] by b[N,K] of any float, GGUF block format with codes of its own, or I8_K */
    QN_OP_SILU_MUL_QUANT = 20,
    QN_OP_SILU_MUL = 21,
    QN_OP_RMSNORM = 22,
    QN_OP_ROPE = 23,
    QN_OP_ATTENTION = 24,
    QN_OP_SCALED_ATTENTION = 25, /* over 8-bit keys and values with a scale for each and head */
    QN_OP_VQ_DEQUANTIZE = 30,    /* vector-quantised weights: w[N,K] */
    QN_OP_VQ_MM = 31,            /* x[M,K] by vector-quantised weights */
    QN_OP_VQ_ENCODE = 32,        /* nearest codes of a KV cache's codebooks */
    QN_OP_VQ_ATTENTION = 33,     /* one query a sequence over a vector-quantised KV cache */
    QN_OP_LIMIT = 64
} qn_op;

/* Attributes of all operators; each operator uses those its table row lists. */
typedef enum qn_attr {
    QN_ATTR_GRANULARITY = 0, /* qn_granularity */
    QN_ATTR_GROUP,           /* elements along K (or H) that share a scale */
    QN_ATTR_MODE,            /* qn_mode */
    QN_ATTR_TYPE,            /* qn_type: the 8-bit type made */
    QN_ATTR_SCALE_UB,        /* float; 0: none */
    QN_ATTR_SCALE_FORMAT,    /* qn_scale_format */
    QN_ATTR_SCALE_LAYOUT,    /* qn_scale_layout */
    QN_ATTR_SYMMETRIC,       /* 1, 0 */
    QN_ATTR_SWIZZLED,        /* 0, 1 */
    QN_ATTR_RULE,            /* qn_rule */
    QN_ATTR_FORMAT,          /* qn_quant_format: what dequantize reads */
    QN_ATTR_OUT,             /* qn_out */
    QN_ATTR_LAYOUT,          /* qn_layout */
    QN_ATTR_EPS,             /* float */
    QN_ATTR_THETA,           /* float: RoPE base */
    QN_ATTR_STYLE,           /* qn_rope_style */
    QN_ATTR_SCALE,           /* float; 0: 1/sqrt(D) */
    QN_ATTR_CAUSAL,          /* 1, 0 */
    QN_ATTR_LEVEL,           /* qn_vq_level */
    /* Sizes of a vector-quantised format (src/op/vq.c); 0: as the tensors' shapes say. */
    QN_ATTR_NUM_CODEBOOKS,
    QN_ATTR_NBITS,
    QN_ATTR_IN_GROUP,
    QN_ATTR_OUT_GROUP,
    QN_ATTR_CODEBOOK,    /* qn_vq_codebook */
    QN_ATTR_RESID_SCALE, /* float; 0 or below: the codebook's own */
    QN_ATTR_VECTOR_LEN,
    QN_ATTR_NUM_CENTROIDS,
    QN_ATTR_NUM_RES_CENTROIDS,
    QN_ATTR_GROUP_NUM,
    QN_ATTR_OUTLIER_SIZE,
    QN_ATTR_OUTLIER_VECTOR_LEN,
    QN_ATTR_NUM_OUTLIER_CENTROIDS,
    QN_ATTR_IN_FEATURES,
    QN_ATTR_OUT_FEATURES,
    QN_ATTR_CHANNELS,   /* of a KV codebook's vectors */
    QN_ATTR_BITS,       /* of a KV code */
    QN_ATTR_ROPE_THETA, /* float; 0: keys need no rotation */
    QN_ATTR_WINDOW,     /* recent keys that are read from k_recent, v_recent; 0: none */
    QN_ATTR_TAIL,       /* qn_tail: rows of d that belong to no group */
    QN_ATTR_PAGE,       /* tokens of a page of k_codes and v_codes, which pages names; 0: each sequence has its own */
    QN_ATTR_COUNT
} qn_attr;

typedef enum qn_granularity { QN_PER_TENSOR = 0, QN_PER_TOKEN, QN_PER_GROUP, QN_PER_BLOCK } qn_granularity;
typedef enum qn_mode { QN_DYNAMIC = 0, QN_STATIC } qn_mode;
typedef enum qn_type { QN_TYPE_E4M3FN = 0, QN_TYPE_E4M3FNUZ, QN_TYPE_E5M2, QN_TYPE_INT8 } qn_type;
typedef enum qn_scale_format { QN_SCALE_F32 = 0, QN_SCALE_UE8M0 } qn_scale_format;
typedef enum qn_scale_layout { QN_SCALE_ROW = 0, QN_SCALE_COL } qn_scale_layout;
typedef enum qn_rule { QN_RULE_CEIL = 0, QN_RULE_OCP, QN_RULE_EVEN } qn_rule;
typedef enum qn_quant_format { QN_QUANT_FP8 = 0, QN_QUANT_INT8, QN_QUANT_NVFP4, QN_QUANT_MXFP4 } qn_quant_format;
typedef enum qn_out { QN_OUT_BF16 = 0, QN_OUT_F16, QN_OUT_F32 } qn_out;
typedef enum qn_layout { QN_LAYOUT_OFFSETS = 0, QN_LAYOUT_MASKED } qn_layout;
typedef enum qn_tail { QN_TAIL_ZEROS = 0, QN_TAIL_KEEP } qn_tail;
typedef enum qn_vq_format { QN_VQ_AQLM = 0, QN_VQ_QUIP_E8P, QN_VQ_VPTQ, QN_VQ_GPTVQ } qn_vq_format;
typedef enum qn_vq_codebook { QN_VQ_CODEBOOK_AUTO = 0, QN_VQ_E8P12, QN_VQ_E8P12RVQ3B, QN_VQ_E8P12RVQ4B } qn_vq_codebook;
typedef enum qn_vq_level {
    QN_VQ_LEVEL_AUTO = 0,
    QN_VQ_LEVEL_GC,
    QN_VQ_LEVEL_SC,
    QN_VQ_LEVEL_O1,
    QN_VQ_LEVEL_O2,
    QN_VQ_LEVEL_O3,
    QN_VQ_LEVEL_O4
} qn_vq_level;
typedef enum qn_rope_style { QN_ROPE_HALF = 0, QN_ROPE_INTERLEAVED } qn_rope_style;

typedef union qn_attr_value {
    int32_t i;
    float f;
} qn_attr_value;

typedef struct qn_op_desc {
    qn_op op;
    qn_attr_value attr[QN_ATTR_COUNT];
    qn_shape in[QN_MAX_IN]; /* by slot; format QN_FORMAT_NONE where absent */
} qn_op_desc;

typedef enum qn_attr_kind { QN_ATTR_KIND_INT = 0, QN_ATTR_KIND_FLOAT, QN_ATTR_KIND_CHOICE } qn_attr_kind;

typedef struct qn_attr_info {
    qn_attr attr;
    const char *name;
    qn_attr_kind kind;
    const char *values; /* for a choice: the words, '|' between them, value = position; else the default as text */
    qn_attr_value initial;
} qn_attr_info;

typedef struct qn_slot_info {
    const char *name;    /* tensor name in files, e.g. "scale_a" */
    const char *shape;   /* e.g. "[M,KB]"; alternatives separated by " or " */
    const char *formats; /* e.g. "f32|f16|bf16" */
    int32_t optional;
    int32_t weight; /* belongs to the weights: may be packed once (qn_pack) */
} qn_slot_info;

typedef struct qn_op_info {
    qn_op op;
    const char *name;
    const char *summary; /* one line with the formula */
    int32_t in_count, out_count, attr_count;
    const qn_slot_info *in, *out;
    const qn_attr_info *attrs;
} qn_op_info;

/* Table row of an operator; NULL when it is none. Static storage. */
QN_API const qn_op_info *qn_op_get_info(qn_op op);

/* Operator number i in table order (i from 0); QN_OP_NONE past the end. */
QN_API qn_op qn_op_at(int32_t i);

/* The operator with that name; QN_OP_NONE when there is none. */
QN_API qn_op qn_op_find(const char *name);

/* Slot number of a named input or output; -1 when there is none. */
QN_API int32_t qn_op_in_slot(qn_op op, const char *name);
QN_API int32_t qn_op_out_slot(qn_op op, const char *name);

/* Defaults of an operator, no input shapes. */
QN_API void qn_op_desc_init(qn_op_desc *desc, qn_op op);

/* Set an attribute from text, e.g. ("group", "64").
 * QN_E_ARGUMENT: the operator has no such attribute, or not that value. */
QN_API qn_status qn_op_desc_set(qn_op_desc *desc, const char *name, const char *value, qn_error *error);

typedef struct qn_sizes {
    int64_t m, n, k, e; /* for attention: m queries, n keys, k head size, e query heads, g key heads */
    int64_t g;
} qn_sizes;

/* Fill every required input slot's shape from sizes, with the first accepted
 * format of each slot where none is set yet (a set format is kept). For
 * explain, bench and tests. QN_E_SHAPE: a negative size, or one the format
 * itself forbids (odd K for FP4). */
QN_API qn_status qn_op_desc_set_sizes(qn_op_desc *desc, const qn_sizes *sizes, qn_error *error);

/* Check the descriptor as a whole and give the shapes of the outputs
 * (out[QN_MAX_OUT], absent ones QN_FORMAT_NONE) and the sizes; both may be NULL.
 * QN_E_ARGUMENT, QN_E_SHAPE, QN_E_FORMAT with a sentence naming slot or attribute. */
QN_API qn_status qn_op_desc_check(const qn_op_desc *desc, qn_shape *out, qn_sizes *sizes, qn_error *error);

/* The descriptor as a case string "op key=value ...": what explain, bench and
 * --filter show and accept. Like snprintf: returns the length it needs. */
QN_API size_t qn_op_desc_print(const qn_op_desc *desc, char *text, size_t capacity);

/* The descriptor a case string describes. QN_E_ARGUMENT names the bad word. */
QN_API qn_status qn_op_desc_parse(const char *text, qn_op_desc *desc, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
