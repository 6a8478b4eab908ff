/* Instructions that reach memory: loads, stores, atomics, barriers in shared memory, copies beside. */
#include <stdint.h>
#include <string.h>

#include "backend/fake/ptx_state.h"

char *ptx_shared_at(run *r, const warp *w, const ptx_instruction *i, uint64_t at, size_t bytes)
{
    const block *b = w->of;
    const uint64_t rank = at >> 24 & 0xff, offset = at & 0xffffff;
    if (rank) {
        if (rank > b->of->count) {
            ptx_fail(r, i, "shared memory of block %d of a cluster of %u", (int)rank - 1, b->of->count);
            return NULL;
        }
        b = &b->of->blocks[rank - 1];
    }
    if (at >> 32 || offset + bytes > b->shared_bytes) {
        ptx_fail(r, i, "%zu bytes at %llu of %zu of shared memory", bytes, (unsigned long long)at, b->shared_bytes);
        return NULL;
    }
    if (b->live == 0) {
        ptx_fail(r, i, "shared memory of a block that has ended");
        return NULL;
    }
    return b->shared + offset;
}

/* Where there is an address sanitizer it is asked, once an access: with checks of its own in this file all that kernels
 * do takes twice the time. */
extern void *__asan_region_is_poisoned(void *begin, size_t bytes) __attribute__((weak));

char *ptx_global_at(run *r, const ptx_instruction *i, uint64_t at, size_t bytes)
{
    char *const p = (char *)(uintptr_t)at;
    if (at < 4096 || (__asan_region_is_poisoned && bytes && __asan_region_is_poisoned(p, bytes))) {
        ptx_fail(r, i, "%zu bytes at address %llx, where nothing is", bytes, (unsigned long long)at);
        return NULL;
    }
    return p;
}

static int in_shared(const ptx_instruction *i)
{
    return ptx_has(i, PTX_W_SHARED) || ptx_has(i, PTX_W_CTA_SHARED) || ptx_has(i, PTX_W_CLUSTER_SHARED);
}

static char *memory_at(run *r, const warp *w, const ptx_instruction *i, const ptx_operand *o, int lane, size_t bytes)
{
    const uint64_t at = address_of(r, w, o, lane);
    if (at & (bytes - 1)) {
        ptx_fail(r, i, "%zu bytes at address %llx, which is no multiple of it (thread %d of warp %d)", bytes,
                 (unsigned long long)at, lane, (int)(w - w->of->warps));
        return NULL;
    }
    if (in_shared(i)) {
        return ptx_shared_at(r, w, i, at, bytes);
    }
    return ptx_global_at(r, i, at, bytes);
}

void ptx_do_addresses(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    source a;
    take(r, w, &i->operand[1], &a);
    const uint64_t base = (uint64_t)(uintptr_t)w->of->shared;
    if (!ptx_has(i, PTX_W_SHARED)) {
        EACH(D(l, A(l)))
    } else if (ptx_has(i, PTX_W_TO)) {
        EACH(D(l, A(l) - base))
    } else {
        EACH(D(l, A(l) + base))
    }
}

/* ---- memory ---- */

void ptx_do_load(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_operand *to = &i->operand[0];
    const ptx_type_info *t = &ptx_types[i->type];
    const int count = to->kind == PTX_VECTOR ? to->count : 1;
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const char *at = memory_at(r, w, i, &i->operand[1], l, (size_t)(count * t->bytes));
        for (int k = 0; k < count && at; k++) {
            uint64_t v = 0;
            memcpy(&v, at + k * t->bytes, (size_t)t->bytes);
            v = t->kind == 's' ? (uint64_t)signed_of(v, t->bytes) : v;
            put(r, w, to->kind == PTX_VECTOR ? to->parts[k] : to->index, l, v);
        }
    }
}

void ptx_do_store(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_operand *from = &i->operand[1];
    const ptx_type_info *t = &ptx_types[i->type];
    const int count = from->kind == PTX_VECTOR ? from->count : 1;
    source a;
    if (from->kind != PTX_VECTOR) {
        take(r, w, from, &a);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        char *at = memory_at(r, w, i, &i->operand[0], l, (size_t)(count * t->bytes));
        for (int k = 0; k < count && at; k++) {
            const uint64_t v =
                from->kind == PTX_VECTOR ? w->registers[(size_t)from->parts[k] * LANES + (size_t)l] : A(l);
            memcpy(at + k * t->bytes, &v, (size_t)t->bytes);
        }
    }
}

