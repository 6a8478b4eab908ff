/* Quantisers with one scale for a whole tensor, in one launch of a block a multiprocessor, all of which are resident: a
 * block reads its part of x, all blocks tell each other the range of theirs, and it writes the codes of that part. Most
 * of it is still there then: in shared memory, in registers, and what was read last in the L2 cache.
 *
 * x is elements without gaps, in units of PER, and those in slots, of which a block has every gridDim.x-th; what no
 * slot holds is dealt out evenly. One warp has slots copied into shared memory: the first ones, which stay there, then
 * through a ring those that go to registers and those that pass by. When the range is known, it has what passed by
 * copied again, from the last on backwards. The other warps each take their places of a slot; they turn what stayed and
 * what comes again into codes in turn, so that memory and they themselves are busy at once.
 *
 * Parameters
 *   ONCE_PLACE  bytes of a slot that a thread has
 *   ONCE_SLOTS  in shared memory, of which ONCE_RING are the ring
 *   ONCE_HELD   slots in registers, no more than stay in shared memory
 * The file that includes this one defines, besides what rows.h wants, ONCE_ARGS, the type of its argument with x and
 * ranges, once_rule, what codes hang on, and the two functions below.
 * Launch, cooperative: block ONCE_THREADS + 32, a block a multiprocessor, shared memory of ONCE_SLOTS slots. */
#ifndef QN_CUDA_TENSOR_ONCE_H
#define QN_CUDA_TENSOR_ONCE_H

#include "rows.h"
#include "cuda_once.h"

#define ONCE_THREADS QN_ONCE_READERS
#define ONCE_WARPS (ONCE_THREADS / 32)
#define ONCE_UNIT (16 * X_WORDS)
#define ONCE_PLACES (ONCE_PLACE / ONCE_UNIT)
#define ONCE_UNITS (ONCE_THREADS * ONCE_PLACES) /* of a slot */
#define ONCE_BYTES (ONCE_THREADS * ONCE_PLACE)
#define ONCE_FIXED (ONCE_SLOTS - ONCE_RING)
#define ONCE_NONE (~0ull) /* no range: both its halves would be NaN */

/* r: of the whole tensor. write_once: codes of `count` units from the first on, of which this thread has those that
 * are threadIdx.x and whole ONCE_THREADS on. */
static __device__ inline once_rule make_once(const ONCE_ARGS &a, range r);
static __device__ inline void write_once(const ONCE_ARGS &a, const once_rule &how, const uint4 (*raw)[X_WORDS],
                                         i64 first, u32 count);

struct once_shared {
    u64 full[ONCE_SLOTS], empty[ONCE_SLOTS];
    range parts[32], joined[32];
};

/* How many slots of this block, its part of what is left over included, stay in shared memory, go to registers and pass
 * by, the last of these staying in the ring. In this order, that part first. */
struct once_part {
    u32 fixed, held, passed, last;
};

static __device__ inline once_part part_of(const qn_cuda_deal &o)
{
    const u32 all = o.whole + 1, beyond = all > ONCE_FIXED ? all - ONCE_FIXED : 0;
    once_part p;
    p.fixed = all - beyond;
    p.held = beyond < ONCE_HELD ? beyond : ONCE_HELD;
    p.passed = beyond - p.held;
    p.last = p.passed < ONCE_RING ? p.passed : ONCE_RING;
    return p;
}

/* First unit of slot i, and how many. */
static __device__ inline i64 first_of(const qn_cuda_deal &o, u32 i)
{
    return i ? ((i64)(i - 1) * gridDim.x + blockIdx.x) * ONCE_UNITS
             : (i64)o.whole * gridDim.x * ONCE_UNITS + (i64)o.each * blockIdx.x;
}

static __device__ inline u32 units_of(const qn_cuda_deal &o, u32 i)
{
    if (i) {
        return ONCE_UNITS;
    }
    const i64 left = o.units - first_of(o, 0);
    return left < 0 ? 0 : left < o.each ? (u32)left : o.each;
}

/* Of the ring. */
static __device__ inline u32 next_slot(u32 slot)
{
    return slot + 1 == ONCE_SLOTS ? ONCE_FIXED : slot + 1;
}

static __device__ inline once_shared &once_block()
{
    __shared__ once_shared s;
    return s;
}

