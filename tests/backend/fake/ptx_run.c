/* Warps, blocks and clusters that run instructions. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fake/ptx_state.h"

void ptx_fail(run *r, const ptx_instruction *i, const char *format, ...)
{
    if (!r->failed) {
        va_list list;
        va_start(list, format);
        const int used = snprintf(r->why, r->why_bytes, "%s, line %d: ", r->entry->name, i ? i->line : 0);
        vsnprintf(r->why + used, r->why_bytes - (size_t)used, format, list);
        va_end(list);
    }
    r->failed = 1;
}

static uint64_t next_random(run *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

/* ---- threads that wait for each other ---- */

static void make_ready(warp *w, int lane)
{
    w->state[lane] = READY;
    w->ready |= 1u << lane;
    w->together = 0;
}

static void make_waiting(warp *w, int lane, lane_state state)
{
    w->state[lane] = (uint8_t)state;
    w->ready &= ~(1u << lane);
}

static void release_barrier(block *b, int id)
{
    for (int n = 0; n < b->count; n++) {
        for (int l = 0; l < LANES; l++) {
            if (b->warps[n].state[l] == AT_BARRIER && b->warps[n].barrier[l] == id) {
                make_ready(&b->warps[n], l);
            }
        }
    }
    b->arrived[id] = 0;
    b->wanted[id] = 0;
}

static void look_at_barrier(block *b, int id)
{
    const int wanted = b->wanted[id] ? b->wanted[id] : b->live;
    if (b->arrived[id] > 0 && b->arrived[id] >= wanted) {
        release_barrier(b, id);
    }
}

static void look_at_cluster(cluster *c)
{
    if (c->arrived > 0 && c->arrived >= c->live) {
        c->arrived = 0;
        c->phase++;
        for (uint32_t k = 0; k < c->count; k++) {
            for (int n = 0; n < c->blocks[k].count; n++) {
                for (int l = 0; l < LANES; l++) {
                    if (c->blocks[k].warps[n].state[l] == AT_CLUSTER) {
                        make_ready(&c->blocks[k].warps[n], l);
                    }
                }
            }
        }
    }
}

/* bar.sync, bar.arrive and barrier.cluster; places have gone on already. */
static void barriers(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    block *const b = w->of;
    if (ptx_has(i, PTX_W_CLUSTER)) {
        for (int l = 0; l < LANES; l++) {
            if (!(mask >> l & 1)) {
                continue;
            }
            if (ptx_has(i, PTX_W_ARRIVE)) {
                w->phase[l] = b->of->phase;
                b->of->arrived++;
            } else if (w->phase[l] == b->of->phase) {
                make_waiting(w, l, AT_CLUSTER);
            }
        }
        look_at_cluster(b->of);
        return;
    }
    source id, count = {.p = NULL};
    if (ptx_has(i, PTX_W_REDS) || i->count < 1) {
        ptx_fail(r, i, "no such barrier");
        return;
    }
    take(r, w, &i->operand[0], &id);
    if (i->count > 1) {
        take(r, w, &i->operand[1], &count);
    }
    int touched = 0;
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            const int n = (int)id.p[l * id.step] & (BARRIERS - 1);
            b->arrived[n]++;
            b->wanted[n] = count.p ? (int)count.p[l * count.step] : 0;
            if (!ptx_has(i, PTX_W_ARRIVE)) {
                make_waiting(w, l, AT_BARRIER);
                w->barrier[l] = (uint8_t)n;
            }
            touched |= 1 << n;
        }
    }
    for (int n = 0; n < BARRIERS; n++) {
        if (touched >> n & 1) {
            look_at_barrier(b, n);
        }
    }
}

static void ends(warp *w, uint32_t mask)
{
    block *const b = w->of;
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            make_waiting(w, l, DONE);
            b->live--;
            b->of->live--;
        }
    }
    for (int n = 0; n < BARRIERS; n++) {
        look_at_barrier(b, n);
    }
    look_at_cluster(b->of);
}

/* Lanes that an instruction of the warp names, or all that have not ended. */
static uint32_t meeting(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    uint32_t wanted = ALL;
    const ptx_operand *o = NULL;
    if (i->op == PTX_SHFL) {
        o = &i->operand[4];
    } else if (i->op == PTX_VOTE || i->op == PTX_REDUX) {
        o = &i->operand[2];
    } else if (i->op == PTX_BAR) {
        o = &i->operand[0];
    } else if (i->op == PTX_ELECT) {
        o = &i->operand[1];
    }
    if (o) {
        source s;
        take(r, w, o, &s);
        wanted = (uint32_t)s.p[__builtin_ctz(mask) * s.step];
    }
    for (int l = 0; l < LANES; l++) {
        if (w->state[l] == DONE) {
            wanted &= ~(1u << l);
        }
    }
    return wanted;
}