/* atom d, [a], b{, c} and red [a], b */
void ptx_do_atomic(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int gives = i->op == PTX_ATOM;
    const size_t bytes = (size_t)ptx_types[i->type].bytes;
    source b, c = {.p = NULL};
    take(r, w, &i->operand[gives + 1], &b);
    if (i->count > gives + 2) {
        take(r, w, &i->operand[gives + 2], &c);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        char *at = mask >> l & 1 ? memory_at(r, w, i, &i->operand[gives], l, bytes) : NULL;
        if (at) {
            uint64_t old = 0;
            memcpy(&old, at, bytes);
            const uint64_t new =
                ptx_exchanged(r, i, old, B(l) & r->width_mask[bytes], c.p ? C(l) & r->width_mask[bytes] : 0);
            memcpy(at, &new, bytes);
            if (gives) {
                D(l, old);
            }
        }
    }
}

/* Row and column of element e of a lane in a tile of 16-bit values, or what stands for it. */
void ptx_do_matrix(run *r, warp *w, const ptx_instruction *i)
{
    const int stores_it = i->op == PTX_STMATRIX;
    const ptx_operand *regs = &i->operand[stores_it], *at = &i->operand[!stores_it];
    const int count = regs->kind == PTX_VECTOR ? regs->count : 1;
    for (int m = 0; m < count && !r->failed; m++) {
        char *rows[8];
        for (int k = 0; k < 8; k++) {
            const uint64_t a = address_of(r, w, at, m * 8 + k);
            rows[k] = a % 16 == 0 ? ptx_shared_at(r, w, i, a, 16) : NULL;
            if (!rows[k]) {
                ptx_fail(r, i, "a row of a matrix that is not aligned");
                return;
            }
        }
        const int index = regs->kind == PTX_VECTOR ? regs->parts[m] : regs->index;
        for (int l = 0; l < LANES; l++) {
            uint64_t v = stores_it ? lane_value(w, index, l) : 0;
            for (int e = 0; e < 2; e++) {
                const int row = l / 4, column = l % 4 * 2 + e, turned = ptx_has(i, PTX_W_TRANS);
                char *const p = rows[turned ? column : row] + 2 * (turned ? row : column);
                uint16_t half = (uint16_t)(v >> 16 * e);
                if (stores_it) {
                    memcpy(p, &half, 2);
                } else {
                    memcpy(&half, p, 2);
                    v |= (uint64_t)half << 16 * e;
                }
            }
            if (!stores_it) {
                put(r, w, index, l, v);
            }
        }
    }
}

/* ---- barriers in shared memory ---- */

typedef struct shared_barrier {
    int32_t bytes; /* expected and not yet come */
    uint16_t pending, phase_and_count;
} shared_barrier;

static void barrier_turns(shared_barrier *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->phase_and_count ^= 0x8000;
        b->pending = b->phase_and_count & 0x7fff;
    }
}

void ptx_complete(run *r, const warp *w, const ptx_instruction *i, uint64_t at, int32_t bytes)
{
    char *p = ptx_shared_at(r, w, i, at, 8);
    if (p) {
        shared_barrier b;
        memcpy(&b, p, 8);
        b.bytes -= bytes;
        barrier_turns(&b);
        memcpy(p, &b, 8);
    }
}

