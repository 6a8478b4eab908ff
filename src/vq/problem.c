/* From a descriptor to the generator's problem: what of a format matters to placement and dataflow. */
#include "vq/generator.h"

#include <string.h>

#include "base/checked.h"
#include "op/op.h"
#include "ref/vq.h"

enum { LATTICE_ENTRIES = 256, LATTICE_BYTES = 4, LATTICE_OPS = 22, INTEGER_OPS = 4, UNPACK_OPS = 6 };

enum { INTEGER_ROWS = 2 }; /* so few rows of x are multiplied as exact integers */

static int32_t code_bits(const qn_op_desc *desc, const qn_vq *vq)
{
    const qn_format codes = desc->in[QN_VQMM_FIRST + QN_VQ_CODES].format;
    if (vq->packed) {
        return (int32_t)vq->bits;
    }
    return codes == QN_I8 || codes == QN_U8 ? 8 : 16;
}

static void describe_mm(const qn_op_desc *desc, const qn_sizes *sizes, qn_vq_problem *p)
{
    qn_vq vq;
    qn_vq_describe(desc, sizes->n, sizes->k, &vq);
    p->element_bytes = 2;
    p->scope = QN_VQ_SCOPE_TENSOR;
    switch (vq.format) {
    case QN_VQ_AQLM:
        p->vector = (int32_t)vq.in_group;
        p->bits = (int32_t)vq.bits;
        p->books = (int32_t)vq.codebooks;
        p->stored_bits = code_bits(desc, &vq);
        p->decode_ops = p->stored_bits % 8 ? UNPACK_OPS : 0;
        p->direct_only = vq.out_group != 1 || vq.in_group < 2 || vq.in_group > 32 ||
                         (vq.in_group & (vq.in_group - 1)) || vq.codebooks > 8;
        break;
    case QN_VQ_QUIP_E8P:
        p->vector = 8;
        p->bits = 16;
        p->books = vq.codebook == QN_VQ_E8P12 ? 1 : 2;
        p->stored_bits = vq.codebook == QN_VQ_E8P12RVQ3B ? 12 : 16;
        p->scope = QN_VQ_SCOPE_MODEL;
        p->entries = LATTICE_ENTRIES;
        p->entry_bytes = LATTICE_BYTES;
        p->decode_ops = LATTICE_OPS * p->books;
        if (vq.codebook != QN_VQ_E8P12RVQ3B && sizes->m <= INTEGER_ROWS) {
            p->element_bytes = 1;
            p->entries = 2 * LATTICE_ENTRIES; /* with 1/4 added and with 1/4 subtracted */
            p->decode_ops = INTEGER_OPS * p->books;
        }
        break;
    case QN_VQ_VPTQ:
        p->vector = (int32_t)vq.vector_len;
        p->bits = (int32_t)qn_vq_bits_for(vq.entries);
        p->books = vq.res_entries ? 2 : 1;
        p->stored_bits = (p->bits + (int32_t)qn_vq_bits_for(vq.res_entries)) / p->books;
        p->decode_ops = UNPACK_OPS;
        p->along_n = p->direct_only = 1;
        p->turned = vq.vector_len == 8 && vq.groups == 1 && vq.outlier_size == 0 && sizes->k % 8 == 0 &&
                    (p->bits + (int32_t)qn_vq_bits_for(vq.res_entries)) % 8 == 0;
        break;
    case QN_VQ_GPTVQ:
        p->vector = 4;
        p->bits = p->stored_bits = 8;
        p->books = 1;
        p->scope = QN_VQ_SCOPE_TILE;
        p->scope_rows = p->scope_columns = QN_VQ_TILE;
        p->element_bytes = sizes->m <= INTEGER_ROWS ? 1 : 2;
        break;
    }
}

static void describe_attention(const qn_op_desc *desc, const qn_sizes *sizes, qn_vq_problem *p)
{
    const qn_shape *book = &desc->in[QN_VQA_K_CODEBOOK];
    p->use = QN_VQ_USE_ATTENTION;
    p->vector = (int32_t)book->dims[3];
    p->bits = (int32_t)qn_vq_bits_for(book->dims[2]);
    p->books = 1;
    p->stored_bits = desc->in[QN_VQA_K_CODES].format == QN_U8 ? 8 : 16;
    p->element_bytes = 2;
    p->scope = QN_VQ_SCOPE_CHANNELS;
    p->heads = (int32_t)sizes->e;
    p->kv_heads = (int32_t)sizes->g;
    p->rotate = desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f;
}

int qn_vq_problem_of(const qn_op_desc *desc, const qn_sizes *sizes, qn_vq_problem *problem)
{
    memset(problem, 0, sizeof *problem);
    problem->level = (qn_vq_level)desc->attr[QN_ATTR_LEVEL].i;
    problem->m = sizes->m;
    problem->n = sizes->n;
    problem->k = sizes->k;
    if (desc->op == QN_OP_VQ_MM) {
        describe_mm(desc, sizes, problem);
    } else if (desc->op == QN_OP_VQ_ATTENTION) {
        describe_attention(desc, sizes, problem);
    } else {
        return 0;
    }
    problem->vector = problem->vector > 0 ? problem->vector : 1;
    problem->bits = problem->bits > 0 ? problem->bits : 1;
    problem->books = problem->books > 0 ? problem->books : 1;
    problem->stored_bits = problem->stored_bits > 0 ? problem->stored_bits : problem->bits;
    problem->entries = problem->entries ? problem->entries : 1 << (problem->bits < 16 ? problem->bits : 16);
    problem->entry_bytes = problem->entry_bytes ? problem->entry_bytes : problem->vector * problem->element_bytes;
    return 1;
}
