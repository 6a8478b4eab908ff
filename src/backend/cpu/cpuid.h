/* What the processor and the operating system allow. */
#ifndef QN_BACKEND_CPU_CPUID_H
#define QN_BACKEND_CPU_CPUID_H

#include "backend/backend.h"

/* NULL when code of that level can run here, else the static reason. */
const char *qn_cpu_refusal(qn_isa isa);

/* NULL when the processor is one that such kernels are made for, else what it is slow at. */
const char *qn_cpu_unsuited(qn_suits suits);

int qn_cpu_is_intel(void);

/* Whether operations of 512 bits are two of 256: a Zen 4. */
int qn_cpu_halves_512(void);

/* The processor's name, 49 bytes with the final zero; "" when it tells none. */
void qn_cpu_name(char name[49]);

#endif