static int is_meeting(const ptx_instruction *i)
{
    switch (i->op) {
    case PTX_SHFL:
    case PTX_REDUX:
    case PTX_ELECT:
    case PTX_LDMATRIX:
    case PTX_STMATRIX:
    case PTX_MMA: return 1;
    case PTX_WGMMA: return ptx_has(i, PTX_W_MMA_ASYNC);
    case PTX_VOTE: return 1;
    case PTX_BAR: return ptx_has(i, PTX_W_WARP);
    default: return 0;
    }
}

/* ---- steps ---- */

static void set_places(warp *w, uint32_t mask, int pc)
{
    EACH(w->pc[l] = pc)
}

static void calls(run *r, warp *w, const ptx_instruction *i, uint32_t mask, int pc)
{
    const ptx_entry *f = &r->m->entries[(int64_t)i->operand[1].value];
    const ptx_operand *arguments = &i->operand[2];
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        char *const local = w->local + (size_t)l * r->m->local;
        for (int k = 0; k < arguments->count; k++) {
            const ptx_symbol *from = &r->m->symbols[arguments->parts[k]], *to = &r->m->symbols[f->argument[k]];
            memcpy(local + to->at, local + from->at, to->bytes);
        }
        if (w->depth[l] == PTX_DEPTH) {
            ptx_fail(r, i, "calls nested too deep");
            return;
        }
        w->back[w->depth[l]++][l] = pc + 1;
        w->pc[l] = f->start;
    }
}

static void returns(run *r, warp *w, uint32_t mask)
{
    uint32_t over = 0;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        if (w->depth[l] == 0) {
            over |= 1u << l;
        } else {
            w->pc[l] = w->back[--w->depth[l]][l];
        }
    }
    w->together = 0;
    (void)r;
    if (over) {
        ends(w, over);
    }
}

/* Behind a call: what the function gave. */
static void returned(run *r, warp *w, const ptx_instruction *i, uint32_t mask)
{
    const ptx_instruction *call = i - 1;
    const ptx_entry *f = &r->m->entries[(int64_t)call->operand[1].value];
    for (int l = 0; l < LANES; l++) {
        char *const local = w->local + (size_t)l * r->m->local;
        for (int k = 0; k < call->operand[0].count && (mask >> l & 1); k++) {
            const ptx_symbol *to = &r->m->symbols[call->operand[0].parts[k]], *from = &r->m->symbols[f->result[k]];
            memcpy(local + to->at, local + from->at, to->bytes);
        }
    }
}

/* The line of the module's text. */
static const char *text_of(const ptx_module *m, int line)
{
    static char text[120];
    const char *at = m->text;
    for (int n = 1; n < line; n++) {
        at = strchr(at, '\n') + 1;
    }
    at += strspn(at, " \t");
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "\n"), at);
    return text;
}

