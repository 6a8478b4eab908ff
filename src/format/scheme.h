/* Schemes: how the linear weights of a checkpoint are stored, what happens to
 * the activations that meet them, and which operator multiplies the two.
 *
 * A scheme is one row of a table in scheme.c. The reader (src/io), the model
 * (src/model) and the quantiser (src/quant) all work from the row, so a new
 * scheme of known kinds is that row alone. A second table has what others publish and
 * the quantiser does not write: the same numbers under other names, scales of activations
 * from a file. Vector formats that are only read have sizes of their own in each
 * checkpoint; the reader makes their row (src/io/quant_config_vq.c). */
#ifndef QN_FORMAT_SCHEME_H
#define QN_FORMAT_SCHEME_H

#include <quern/op.h>

typedef enum qn_scheme_layout {
    QN_LAYOUT_DENSE = 0,          /* X.weight in an element format, no quantization_config */
    QN_LAYOUT_FP8,                /* quant_method "fp8": X.weight_scale_inv of blocks, X.weight_scale of a tensor */
    QN_LAYOUT_COMPRESSED_TENSORS, /* quant_method "compressed-tensors" */
    QN_LAYOUT_AQLM,               /* quant_method "aqlm": X.codes, X.codebooks, X.scales */
    QN_LAYOUT_GPTVQ,              /* quant_method "gptvq": X.codes, X.codebooks, X.codebook_scales */
    QN_LAYOUT_VPTQ,               /* quant_method "vptq": X.indices, X.centroids.weight, ... */
    QN_LAYOUT_QUIP,               /* quip_params: X.Qidxs, X.SU, X.SV, ... */
    QN_LAYOUT_MODELOPT            /* quant_method "modelopt", or hf_quant_config.json */
} qn_scheme_layout;

/* Which elements of a weight [N,K] share a scale. */
typedef enum qn_weight_scales {
    QN_SCALES_NONE = 0,
    QN_SCALES_CHANNEL, /* [N,1]; or one for the tensor, which is read as [N,1] */
    QN_SCALES_BLOCK,   /* [ceil(N/block_n), ceil(K/block_k)], edge blocks short */
    QN_SCALES_GROUP,   /* [N, K/block_k] */
    QN_SCALES_VECTOR   /* vector-quantised: codes of short vectors (vq) */
} qn_weight_scales;

typedef struct qn_scheme {
    const char *name;    /* "fp8-block" */
    const char *summary;
    qn_scheme_layout layout;

    /* weights */
    qn_format weight;         /* element format; QN_FORMAT_NONE: whatever the tensor is (reading dense files) */
    qn_weight_scales scales;
    qn_format scale_format;   /* of the stored scales */
    int32_t block_n, block_k;
    int32_t file_k;           /* files may have a scale for that many of a row: it stands for several groups; 0: not */
    int32_t global_scale;     /* 1: a second scale for the whole tensor, dequantising divides by it (NVFP4) */
    int32_t global_inverse;   /* 1: files hold 1 / such scales, of activations too, which dequantising multiplies by */
    const char *data_suffix;  /* "weight" or "weight_packed" */
    const char *scale_suffix; /* "weight_scale_inv", "weight_scale"; NULL: none */
    const char *global_suffix; /* of the second scale; NULL: none */

    /* activations */
    qn_op act_op;             /* QN_OP_NONE: taken as they are */
    qn_granularity act_granularity;
    int32_t act_group;
    qn_type act_type;
    int32_t act_symmetric;
    int32_t act_static;       /* 1: one scale for all, which the file gives; not symmetric: X.input_zero_point too */
    const char *act_suffix;   /* of that scale, or of NVFP4's global one; NULL: none */
    const struct qn_scheme *dynamic; /* the scheme of modules that the file gives no such scale; NULL: all have one */

    qn_op mm;                 /* operator of the linear layer */

    /* vector-quantised weights (docs/formats/vq.md) */
    struct {
        qn_vq_format format;
        int32_t books, bits, vector;
        int32_t tile;              /* rows and columns that share codebooks; 0: all */
        int32_t rows;              /* of a vector; 0: one */
        qn_vq_codebook codebook;   /* quip_e8p */
        const char *tensors[9];    /* names of a layer's tensors in files and operators, the codes first; NULL ends */
        int32_t required, written; /* of those: the first ones that every layer has, and that the quantiser makes */
    } vq;

    const char *word;         /* compressed-tensors: format; modelopt: quant_algo; else NULL */
} qn_scheme;

/* Row i in table order; NULL past the end. */
const qn_scheme *qn_scheme_get(int32_t i);

/* The same of all rows that checkpoints can be in: after those, the ones that are only read. */
const qn_scheme *qn_scheme_readable(int32_t i);

/* Row of a name that can be written; NULL when there is none. */
const qn_scheme *qn_scheme_find(const char *name);

/* The scheme of plain tensors of any element or block format. */
const qn_scheme *qn_scheme_dense(void);

#endif