/* First of all, by every thread. */
static __device__ inline void begin_once()
{
    once_shared &s = once_block();
    if (threadIdx.x == 0) {
        for (int i = 0; i < ONCE_SLOTS; i++) {
            barrier_init(shared_address(&s.full[i]), 1);
            barrier_init(shared_address(&s.empty[i]), ONCE_THREADS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    begin_kernel();
}

/* ---- the copying warp ---- */

static __device__ void copy_slots(const char *x, const qn_cuda_deal &o, const once_part &p, once_shared *s, u64 *words,
                                  u32 ring)
{
    const u32 full = shared_address(s->full), empty = shared_address(s->empty);
    const u64 keeps = keep_policy(), passes = pass_policy();
    const u32 share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
    u32 before, now;
    words[blockIdx.x] = ONCE_NONE; /* before anyone looks: blocks meet here, long before they have a range */
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(grid_word()), "r"(share) : "memory");
    const u32 all = p.fixed + p.held + p.passed, loads = all + p.passed - p.last;
    u32 slot = ONCE_FIXED, used = 0, round = 0; /* bits of the ring */
    for (u32 i = 0; i < loads; i++) {
        if (i == (all <= ONCE_FIXED ? all - 1 : ONCE_FIXED)) { /* no later than the last of them is copied */
            do {
                asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(grid_word()) : "memory");
            } while (((before ^ now) & 0x80000000u) == 0);
        }
        const u32 which = i < all ? i : loads - 1 - i + p.fixed + p.held, units = units_of(o, which);
        const int cached = i >= p.fixed + p.held && i < all - p.last && i + o.cached >= all - p.last;
        const u32 to = i < p.fixed ? i : slot;
        if (i >= p.fixed) {
            if (used >> slot & 1) {
                barrier_wait(empty + slot * 8, round >> slot & 1);
                round ^= 1u << slot;
            }
            used |= 1u << slot;
            slot = next_slot(slot);
        }
        barrier_arrive_expect(full + to * 8, units * ONCE_UNIT);
        if (units) {
            bulk_load(ring + to * ONCE_BYTES, x + first_of(o, which) * ONCE_UNIT, units * ONCE_UNIT, full + to * 8,
                      cached ? keeps : passes);
        }
    }
}

/* ---- the readers ---- */

static __device__ inline u32 place_of(u32 ring, u32 slot, int u, int w)
{
    return ring + slot * ONCE_BYTES + (u * ONCE_THREADS + threadIdx.x) * ONCE_UNIT + w * 16;
}

static __device__ inline void read_slot(u32 ring, u32 slot, uint4 (*raw)[X_WORDS])
{
#pragma unroll
    for (int u = 0; u < ONCE_PLACES; u++) {
#pragma unroll
        for (int w = 0; w < X_WORDS; w++) {
            raw[u][w] = load_shared_u32x4(place_of(ring, slot, u, w));
        }
    }
}

static __device__ inline void widen_by_places(range *r, const uint4 (*raw)[X_WORDS])
{
#pragma unroll
    for (int u = 0; u < ONCE_PLACES; u++) {
        widen_by_lane(r, raw[u]);
    }
}

/* Every reader says it for itself: one lane's word for a warp would do, but where lanes are known to be together the
 * compiler leaves their meeting out, and then a checker of races cannot see it. */
static __device__ inline void leave_slot(u32 empty, u32 slot)
{
    barrier_arrive(empty + slot * 8);
}

/* Over the readers. */
static __device__ inline void reduce_readers(range *r, range *parts)
{
    reduce_lanes(r, 32);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = *r;
    }
    threads_sync(1, ONCE_THREADS);
    const u32 lane = threadIdx.x % 32;
    *r = lane < ONCE_WARPS ? parts[lane] : no_range();
    reduce_lanes(r, 32);
}

/* The block's range to all blocks, and theirs. */
static __device__ inline void meet(range *r, u64 *words, once_shared *s)
{
    reduce_readers(r, s->parts);
    if (threadIdx.x == 0) {
        u64 word = (u64)__float_as_uint(r->high) << 32;
#if ASYMMETRIC
        word |= __float_as_uint(fabsf(r->low));
#endif
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + blockIdx.x), "l"(word) : "memory");
    }
    for (u32 i = threadIdx.x; i < gridDim.x; i += ONCE_THREADS) {
        u64 word;
        do {
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(words + i) : "memory");
        } while (word == ONCE_NONE);
        r->high = fmaxf(r->high, __uint_as_float((u32)(word >> 32)));