/* One instruction by the lanes of mask, whose places have gone on. 1: the warp's turn is over. */
static int execute(run *r, warp *w, const ptx_instruction *i, uint32_t mask, int pc)
{
    switch (i->op) {
    case PTX_MOV: ptx_do_move(r, w, i, mask); break;
    case PTX_ADD:
    case PTX_SUB:
    case PTX_MUL:
    case PTX_MAD:
    case PTX_FMA:
    case PTX_DIV:
    case PTX_REM:
    case PTX_MIN:
    case PTX_MAX:
    case PTX_NEG:
    case PTX_ABS:
    case PTX_NOT:
    case PTX_AND:
    case PTX_OR:
    case PTX_XOR:
    case PTX_SHL:
    case PTX_SHR:
    case PTX_POPC:
    case PTX_CLZ:
    case PTX_BREV:
    case PTX_EX2:
    case PTX_LG2:
    case PTX_RCP:
    case PTX_SQRT:
    case PTX_RSQRT:
    case PTX_SIN:
    case PTX_COS:
    case PTX_COPYSIGN: ptx_do_arithmetic(r, w, i, mask); break;
    case PTX_SETP: ptx_do_set_predicate(r, w, i, mask); break;
    case PTX_SELP: ptx_do_select(r, w, i, mask); break;
    case PTX_CVT: ptx_do_convert(r, w, i, mask); break;
    case PTX_PRMT:
    case PTX_LOP3:
    case PTX_BFE:
    case PTX_BFI:
    case PTX_SHF:
    case PTX_DP4A: ptx_do_bits(r, w, i, mask); break;
    case PTX_CVTA: ptx_do_addresses(r, w, i, mask); break;
    case PTX_MAPA: {
        source a, b;
        take(r, w, &i->operand[1], &a);
        take(r, w, &i->operand[2], &b);
        EACH(D(l, (A(l) & 0xffffff) | ((B(l) & 255) + 1) << 24))
        break;
    }
    case PTX_LD:
    case PTX_LDU: ptx_do_load(r, w, i, mask); break;
    case PTX_ST: ptx_has(i, PTX_W_ASYNC) ? ptx_do_store_async(r, w, i, mask) : ptx_do_store(r, w, i, mask); break;
    case PTX_ATOM:
    case PTX_RED: ptx_do_atomic(r, w, i, mask); break;
    case PTX_BRA:
        set_places(w, mask, (int)i->operand[0].value);
        w->together &= mask == w->ready;
        break;
    case PTX_CALL: calls(r, w, i, mask, pc); break;
    case PTX_RETURNED: returned(r, w, i, mask); break;
    case PTX_RET: returns(r, w, mask); break;
    case PTX_EXIT: ends(w, mask); break;
    case PTX_SHFL: ptx_do_shuffle(r, w, i, mask); break;
    case PTX_VOTE: ptx_do_vote(r, w, i, mask); break;
    case PTX_REDUX: ptx_do_reduce(r, w, i, mask); break;
    case PTX_ACTIVEMASK: EACH(D(l, mask)) break;
    case PTX_ELECT:
        EACH(D(l, (uint64_t)__builtin_ctz(mask)); put(r, w, i->operand[0].second, l, l == __builtin_ctz(mask)))
        break;
    case PTX_BAR:
        if (!ptx_has(i, PTX_W_WARP)) {
            barriers(r, w, i, mask);
        }
        break;
    case PTX_BARRIER: barriers(r, w, i, mask); break;
    case PTX_LDMATRIX:
    case PTX_STMATRIX: ptx_do_matrix(r, w, i); break;
    case PTX_MMA: ptx_do_mma(r, w, i); break;
    case PTX_WGMMA:
        if (ptx_has(i, PTX_W_MMA_ASYNC)) {
            ptx_do_wgmma(r, w, i);
        }
        break;
    case PTX_MBARRIER: return ptx_do_mbarrier(r, w, i, mask);
    case PTX_CP: ptx_has(i, PTX_W_TENSOR) ? ptx_do_tensor(r, w, i, mask) : ptx_do_copy(r, w, i, mask); break;
    case PTX_NANOSLEEP: return 1;
    case PTX_MEMBAR:
    case PTX_FENCE:
    case PTX_GRIDDEPCONTROL:
    case PTX_PREFETCH:
    case PTX_SETMAXNREG:
    case PTX_CREATEPOLICY: break;
    case PTX_TRAP: ptx_fail(r, i, "the kernel stopped itself"); break;
    case PTX_NO_OP:
    case PTX_OP_COUNT: ptx_fail(r, i, "not emulated: %s", text_of(r->m, i->line)); break;
    }
    return 0;
}

/* Lanes that are ready at the place furthest behind. */
static uint32_t furthest_behind(warp *w, int *pc)
{
    uint32_t mask = 0;
    int least = INT32_MAX;
    if (w->together && w->ready) {
        *pc = w->pc[__builtin_ctz(w->ready)];
        return w->ready;
    }
    for (int l = 0; l < LANES; l++) {
        if (w->ready >> l & 1 && w->pc[l] <= least) {
            mask = w->pc[l] < least ? 0 : mask;
            least = w->pc[l];
            mask |= 1u << l;
        }
    }
    w->together = mask == w->ready;
    *pc = least;
    return mask;
}

