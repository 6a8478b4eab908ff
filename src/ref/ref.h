/* The reference: one plain scalar function per operator. This text defines the
 * result; every kernel on every backend is judged against it. */
#ifndef QN_REF_REF_H
#define QN_REF_REF_H

#include <quern/op.h>
#include <quern/plan.h>

/* Computes out from in; shapes are checked by the caller (qn_op_desc_check on
 * the shapes of args). scratch: qn_ref_scratch_bytes bytes, 64-byte aligned. */
typedef void (*qn_ref_fn)(const qn_op_desc *desc, const qn_args *args, void *scratch);

/* Reference of an operator; NULL when it has none. */
qn_ref_fn qn_ref_get(qn_op op);

/* Scratch the reference needs for these shapes. */
size_t qn_ref_scratch_bytes(const qn_op_desc *desc);

#endif
