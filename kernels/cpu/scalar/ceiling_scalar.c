/* Ceiling loops of level scalar: one number at a time, kept in SSE registers. */
#define QN_ISA scalar
#include "kernels/cpu/ceiling.h"

#define SETUP                                   \
    float x = 1.0001f, y = 0.9999f;             \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(fp32, float, 0.0f, SETUP, acc[i] + x * y, 2.0, acc[i]);

static float int8_loop(int64_t steps)
{
    int32_t acc[4] = {0, 0, 0, 0}, x = 3, y = 5;
    for (int64_t s = 0; s < steps; s++) {
        for (int i = 0; i < 4; i++) {
            __asm__ volatile("" : "+r"(x), "+r"(y));
            acc[i] += x * y;
        }
    }
    return (float)(acc[0] ^ acc[1] ^ acc[2] ^ acc[3]);
}
const qn_ceiling_loop qn_ceiling_int8__scalar = {int8_loop, 8.0};

typedef uint64_t word_pair __attribute__((vector_size(16))); /* what the baseline's registers hold */
#define VECTOR word_pair
#define LOAD(p) (*(const word_pair *)(const void *)(p))
#define XOR(a, b) ((a) ^ (b))
#define STORE(p, v) (*(word_pair *)(void *)(p) = (v))
#include "kernels/cpu/ceiling_stream.h"
