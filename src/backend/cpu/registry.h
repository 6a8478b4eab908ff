/* The CPU backend's registry: one row a kernel instance (registry_*.c). */
#ifndef QN_BACKEND_CPU_REGISTRY_H
#define QN_BACKEND_CPU_REGISTRY_H

#include "backend/backend.h"

typedef struct qn_cpu_family {
    const qn_kernel *kernels;
    int32_t count;
} qn_cpu_family;

/* Families in order; kernels is NULL past the end. */
qn_cpu_family qn_cpu_family_at(int32_t i);

#endif
