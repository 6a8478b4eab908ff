/* Sums that kernels of the panel runner must not compute: of panels and rows that the packer and panel_rows.c mark. */
#ifndef QN_BACKEND_CPU_PANEL_EXACT_H
#define QN_BACKEND_CPU_PANEL_EXACT_H

#include "backend/cpu/panel_job.h"

#define QN_PANEL_EXACT_ROWS 8 /* that share a panel's weights once they are decoded */

/* Rows of a, and where the sums of each with the panel's columns go. */
typedef struct qn_panel_exact {
    int64_t rows;
    struct {
        int64_t row, prepared;
        float *sums; /* [QN_PANEL_COLS] */
    } of[QN_PANEL_EXACT_ROWS];
} qn_panel_exact;

/* Sums of the formula over K, in double and in its order, before scales that are not of blocks. */
void qn_panel_exact_sums(const qn_panel_job *job, const char *panel, const float *sb, const qn_panel_exact *rows);

/* Whether every sum of a row with numbers is NaN, and which: it has a NaN, or one of its block scales is, and no
 * infinity makes another before. */
int qn_panel_is_nan_row(const qn_panel_job *job, int64_t row, int64_t prepared, float *nan);

#endif
