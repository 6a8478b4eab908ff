/* vq_mm on CUDA: which kernels a plan has and how each is made (vq_cuts.c), their programs (vq_programs.c); run_vq.c
 * launches them. */
#ifndef QN_BACKEND_CUDA_VQ_H
#define QN_BACKEND_CUDA_VQ_H

#include "backend/cpu/sizes.h"
#include "backend/cuda/dense.h"
#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "kernels/common/cuda_mm_points.h"
#include "kernels/common/cuda_vq.h"
#include "ref/vq.h"

enum {
    QN_CUDA_VQ_DIRECT_ROWS = 4,      /* of x, of vq_direct.cu */
    QN_CUDA_VQ_BOOKS_ROWS = 2,       /* of x, of vq_books.cu, */
    QN_CUDA_VQ_POINTS_ROWS = 2,      /* of vq_points.cu */
    QN_CUDA_VQ_POINTS_TILES = 32,    /* most tiles of 16 rows of w of its blocks, */
    QN_CUDA_VQ_POINTS_CLUSTER = 16,  /* and blocks where they transform y */
    QN_CUDA_VQ_CUT_BLOCKS = 192,     /* most blocks of vq_points_cut.cu */
    QN_CUDA_VQ_SUMS_ROWS = 16,       /* of w, a batch of vq_sums.cu, */
    QN_CUDA_VQ_SUMS_TURNS = 2,       /* and rows of x that it takes in turn */
    QN_CUDA_VQ_EXCHANGE_CLUSTER = 8, /* blocks of vq_exchange.cu that exchange tables, */
    QN_CUDA_VQ_EXCHANGE_MOST = 32,   /* and most clusters, each a part of the sums */
    QN_CUDA_VQ_FEW_ROWS = 8,         /* of x that mm_few.cu and vq_along.cu take, */
    QN_CUDA_VQ_FEW_PROGRAMS = 2,     /* the one with one or two a block, the other with one or more, */
    QN_CUDA_VQ_ALONG_ROWS = 4,       /* at most so many */
    QN_CUDA_VQ_TURN_FAST = 512       /* elements of a block of transforms that reads all of a row */
};

/* Programs of a plan by their place; -1: it has none. */
typedef struct qn_cuda_vq_places {
    int32_t direct, rows, finish, turn_in, turn_out, whole_in, whole_out, spread_in, spread_out, sums, exchange, books,
        books_join, bytes, points, points_cut, points_join, along, few, sliced, tensor, tensors, wide_rows, wide, wides,
        unpack, dense_rows, dense;
    int32_t turned, fused; /* blocks of the product transform x, and y too */
    int32_t count;
} qn_cuda_vq_places;

/* What vq_tensor.cu is made with for a number of rows. */
typedef struct qn_cuda_vq_cut {
    int32_t tokens, tiles, fusion, hot, copies, registers, resident, shared_bytes;
    int32_t split;  /* spans are dealt to all blocks */
    int32_t slices; /* of the codebook, of which a block keeps one; 1: none */
} qn_cuda_vq_cut;

/* How vq_sums.cu is made: batches of rows that are on their way to a warp, blocks of a cluster (1: none, parts are
 * added by another launch), groups of rows, shared memory. */
typedef struct qn_cuda_vq_sums_cut {
    int32_t slots, cluster, parts, shared_bytes;
} qn_cuda_vq_sums_cut;

/* How vq_exchange.cu is made: ranges of rows, and of each 4096 rows a task; of eight rows' codes those that wait in
 * shared memory; chunks of a block's share of the book that stay there and in registers. */
typedef struct qn_cuda_vq_exchange_cut {
    int32_t tasks, ranges, staged, in_shared, in_registers, shared_bytes;
} qn_cuda_vq_exchange_cut;

/* How vq_books.cu is made: blocks of a cluster; tiles of 16 rows that a warp has of a unit; teams that take units in
 * turn, and those that ask for codes before x is there; tiles of a cluster, any: at most, as those that run at a time
 * share all; units of a block where another launch adds, else 0; shared memory. */
