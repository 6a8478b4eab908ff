/* The contract between the runners of rows that are read as stored (src/backend/cpu/run_dense.c) and the
 * tiles, unpack fragments and epilogues of every instruction-set folder.
 *
 * D[m,n] = finish(sum over k of A[m,k] B[n,k]). The runner walks blocks of
 * QN_MM_ROWS rows by QN_MM_COLS columns and chunks of K. For each chunk a
 * fragment turns rows of an operand into panel rows of the tile's element type;
 * the tile adds to lanes[rows][cols][lanes], where lane l holds the sum over
 * k = l, l + lanes, l + 2 lanes, ... in that order, a chain from 0 for each QN_MM_CHAIN of K and a chain over them: a
 * single chain of equal products, which all round the same way, would leave the error model. One output element is thus
 * the same chains of operations whatever M, its row and the chunk size, a multiple of QN_MM_CHAIN, are. */
#ifndef QN_KERNELS_COMMON_MM_H
#define QN_KERNELS_COMMON_MM_H

#include <stdint.h>

#define QN_MM_ROWS 64
#define QN_MM_COLS 32
#define QN_MM_CHAIN 512
#define QN_MM_PAD 64 /* panel rows are padded with zeros to a multiple of this many elements */

/* A matrix of coded rows along K. */
typedef struct qn_mm_operand {
    const void *data;
    int64_t stride;        /* bytes from row to row */
    const void *scales;    /* group scales of nvfp4 and mxfp4, else NULL */
    int64_t scale_stride;  /* bytes from row to row */
    /* Decoder of any other format and its block, for the fragment that calls it. */
    void (*decode)(const void *source, int64_t count, float *destination);
    int64_t block_elements, block_bytes;
} qn_mm_operand;

/* Decode elements [k, k + count) of a row; zeros up to a multiple of QN_MM_PAD. k is a multiple of 256. */
typedef void (*qn_mm_unpack_fn)(const qn_mm_operand *operand, int64_t row, int64_t k, int64_t count, void *panel);

/* lanes[r * QN_MM_COLS + c][lane] += A[r,k] B[c,k] for k < count (a multiple of QN_MM_PAD);
 * a and b are panels or operands that need no unpacking, strides in bytes. */
typedef void (*qn_mm_tile_fn)(const void *a, int64_t a_stride, const void *b, int64_t b_stride, int64_t rows,
                              int64_t cols, int64_t count, void *lanes);

/* sums[c] of one row of lanes[QN_MM_COLS][lanes], in the tile's fixed tree. */
typedef void (*qn_mm_sum_fn)(const void *lanes, void *sums);

typedef enum qn_mm_real { QN_MM_BF16 = 0, QN_MM_F16 = 1, QN_MM_F32 = 2 } qn_mm_real;

/* What happens to rows of sums. Arrays are readable up to a multiple of QN_MM_STEP columns. */
typedef struct qn_mm_finish {
    int32_t integers;       /* sums are int32: sum - azp * azp_adj modulo 2^32, as a float */
    int32_t scaled;         /* 1: t = sum * scale_b, v = scale_a * t (+ bias, fused) */
    float unit;             /* float sums are multiplied with it first; a power of two */
    float factor;           /* scaled = 0: v = sum * factor (+ bias) */
    qn_mm_real out;
    int32_t adds;           /* 1: to what is there; f32 only */
    const float *scale_b;
    const float *bias;      /* NULL: none */
    const int32_t *azp_adj; /* NULL: none */
} qn_mm_finish;

#define QN_MM_STEP 32

/* Sums of a row: pieces of QN_MM_PIECE columns, `piece` elements apart, whole steps of them readable. */
typedef struct qn_mm_sums {
    const void *first;
    int64_t piece;
} qn_mm_sums;

#define QN_MM_PIECE 16

/* Write count outputs of a row. */
typedef void (*qn_mm_finish_fn)(const qn_mm_finish *finish, qn_mm_sums sums, float scale_a, int32_t azp, int64_t count,
                                void *out);

/* x[count] (a multiple of QN_MM_PAD) as bf16 terms, out[count / 64][terms][64]. */
typedef void (*qn_mm_split_fn)(const float *x, int64_t count, int32_t terms, uint16_t *out);

/* Fragments and their functions in kernels/cpu/unpack.h. A new one is a line here and its function there. */
#define QN_MM_FRAGMENT_LIST(X)          \
    X(QN_MM_FRAG_F32, unpack_f32)       \
    X(QN_MM_FRAG_F16, unpack_f16)       \
    X(QN_MM_FRAG_BF16, unpack_bf16)     \
    X(QN_MM_FRAG_E4M3, unpack_e4m3)     \
    X(QN_MM_FRAG_E5M2, unpack_e5m2)     \
    X(QN_MM_FRAG_NVFP4, unpack_nvfp4)   \
    X(QN_MM_FRAG_MXFP4, unpack_mxfp4)

typedef enum qn_mm_fragment {
    QN_MM_ANY = 0, /* through qn_mm_operand.decode */
#define QN_MM_FRAGMENT_NAME(name, unpack) name,
    QN_MM_FRAGMENT_LIST(QN_MM_FRAGMENT_NAME)
#undef QN_MM_FRAGMENT_NAME
    QN_MM_FRAGMENTS
} qn_mm_fragment;

/* Everything of one instruction set for float tiles. */
typedef struct qn_mm_f32_set {
    int32_t lanes, mr, nr;
    qn_mm_tile_fn tile;
    qn_mm_sum_fn sum;
    qn_mm_finish_fn finish;
    qn_mm_split_fn split;
    qn_mm_unpack_fn unpack[QN_MM_FRAGMENTS];
} qn_mm_f32_set;

extern const qn_mm_f32_set qn_mm_f32__scalar, qn_mm_f32__avx2, qn_mm_f32__avx512;

#endif
