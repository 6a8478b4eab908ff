/* The state of a launch, and what the code of every instruction needs of it: who its lanes are and what its operands
 * hold. */
#ifndef QN_TESTS_FAKE_PTX_STATE_H
#define QN_TESTS_FAKE_PTX_STATE_H

#include "backend/fake/ptx_numbers.h"

enum { LANES = 32, SLICE = 4096, BARRIERS = 16, POISON = 0xFF };
#define ALL UINT32_MAX
#define MOST_STEPS INT64_C(4000000000) /* of warps, in a launch: more is taken for a wait that never ends */

typedef enum lane_state { READY = 0, AT_BARRIER, AT_CLUSTER, AT_MEETING, DONE } lane_state;

typedef struct block block;
typedef struct cluster cluster;

typedef struct warp {
    block *of;
    uint64_t *registers; /* [register][lane] */
    char *local;
    int pc[LANES], back[PTX_DEPTH][LANES];
    uint8_t state[LANES], barrier[LANES], depth[LANES];
    uint32_t phase[LANES]; /* of the cluster when the lane arrived */
    uint32_t ready;        /* lanes that are READY */
    int together;          /* all ready lanes are at one place */
} warp;

struct block {
    cluster *of;
    warp *warps;
    int count, live; /* warps; threads that have not ended */
    char *shared;
    size_t shared_bytes;
    uint32_t rank;
    int arrived[BARRIERS], wanted[BARRIERS];
};

struct cluster {
    block *blocks;
    uint32_t count, phase;
    int arrived, live;
};

typedef struct run {
    const ptx_module *m;
    const ptx_entry *entry;
    const ptx_geometry *g;
    const char *parameters;
    size_t dynamic;
    uint64_t random;
    int64_t steps;
    int failed;
    char *why;
    size_t why_bytes;
    uint64_t width_mask[9];
} run;

/* The launch ends with this sentence, behind the kernel's name and the line. */
void ptx_fail(run *r, const ptx_instruction *i, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- operands ---- */

typedef struct source {
    const uint64_t *p;
    int step;
    uint64_t own[LANES];
} source;

static inline uint64_t symbol_value(const run *r, const warp *w, const ptx_operand *o, int lane)
{
    const ptx_symbol *s = &r->m->symbols[o->index];
    switch (s->space) {
    case PTX_IN_SHARED: return s->at + o->value;
    case PTX_IN_DYNAMIC: return r->dynamic + o->value;
    case PTX_IN_GLOBAL: return (uint64_t)(uintptr_t)(r->m->memory + s->at) + o->value;
    case PTX_IN_PARAMETERS: return (uint64_t)(uintptr_t)(r->parameters + s->at) + o->value;
    case PTX_IN_LOCAL: return (uint64_t)(uintptr_t)(w->local + (size_t)lane * r->m->local + s->at) + o->value;
    }
    return 0;
}

static inline void take(const run *r, warp *w, const ptx_operand *o, source *s)
{
    if (o->kind == PTX_REGISTER) {
        s->p = w->registers + (size_t)o->index * LANES;
        s->step = 1;
    } else if (o->kind == PTX_SYMBOL) {
        for (int l = 0; l < LANES; l++) {
            s->own[l] = symbol_value(r, w, o, l);
        }
        s->p = s->own;
        s->step = 1;
    } else {
        s->own[0] = o->value;
        s->p = s->own;
        s->step = 0;
    }
}

static inline void put(const run *r, warp *w, int index, int lane, uint64_t value)
{
    if (index >= 0) {
        w->registers[(size_t)index * LANES + (size_t)lane] = value & r->width_mask[r->m->width[index]];
    }
}

/* The address a lane names: in shared memory an offset, else the process's own. */
static inline uint64_t address_of(const run *r, const warp *w, const ptx_operand *o, int lane)
{
    if (o->base == PTX_REGISTER) {
        return w->registers[(size_t)o->index * LANES + (size_t)lane] + o->value;
    }
    return o->base == PTX_SYMBOL ? symbol_value(r, w, o, lane) : o->value;
}

static inline uint64_t lane_value(const warp *w, int index, int lane)
{
    return w->registers[(size_t)index * LANES + (size_t)lane];
}

#define EACH(body)                                                                                                     \
    for (int l = 0; l < LANES; l++) {                                                                                  \
        if (mask >> l & 1) {                                                                                           \
            body;                                                                                                      \
        }                                                                                                              \
    }

#define A(l) a.p[(l)*a.step]
#define B(l) b.p[(l)*b.step]
#define C(l) c.p[(l)*c.step]
#define D(l, v) put(r, w, i->operand[0].index, l, v)

/* ---- instructions, by the lanes of mask ---- */

/* ptx_math.c: registers alone */
void ptx_do_arithmetic(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_set_predicate(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_convert(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_move(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_select(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_bits(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
/* What an atomic operation leaves of old, x and y. */
uint64_t ptx_exchanged(run *r, const ptx_instruction *i, uint64_t old, uint64_t x, uint64_t y);

/* ptx_memory.c */
void ptx_do_addresses(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_load(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_store(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_store_async(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_atomic(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
int ptx_do_mbarrier(run *r, warp *w, const ptx_instruction *i, uint32_t mask); /* 1: somebody waits in vain for now */
void ptx_do_copy(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_matrix(run *r, warp *w, const ptx_instruction *i); /* ldmatrix, stmatrix */

/* Shared memory, of another block of the cluster where the address's high byte says which; NULL: not there. */
char *ptx_shared_at(run *r, const warp *w, const ptx_instruction *i, uint64_t at, size_t bytes);
/* Global memory; NULL: nothing is there. */
char *ptx_global_at(run *r, const ptx_instruction *i, uint64_t at, size_t bytes);
/* So many bytes have come that a barrier of shared memory waits for. */
void ptx_complete(run *r, const warp *w, const ptx_instruction *i, uint64_t at, int32_t bytes);

/* ptx_tensor.c: boxes of tensors, products of warpgroups */
void ptx_do_tensor(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_wgmma(run *r, warp *w, const ptx_instruction *i);

/* ptx_warp.c: lanes that exchange registers */
void ptx_do_shuffle(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_vote(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_reduce(run *r, warp *w, const ptx_instruction *i, uint32_t mask);
void ptx_do_mma(run *r, warp *w, const ptx_instruction *i);
/* Element e of a word, of 8, 16 or 32 bits, as a number. */
double ptx_element(uint64_t word, int e, ptx_type type);

#endif
