/* The families of the CPU registry, one a file. */
#ifndef QN_BACKEND_CPU_FAMILIES_H
#define QN_BACKEND_CPU_FAMILIES_H

#include "backend/cpu/registry.h"

extern const qn_cpu_family qn_cpu_panel_family, qn_cpu_dense_family, qn_cpu_attention_family, qn_cpu_rows_family,
    qn_cpu_vq_family, qn_cpu_kv_family;

#endif
