/* Loops that stream memory, from a level's vector type. The including file
 * defines VECTOR, LOAD(p), XOR(a, b), STORE(p, v) and, where the level has them,
 * STORE_PAST(p, v) (a store that does not fill the caches), FENCE() after such
 * stores, and PREFETCH(p).
 *
 * A read goes through one to eight places of its range at once: hardware
 * prefetchers follow each, so more lines are in flight. A prefetch may name an
 * address behind the range; it reads nothing. */
#include <string.h>

#include "kernels/common/ceiling.h"
#include "kernels/cpu/name.h"

#define LINE 64
#define LINES 8 /* a round, over all places; one accumulator each */

#ifndef PREFETCH
#define PREFETCH(p) ((void)(p))
#endif

/* ahead: bytes; 0: no prefetch */
QN_INLINE uint64_t read_range(const void *from, size_t bytes, size_t places, size_t ahead)
{
    VECTOR acc[LINES];
    memset(acc, 0, sizeof acc);
    const size_t part = bytes / places, lines = LINES / places;
    for (size_t at = 0; at < part; at += lines * LINE) {
        _Pragma("GCC unroll 8") for (size_t i = 0; i < LINES; i++)
        {
            const char *p = (const char *)from + i / lines * part + at + i % lines * LINE;
            if (ahead) {
                PREFETCH(p + ahead);
            }
            _Pragma("GCC unroll 8") for (size_t v = 0; v < LINE; v += sizeof(VECTOR))
            {
                acc[i] = XOR(acc[i], LOAD(p + v));
            }
        }
    }
    uint64_t words[LINES * sizeof(VECTOR) / 8], sum = 0;
    memcpy(words, acc, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        sum ^= words[i];
    }
    return sum;
}

#define READ(name, places, ahead)                                                                                      \
    static uint64_t name(const void *from, size_t bytes)                                                               \
    {                                                                                                                  \
        return read_range(from, bytes, places, ahead);                                                                 \
    }

#define COPY(name, PUT, ahead, END)                                                                                    \
    static void name(void *to, const void *from, size_t bytes)                                                         \
    {                                                                                                                  \
        for (size_t at = 0; at < bytes; at += LINES * LINE) {                                                          \
            const char *p = (const char *)from + at;                                                                   \
            char *q = (char *)to + at;                                                                                 \
            for (size_t i = 0; (ahead) && i < LINES; i++) {                                                            \
                PREFETCH(p + (ahead) + i * LINE);                                                                      \
            }                                                                                                          \
            _Pragma("GCC unroll 32") for (size_t v = 0; v < LINES * LINE; v += sizeof(VECTOR))                         \
            {                                                                                                          \
                PUT(q + v, LOAD(p + v));                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        END;                                                                                                           \
    }

READ(read_one, 1, 0)
READ(read_four, 4, 0)
READ(read_eight, 8, 0)
COPY(copy_plain, STORE, 0, )

#ifdef STORE_PAST
READ(read_eight_ahead, 8, 2048)
COPY(copy_past, STORE_PAST, 0, FENCE())
COPY(copy_past_near, STORE_PAST, 512, FENCE())
COPY(copy_past_ahead, STORE_PAST, 1024, FENCE())
#define MORE_READS read_eight_ahead
#define MORE_COPIES copy_past, copy_past_near, copy_past_ahead
#else
#define MORE_READS NULL
#define MORE_COPIES NULL
#endif

const qn_ceiling_stream QN_NAME(ceiling_stream) = {.read = {read_one, read_four, read_eight, MORE_READS},
                                                   .copy = {copy_plain, MORE_COPIES}};
