/* The loops that fit codebooks (kernels/common/fit.h), of the best level there is here. */
#ifndef QN_BACKEND_CPU_FIT_H
#define QN_BACKEND_CPU_FIT_H

#include <quern/context.h>

#include "kernels/common/fit.h"

/* The set of the best level that the machine and the context's cap allow. */
const qn_fit_set *qn_cpu_fit(const qn_ctx *ctx);

#endif
