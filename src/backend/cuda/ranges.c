/* Host side of what quantisers with one scale for a whole tensor share: ranges.h. */
#include "backend/cuda/ranges.h"

#include "base/checked.h"
#include "kernels/common/cuda_once.h"

enum {
    PER = 8,             /* elements of a unit: kernels/cuda/rows.h */
    RANGE_THREADS = 512, /* kernels/cuda/tensor_range.h, and elements that one of its blocks has in flight */
    RANGE_STEP = RANGE_THREADS * PER * 8,
    RANGE_BLOCKS = 256,
    ONCE_SHARED = 227 << 10, /* bytes of slots, at most, and of barriers: kernels/cuda/tensor_once.h */
    ONCE_CACHED = 2,         /* part of the L2 cache that is asked to keep */
    ONCE_EVEN = 16           /* units that parts of what is left are multiples of */
};

/* The cache keeps two thirds of what it holds: measured on an H200, more does not stay. */
qn_cuda_ranges qn_cuda_ranges_of(const qn_cuda_device *device, int64_t m, int64_t k, int64_t x_row, int64_t row)
{
    qn_cuda_ranges r = {.m = m, .k = k, .keep = k};
    if (x_row == row || m == 1) {
        r.m = 1;
        r.k = m * k;
        r.keep = r.k - qn_min_i64(r.k, device->l2_bytes / 3 * 2 / (row / k));
    }
    const int64_t rows = qn_min_i64(r.m, RANGE_BLOCKS);
    const int64_t across = qn_min_i64(RANGE_BLOCKS / rows, qn_ceil_div(r.k, RANGE_STEP));
    r.geometry = (qn_cuda_geometry){
        .grid = {(uint32_t)rows, (uint32_t)across, 1}, .block = {RANGE_THREADS, 1, 1}, .dependent = 1};
    return r;
}

/* ---- the only launch of large tensors ---- */

const qn_cuda_once qn_cuda_once_narrow = {.place = 32, .slots = 15, .ring = 4, .held = 10};
const qn_cuda_once qn_cuda_once_wide = {.place = 64, .slots = 7, .ring = 2, .held = 4};

static int64_t unit_bytes(qn_format x)
{
    return PER * (x == QN_F32 ? 4 : 2);
}

static int32_t slot_bytes(const qn_cuda_once *once)
{
    return QN_ONCE_READERS * once->place;
}

int qn_cuda_once_takes(const qn_cuda_device *device, int32_t least, int64_t elements, qn_format x)
{
    return device->major >= 9 && device->shared_bytes >= ONCE_SHARED && device->sms < RANGE_BLOCKS &&
           elements / PER >= ((int64_t)device->sms * least << 10) / unit_bytes(x);
}

void qn_cuda_once_define(qn_cuda_program *program, const qn_cuda_once *once)
{
    qn_cuda_define(program, "ONCE", 1);
    qn_cuda_define(program, "ONCE_PLACE", once->place);
    qn_cuda_define(program, "ONCE_SLOTS", once->slots);
    qn_cuda_define(program, "ONCE_RING", once->ring);
    qn_cuda_define(program, "ONCE_HELD", once->held);
    program->shared_bytes = once->slots * slot_bytes(once);
}

qn_status qn_cuda_once_launch(const qn_cuda_run *run, int32_t i, const qn_cuda_once *once, void *own, int64_t elements,
                              qn_format x, qn_error *error)
{
    const int64_t blocks = run->device->sms, slot = slot_bytes(once) / unit_bytes(x), units = elements / PER;
    const int64_t whole = units / (blocks * slot);
    qn_cuda_deal deal = {
        .units = units,
        .whole = (uint32_t)whole,
        .each = (uint32_t)(qn_ceil_div(units - whole * blocks * slot, blocks * ONCE_EVEN) * ONCE_EVEN),
        .rest = (uint32_t)(elements % PER),
        .cached = (uint32_t)(run->device->l2_bytes / ONCE_CACHED / (blocks * slot_bytes(once))),
    };
    const qn_cuda_geometry g = {.grid = {(uint32_t)blocks, 1, 1},
                                .block = {QN_ONCE_READERS + 32, 1, 1},
                                .shared_bytes = (uint32_t)(once->slots * slot_bytes(once)),
                                .cooperative = 1,
                                .dependent = 1};
    void *const arguments[] = {own, &deal};
    return qn_cuda_launch(run, i, &g, arguments, error);
}

void qn_cuda_once_describe(const qn_cuda_device *device, const qn_cuda_once *once, int32_t least, int64_t elements,
                           qn_format x, qn_text *text)
{
    const double all = (double)elements * (x == QN_F32 ? 4 : 2) * 1e-6;
    const double kept = (double)device->sms * (once->slots + once->held) * slot_bytes(once) * 1e-6;
    const double left = kept < all ? all - kept : 0.0, most = (double)(device->l2_bytes / ONCE_CACHED) * 1e-6;
    if (!qn_cuda_once_takes(device, least, elements, x)) {
        qn_text_add(text, "launches: two, range and codes\n");
        return;
    }
    qn_text_add(
        text,
        "launches: one of %d blocks that keep %.1f of %.1f MB of x in shared memory and registers and ask the L2 "
        "cache to keep %.1f more; two, range and codes, of tensors with gaps\n",
        device->sms, kept < all ? kept : all, all, left < most ? left : most);
}
