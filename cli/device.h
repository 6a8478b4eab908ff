/* Operators on a GPU for verbs whose tensors are in host memory: operands are
 * copied to the device, the plan runs there, outputs come back. */
#ifndef QN_CLI_DEVICE_H
#define QN_CLI_DEVICE_H

#include "cli.h"

/* 1 when the plan's operands live on a device. */
int plan_is_device(const qn_plan *plan);

/* Run a plan of a device once on host operands (dense views, packed blob). */
int device_run(cli *c, const qn_plan *plan, const qn_args *args, int64_t m);

/* Microseconds of each of `count` runs of host operands, one at a time between two events. */
int device_time_runs(cli *c, const qn_plan *plan, const qn_args *args, int64_t m, double *us, int count);

/* Microseconds a run from replays of a graph whose runs rotate among copies of all operands, together several
 * times the device's cache; at most `most` values, *count of them. *bytes: of all copies. */
int device_time_cold(cli *c, const qn_plan *plan, const qn_args *args, int64_t m, double *us, int most, int *count,
                     double *bytes);

#endif