typedef struct qn_cuda_vq_books_cut {
    int32_t cluster, each, teams, early, tiles, any, units, shared_bytes;
} qn_cuda_vq_books_cut;

/* How vq_along.cu is made: rows of x of a block, 0: it is not; copies of the books, and whether the first stays where
 * it lies; blocks, and pairs of vectors' rows of one at most; shared memory. */
typedef struct qn_cuda_vq_along_cut {
    int32_t rows, copies, res_copies, far, blocks, pairs, shared_bytes;
} qn_cuda_vq_along_cut;

/* How vq_wide.cu is made. A cluster's warpgroups have QN_VQ_BLOCK_ROWS rows of w. */
typedef struct qn_cuda_vq_wide_cut {
    int32_t copies, table_bytes, stages, shared_bytes;
    int32_t groups, pair; /* warpgroups of a block, blocks of a cluster */
} qn_cuda_vq_wide_cut;

static inline qn_vq qn_cuda_vq_describe(const qn_op_desc *desc)
{
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->in[QN_VQMM_X].dims[1], &vq);
    return vq;
}

static inline const qn_shape *qn_cuda_vq_tensor(const qn_op_desc *desc, int32_t slot)
{
    return &desc->in[QN_VQMM_FIRST + slot];
}

static inline int qn_cuda_vq_given(const qn_op_desc *desc, int32_t slot)
{
    return qn_cuda_vq_tensor(desc, slot)->format != QN_FORMAT_NONE;
}

static inline int32_t qn_cuda_vq_codebook(const qn_vq *vq)
{
    return vq->codebook == QN_VQ_E8P12RVQ4B ? 3 : vq->codebook == QN_VQ_E8P12RVQ3B ? 2 : 1;
}

/* Points that add up to a weight of those that vq_points.cu takes; 0: it takes none such. */
static inline int32_t qn_cuda_vq_points_planes(const qn_vq *vq)
{
    return vq->codebook == QN_VQ_E8P12RVQ4B ? 2 : vq->codebook == QN_VQ_E8P12RVQ3B ? 0 : 1;
}

/* Bits of a code in memory. */
static inline int32_t qn_cuda_vq_stored_bits(const qn_op_desc *desc, const qn_vq *vq)
{
    const qn_format codes = qn_cuda_vq_tensor(desc, QN_VQ_CODES)->format;
    return vq->format == QN_VQ_GPTVQ ? 8 : vq->packed ? (int32_t)vq->bits : codes == QN_I8 || codes == QN_U8 ? 8 : 16;
}

/* Bytes of the codes of 64 elements. */
static inline int32_t qn_cuda_vq_lane_bytes(const qn_op_desc *desc, const qn_vq *vq)
{
    const int32_t bits = qn_cuda_vq_stored_bits(desc, vq);
    return vq->format == QN_VQ_GPTVQ ? 16 : (int32_t)(64 / vq->in_group * vq->codebooks * bits / 8);
}

/* Transforms of x and y. */
static inline int qn_cuda_vq_turns_in(const qn_op_desc *desc, const qn_vq *vq)
{
    return vq->format == QN_VQ_QUIP_E8P && qn_cuda_vq_given(desc, QN_VQ_SU);
}

static inline int qn_cuda_vq_turns_out(const qn_op_desc *desc, const qn_vq *vq)
{
    return vq->format == QN_VQ_QUIP_E8P && qn_cuda_vq_given(desc, QN_VQ_SV);
}

/* Words of codes of a row are dealt to slabs of 32. */
static inline int64_t qn_cuda_vq_slabs(const qn_vq *vq)
{
    return vq->in_group > 0 ? qn_ceil_div(vq->k / vq->in_group * vq->codebooks, 128) : 1;
}

/* Rows of x of program i of vq_tensor.cu. */
static inline int32_t qn_cuda_vq_tokens(int32_t i)
{
    return 8 << i;
}

