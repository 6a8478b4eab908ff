/* The generator for vector-quantised operators: from VQ<vector, bits, books>, an operator's sizes and a device to the
 * parameters of a kernel template, and what each level of the ladder would cost. Pure functions of plain structs: no
 * device is asked, nothing is kept. Backends fill qn_vq_device (qn_backend_row.vq_device) and turn a qn_vq_choice into
 * macros or a runner; plans print it. docs/vq.md explains the model, docs/adr/0010-vq-generator.md why it is so.
 *
 * A level says how much of the machinery may be used:
 *
 *   gc     entries are read from global memory (CPU: from wherever they lie)
 *   sc     all entries in shared memory (CPU: L1), as they are
 *   o1     as many as the slack holds, in as many copies as keep lanes off each other's banks
 *   o2     o1 and the most frequent entries in registers
 *   o3     o2 and a dataflow by codebooks: K is cut, parts are added in a second pass
 *   o4     o3 and fusion in registers: K is permuted so that a looked-up vector is an operand of the product
 *   auto   any of those, and the forms of partial sums and of weights written out */
#ifndef QN_VQ_GENERATOR_H
#define QN_VQ_GENERATOR_H

#include <quern/op.h>

#include "base/text.h"

typedef enum qn_vq_use { QN_VQ_USE_MM = 0, QN_VQ_USE_ATTENTION } qn_vq_use;

/* What shares a set of codebooks. */
typedef enum qn_vq_scope {
    QN_VQ_SCOPE_MODEL = 0, /* fixed numbers: a lattice */
    QN_VQ_SCOPE_TENSOR,
    QN_VQ_SCOPE_TILE,    /* scope_rows x scope_columns elements of w */
    QN_VQ_SCOPE_CHANNELS /* vector channels of a head, keys and values apart */
} qn_vq_scope;

typedef enum qn_vq_form {
    QN_VQ_FORM_DIRECT = 0, /* decode, multiply, add in f32 */
    QN_VQ_FORM_SUMS,       /* a table of the products x . entry for each vector of x; one lookup a code */
    QN_VQ_FORM_TENSOR,     /* decode to 16-bit (CPU: 8-bit) operands of matrix instructions */
    QN_VQ_FORM_DENSE       /* write weights out as 16-bit floats, then a product of those */
} qn_vq_form;

/* How decoded values reach the product. */
typedef enum qn_vq_fusion {
    QN_VQ_FUSION_NONE = 0, /* a lane multiplies what it decodes */
    QN_VQ_FUSION_SHARED,   /* through shared memory */
    QN_VQ_FUSION_REGISTER, /* exchanged by shuffles */
    QN_VQ_FUSION_PERMUTED  /* K is permuted so that no exchange is needed */
} qn_vq_fusion;

typedef struct qn_vq_problem {
    qn_vq_use use;
    qn_vq_level level; /* the highest allowed; auto: no limit */
    int32_t vector, bits, books;
    int32_t stored_bits;   /* of a code in memory, at least bits */
    int32_t element_bytes; /* of an entry's element as tables keep it: 2 f16, 1 int8 */
    int32_t entry_bytes;   /* of an entry; 0: vector * element_bytes. A lattice's is smaller */
    int32_t entries;       /* of a book that are looked up: 2^bits, a lattice's 256 */
    int32_t decode_ops;    /* instructions a vector beside the lookups, where entries are computed */
    qn_vq_scope scope;
    int64_t scope_rows, scope_columns; /* of QN_VQ_SCOPE_TILE */
    int32_t along_n;                   /* vectors run along N (vptq), */
    int32_t turned;                    /* eight 16-bit floats that matrix loads turn: few rows of x on a device */
    int32_t direct_only;               /* no matrix operands can be made of what is stored */
    /* MM: y[m, n] = x[m, k] w[n, k]. ATTENTION: m sequences of n keys of k channels, heads of queries on kv_heads. */
    int64_t m, n, k;
    int32_t heads, kv_heads;
    int32_t rotate; /* keys are turned in the kernel: no partial sums over them */
    double hot;     /* share of accesses that the most frequent quarter of the entries serve; 0: 0.45 (docs/vq.md) */
} qn_vq_problem;

