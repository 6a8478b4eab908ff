/* Loops that reach what a level can do at best, for the ceilings of src/plan/ceiling.c. */
#ifndef QN_KERNELS_COMMON_CEILING_H
#define QN_KERNELS_COMMON_CEILING_H

#include <stddef.h>
#include <stdint.h>

/* ---- arithmetic ---- */

/* Runs steps rounds of independent operations on registers; the result only keeps them alive. */
typedef float (*qn_ceiling_fn)(int64_t steps);

typedef struct qn_ceiling_loop {
    qn_ceiling_fn run;
    double operations; /* a step, 2 per multiply-add */
} qn_ceiling_loop;

extern const qn_ceiling_loop qn_ceiling_fp32__scalar, qn_ceiling_fp32__avx2, qn_ceiling_fp32__avx512;
extern const qn_ceiling_loop qn_ceiling_int8__scalar, qn_ceiling_int8__avx2, qn_ceiling_int8__avx512,
    qn_ceiling_int8__avx512vnni, qn_ceiling_int8__amx, qn_ceiling_int16__avx512vnni;
extern const qn_ceiling_loop qn_ceiling_bf16__avx512bf16, qn_ceiling_bf16__amx;

/* ---- memory ---- */

/* Both take a multiple of QN_CEILING_GRAIN bytes on 64-byte boundaries. */
#define QN_CEILING_GRAIN 4096

/* Loads every byte once; the result only keeps the loads alive. */
typedef uint64_t (*qn_ceiling_read_fn)(const void *from, size_t bytes);
typedef void (*qn_ceiling_copy_fn)(void *to, const void *from, size_t bytes);

/* A level's ways to stream memory. Which is best differs between processors
 * (streams in flight, prefetch, stores past the caches), so all are tried. */
enum { QN_CEILING_WAYS = 4 };

typedef struct qn_ceiling_stream {
    qn_ceiling_read_fn read[QN_CEILING_WAYS]; /* NULL: none left */
    qn_ceiling_copy_fn copy[QN_CEILING_WAYS];
} qn_ceiling_stream;

extern const qn_ceiling_stream qn_ceiling_stream__scalar, qn_ceiling_stream__avx2, qn_ceiling_stream__avx512;

#endif