/* The same of vq_wide.cu. */
static inline int32_t qn_cuda_vq_wide_tokens(int32_t i)
{
    return 256 >> i;
}

/* What a descriptor allows. */
int qn_cuda_vq_tensor_possible(const qn_op_desc *desc, const qn_vq *vq);
int qn_cuda_vq_sums_possible(const qn_op_desc *desc, const qn_vq *vq);
int qn_cuda_vq_wide_possible(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device);

/* How vptq's weights are written out (vq_direct.cu): threads of a block, runs of columns of each that it keeps in
 * shared memory, with their residuals or without. */
typedef struct qn_cuda_vq_unpack_cut {
    int32_t threads, kept, res_far, shared_bytes;
} qn_cuda_vq_unpack_cut;

qn_cuda_vq_unpack_cut qn_cuda_vq_unpack_cut_of(const qn_vq *vq, const qn_cuda_device *device);

/* Whether weights are written out as f16 for m rows of x and multiplied by dense_mm.cu, by the generator's model of a
 * typical device: the workspace must not depend on the device. */
int qn_cuda_vq_dense_chosen(const qn_op_desc *desc, const qn_vq *vq, int64_t m);

/* Whether a workspace for at most m rows has room for that: as soon as it may be chosen, which it is for some numbers
 * of rows and not for others. */
int qn_cuda_vq_dense_room(const qn_op_desc *desc, const qn_vq *vq, int64_t m);
qn_dense_form qn_cuda_vq_dense_form(const qn_op_desc *desc, const qn_vq *vq);

/* Rows from which on vq_turn_rows.cu transforms those of a length, 0: never; threads of its blocks, and how many there
 * are at a time. */
typedef struct qn_cuda_vq_whole {
    int32_t from, threads, blocks;
} qn_cuda_vq_whole;

qn_cuda_vq_whole qn_cuda_vq_whole_of(int64_t length, const qn_cuda_device *device);

/* Blocks that a row's transform takes, 0: a grid of them without its row in shared memory; shared memory of each. */
int32_t qn_cuda_vq_turn_parts(int64_t length, const qn_cuda_device *device);
size_t qn_cuda_vq_turn_bytes(int64_t length, int32_t parts);

/* Blocks that a transform of one or two rows takes where each reads all of a row; 0: that is too many, or they would be
 * small. */
int32_t qn_cuda_vq_turn_spread(int64_t length, const qn_cuda_device *device);

/* Shared memory of vq_points.cu for that many rows of x and tiles a block. */
size_t qn_cuda_vq_points_bytes(const qn_vq *vq, int64_t m, int64_t tiles, int turned, int fused);

/* Tiles a block, where blocks transform and where they do not; and tiles a warp takes at a time. */
int64_t qn_cuda_vq_points_tiles(const qn_vq *vq, const qn_cuda_device *device, int fused);

static inline int64_t qn_cuda_vq_points_unit(int64_t tiles, int fused)
{
    return fused || tiles < 2 ? 1 : 2; /* small ones: warps rather than what two share */
}

/* How vq_points_cut.cu is made: levels of the slow axis of x that are left to a warp, as elements; units of a block, 0:
 * it is not taken; blocks of a cluster, and blocks from one to the next that has the same spans; shared memory. */
typedef struct qn_cuda_vq_points_cut {
    int32_t inner, units, pair, period, shared_bytes;
    int32_t join_bytes; /* of a block of vq_points_join.cu: what one of this leaves */
} qn_cuda_vq_points_cut;

qn_cuda_vq_points_cut qn_cuda_vq_points_cut_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device);

/* Most parts of a row of w that it leaves on any device; 0: it takes no such product. */
int64_t qn_cuda_vq_points_cut_parts(const qn_op_desc *desc, const qn_vq *vq);

/* Columns of a block of vq_points_join.cu, whose 256 threads have an element each. */
static inline int64_t qn_cuda_vq_join_columns(const qn_vq *vq)
{
    const int64_t slow = vq->n / QN_VQ_CUT_ROWS;
    return slow <= 64 ? 4 : slow <= 128 ? 2 : 1;
}

