/* The list of kernel families of the CPU backend. */
#include "backend/cpu/registry.h"

qn_cpu_family qn_cpu_family_at(int32_t i)
{
    (void)i;
    return (qn_cpu_family){NULL, 0};
}
