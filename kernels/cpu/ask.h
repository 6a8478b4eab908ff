/* Lines that are asked for ahead of where they are read. */
#ifndef QN_KERNELS_CPU_ASK_H
#define QN_KERNELS_CPU_ASK_H

#include <stdint.h>

#include "kernels/cpu/name.h"

/* Bytes from what is read to what the first cache is asked for, and the second, which may wait for more lines. */
typedef struct asked {
    int64_t near, far;
} asked;

/* Of all lines beside their own loads: the compiler would gather requests, which then wait for each other. */
QN_INLINE void ask_twice(const char *line, asked to)
{
    __asm__ volatile("prefetcht0 %0\n\tprefetcht1 %1" : : "m"(line[to.near]), "m"(line[to.far]));
}

#endif
