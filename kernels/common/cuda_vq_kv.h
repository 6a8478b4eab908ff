/* Arguments of the CUDA kernels over coded keys and values (kernels/cuda/vq_attention.cu, vq_attention_plain.cu,
 * vq_encode.cu), as host and device see them. Strides are bytes. Included by both sides, so plain C and no other
 * header. */
#ifndef QN_KERNELS_CUDA_VQ_KV_H
#define QN_KERNELS_CUDA_VQ_KV_H

/* Codes [batch, token, head, group] or their codebooks [head, group, entry, channel]; the last dimension is dense. */
typedef struct qn_cuda_vq_codes {
    const char *data;
    long long batch, token, head;
} qn_cuda_vq_codes;

typedef struct qn_cuda_vq_book {
    const char *data;
    long long head, group, entry;
    int wide; /* dense, and every vector of groups begins at 16 bytes */
} qn_cuda_vq_book;

/* Items are what a block does one after the other: part `item % parts` of the tokens of one sequence, for the query
 * heads that share its tables. */
typedef struct qn_cuda_vq_attention {
    const char *q;
    qn_cuda_vq_codes k, v;
    qn_cuda_vq_book k_book, v_book;
    const int *lens;
    char *o, *lse, *partials;
    long long q_row, q_head, o_row, o_head, lse_row;
    int batch, heads, kv_heads, group; /* group: query heads a key head */
    int size, vector, entries;         /* of a head, of a vector; of a book */
    int room, parts, part_tokens;      /* tokens there is room for, their parts, and the length of each but the last */
    int items, block_items;            /* all, and of a block */
    int interleaved;
    float scale; /* of scores, in units of log 2 */
    double log2_theta;
} qn_cuda_vq_attention;

typedef struct qn_cuda_vq_encode {
    const char *x;
    qn_cuda_vq_book book;
    char *codes;
    long long x_batch, x_token, x_head, codes_batch, codes_token, codes_head;
    int batch, tokens, heads, groups, entries, vector;
} qn_cuda_vq_encode;

#endif
