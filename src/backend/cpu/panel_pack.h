/* Packed weights of the panel kernels: where things are in the blob, packing, and
 * reading single elements back. The order inside a block: kernels/common/panel.h. */
#ifndef QN_BACKEND_CPU_PANEL_PACK_H
#define QN_BACKEND_CPU_PANEL_PACK_H

#include "backend/backend.h"
#include "kernels/common/panel.h"

/* The body of a blob; offsets in bytes, each section 64-byte aligned. Expert 0 is the only one but for
 * grouped operators. Absent sections have no bytes. */
typedef struct qn_panel_layout {
    int64_t experts, n, k;
    int64_t panels, blocks, scale_blocks; /* of an expert; blocks of 64 and of 128 along K */
    int64_t panel_bytes;
    size_t flags;        /* uint8 [experts][panels]: QN_PANEL_SPECIAL, QN_PANEL_SUBNORMAL */
    size_t block_scales; /* float [experts][panels][scale_blocks] */
    size_t scales;       /* float [1] or [n]: scale_b of scaled_mm; [1]: b_global of nvfp4_mm */
    size_t bias;         /* float [n] */
    size_t azp_adj;      /* int32 [n] */
    size_t total;        /* SIZE_MAX: more than there can be */
    int64_t scale_count;
    int has_bias, has_azp_adj;
} qn_panel_layout;

/* Layout ids in blob headers: one a code, changed when the layout changes. */
#define QN_PANEL_LAYOUT_ID(code) (0x100u + (uint32_t)(code))

/* The weight slot of a matmul. */
int qn_panel_weight_slot(qn_op op);

qn_panel_layout qn_panel_layout_of(const qn_op_desc *desc, qn_panel_code code);

/* Elements of a block of a panel as the format defines them, group scales included: of mxfp4 they may be beyond f32. */
typedef struct qn_panel_values {
    double at[QN_PANEL_K][QN_PANEL_COLS];
} qn_panel_values;

/* One column of a panel of groups, which is zeros before; 1 when kernels must not compute it. A block of it. */
int qn_panel_pack_groups(qn_panel_code code, const uint8_t *row, int64_t k, char *panel, int c);
void qn_panel_decode_groups(qn_panel_code code, const char *block, qn_panel_values *w);

/* Panel p of expert e: its blocks, its flag and its scale_blocks block scales. */
void qn_panel_pack_one(const qn_panel_layout *layout, qn_panel_code code, const qn_op_desc *desc, const qn_args *args,
                       int64_t e, int64_t p, char *panel, uint8_t *flag, float *block_scales);

/* Scales, bias and azp_adj: the sections from layout->scales on, to `rest`. */
void qn_panel_pack_rest(const qn_panel_layout *layout, const qn_op_desc *desc, const qn_args *args, char *rest);

/* Block b of a panel of floats or groups. */
void qn_panel_decode(qn_panel_code code, const char *panel, int64_t b, qn_panel_values *w);

/* 1: products of this block scale with another such cannot leave the range of f32. */
int qn_panel_plain_scale(float scale);

/* Power of two that kernels' float sums are multiplied with. */
float qn_panel_factor(qn_panel_code code);

#endif