/* What the cost model knows of a device. Rates are of one unit (multiprocessor, core) and clock. */
typedef struct qn_vq_device {
    char name[64];
    int32_t cpu;          /* 1: units are cores, shared memory is L1, registers are permute tables */
    int32_t units, lanes; /* multiprocessors; lanes of a warp or vector */
    int32_t registers;    /* bytes of a unit */
    int32_t shared_bytes; /* most of a block */
    int32_t banks, bank_bytes;
    int64_t l2_bytes;
    double clock;              /* GHz */
    double read_rate, l2_rate; /* GB/s of the device */
    double issue;              /* vector instructions */
    double fma;                /* f32 multiply-adds */
    double tensor;             /* 16-bit multiply-adds of matrix instructions; 0: none */
    double wide;               /* the same of a warpgroup's, as the kernels reach them; 0: none */
    double dense;              /* the same of products of 16-bit weights in memory; 0: none */
    double write_rate;         /* GB/s of the device */
    double exchange;           /* bytes a unit sends others of its cluster, and gets from them, a clock; 0: it cannot */
    double launch;             /* us of a launch, and of a pass after it */
    double lookup_share, issue_share, math_share; /* of those rates that generated kernels reach, measured */
} qn_vq_device;

typedef struct qn_vq_choice {
    qn_vq_level level;
    qn_vq_form form;
    qn_vq_fusion fusion;
    int32_t register_entries, shared_entries, global_entries; /* of a book, most frequent first */
    int32_t copies;                                           /* of the entries in shared memory */
    int32_t shared_bytes;                                     /* of a block for tables */
    int32_t split;                                            /* parts of the reduced axis; 1: no second pass */
    /* of a book that shared memory does not hold, 1: none. Tensor: a block keeps one, and all see every code; partial
     * sums: a block of a cluster makes the products of one, and they are exchanged */
    int32_t slices;
    int32_t row_tile; /* rows of x (queries of a head) a decoded vector serves */
    double bytes;     /* of memory traffic */
    double lookups;
    double conflicts; /* accesses to shared memory for one, expected */
    double occupancy; /* share of a unit's threads that may be resident */
    double memory_us, lookup_us, issue_us, math_us, fill_us, reduce_us; /* parts of the prediction */
    double us;                                                          /* predicted */
} qn_vq_choice;

#define QN_VQ_CANDIDATES 16
#define QN_VQ_MOST_SLICES 8
#define QN_VQ_SLICED_ROWS 4 /* rows of x that a kernel of slices takes */

/* Every candidate of the problem, cheapest first; returns how many, at least 1. With a level asked for, only that
 * rung's. The first is what a kernel is made by. */
int32_t qn_vq_candidates(const qn_vq_problem *problem, const qn_vq_device *device,
                         qn_vq_choice candidates[QN_VQ_CANDIDATES]);

/* Whether writing weights out is a candidate for the problem's rows: for a few only where there are few weights, so
 * that it needs little memory until rows are many, or where no kernel decodes on tensor cores. */
#define QN_VQ_WRITTEN_FEW 0x1p24 /* weights */
#define QN_VQ_PLENTY_ROWS 32
int qn_vq_may_write_out(const qn_vq_problem *problem);

/* The first of them. */
qn_vq_choice qn_vq_choose(const qn_vq_problem *problem, const qn_vq_device *device);

/* A checked descriptor of vq_mm or vq_attention as a problem; 0: it is neither. */
int qn_vq_problem_of(const qn_op_desc *desc, const qn_sizes *sizes, qn_vq_problem *problem);

/* The decision with the figures of each rung, for explain. */
void qn_vq_explain(const qn_vq_problem *problem, const qn_vq_device *device, qn_text *text);

const char *qn_vq_level_name(qn_vq_level level);
const char *qn_vq_form_name(qn_vq_form form);

/* Partial sums on a device: whether the blocks of a cluster take `slabs` parts of K in turn and need no second launch.
 */
int qn_vq_sums_in_turn(int64_t n, int64_t k, double slabs);

/* Expected accesses of the fullest bank group when lanes read random entries of that many bytes: lanes that shared
 * memory serves at once, copies of the table apart. 1: no conflicts. */
double qn_vq_conflicts(const qn_vq_device *device, int32_t entry_bytes, int32_t copies);

#endif
