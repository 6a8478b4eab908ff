/* The argument of the kernels for vector-quantised weights (kernels/cuda/vq_*.cu) as host and device see it. Strides
 * are bytes. Included by both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_VQ_H
#define QN_KERNELS_CUDA_VQ_H

/* Parameter FORMAT. */
#define QN_CUDA_AQLM 0
#define QN_CUDA_QUIP 1
#define QN_CUDA_VPTQ 2
#define QN_CUDA_GPTVQ 3

/* A block's rows of w and a step's columns of K in vq_tensor.cu. */
#define QN_VQ_BLOCK_ROWS 256
#define QN_VQ_SPAN 256
#define QN_VQ_MOST_TOKENS 64 /* rows of x that a block multiplies at a time */

/* Scales of written-out rows of w that their product reads behind the last one's. */
#define QN_VQ_PAD 256

/* Four tables a lane of vq_sums.cu; a slab of K is 32 words of four codes. */
#define QN_VQ_SUMS_SHARED (4 * 256 * 32 * 4)

/* Two books of 256 entries, 32 copies each, and two spans' digits of two rows of x, in vq_bytes.cu. */
#define QN_VQ_BYTES_DIGITS (8 * (256 + 32))
#define QN_VQ_BYTES_SHARED (2 * (256 * 128 + QN_VQ_BYTES_DIGITS + 8))

/* Four books of 256 entries, eight copies each, on two sides, codes on their way, digits, barriers and scales of
 * vq_books.cu. */
#define QN_VQ_BOOKS_SHARED (65536 + 16 * 2 * (16 * 256 + 8) + 2 * 32 * (256 + 8) + 64)
#define QN_VQ_BOOKS_THREADS 640
#define QN_VQ_BOOKS_JOIN 128 /* threads of vq_books_join.cu */

/* Rows of w of a unit of vq_points_cut.cu; rows of the slow axis' matrix that a run of units needs at most, for `inner`
 * units each; rows of a base's matrix at most; bytes of a unit's digits and of sums, of a row of x. */
#define QN_VQ_CUT_ROWS 512
#define QN_VQ_CUT_SLOTS(units, inner) (((units) + (inner)-2) / (inner) + 1)
#define QN_VQ_CUT_BASE 32
#define QN_VQ_CUT_DIGITS (4 * (256 + 32))
#define QN_VQ_CUT_SUMS (16 * (32 + 1) * 4)

/* Two numbers a thread of vq_points_join.cu for each of two rows of x. */
#define QN_VQ_JOIN_SHARED (2 * 2 * 256 * 4)

/* Columns of K that a warp of vq_along.cu has codes of at a time; entries on their way to its 16 warps; its shared
 * memory but for the books: rows of x of padded columns as operands, pairs of vectors' rows of a block, and what is
 * both one row of floats and, where a book is far, entries on their way. */
#define QN_VQ_ALONG_CHUNK 128
#define QN_VQ_ALONG_WAY (16 * 2 * 4 * 512)
#define QN_VQ_ALONG_SHARED(rows, padded, pairs, far)                                                                   \
    ((rows) * ((padded) * 4 + (pairs) * (16 * 16 * 4)) +                                                               \
     ((far) && (padded) * 4 < QN_VQ_ALONG_WAY ? QN_VQ_ALONG_WAY : (padded) * 4))

/* Rules of a Hadamard transform's base matrix, as src/format/lattice.h has them. */
#define QN_TURN_PALEY_1 1
#define QN_TURN_PALEY_2 2
#define QN_TURN_WILLIAMSON 3
#define QN_TURN_MOST_BASE 172

/* A Hadamard transform of length base * fast: Sylvester's matrix along the fast axis, a power of two, the base's along
 * the slow one. bits: what the rule makes the matrix from. */
typedef struct qn_cuda_turn {
    int base, fast, rule, transposed;
    float scale; /* 1 / sqrt(length) */
    unsigned long long bits[4];
} qn_cuda_turn;

/* What is along the slow axis when the fast one is cut: the base's matrix times Sylvester's of `levels`. Bit j of
 * rows[i] is set where element (i, j) of the base's is -1. */
typedef struct qn_cuda_slow {
    int base, levels;
    float scale;
    unsigned int rows[QN_VQ_CUT_BASE];
} qn_cuda_slow;

typedef struct qn_cuda_vq {
    const char *x, *bias;
    char *y;
    long long x_row, y_row;
    int m, n, k;

    /* codes: aqlm codes, gptvq codes, quip Qidxs, vptq indices */
    const char *codes, *books, *scales;
    long long codes_row, codes_group, code_bytes; /* step of a row, of a group; bytes of a row */
    long long book_step, entry_step, within_step; /* of a codebook, an entry, a row of its group */
    long long scales_row;
    int groups;          /* vectors along K */
    float resid_inverse; /* quip: 1 / what a residual is divided by */

    /* vptq */
    const char *res_books, *outlier_codes, *outlier_books, *perm, *in_scale, *in_shift;
    long long res_book_step, outlier_row;
    int group_size, outliers;

    /* quip: in front of and behind the product */
    const char *su, *sv, *wscale, *scale_wh;

    /* work between kernels */
    float *turned;        /* [m][k]: rows of x after SU and Hin */
    unsigned int *halves; /* rows of x as operands of the matrix product, see vq_side.cu */
    float *row_scale;     /* [m]: what halves are to be multiplied by */
    float *column_scale;  /* [n + QN_VQ_PAD]: the same of weights that were written out as f16 */
    float *total;         /* [m][n]: sums in front of Hout */
    float *parts;         /* [parts][m][n] sums */
    int spans, tokens;    /* of K; rows of x of a tile */
    int blocks;           /* that the spans of all rows of w are dealt to; 0: one a block of rows; vq_points_cut.cu: from
                             one to the next that has the same spans of K */
    int slabs;            /* vq_sums.cu: parts of K */
    int slices;           /* vq_tensor.cu: of the codebook, each a part of every dealt one; 0 or 1: whole */
    int tiles;            /* vq_points.cu, vq_books.cu: of 16 rows of w, a block, a cluster at most; vq_points_cut.cu:
                             units of a block; vq_along.cu: of pairs of vectors' rows, a block at most */
    unsigned int *ready;  /* vq_wide.cu: [pieces], not 0 where a warpgroup's part is there; NULL: another launch adds */
    int pieces;
    int units;  /* vq_books.cu: of a block, where another launch adds */
    int mapped; /* vq_sums.cu: the map of codes is there */
    int early;  /* codes and codebooks may be read before the kernel in front is done */
} qn_cuda_vq;

#endif
