/* Strips: between two attentions nothing mixes rows, so a thread takes some of them
 * through all steps, from the output projection to the next layer's queries, keys
 * and values, before anybody waits.
 *
 * What a step writes is still in the thread's second cache when the next one reads
 * it, where steps that share out columns would find the other thread's in
 * its caches; and there is one job instead of a dozen. The price: every thread
 * reads all weights. So strips are for passes of many rows and for models
 * whose weights a thread reads faster than it multiplies with them.
 *
 * No bit depends on it, as each operator computes each row by itself. */
#include "model/strips.h"

#include <stdatomic.h>

#include "base/checked.h"
#include "base/error.h"

#define LEAST_ROWS 96           /* of a strip: of fewer, weights take longer to read than to multiply with */
#define MOST_ROWS 256           /* more leave the second cache */
#define GROUP_ROWS 16           /* that kernels take together */
#define MOST_WEIGHTS (24 << 20) /* bytes of a product's weights */

/* Whether a step computes rows one by one, wherever they belong. */
static int takes_rows(const qn_step *step)
{
    for (int j = 0; j < QN_MAX_OUT; j++) {
        if (step->out[j].whole) {
            return 0;
        }
    }
    return !qn_batch_needs_session(step);
}

/* Rows of a strip, when each thread has as many strips of them; 0: no strips. */
static int32_t strip_rows(const qn_batch *b, int32_t rows)
{
    const int64_t threads = qn_exec_threads(&b->exec), share = qn_ceil_div(rows, threads);
    const int64_t strip = qn_ceil_div(share, qn_ceil_div(share, MOST_ROWS));
    return threads > 1 && strip >= LEAST_ROWS ? (int32_t)qn_align_up((size_t)strip, GROUP_ROWS) : 0;
}

int qn_strips_prepare(qn_batch *b)
{
    const qn_model *const model = b->model;
    const size_t threads = (size_t)qn_exec_threads(&b->exec);
    if (strip_rows(b, b->tokens) == 0) {
        return 1;
    }
    for (size_t i = 0; i < model->body_steps; i++) {
        const qn_step *const step = &model->steps[i];
        if (step->weight && qn_plan_pack_bytes(step->plan) > MOST_WEIGHTS) {
            return 1;
        }
    }
    qn_strips *const strips = &b->strips;
    strips->steps = qn_calloc(model->ctx, model->body_steps + 1, sizeof *strips->steps);
    if (!strips->steps) {
        return 0;
    }
    for (size_t i = model->body_steps; i-- > 0;) {
        strips->steps[i] = takes_rows(&model->steps[i]) ? strips->steps[i + 1] + 1 : 0;
    }
    for (size_t i = 0; i < model->plan_count; i++) {
        const size_t bytes = qn_plan_workspace_bytes(model->plans[i], qn_min_i64(b->tokens, MOST_ROWS), 1);
        strips->workspace_bytes = bytes > strips->workspace_bytes ? bytes : strips->workspace_bytes;
    }
    strips->most = (int32_t)qn_ceil_div(b->tokens, LEAST_ROWS);
    size_t all;
    if (qn_mul_size(strips->workspace_bytes, threads, &all)) {
        return 0;
    }
    b->workspace_bytes = all > b->workspace_bytes ? all : b->workspace_bytes;
    return 1;
}

int32_t qn_strips_at(const qn_batch *b, size_t step)
{
    const int32_t steps = b->strips.steps && !b->model->observe ? b->strips.steps[step] : 0;
    return steps > 1 && strip_rows(b, b->rows) ? steps : 0;
}

typedef struct strips_job {
    qn_batch *b;
    const qn_step *first, *end;
    const qn_row_range *all;
    int32_t rows; /* of a strip */
    _Atomic int failed;
    qn_status status;
    qn_error *error;
} strips_job;

static void strip_task(void *user, int64_t index, int32_t thread)
{
    strips_job *const job = user;
    qn_batch *const b = job->b;
    const qn_exec alone = {0};
    const qn_lane lane = {.index = 1 + (int32_t)index,
                          .exec = &alone,
                          .workspace = b->workspace + (size_t)thread * b->strips.workspace_bytes,
                          .workspace_bytes = b->strips.workspace_bytes};
    qn_row_range rows = *job->all;
    rows.first = rows.skipped = (int32_t)index * job->rows;
    rows.count = (int32_t)qn_min_i64(job->rows, job->all->count - rows.first);
    for (const qn_step *step = job->first; step < job->end; step++) {
        qn_error error;
        const qn_status status = qn_batch_run_step(b, step, &rows, &lane, &error);
        if (status != QN_OK) {
            if (!atomic_exchange(&job->failed, 1)) {
                job->status = qn_error_set(job->error, status, "%s", error.text);
            }
            return;
        }
    }
}

qn_status qn_strips_run(qn_batch *b, size_t step, const qn_row_range *all, qn_error *error)
{
    const qn_step *const first = &b->model->steps[step];
    strips_job job = {.b = b,
                      .first = first,
                      .end = first + b->strips.steps[step],
                      .all = all,
                      .rows = strip_rows(b, all->count),
                      .status = QN_OK,
                      .error = error};
    qn_parallel_for(&b->exec, qn_ceil_div(all->count, job.rows), strip_task, &job);
    return job.status;
}
