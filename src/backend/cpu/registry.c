/* The list of kernel families of the CPU backend. */
#include "backend/cpu/families.h"

qn_cpu_family qn_cpu_family_at(int32_t i)
{
    static const qn_cpu_family *const families[] = {&qn_cpu_panel_family, &qn_cpu_dense_family,
                                                    &qn_cpu_attention_family,
                                                    &qn_cpu_rows_family, &qn_cpu_vq_family, &qn_cpu_kv_family};
    return i >= 0 && (size_t)i < sizeof families / sizeof *families ? *families[i] : (qn_cpu_family){NULL, 0};
}
