/* The argument of the matrix products that read weights of any format
 * (kernels/cuda/mm_few.cu, mm_tile.cu, mm_mma.cu), as host and device see it. Strides are bytes. Included by
 * both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_MM_H
#define QN_KERNELS_CUDA_MM_H

/* Numbers of formats as the parameters X_FORMAT, BIAS (+ 1) and OUT have them, and B_FORMAT goes on. Macros, as the
 * preprocessor chooses by them. */
#define QN_MM_F32 0
#define QN_MM_F16 1
#define QN_MM_BF16 2
#define QN_MM_Q4_0 3
#define QN_MM_Q4_1 4
#define QN_MM_Q5_0 5
#define QN_MM_Q5_1 6
#define QN_MM_Q8_0 7
#define QN_MM_Q2_K 8
#define QN_MM_Q3_K 9
#define QN_MM_Q4_K 10
#define QN_MM_Q5_K 11
#define QN_MM_Q6_K 12
#define QN_MM_IQ4_NL 13
#define QN_MM_IQ4_XS 14
#define QN_MM_I8_K 15
#define QN_MM_E4M3 16 /* with a scale an output channel, applied to sums */
#define QN_MM_I8 17 /* the same, sums exact */
#define QN_MM_E4M3_BLOCK 18 /* with a scale a block of 128 x 128 */
#define QN_MM_E5M2_BLOCK 19
#define QN_MM_NVFP4 20 /* an e4m3 scale a block of 16 */
#define QN_MM_MXFP4 21 /* an e8m0 scale a block of 32 */
#define QN_MM_AQLM 22 /* vectors of eight, in chains: kernels/cuda/mm_vectors.h */
#define QN_MM_GPTVQ 23
#define QN_MM_VPTQ 24

/* What a row of x was quantised to: parameter A_FORMAT. */
#define QN_MM_PLAIN 0 /* X_FORMAT */
#define QN_MM_A_E4M3 1 /* codes; their scale is applied to sums */
#define QN_MM_A_I8 2
#define QN_MM_A_BLOCK 3 /* e4m3 codes with a scale a block of 128 */
#define QN_MM_A_NVFP4 4 /* e2m1 codes with an e4m3 scale a block of 16 */

/* A weight [n, k] and where its products go. */
typedef struct qn_cuda_mm_part {
    const char *b, *b_scale, *b_global, *bias, *azp_adj;
    const char *books;               /* of vectors */
    const char *perm, *shift;        /* vptq: of columns of x; b_scale too */
    char *d;
    long long b_row, b_scale_row, d_row;
    long long books_row, books_step; /* from tile to tile of rows (gptvq), from codebook to codebook */
    long long d_position; /* bytes a position: d is of the row at *position; 0: it is where it says */
    int n;
} qn_cuda_mm_part;

#define QN_CUDA_MM_PARTS 3
#define QN_MM_RING_COLUMNS 16 /* rows of weights in a tile of kernels/cuda/mm_ring.cu */

typedef struct qn_cuda_mm {
    qn_cuda_mm_part part[QN_CUDA_MM_PARTS]; /* weights that share x; columns of part 0 first */
    const char *x, *x_scale, *x_global;     /* activations; x_scale: of a row, or of its blocks */
    const char *azp;
    long long x_row, x_scale_row, x_scale_block, azp_row;
    const char *norm;     /* what comes before the product, of one row: weight of the norm, f32 */
    const char *partials; /* or an attention's parts, as attention.cu leaves them */
    const int *position;
    float eps;
    int m, n, k; /* n: of all parts */
    int heads, head_size;
} qn_cuda_mm;

/* Operands of mm_digits.cu: tiles of rows of x and of columns of weights, a step of K after the other, as the tensor
 * cores' lanes take them. 32 of K (a group) of 16 rows or columns are 32 times 16 bytes, lane l's: of rows l / 4 and l / 4 +
 * 8, or columns, elements 4 (l % 4) to 4 (l % 4) + 3 and those 16 further.
 *
 *   x    [M / ROWS][K / STEP]: [group][digit][16 rows] digits; [group][row] four floats: the scale, sums of both sixteens
 *   b    [n / COLUMNS][K / STEP]: [group][16 columns] codes; [weights that share a scale][column] two floats: it, and what
 *        is taken off
 *
 * Rows, columns and K that there are not are zeros. */
#define QN_CUDA_DIGITS_ROWS 64
#define QN_CUDA_DIGITS_COLUMNS 128
#define QN_CUDA_DIGITS_STEP 64
#define QN_CUDA_DIGITS_X_FLOATS (QN_CUDA_DIGITS_ROWS * QN_CUDA_DIGITS_STEP * 3) /* bytes before the floats of x */
#define QN_CUDA_DIGITS_X_BYTES (QN_CUDA_DIGITS_X_FLOATS + QN_CUDA_DIGITS_ROWS * QN_CUDA_DIGITS_STEP / 32 * 16)
#define QN_CUDA_DIGITS_B_FLOATS (QN_CUDA_DIGITS_COLUMNS * QN_CUDA_DIGITS_STEP)
#define QN_CUDA_DIGITS_B_BYTES(group)                                                                                  \
    (QN_CUDA_DIGITS_B_FLOATS + QN_CUDA_DIGITS_COLUMNS * QN_CUDA_DIGITS_STEP / (group)*8)
#define QN_CUDA_DIGITS_SHARED(group) (2 * (QN_CUDA_DIGITS_X_BYTES + QN_CUDA_DIGITS_B_BYTES(group)))

typedef struct qn_cuda_digits {
    const char *x, *b;
    int steps; /* of K */
} qn_cuda_digits;

/* Products of few tiles are cut along K: each part's sums go to memory, and mm_join.cu adds them. Products of planes by
 * fp4_mm.cu are such parts too, for which the depth is K / planes, rounded up. */
typedef struct qn_cuda_mm_cut {
    void *parts; /* [parts][M][N] sums */
    int depth;   /* K of a part, a multiple of 128; K or more: there is one, and it is no part */
} qn_cuda_mm_cut;

/* Rows of floats that become planes of 16-bit floats (kernels/cuda/mm_planes.cu): steps in bytes, of `to` whole sixteens. */
typedef struct qn_cuda_planes {
    const char *from;
    char *to;
    float *scales; /* of rows, of f16 */
    int *odd;      /* set to 0; NULL: is not */
    long long from_row, to_row, to_plane;
    int k, pad;    /* scales that are ones behind the rows' */
} qn_cuda_planes;

/* A product of such planes by mm_mma.cu: steps in bytes, 0 where an operand is one plane. Scales are powers of two of rows
 * and of columns; NULL: ones. */
typedef struct qn_cuda_mm_planes {
    long long x_plane, b_plane;
    const float *row_scales, *column_scales;
    int *odd; /* set to 1 where a result is not finite */
} qn_cuda_mm_planes;

/* Groups of rows, each with a matrix of its own: part 0 and x of a qn_cuda_mm are the first group's. Steps from one to
 * the next; of x, x_scale and d where groups are masked. */
typedef struct qn_cuda_mm_groups {
    const char *sizes; /* int: where each begins, and the end of the last; masked: rows of each */
    long long x, x_scale, b, b_scale, d;
    int experts, tail; /* tail: kernels/cuda/groups.h */
} qn_cuda_mm_groups;

#endif
