/* The chart of `bench kernels --svg`: measured cases against their ceilings. */
#ifndef QN_CLI_CHART_H
#define QN_CLI_CHART_H

#include <stdio.h>

#include "bench.h"

/* Write a self-contained SVG: a bar a case, grouped by operator, of percent of its roofline; below it the roofline plot
 * (operations a byte against GFLOP/s) with the ceilings as lines. subtitle: the machine and the options, one line. */
void chart_write(FILE *out, const char *subtitle, const bench_record *records, int count, const bench_ceiling *ceilings,
                 int ceiling_count);

#endif
