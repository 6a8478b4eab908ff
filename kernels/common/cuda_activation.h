/* Arguments of the CUDA kernels between the matrix products (kernels/cuda: rmsnorm, silu_mul, rope, add, attention,
 * embed), as host and device see them. Strides are bytes. Included by both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_ACTIVATION_H
#define QN_KERNELS_CUDA_ACTIVATION_H

/* rmsnorm, silu_mul, rope and x += y: rows of k elements; rope: heads of k elements a row. */
typedef struct qn_cuda_activation {
    const char *x, *w; /* w: weight of the norm, positions of rope, what is added */
    char *y;
    const char *added; /* of a sum before a norm: to x, */
    char *sum;         /* which is the same as this */
    long long x_row, w_row, y_row, x_head, y_head;
    long long m, k;
    int heads;
    float eps;
    double log2_theta;
    const float *factors; /* of frequencies (kernels/cuda/turn.h), [k / 2] */
} qn_cuda_activation;

/* attention of `queries` queries over `keys` keys. */
typedef struct qn_cuda_attention {
    const char *q, *k, *v;
    char *o;
    long long q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head;
    int queries, keys, heads, group, size, causal; /* group: query heads a key head */
    float scale;
} qn_cuda_attention;

/* Rows of key heads and the planes of f16 they become (kernels/cuda/attention_tiles.cu): of head h and row i at planes
 * + h * planes_head + i * 2 * size, the second `plane` further; factors [head][row]. */
typedef struct qn_cuda_attention_rows {
    const char *x, *scale; /* scales of e4m3 */
    long long row, head, scale_row;
    char *planes;
    long long planes_head, plane;
    float *factors;
    long long factors_head;
    int count, first, ring; /* row i of the planes is row first + i, with a ring modulo that */
} qn_cuda_attention_rows;

typedef struct qn_cuda_attention_planes {
    qn_cuda_attention_rows k, v, k_recent, v_recent;
} qn_cuda_attention_planes;

/* Floats of a row of a part: its values' sum, of every 16 columns 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 side by side for
 * c below 4, the largest score, the sum of weights, and two that make it a multiple of 16 bytes. */
#define QN_CUDA_PARTIAL(size) ((size) + 4)

/* attention by tiles. Rows are (query, head of the group); keys are cut into parts of part_keys, a multiple of a
 * tile's. With a window the planes' rows are `coded` keys and, behind them, the recent ones from recent_first on. */
typedef struct qn_cuda_attention_tiles {
    const char *q;
    char *o;
    long long q_row, q_head, o_row, o_head;
    const char *k, *v; /* planes */
    long long k_row, k_head, k_plane, v_row, v_head, v_plane;
    const float *k_factors, *v_factors; /* [head][row] */
    long long factors_head;
    float *partials; /* [key head][row][part] */
    int queries, keys, group, causal, parts, part_keys;
    int first_part, plane_first, plane_rows; /* of this launch: its first part, and which rows the planes hold */
    int window, coded, recent_first;
    float scale;
    unsigned by_group, group_shift; /* r / group is (2 r by_group >> 32) >> group_shift, of r below 2^31 */
} qn_cuda_attention_tiles;

/* What norms of the query's and the key's heads multiply their elements by. */
typedef struct qn_cuda_head_norms {
    const float *q, *k; /* NULL: there are none */
    float eps;
} qn_cuda_head_norms;

/* Rows of a table by ids; weights with scales of their own beside the data as in qn_cuda_mm_part. */
typedef struct qn_cuda_embed {
    const int *ids;
    const char *b, *b_scale;
    float *y;
    long long b_row, b_scale_row, y_row;
    int k;
} qn_cuda_embed;

#endif
