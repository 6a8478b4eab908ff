/* Steps made ready: what a pass of few rows would find out again for every step of
 * every token is found out once and kept.
 *
 * The layers of a model repeat: the same plans on the same registers, with other
 * weights and another layer of the cache. Steps that differ in such addresses
 * alone share one set of arguments, resolved and checked for the first of them;
 * for the others a short list of addresses is exchanged. So a token touches a few
 * kilobytes here, where the steps themselves are megabytes.
 *
 * Shared arguments hold for a number of rows and, where a cache is among them, for
 * one pass, as its length is one of their shapes. Every lane has its own: the
 * one of all rows, and those of strips (strips.h). Steps that run for a sequence that is
 * not the first, or write recent keys and values, are batch.c's alone. */
#include <string.h>

#include "base/error.h"
#include "model/ready.h"

#define MAX_MOVES 8
#define FEW_ROWS 16 /* steps are done one by one: memory for weights is what they wait for */

/* An address that steps of the same arguments differ in. */
typedef struct move {
    int32_t slot; /* of inputs; of outputs behind QN_MAX_IN */
    qn_place place;
    int32_t index; /* layer of the cache */
    int64_t offset;
    const void *data; /* QN_PLACE_CONST */
} move;

typedef struct shared {
    const qn_step *step; /* the first of them */
    int32_t rows, first; /* it is resolved for; rows 0: for none */
    int32_t cached;      /* a cache is among the operands */
    uint64_t pass;       /* cached: it is resolved for */
    qn_args args;
    qn_checked checked;
} shared;

typedef struct ready_step {
    int32_t made; /* 0: not ready */
    int32_t with; /* which shared arguments, of every lane */
    const void *packed;
    const void *next; /* weights of the next product, and their bytes */
    size_t next_bytes;
    int32_t with_next, with_last; /* many rows: the step behind it is done along with it; the one before does it */
    int32_t move_count;
    move moves[MAX_MOVES];
} ready_step;

struct qn_ready {
    ready_step *steps; /* [step_count] */
    shared *shared;    /* [lanes][shared_count] */
    size_t shared_count;
    uint64_t pass;
};

static int is_cache(qn_place place)
{
    return place == QN_PLACE_KEYS || place == QN_PLACE_VALUES || place == QN_PLACE_NEW_KEYS ||
           place == QN_PLACE_NEW_VALUES;
}

static const qn_operand *operand_at(const qn_step *step, int32_t slot)
{
    return slot < QN_MAX_IN ? &step->in[slot] : &step->out[slot - QN_MAX_IN];
}

/* Weight slots that the step's blob replaces. */
static int is_packed_away(const qn_step *step, int32_t slot)
{
    return step->packed && slot < QN_MAX_IN && qn_op_get_info(step->op)->in[slot].weight;
}

/* 1 when shared arguments serve the operand by another address. */
static int moves(const qn_step *step, int32_t slot)
{
    const qn_operand *o = operand_at(step, slot);
    return (o->place == QN_PLACE_CONST && !is_packed_away(step, slot)) || is_cache(o->place) ||
           (o->place == QN_PLACE_REGISTER && o->index < 0);
}

static int can_be_ready(const qn_step *step)
{
    int32_t count = 0;
    for (int32_t slot = 0; slot < QN_MAX_IN + QN_MAX_OUT; slot++) {
        const qn_place place = operand_at(step, slot)->place;
        if (place == QN_PLACE_RECENT_KEYS || place == QN_PLACE_RECENT_VALUES) {
            return 0;
        }
        count += moves(step, slot);
    }
    return step->plan && count <= MAX_MOVES;
}