/* 1: somebody waits in vain for now. */
int ptx_do_mbarrier(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int arrives = ptx_has(i, PTX_W_ARRIVE), waits = ptx_has(i, PTX_W_TRY_WAIT) || ptx_has(i, PTX_W_TEST_WAIT);
    const int named = arrives || waits; /* operand 0 is what it gives, but of remote ones */
    const int at_operand = named && i->operand[0].kind != PTX_MEMORY;
    int vain = 0;
    source v = {.p = NULL};
    if (i->count > at_operand + 1) {
        take(r, w, &i->operand[at_operand + 1], &v);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const uint64_t value = v.p ? v.p[l * v.step] : 1;
        char *p = ptx_shared_at(r, w, i, address_of(r, w, &i->operand[at_operand], l), 8);
        shared_barrier b;
        if (!p) {
            return 0;
        }
        memcpy(&b, p, 8);
        if (ptx_has(i, PTX_W_INIT)) {
            b = (shared_barrier){.pending = (uint16_t)value, .phase_and_count = (uint16_t)value};
        } else if (waits) {
            const int done = b.phase_and_count >> 15 != (value & 1);
            if (!ptx_has(i, PTX_W_PARITY)) {
                ptx_fail(r, i, "a wait for a state");
            }
            put(r, w, i->operand[0].index, l, (uint64_t)done);
            vain |= !done;
        } else if (arrives) {
            b.bytes += ptx_has(i, PTX_W_EXPECT_TX) ? (int32_t)value : 0;
            const int count = ptx_has(i, PTX_W_EXPECT_TX) ? 1 : (int)value;
            if (b.pending < count) {
                ptx_fail(r, i, "more arrivals than the barrier was made for");
            }
            b.pending = (uint16_t)(b.pending - count);
            barrier_turns(&b);
        } else if (ptx_has(i, PTX_W_EXPECT_TX)) {
            b.bytes += (int32_t)value;
        } else if (ptx_has(i, PTX_W_COMPLETE_TX)) {
            b.bytes -= (int32_t)value;
            barrier_turns(&b);
        } else if (!ptx_has(i, PTX_W_INVAL)) {
            ptx_fail(r, i, "no such operation on a barrier");
        }
        memcpy(p, &b, 8);
    }
    return vain;
}

/* Copies that the hardware does beside: done at once. */
void ptx_do_copy(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    if (i->count == 0 || (i->count == 1 && i->operand[0].kind == PTX_NUMBER)) {
        return; /* groups of copies are closed or waited for */
    }
    if (i->count == 1) { /* an arrival when this thread's copies are there */
        if (!ptx_has(i, PTX_W_NOINC)) {
            return; /* it counts itself in first */
        }
        for (int l = 0; l < LANES && !r->failed; l++) {
            char *p = mask >> l & 1 ? ptx_shared_at(r, w, i, address_of(r, w, &i->operand[0], l), 8) : NULL;
            if (p) {
                shared_barrier b;
                memcpy(&b, p, 8);
                b.pending--;
                barrier_turns(&b);
                memcpy(p, &b, 8);
            }
        }
        return;
    }
    const int bulk = ptx_has(i, PTX_W_BULK), outward = bulk && !ptx_has(i, PTX_W_CLUSTER_SHARED);
    source size, real = {.p = NULL};
    if (i->count < 3) {
        return; /* a prefetch */
    }
    take(r, w, &i->operand[2], &size);
    if (!bulk && i->count > 3) {
        take(r, w, &i->operand[3], &real);
    }
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const uint64_t to = address_of(r, w, &i->operand[0], l), from = address_of(r, w, &i->operand[1], l);
        const size_t bytes = (uint32_t)size.p[l * size.step];
        const size_t there = real.p ? (uint32_t)real.p[l * real.step] : bytes;
        if ((bulk && (to | from | bytes) % 16 != 0) || (!bulk && (to | from) % bytes != 0)) {
            ptx_fail(r, i, "a copy of %zu bytes that is not aligned", bytes);
            return;
        }
        const int inside = bulk && !outward && !ptx_has(i, PTX_W_GLOBAL); /* from shared memory to another block's */
        char *const d = outward ? ptx_global_at(r, i, to, bytes) : ptx_shared_at(r, w, i, to, bytes);
        const char *const s =
            outward || inside ? ptx_shared_at(r, w, i, from, bytes) : ptx_global_at(r, i, from, there);
        if (!d || !s) {
            return;
        }
        memmove(d, s, there);
        memset(d + there, 0, bytes - there);
        if (bulk && !outward) {
            ptx_complete(r, w, i, address_of(r, w, &i->operand[3], l), (int32_t)bytes);
        }
    }
}

/* st.async [a], v, [barrier] */
void ptx_do_store_async(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const int count = i->operand[1].kind == PTX_VECTOR ? i->operand[1].count : 1;
    ptx_do_store(r, w, i, mask);
    for (int l = 0; l < LANES && !r->failed; l++) {
        if (mask >> l & 1) {
            ptx_complete(r, w, i, address_of(r, w, &i->operand[2], l), count * ptx_types[i->type].bytes);
        }
    }
}
