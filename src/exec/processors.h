/* What of the machine this process may use: its processors and its share of their time. */
#ifndef QN_EXEC_PROCESSORS_H
#define QN_EXEC_PROCESSORS_H

#include <stdint.h>

#define QN_MOST_PROCESSORS 1024

typedef struct qn_processors {
    int32_t count;                   /* processors of the affinity mask, at least 1 */
    int32_t known;                   /* 1: their numbers are in ids */
    int32_t ids[QN_MOST_PROCESSORS]; /* one of every core before the second of any, from the caller's own on */
} qn_processors;

/* root: folder that stands for "/" ("" outside tests). */
void qn_processors_get(const char *root, qn_processors *processors);

/* Processors' worth of time that the control groups of this process grant; 0: no limit. */
double qn_processors_quota(const char *root);

#endif
