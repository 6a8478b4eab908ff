/* Memory of digits and the tasks that make them, a row each. */
#include "backend/cpu/vq_digits.h"

#include "backend/cpu/sizes.h"
#include "base/checked.h"

qn_vq_digits_memory qn_vq_digits_memory_of(const qn_vq *vq, int64_t m, int32_t threads, int64_t tiles, size_t scratch,
                                           int64_t columns, size_t body)
{
    qn_vq_digits_memory at = {.sums = scratch};
    const size_t stride = qn_size_mul((size_t)tiles, QN_VQ_PLANES * QN_VQ_TILE_K);
    at.stride = stride > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)stride + 64;
    const size_t rows = m > 1 ? (size_t)(qn_ceil_div(m, QN_VQ_ROW_GROUP) * QN_VQ_ROW_GROUP) : 1;
    const size_t some = rows < QN_VQ_DIGITS_ROWS ? rows : QN_VQ_DIGITS_ROWS;
    size_t next = qn_size_pad(qn_vq_side_bytes(vq, m, threads));
    at.digits = qn_size_place(&next, rows, (size_t)at.stride);
    at.scales = qn_size_place(&next, qn_size_mul(rows, (size_t)tiles), sizeof(float));
    at.offsets = qn_size_place(&next, qn_size_mul(rows, (size_t)tiles), 4 * sizeof(int32_t));
    at.special = qn_size_place(&next, rows, 1);
    at.thread = qn_size_add(scratch, qn_size_pad(some * (size_t)columns * sizeof(float)));
    at.scratch = qn_size_place(&next, (size_t)threads, at.thread);
    at.body = qn_size_place(&next, body, 1);
    at.total = next;
    return at;
}

static void digits_task(void *user, int64_t m, int32_t thread)
{
    (void)thread;
    const qn_vq_digits *d = user;
    const float *const row = d->side->rows + m * d->side->k_pad;
    d->workspace[d->at.special + (size_t)m] =
        (char)d->fn(row, d->side->k, qn_vq_digits_row(d, m), qn_vq_digits_scales(d, m), qn_vq_digits_offsets(d, m));
}

void qn_vq_digits_make(qn_vq_digits *d, const qn_exec *exec)
{
    qn_parallel_for(d->side->m == 1 ? NULL : exec, d->side->m, digits_task, d);
}
