/* A place in a ring of STAGES, which the includer says before. */
#ifndef QN_CUDA_RING_H
#define QN_CUDA_RING_H

#include "ptx.h"

typedef struct place {
    u32 stage, parity;
} place;

DEV void place_on(place *at, u32 steps)
{
    at->stage += steps;
    if (at->stage >= STAGES) {
        at->stage -= STAGES;
        at->parity ^= 1;
    }
}

#endif