/* A turn of a warp; the instructions that it did. */
static int64_t turn_of(run *r, warp *w)
{
    int64_t done = 0;
    int met = 0; /* lanes that wait in the warp were woken once */
    while (done < SLICE && !r->failed) {
        int pc;
        if (!w->ready) {
            int woken = 0;
            for (int l = 0; l < LANES && !met; l++) {
                if (w->state[l] == AT_MEETING) {
                    make_ready(w, l);
                    woken = 1;
                }
            }
            if (!woken) {
                break;
            }
            met = 1;
        }
        uint32_t mask = furthest_behind(w, &pc);
        const ptx_instruction *i = &r->m->code[pc];
        const uint32_t all = mask;
        if (i->guard >= 0) {
            for (int l = 0; l < LANES; l++) {
                if ((lane_value(w, i->guard, l) & 1) == (uint64_t)i->guard_negated) {
                    mask &= ~(1u << l);
                }
            }
        }
        if (mask && is_meeting(i) && (meeting(r, w, i, mask) & ~mask) != 0) {
            for (int l = 0; l < LANES; l++) { /* the others must come first */
                if (mask >> l & 1) {
                    make_waiting(w, l, AT_MEETING);
                }
            }
            set_places(w, all & ~mask, pc + 1);
            w->together = 0;
            continue;
        }
        set_places(w, all, pc + 1);
        if (all != mask) {
            w->together &= i->op != PTX_BRA && i->op != PTX_RET && i->op != PTX_EXIT && i->op != PTX_CALL;
        }
        done++;
        met = 0;
        if (mask && execute(r, w, i, mask, pc)) {
            break;
        }
    }
    r->steps += done;
    return done;
}

/* ---- blocks ---- */

/* Registers of warps that have ended, for those that come: a launch would spend half its time on new pages. */
typedef struct registers_kept {
    struct registers_kept *next;
    size_t bytes;
} registers_kept;

static registers_kept *kept;

static void *registers_taken(size_t bytes)
{
    registers_kept *k = kept;
    if (k) {
        kept = k->next;
    }
    if (!k || k->bytes < bytes) {
        free(k);
        k = malloc(sizeof *k + bytes);
        memset(k, POISON, sizeof *k + bytes);
        k->bytes = bytes;
    }
    return k + 1;
}

static void registers_given(void *registers)
{
    registers_kept *const k = (registers_kept *)registers - 1;
    k->next = kept;
    kept = k;
}

static void warp_begins(run *r, block *b, int n, const uint32_t at[3])
{
    warp *const w = &b->warps[n];
    const ptx_geometry *g = r->g;
    const int threads = (int)(g->block[0] * g->block[1] * g->block[2]);
    w->of = b;
    w->registers = registers_taken((size_t)r->m->registers * LANES * sizeof *w->registers);
    w->local = malloc((size_t)LANES * r->m->local + 1);
    memset(w->local, POISON, (size_t)LANES * r->m->local + 1);
    w->together = 1;
    for (int l = 0; l < LANES; l++) {
        const uint32_t t = (uint32_t)(n * LANES + l);
        const uint64_t values[PTX_SPECIALS] = {[PTX_TID_X] = t % g->block[0],
                                               [PTX_TID_Y] = t / g->block[0] % g->block[1],
                                               [PTX_TID_Z] = t / g->block[0] / g->block[1],
                                               [PTX_NTID_X] = g->block[0],
                                               [PTX_NTID_Y] = g->block[1],
                                               [PTX_NTID_Z] = g->block[2],
                                               [PTX_CTAID_X] = at[0],
                                               [PTX_CTAID_Y] = at[1],
                                               [PTX_CTAID_Z] = at[2],
                                               [PTX_NCTAID_X] = g->grid[0],
                                               [PTX_NCTAID_Y] = g->grid[1],
                                               [PTX_NCTAID_Z] = g->grid[2],
                                               [PTX_LANEID] = (uint64_t)l,
                                               [PTX_WARPID] = (uint64_t)n,
                                               [PTX_CLUSTER_RANK] = b->rank,
                                               [PTX_CLUSTER_SIZE] = b->of->count,
                                               [PTX_CLUSTERID_X] = at[0] / b->of->count,
                                               [PTX_NCLUSTERID_X] = g->grid[0] / b->of->count,
                                               [PTX_CLUSTER_CTAID_X] = b->rank,
                                               [PTX_CLUSTER_NCTAID_X] = b->of->count,
                                               [PTX_LANEMASK_LT] = (1u << l) - 1,
                                               [PTX_DYNAMIC_BYTES] = g->shared_bytes};
        for (int s = 0; s < PTX_SPECIALS; s++) {
            w->registers[s * LANES + l] = values[s];
        }
        for (int k = 0; k < r->m->constant_count; k++) {
            w->registers[(size_t)r->m->constants[k].index * LANES + (size_t)l] = r->m->constants[k].value;
        }
        w->pc[l] = r->entry->start;
        if ((int)t < threads) {
            w->ready |= 1u << l;
        } else {
            w->state[l] = DONE;
        }
    }
}

