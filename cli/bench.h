/* Measuring cases: what `bench kernels` and `doctor --measure` share.
 *
 * bench_case.c opens a case, checks it against the reference and lays out the
 * copies of its operands; bench_time.c measures ceilings and the case. */
#ifndef QN_CLI_BENCH_H
#define QN_CLI_BENCH_H

#include <quern/experimental.h>

#include "cli.h"
#include "kernel_info.h"

/* A descriptor with everything to run it. */
typedef struct bench_case {
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    void *in_data[QN_MAX_IN];
    void *out_data[QN_MAX_OUT];
    qn_args args;
    qn_plan *plan;
    void *workspace;
    size_t workspace_bytes;
} bench_case;

/* Inputs filled, outputs zeroed, plan made. The descriptor is set already. Close it also after a failure. */
int bench_case_open(cli *c, bench_case *k, const qn_plan_options *options, int32_t exact);
void bench_case_close(bench_case *k);

/* Packed weights into *blob; NULL where the kernel packs nothing. free(*blob). */
int bench_case_pack(cli *c, const bench_case *k, void **blob);
int bench_case_run(cli *c, const bench_case *k, const qn_args *args);

/* Check the kernel on the case, or on a smaller one with the same K that takes the same path, against the reference,
 * on exact and on random values. verified: what was checked; *bad: the worse result. */
int bench_case_verify(cli *c, const bench_case *k, const char *kernel, char verified[64], qn_case_result *worst);

/* Copies of the operands that must not be met in a cache: the weights (packed, or
 * the weight tensors), or, where those are the lesser part, all inputs and outputs. */
typedef struct rotation {
    qn_args *args; /* one a copy */
    int copies;
    double bytes; /* of all copies */
} rotation;

/* At most `most` copies, in the arena; the first is the case's own operands (and blob). */
int bench_rotation_make(cli *c, const bench_case *k, void *blob, int most, char *arena, size_t arena_bytes,
                        rotation *r);

/* One measured case. */
typedef struct bench_record {
    qn_op op;
    qn_sizes sizes;
    char text[512], verified[64];
    kernel_facts facts;
    double median, least, max_error, gbps, gflops; /* times in us */
    double bytes, flops, rotated_bytes, pack_us;
    const char *roofline; /* the ceiling that binds; NULL: none could be measured */
    double roofline_value, percent;
    int reps;
} bench_record;

typedef struct bench_ceiling {
    char name[24];
    qn_isa level;
    double value, when; /* the last measurement; value 0: this machine cannot */
    double best;        /* the highest of all */
} bench_ceiling;

enum { BENCH_CEILINGS = 32 };

typedef struct bench {
    cli *c;
    qn_meter *meter;
    char *arena; /* for copies of operands */
    size_t arena_bytes, cache_bytes;
    bench_ceiling ceilings[BENCH_CEILINGS];
    int ceiling_count;
    int failures; /* cases that disagree with the reference */
} bench;

/* Bytes to measure memory with: --memory, else what qn_meter_advise says, less where little is free. What may stay in
 * a cache is said on stderr. */
size_t bench_memory(cli *c, size_t *cache_bytes);

/* Most bytes that were resident since the program began; 0: not known. What getrusage tells may be an ancestor's. */
double bench_peak_bytes(void);

int bench_begin(bench *b, cli *c);
void bench_end(bench *b);

/* Check and measure one case. *ok: 0 when it disagrees with the reference (said on stderr; r holds no numbers). */
int bench_measure(bench *b, const char *text, bench_record *r, int *ok);

/* The last value of a ceiling, measured now when there is none younger than that many seconds; 0: there is none. */
double bench_ceiling_get(bench *b, const char *name, qn_isa level, double seconds);

#endif
