/* This processor for the generator of vector-quantised kernels. */
#ifndef QN_BACKEND_CPU_VQ_DEVICE_H
#define QN_BACKEND_CPU_VQ_DEVICE_H

#include "vq/generator.h"

void qn_cpu_vq_device(const qn_ctx *ctx, qn_vq_device *out);

#endif
