/* Arguments of the CUDA kernels over coded keys and values (kernels/cuda/vq_attention.cu, vq_attention_plain.cu,
 * vq_encode.cu, kv_keep.cu, kv_step.cu) and of those that decode (decode.cu, decode_group.cu, decode_scaled.cu,
 * decode_coded.cu), as host and device see them. Strides are bytes. Included by both sides, so plain C. */
#ifndef QN_KERNELS_CUDA_VQ_KV_H
#define QN_KERNELS_CUDA_VQ_KV_H

#include "cuda_activation.h"

/* Codes or elements [batch, token, head, ...], the last dimension dense; scales [token, head], where there are any. */
typedef struct qn_cuda_vq_codes {
    const char *data, *scale;
    long long batch, token, head, scale_token, scale_head;
    int box_x, box_row; /* a token further on in the map for bulk copies: elements of a row, rows */
} qn_cuda_vq_codes;

/* Codebooks [head, group, entry, channel], the last dimension dense. */

typedef struct qn_cuda_vq_book {
    const char *data;
    long long head, group, entry;
    int wide; /* dense, and every vector of groups begins at 16 bytes */
} qn_cuda_vq_book;

/* Division of what is below 2^31: n / by = n * multiplier >> shift. */
typedef struct qn_cuda_vq_divisor {
    unsigned by, multiplier, shift;
} qn_cuda_vq_divisor;

/* Items are what a block does one after the other: part `item % parts` of the tokens of one sequence, for the query
 * heads that share its tables. A sequence is one query; it sees lens[i] tokens or, without lens, what row i of `batch`
 * queries at the end of `room` tokens sees; position not NULL: of *position + 1 tokens. With a window tokens from a
 * multiple of 32 on are rows token % recent_rows of `recent`: they are one part more, the last. */
typedef struct qn_cuda_vq_attention {
    const char *q;
    qn_cuda_vq_codes k, v;
    qn_cuda_vq_book k_book, v_book;
    qn_cuda_vq_codes k_recent, v_recent;
    const int *lens, *position;
    const int
        *pages; /* of sequences, pages_row bytes apart: which of page_count pages of k and v, that many `batch` apart */
    long long pages_row;
    int page_count;
    char *o, *lse, *partials;
    long long q_row, q_head, o_row, o_head, lse_row;
    int batch, heads, kv_heads, group; /* group: query heads a key head */
    int size, vector, entries;         /* of a head, of a vector; of a book */
    int room, parts, part_tokens;      /* tokens there is room for, their parts, and the length of each but the last */
    int all_parts;                     /* with the window's */
    int window, recent_rows, causal;
    int items, block_items; /* all, and of a block */
    /* items of a sequence, of queries that are done at once, of the key heads that a block does at once */
    qn_cuda_vq_divisor of_sequence, of_queries, of_head;
    int interleaved;
    int early;   /* 1: books may be read before the kernels before this one are done */
    float scale; /* of scores, in units of log 2 */
    double log2_theta;
    const float *factors; /* of frequencies (kernels/cuda/turn.h) */
    int head_blocks;      /* not 0: blocks of a key head, which go in clusters with those of its neighbour */
} qn_cuda_vq_attention;

typedef struct qn_cuda_vq_encode {
    const char *x;
    qn_cuda_vq_book book;
    char *codes;
    long long x_batch, x_token, x_head, codes_batch, codes_token, codes_head;
    const int *position; /* not NULL: codes go to token *position */
    int batch, tokens, heads, groups, entries, vector;
} qn_cuda_vq_encode;

/* Rows of f32 into a cache: as f16 at row position % ring, or heads of `size` elements each as e4m3 with a scale at row
 * position. */
typedef struct qn_cuda_kv_keep {
    const char *x;
    char *y, *scale;
    const int *position; /* [rows] */
    long long x_row, y_row, scale_row;
    int rows, width, ring, size;
} qn_cuda_kv_keep;

/* One token's query, key and value, rows of f32 (kernels/cuda/kv_step.cu): turned, into recent rows (y, y_row and ring
 * of recent), and as codes: y, y_row, scale and scale_row of scaled, or coded. Of two, keys first. */
typedef struct qn_cuda_kv_step {
    const char *q, *k, *v;
    char *turned_q, *turned_k;
    const int *position;
    qn_cuda_kv_keep recent[2], scaled[2];
    qn_cuda_vq_encode coded[2];
    int heads, kv_heads, size;
    double log2_theta;
    const float *factors; /* of frequencies (kernels/cuda/turn.h) */
} qn_cuda_kv_step;

/* How a cache is kept (kernels/cuda/decode_rows.h). */
#define QN_CUDA_KV_F32 0
#define QN_CUDA_KV_BF16 1
#define QN_CUDA_KV_FP8 2

/* All of one token's step over a cache of floats, or of codes with scales and a window, its attention in parts included
 * (kernels/cuda/parts.h; decode.cu, decode_group.cu, decode_scaled.cu). */
typedef struct qn_cuda_decode {
    const char *q, *k, *v; /* of this token, f32, before norm and turn, heads side by side; v: not with f32 */
    qn_cuda_head_norms norms;
    char *keys, *values; /* a cache of floats: rows before *position are there; of f32 this token's values, too */
    long long row;
    qn_cuda_kv_keep recent[2], scaled[2]; /* a cache of codes: keys, values */
    int window;
    char *partials;
    float *out;   /* of qn_decode_join, and of decode_group.cu where it joins parts: heads side by side */
    int *arrived; /* of decode_group.cu, for each head: 0 between launches */
    const int *position;
    int heads, group;
    float scale;
    double log2_theta;
    const float *factors; /* of frequencies (kernels/cuda/turn.h) */
} qn_cuda_decode;

/* The same over codes of vectors; parts: of the whole cache, blocks behind them encode. */
typedef struct qn_cuda_decode_coded {
    const char *q, *k, *v;
    const int *position;
    qn_cuda_kv_keep recent[2];
    qn_cuda_vq_encode coded[2];
    char *partials;
    int heads, group, window, parts;
    float scale;
    double log2_theta;
    const float *factors; /* of frequencies (kernels/cuda/turn.h) */
} qn_cuda_decode_coded;

#endif