static int same_shape(const qn_shape *a, const qn_shape *b)
{
    return a->format == b->format && a->ndim == b->ndim && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

/* Whether arguments checked for a are right for b after its moves. */
static int same_operand(const qn_step *step, int32_t slot, const qn_operand *a, const qn_operand *b)
{
    if (a->place != b->place) {
        return 0;
    }
    if (a->place == QN_PLACE_NONE || is_packed_away(step, slot)) {
        return 1;
    }
    if (a->whole != b->whole || !same_shape(&a->shape, &b->shape)) {
        return 0;
    }
    if (a->place == QN_PLACE_CONST) {
        return memcmp(a->view.strides, b->view.strides, sizeof a->view.strides) == 0 &&
               (uintptr_t)a->view.data % QN_ALIGN == (uintptr_t)b->view.data % QN_ALIGN;
    }
    return a->offset == b->offset && (is_cache(a->place) || a->index == b->index);
}

static int same_arguments(const qn_step *a, const qn_step *b)
{
    int same = a->plan == b->plan && !a->packed == !b->packed;
    for (int32_t slot = 0; same && slot < QN_MAX_IN + QN_MAX_OUT; slot++) {
        same = same_operand(a, slot, operand_at(a, slot), operand_at(b, slot));
    }
    return same;
}

/* Arguments that the step shares with one before it, or new ones. */
static int32_t shared_of(qn_ready *ready, const qn_step *step)
{
    for (size_t i = 0; i < ready->shared_count; i++) {
        if (same_arguments(ready->shared[i].step, step)) {
            return (int32_t)i;
        }
    }
    shared *const s = &ready->shared[ready->shared_count++];
    s->step = step;
    for (int32_t slot = 0; slot < QN_MAX_IN + QN_MAX_OUT; slot++) {
        s->cached |= is_cache(operand_at(step, slot)->place);
    }
    return (int32_t)ready->shared_count - 1;
}

static void make_step(qn_ready *ready, const qn_model *model, const qn_step *step, ready_step *out)
{
    out->made = 1;
    out->with = shared_of(ready, step);
    out->packed = step->packed;
    for (int32_t slot = 0; slot < QN_MAX_IN + QN_MAX_OUT; slot++) {
        const qn_operand *o = operand_at(step, slot);
        if (moves(step, slot)) {
            out->moves[out->move_count++] =
                (move){.slot = slot, .place = o->place, .index = o->index, .offset = o->offset, .data = o->view.data};
        }
    }
    const qn_step *next = step + 1, *const end = model->steps + model->step_count;
    while (step->packed && next < end && !next->packed) {
        next++;
    }
    if (step->packed && next < end) {
        out->next = next->packed;
        out->next_bytes = qn_plan_pack_bytes(next->plan);
    }
}

static int uses(const qn_operand *operands, int count, int32_t reg)
{
    for (int i = 0; i < count; i++) {
        if (operands[i].place == QN_PLACE_REGISTER && operands[i].index == reg) {
            return 1;
        }
    }
    return 0;
}

/* Whether step i, and the one behind it alone reads its result, can be done in one run. */
static int takes_next(const qn_model *model, size_t i)
{
    const qn_step *step = &model->steps[i], *end = model->steps + model->step_count;
    const qn_operand *out = &step->out[0], *in = &step[1].in[0];
    if (!step->packed || out->place != QN_PLACE_REGISTER || out->index < 0 || step + 1 == end ||
        in->place != QN_PLACE_REGISTER || in->index != out->index || in->offset != 0 || out->offset != 0 ||
        !same_shape(&in->shape, &out->shape) || !qn_plan_takes_next(step->plan, step[1].plan)) {
        return 0;
    }
    if (!step[1].plan && (step[1].copies || step[1].out[0].place != QN_PLACE_REGISTER || step[1].out[0].index < 0)) {
        return 0;
    }
    for (const qn_step *s = step + 2; s < end && !uses(s[-1].out, QN_MAX_OUT, out->index); s++) {
        if (uses(s->in, QN_MAX_IN, out->index)) {
            return 0;
        }
    }
    return 1;
}

/* As many copies of the shared arguments, none of them resolved; 0: out of memory. */
static int make_lanes(qn_ready *ready, qn_ctx *ctx, int32_t lanes)
{
    shared *const all = qn_calloc(ctx, ready->shared_count * (size_t)lanes + 1, sizeof *all);
    for (int32_t i = 0; all && i < lanes; i++) {
        memcpy(all + (size_t)i * ready->shared_count, ready->shared, ready->shared_count * sizeof *all);
    }
    qn_free(ctx, ready->shared);
    ready->shared = all;
    return all != NULL;
}

qn_status qn_ready_create(const qn_model *model, int32_t lanes, qn_ready **out, qn_error *error)
{
    *out = NULL;
    qn_ready *ready = qn_calloc(model->ctx, 1, sizeof *ready);
    if (ready) {
        ready->steps = qn_calloc(model->ctx, model->step_count + 1, sizeof *ready->steps);
        ready->shared = qn_calloc(model->ctx, model->step_count + 1, sizeof *ready->shared);
    }
    qn_status status = QN_OK;
    int made = ready && ready->steps && ready->shared;
    for (size_t i = 0; made && status == QN_OK && i < model->step_count; i++) {
        const qn_step *step = &model->steps[i];
        if (can_be_ready(step)) {
            make_step(ready, model, step, &ready->steps[i]);
            status = step->packed ? qn_plan_check_blob(step->plan, step->packed, error) : QN_OK;
        }
    }
    if (!made || !make_lanes(ready, model->ctx, lanes)) {
        qn_ready_destroy(model->ctx, ready);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for a batch's steps");
    }
    for (size_t i = 0; i + 1 < model->step_count; i++) {
        ready_step *const s = &ready->steps[i];
        s->with_next = s->made && (s[1].made || !model->steps[i + 1].plan) && takes_next(model, i);
        s[1].with_last = s->with_next;
    }
    if (status != QN_OK) {
        qn_ready_destroy(model->ctx, ready);
        return status;
    }
    *out = ready;
    return QN_OK;
}

void qn_ready_destroy(const qn_ctx *ctx, qn_ready *ready)
{
    if (ready) {
        qn_free(ctx, ready->steps);
        qn_free(ctx, ready->shared);
        qn_free(ctx, ready);
    }
}

void qn_ready_begin(qn_ready *ready)
{
    ready->pass++;
}

int qn_ready_takes(const qn_ready *ready, size_t step, const qn_row_range *rows, const qn_lane *lane)
{
    return ready->steps[step].made && (rows->first == 0 || lane->index > 0);
}

int qn_ready_did(const qn_ready *ready, size_t step, const qn_row_range *rows, const qn_lane *lane)
{
    return ready->steps[step].with_last && rows->count > FEW_ROWS && qn_ready_takes(ready, step - 1, rows, lane);
}

const void *qn_ready_next(const qn_ready *ready, size_t step, size_t *bytes)
{
    *bytes = ready->steps[step].next_bytes;
    return ready->steps[step].next;
}

static void *address_of(const qn_batch *b, const move *m, const qn_row_range *rows)
{
    const qn_session *s = rows->session;
    const int64_t row = (int64_t)b->model->kv_row_bytes;
    switch ((int)m->place) {
    case QN_PLACE_KEYS: return s->keys[m->index] + m->offset;
    case QN_PLACE_VALUES: return s->values[m->index] + m->offset;
    case QN_PLACE_NEW_KEYS:
        return (s ? s->keys[m->index] + s->length * row : b->new_keys) + rows->skipped * row + m->offset;
    case QN_PLACE_NEW_VALUES:
        return (s ? s->values[m->index] + s->length * row : b->new_values) + rows->skipped * row + m->offset;
    case QN_PLACE_REGISTER: return rows->logits;
    default: return (void *)(uintptr_t)m->data;
    }
}

/* Arguments of a step for these rows. */
static qn_status resolve(qn_batch *b, size_t step, const qn_row_range *rows, const qn_lane *lane, shared **out,
                         qn_error *error)
{
    const qn_ready *const ready = b->ready;
    const ready_step *r = &ready->steps[step];
    shared *const with = &ready->shared[(size_t)lane->index * ready->shared_count + (size_t)r->with];
    *out = with;
    if (with->rows != rows->count || with->first != rows->first || (with->cached && with->pass != ready->pass)) {
        with->rows = 0;
        qn_batch_args(b, &b->model->steps[step], rows, &with->args);
        QN_TRY(qn_plan_check_run(with->step->plan, &with->args, lane->workspace, lane->workspace_bytes, lane->exec,
                                 &with->checked, error));
        with->rows = rows->count;
        with->first = rows->first;
        with->pass = ready->pass;
    } else {
        for (int32_t i = 0; i < r->move_count; i++) {
            const move *m = &r->moves[i];
            void *const data = address_of(b, m, rows);
            if (m->slot < QN_MAX_IN) {
                with->args.in[m->slot].data = data;
            } else {
                with->args.out[m->slot - QN_MAX_IN].data = data;
            }
        }
        with->args.packed = r->packed;
    }
    return QN_OK;
}

qn_status qn_ready_run(qn_batch *b, size_t step, const qn_row_range *rows, const qn_lane *lane, qn_error *error)
{
    const ready_step *r = &b->ready->steps[step];
    shared *with, *next;
    QN_TRY(resolve(b, step, rows, lane, &with, error));
    if (rows->count > FEW_ROWS && r->with_next) {
        if (!r[1].made) {
            qn_args sum;
            qn_batch_args(b, &b->model->steps[step + 1], rows, &sum);
            qn_plan_run_sum(with->step->plan, &with->checked, &with->args, &sum.out[0], lane->workspace, lane->exec);
            return QN_OK;
        }
        QN_TRY(resolve(b, step + 1, rows, lane, &next, error));
        qn_plan_run_two(with->step->plan, &with->checked, &with->args, next->step->plan, &next->checked, &next->args,
                        lane->workspace, lane->exec);
        return QN_OK;
    }
    return qn_plan_run_checked(with->step->plan, &with->checked, &with->args, lane->workspace, lane->exec, error);
}