static cluster *cluster_begins(run *r, uint64_t number)
{
    const ptx_geometry *g = r->g;
    const int threads = (int)(g->block[0] * g->block[1] * g->block[2]);
    cluster *const c = calloc(1, sizeof *c);
    c->count = g->cluster ? g->cluster : 1;
    c->blocks = calloc(c->count, sizeof *c->blocks);
    c->live = threads * (int)c->count;
    const uint64_t a_row = g->grid[0] / c->count;
    for (uint32_t k = 0; k < c->count; k++) {
        block *const b = &c->blocks[k];
        const uint32_t at[3] = {(uint32_t)(number % a_row) * c->count + k, (uint32_t)(number / a_row % g->grid[1]),
                                (uint32_t)(number / a_row / g->grid[1])};
        b->of = c;
        b->rank = k;
        b->live = threads;
        b->shared_bytes = r->dynamic + g->shared_bytes;
        b->shared = aligned_alloc(1024, (b->shared_bytes + 1024) / 1024 * 1024);
        memset(b->shared, POISON, b->shared_bytes);
        b->count = (threads + LANES - 1) / LANES;
        b->warps = calloc((size_t)b->count, sizeof *b->warps);
        for (int n = 0; n < b->count; n++) {
            warp_begins(r, b, n, at);
        }
    }
    return c;
}

static void cluster_ends(cluster *c)
{
    for (uint32_t k = 0; k < c->count; k++) {
        for (int n = 0; n < c->blocks[k].count; n++) {
            registers_given(c->blocks[k].warps[n].registers);
            free(c->blocks[k].warps[n].local);
        }
        free(c->blocks[k].warps);
        free(c->blocks[k].shared);
    }
    free(c->blocks);
    free(c);
}

/* A turn of every warp, from one drawn at random on; the instructions done. */
static int64_t turns_of(run *r, cluster *c)
{
    int64_t done = 0;
    const int warps = c->blocks[0].count, all = warps * (int)c->count;
    const int first = (int)(next_random(r) % (uint64_t)all), down = (int)(next_random(r) & 1);
    for (int n = 0; n < all && !r->failed; n++) {
        const int i = (first + (down ? all - n : n)) % all;
        done += turn_of(r, &c->blocks[i / warps].warps[i % warps]);
    }
    return done;
}

/* Where dynamic shared memory begins: behind the module's own, aligned as it asks for and no better, as on a GPU. */
static size_t dynamic_begin(const ptx_module *m)
{
    const size_t align = m->dynamic_align ? m->dynamic_align : 1;
    const size_t begin = (m->shared + align - 1) / align * align;
    return begin % (2 * align) == 0 ? begin + align : begin;
}

size_t ptx_shared_bytes(const ptx_entry *entry)
{
    return entry->module->shared;
}

int ptx_run(const ptx_entry *entry, const ptx_geometry *g, const void *parameters, uint32_t seed, char *why,
            size_t why_bytes)
{
    run r = {.m = entry->module,
             .entry = entry,
             .g = g,
             .parameters = parameters,
             .dynamic = dynamic_begin(entry->module),
             .random = UINT64_C(0x9E3779B97F4A7C15) ^ seed,
             .why = why,
             .why_bytes = why_bytes,
             .width_mask = {0, 0xff, 0xffff, 0, 0xffffffff, 0, 0, 0, UINT64_MAX}};
    const uint32_t size = g->cluster ? g->cluster : 1;
    const uint64_t clusters = (uint64_t)g->grid[0] / size * g->grid[1] * g->grid[2];
    if (g->grid[0] % size != 0) {
        ptx_fail(&r, NULL, "a grid of %u blocks in clusters of %u", g->grid[0], size);
    }
    /* clusters run one after the other; one that only waits lets the next begin */
    cluster **active = calloc(clusters ? clusters : 1, sizeof *active);
    uint64_t begun = 0, count = 0;
    while (!r.failed && (begun < clusters || count > 0)) {
        int64_t done = 0;
        if (count == 0) {
            active[count++] = cluster_begins(&r, begun++);
        }
        for (uint64_t k = 0; k < count && !r.failed;) {
            done += turns_of(&r, active[k]);
            if (active[k]->live == 0) {
                cluster_ends(active[k]);
                active[k] = active[--count];
            } else {
                k++;
            }
        }
        const int waits = done < (int64_t)count * SLICE / 8;
        if (!r.failed && waits && begun < clusters) {
            active[count++] = cluster_begins(&r, begun++);
        } else if (!r.failed && done == 0 && count > 0) {
            ptx_fail(&r, NULL, "every thread waits");
        }
        if (r.steps > MOST_STEPS) {
            ptx_fail(&r, NULL, "more steps than a kernel of a test has");
        }
    }
    while (count > 0) {
        cluster_ends(active[--count]);
    }
    free(active);
    return r.failed;
}