#if ASYMMETRIC
        r->low = fminf(r->low, -__uint_as_float((u32)word));
#endif
    }
    reduce_readers(r, s->joined);
}

/* all: the range of what no unit holds, then that of everything. */
static __device__ inline void quantise_once(const ONCE_ARGS &a, const qn_cuda_deal &o, range *all, char *slots)
{
    once_shared &s = once_block();
    u64 *const words = (u64 *)a.ranges;
    range r = *all;
    const once_part p = part_of(o);
    const u32 ring = shared_address(slots), full = shared_address(s.full), empty = shared_address(s.empty);
    if (threadIdx.x >= ONCE_THREADS) {
        if (threadIdx.x == ONCE_THREADS) {
            copy_slots(a.x, o, p, &s, words, ring);
        }
        return;
    }
    for (u32 i = 0; i < p.fixed; i++) {
        uint4 raw[ONCE_PLACES][X_WORDS];
        barrier_wait(full + i * 8, 0);
        read_slot(ring, i, raw);
        if (i == 0) { /* nothing was copied behind its units */
            const u32 units = units_of(o, 0);
#pragma unroll
            for (int u = 0; u < ONCE_PLACES; u++) {
#pragma unroll
                for (int w = 0; w < X_WORDS; w++) {
                    raw[u][w] = u * ONCE_THREADS + threadIdx.x < units ? raw[u][w] : make_uint4(0, 0, 0, 0);
                }
            }
        }
        widen_by_places(&r, raw);
    }
    u32 slot = ONCE_FIXED, rounds = 0; /* bits of the ring */
    uint4 held[ONCE_HELD][ONCE_PLACES][X_WORDS];
#pragma unroll
    for (int j = 0; j < ONCE_HELD; j++) {
        if (j < p.held) {
            barrier_wait(full + slot * 8, rounds >> slot & 1);
            rounds ^= 1u << slot;
            read_slot(ring, slot, held[j]);
            leave_slot(empty, slot);
            widen_by_places(&r, held[j]);
            slot = next_slot(slot);
        }
    }
    u32 oldest = slot;
    for (u32 i = 0; i < p.passed; i++) {
        uint4 raw[ONCE_PLACES][X_WORDS];
        barrier_wait(full + slot * 8, rounds >> slot & 1);
        rounds ^= 1u << slot;
        read_slot(ring, slot, raw);
        if (i + p.last < p.passed) {
            leave_slot(empty, slot);
            oldest = next_slot(slot);
        }
        widen_by_places(&r, raw);
        slot = next_slot(slot);
    }
    meet(&r, words, &s);
    const once_rule how = make_once(a, r);
    *all = r;
    const u32 before = p.fixed + p.held;
    slot = oldest;
    for (u32 i = p.passed - p.last; i < p.passed; i++) {
        uint4 raw[ONCE_PLACES][X_WORDS];
        read_slot(ring, slot, raw);
        leave_slot(empty, slot);
        write_once(a, how, raw, first_of(o, before + i), ONCE_UNITS);
        slot = next_slot(slot);
    }
    u32 again = p.passed - p.last;
    const auto take = [&]() {
        uint4 raw[ONCE_PLACES][X_WORDS];
        again--;
        barrier_wait(full + slot * 8, rounds >> slot & 1);
        rounds ^= 1u << slot;
        read_slot(ring, slot, raw);
        leave_slot(empty, slot);
        write_once(a, how, raw, first_of(o, before + again), ONCE_UNITS);
        slot = next_slot(slot);
    };
    for (u32 i = 0; i < before; i++) {
        uint4 raw[ONCE_PLACES][X_WORDS];
        if (i == p.fixed) { /* each thread's places of registers to where it alone looks */
#pragma unroll
            for (int j = 0; j < ONCE_HELD; j++) {
#pragma unroll
                for (int u = 0; u < ONCE_PLACES; u++) {
#pragma unroll
                    for (int w = 0; w < X_WORDS; w++) {
                        if (j < p.held) {
                            store_shared_u32x4(place_of(ring, j, u, w), held[j][u][w]);
                        }
                    }
                }
            }
        }
        read_slot(ring, i < p.fixed ? i : i - p.fixed, raw);
        write_once(a, how, raw, first_of(o, i), units_of(o, i));
        if (again) {
            take();
        }
    }
    while (again) {
        take();
    }
}

#endif