/* Whether so many rows of x, one after the other, are best by partial sums. */
int qn_cuda_vq_sums_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int64_t rows);

/* Whether partial sums of a book that shared memory does not hold are what one row of x takes. */
int qn_cuda_vq_exchange_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device);
qn_cuda_vq_exchange_cut qn_cuda_vq_exchange_cut_of(const qn_vq *vq, const qn_cuda_device *device);

qn_cuda_vq_books_cut qn_cuda_vq_books_cut_of(const qn_vq *vq, const qn_cuda_device *device);

qn_cuda_vq_sums_cut qn_cuda_vq_sums_cut_of(const qn_vq *vq, const qn_cuda_device *device);

/* The kernel for that many rows, from the cheapest candidate on tensor cores: QN_VQ_SLICED_ROWS for slices of a
 * codebook, or one of qn_cuda_vq_tokens. */
qn_cuda_vq_cut qn_cuda_vq_cut_for(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                  int32_t tokens);

/* For at most so many rows of x a block. */
qn_cuda_vq_along_cut qn_cuda_vq_along_cut_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                             int32_t rows);

qn_cuda_vq_wide_cut qn_cuda_vq_wide_cut_of(const qn_vq *vq, const qn_cuda_device *device, int32_t tokens);

/* vq_mm by vectors decoded to floats (kernels/cuda/mm_vectors.h), in a chain and without one. The format's number, -1:
 * it has none there; whether such operands are taken; whether two products may share rows; what of a part is the
 * vectors' own; and the parameters, with the bytes of codebooks that a block of `columns` columns keeps in shared
 * memory. */
int32_t qn_cuda_vq_few_format(const qn_op_desc *desc);
int qn_cuda_vq_few_takes(const qn_op_desc *desc, const qn_args *args, int32_t n);
int qn_cuda_vq_few_alike(const qn_op_desc *a, const qn_op_desc *b);
void qn_cuda_vq_few_bind(const qn_op_desc *desc, const qn_args *args, qn_cuda_mm_part *part);
int32_t qn_cuda_vq_few_define(const qn_op_desc *desc, const qn_cuda_mm *a, int64_t columns, qn_cuda_program *program);

/* Without a chain, with one or two rows of x a block: whether a plan has it, which is where nothing else is as good; a
 * program, and its launch for one such block of rows. */
int qn_cuda_vq_few_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device);
void qn_cuda_vq_few_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t rows,
                            qn_cuda_program *program);
qn_cuda_geometry qn_cuda_vq_few_geometry(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                         int32_t rows);

/* Whether one launch of a chain is predicted to take no longer than these products as plans and, beside them, so many
 * launches that it saves; resident: its blocks of a multiprocessor. */
int qn_cuda_vq_few_pays(const qn_op_desc *const *descs, int32_t parts, int32_t beside, const qn_cuda_mm *a,
                        const qn_cuda_few *few, int32_t resident, const qn_cuda *cuda);

/* The same of E8P12 weights between transforms (kernels/cuda/mm_points.cu): whether such operands are taken; what of
 * part i, and of all, is their own; parameters and geometry but for those of mm_before.h. */
int qn_cuda_mm_points_takes(const qn_op_desc *desc, const qn_args *args, const qn_cuda_device *device);
void qn_cuda_mm_points_bind(const qn_op_desc *desc, const qn_args *args, int32_t i, qn_cuda_mm_points *a);
qn_cuda_geometry qn_cuda_mm_points_define(const qn_op_desc *desc, const qn_cuda_mm_points *a, int32_t parts,
                                          qn_cuda_program *program);

/* full: beside the direct kernel those that the generator chooses. */
qn_cuda_vq_places qn_cuda_vq_places_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int full);

/* All programs at those places; returns how many. */
int32_t qn_cuda_vq_programs(const qn_op_desc *desc, const qn_cuda_device *device, int full, qn_cuda_program *out);

#endif
