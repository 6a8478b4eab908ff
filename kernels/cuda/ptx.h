/* The Hopper instructions that our kernels use, one function each: barriers in
 * shared memory, bulk tensor copies, warpgroup matrix products, clusters,
 * register hand-over and launch dependencies. Every .cu here includes it.
 *
 * It includes nothing, so that NVRTC needs no search path besides this folder. Names follow
 * the PTX ISA; u32 addresses are shared-memory addresses of the own block unless
 * a name says cluster. */
#ifndef QN_KERNELS_CUDA_PTX_H
#define QN_KERNELS_CUDA_PTX_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEV static __device__ __forceinline__

/* CUtensorMap, passed by value as a __grid_constant__ argument. */
typedef struct __align__(64) tensor_map {
    u64 word[16];
} tensor_map;

DEV u32 shared_address(const void *p)
{
    u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(p));
    return (u32)address;
}

/* ---- shared memory ---- */

DEV float load_shared_f32(u32 at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

DEV float2 load_shared_f32x2(u32 at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

DEV int load_shared_i32(u32 at)
{
    int v;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

DEV u32 load_shared_u16(u32 at)
{
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

DEV int2 load_shared_i32x2(u32 at)
{
    int2 v;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

DEV void store_shared_i32(u32 at, int v)
{
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

DEV void store_shared_i32x4(u32 at, int a, int b, int c, int d)
{
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

DEV void store_shared_f32(u32 at, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

DEV void store_shared_f32x2(u32 at, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

/* Four 8 x 8 matrices of 16-bit values, each as it lies in a product's sums; lane l gives the address of row l % 8 of
 * matrix l / 8. */
DEV void store_matrix(u32 at, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

/* The same, each matrix turned: its columns become rows. */
DEV void store_matrix_turned(u32 at, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

DEV u32 load_shared_u32(u32 at)
{
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

DEV u32 load_shared_u8(u32 at)
{
    u32 v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

DEV uint4 load_shared_u32x4(u32 at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

DEV uint2 load_shared_u32x2(u32 at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

DEV float4 load_shared_f32x4(u32 at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

DEV void store_shared_f32x4(u32 at, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

DEV void store_shared_u32x4(u32 at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Where `there`, else zeros, without a branch. */
DEV u32 load_shared_u32_if(u32 at, u32 there)
{
    u32 v = 0;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.shared.u32 %0, [%1];\n}"
                 : "+r"(v)
                 : "r"(at), "r"(there));
    return v;
}

DEV uint4 load_shared_u32x4_if(u32 at, u32 there)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(at), "r"(there));
    return v;
}

/* Address of the same location in block `rank` of the cluster. */
DEV u32 cluster_address(u32 at, u32 rank)
{
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(at), "r"(rank));
    return mapped;
}

DEV float4 load_cluster_f32x4(u32 at)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* A float, or four, to a block of the cluster, whose barrier there counts the bytes when they have landed. */
DEV void send_cluster_f32(u32 at, u32 bar, float v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(v), "r"(bar)
                 : "memory");
}

DEV void send_cluster_f32x4(u32 at, u32 bar, float a, float b, float c, float d)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
                 : "memory");
}

/* The same for a word. */
DEV void send_cluster_u32(u32 at, u32 bar, u32 v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(at), "r"(v), "r"(bar)
                 : "memory");
}

/* ---- constants in global memory, read where the text says: not behind a wait that follows ---- */

DEV u32 load_constant_u8(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

DEV u32 load_constant_u16(const void *p)
{
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

DEV u32 load_constant_u32(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

DEV uint2 load_constant_u32x2(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

DEV uint4 load_constant_u32x4(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* ---- from L2: what is read before another kernel writes it does not stay in L1 ---- */

DEV float2 load_l2_f32x2(const void *p)
{
    float2 v;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
    return v;
}

DEV float4 load_l2_f32x4(const void *p)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
    return v;
}

/* ---- how long L2 keeps what is read: policies of copies ---- */

#define L2_EVICT_FIRST 0x12F0000000000000ull
#define L2_EVICT_NORMAL 0x1000000000000000ull
#define L2_EVICT_LAST 0x14F0000000000000ull

/* ---- copies into shared memory that are waited for by the thread ---- */

/* Four bytes, or zeros where valid is 0: the source is then not read. */
DEV void copy_async_4(u32 to, const void *from, u32 valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

/* The same with 8 or 16 bytes at multiples of that, of which the first `count` are read and the others become zeros. */
DEV void copy_async_8(u32 to, const void *from, u32 count)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
}

DEV void copy_async_16(u32 to, const void *from, u32 count)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
}

/* 16 bytes that nothing reads again soon: L2 gives their lines away first. */
DEV void copy_async_16_once(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(L2_EVICT_FIRST)
                 : "memory");
}

/* All copies of this thread have landed. */
DEV void copy_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Copies come in groups: those since the group before; and all groups of this thread but the last so many have landed. */
DEV void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int groups> DEV void copy_async_wait_but(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/* ---- barriers in shared memory ---- */

DEV void barrier_init(u32 bar, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/* After the inits and before anyone, or any copy, uses the barriers. */
DEV void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEV void barrier_arrive(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* bar is an address from cluster_address. It says "I have read", and orders nothing that this thread wrote
 * for other blocks: a release at cluster scope would wait for all its memory traffic. */
DEV void barrier_arrive_cluster(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* The same after everything that this thread has seen done. */
DEV void barrier_arrive_cluster_release(u32 bar)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

DEV void barrier_arrive_expect(u32 bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

/* Arrives when all earlier copy_async_4 of this thread have landed. */
DEV void barrier_arrive_copies(u32 bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

DEV void barrier_wait(u32 bar, u32 parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Whether the wait would be over at once. */
DEV u32 barrier_test(u32 bar, u32 parity)
{
    u32 done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

/* True in one lane of a warp, all of which are here. The compiler then knows that one lane makes a copy. */
DEV bool warp_elect(void)
{
    u32 elected;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(elected));
    return elected;
}

/* Barrier `id` of some warps of a block. */
DEV void threads_arrive(u32 id, u32 threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEV void threads_sync(u32 id, u32 threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Orders ordinary shared-memory accesses before later bulk copies and matrix products. */
DEV void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- bulk tensor copies ---- */

DEV void tensor_map_prefetch(const tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEV void tensor_load_3d(u32 to, const tensor_map *map, u32 bar, int x, int y, int z, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
                 : "memory");
}

/* The same box to the same place in every block of the cluster whose bit is set in `blocks`. */
DEV void tensor_load_3d_multicast(u32 to, const tensor_map *map, u32 bar, int x, int y, int z, u16 blocks, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"(blocks), "l"(policy)
                 : "memory");
}

/* Asks the L2 cache for a box, or for the 128 bytes of an address. Before grid_wait, too: nothing is read yet, and what
 * the kernels ahead still write goes to the same cache. */
DEV void tensor_ask_3d(const tensor_map *map, int x, int y, int z)
{
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z)
                 : "memory");
}

DEV void ask_for(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* From shared memory; what lies beyond the tensor is left out. `policy`: of L2, 0 for none. */
DEV void tensor_store_3d(const tensor_map *map, u32 from, int x, int y, int z, u64 policy)
{
    if (policy) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint "
                     "[%0, {%2, %3, %4}], [%1], %5;" ::"l"(map),
                     "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy)
                     : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                     "r"(from), "r"(x), "r"(y), "r"(z)
                     : "memory");
    }
}

/* Neighbouring bytes, a multiple of 16 from a multiple of 16 on; the barrier counts them when they have landed. */
DEV void bulk_load(u32 to, const void *from, u32 bytes, u32 bar, u64 policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

DEV void tensor_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* This thread's stores have read their shared memory; or are done. */
DEV void tensor_store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

DEV void tensor_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- uniform values, late ones ---- */

/* A value that is the same in all lanes of a warp, which the compiler cannot see where it comes of the thread's index:
 * what hangs on it then stays in uniform registers and branches, and wgmma's instructions follow each other at once. */
DEV u32 uniform(u32 v)
{
    return __shfl_sync(~0u, v, 0);
}

/* What comes of the result the compiler computes where it is used, instead of keeping it in registers. */
DEV u32 lazy(u32 v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* ---- clusters, registers, launches ---- */

DEV u32 cluster_rank(void)
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEV void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/* For a meeting that publishes no writes: cheap, as it waits for no memory traffic. */
DEV void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

DEV void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#define REGISTERS_GIVE(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 " #n ";")
#define REGISTERS_TAKE(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 " #n ";")

/* Wait until the kernels before this one in the stream are done and their writes are seen. */
DEV void grid_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Let the next kernel of the stream begin its part before its own grid_wait. */
DEV void grid_release(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* One more on a count of the grid, returned as it was. Who counts later sees what who counted before had written, or seen
 * written by its block before a barrier. */
DEV int count_in(int *p)
{
    int was;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(was) : "l"(p) : "memory");
    return was;
}

/* The word on which blocks of a cooperative launch meet, found where CUDA's own grid barrier finds it and kept by the
 * driver between launches: its highest bit turns when all have added their shares, which are 2^31 together. */
DEV u32 *grid_word(void)
{
    u32 high, low;
    asm("mov.u32 %0, %%envreg1;" : "=r"(high));
    asm("mov.u32 %0, %%envreg2;" : "=r"(low));
    return (u32 *)((u64)high << 32 | low) + 1;
}

/* ---- numbers ---- */

/* Two floats to bf16, rounded to nearest even; `low` goes to the low half. */
DEV u32 pack_bf16(float low, float high)
{
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

DEV u32 pack_f16(float low, float high)
{
    u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

DEV float widen_f16(u16 bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

/* ---- warp matrix product: d[16,8] += a[16,16] b[8,16]' ---- */

/* Of 16-bit floats, two a word. Lane l holds, with g = l / 4 and t = l % 4: of a rows g, g + 8, g, g + 8 and columns
 * 2 t and the next, the latter two 8 further; of b row g and the same columns; of d rows g (d[0], d[1]) and g + 8,
 * columns 2 t and the next. */
#define MMA_16816_(type, d, a, b0, b1)                                                                                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                                       \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                    \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])                                             \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
#define MMA_BF16(d, a, b0, b1) MMA_16816_("bf16", d, a, b0, b1)
#define MMA_F16(d, a, b0, b1) MMA_16816_("f16", d, a, b0, b1)

/* The same of int8, four a word: columns 4 t and the next three, the latter 16 further. */
#define MMA_S8(d, a, b0, b1)                                                                                          \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "                                                   \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                    \
                 : "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3])                                             \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))

/* ---- warpgroup matrix product: d[64,N] = or += a[64,32] b[N,32]' ---- */

/* An operand tile in shared memory: rows of 128 bytes along K with the 128-byte swizzle of the
 * tensor map, first row at a multiple of 1024. 32 further values of K are 2 more in the descriptor. */
DEV u64 wgmma_operand(u32 at)
{
    return (u64)((at & 0x3FFFF) >> 4) | ((u64)1 << 16) | ((u64)64 << 32) | ((u64)1 << 62);
}
#define WGMMA_K_STEP 2

/* The operand so many times 16 bytes beyond that one; _on: the same in all lanes, see uniform. */
DEV u64 wgmma_operand_beyond(u64 first, u32 steps)
{
    return (first & ~(u64)0xFFFFFFFF) | ((u32)first + steps);
}

DEV u64 wgmma_operand_on(u64 first, u32 steps)
{
    return (first & ~(u64)0xFFFFFFFF) | uniform((u32)first + steps);
}

DEV void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEV void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define WGMMA_WAIT(pending) asm volatile("wgmma.wait_group.sync.aligned " #pending ";" ::: "memory")

/* A k-block's products, 128 bytes of a row of each operand: d = or += a b'. WGMMA_E4M3(N, d, a, b, accumulate): d is
 * float[N / 2], of WGMMA_S8S8 int[N / 2], which wraps. For j < N / 8, lane l of warp w holds rows 16 w + l / 4 (d[4j],
 * d[4j+1]) and 8 below it (d[4j+2], d[4j+3]), columns 8 j + 2 (l % 4) and the next. All in one statement, whose sums
 * the compiler follows once. */
#define WGMMA_E4M3(N, d, a, b, accumulate) WGMMA_BLOCK(N, "k32.f32.e4m3.e4m3", ", 1, 1", "+f", d, a, b, accumulate)
#define WGMMA_S8S8(N, d, a, b, accumulate) WGMMA_BLOCK(N, "k32.s32.s8.s8", "", "+r", d, a, b, accumulate)
#define WGMMA_BLOCK(N, types, signs, c, d, a, b, accumulate) WGMMA_BLOCK_(N, types, signs, c, d, a, b, accumulate)
#define WGMMA_BLOCK_(N, types, signs, c, d, a, b, accumulate)                                                          \
    asm volatile("{\n.reg .pred p, more;\n.reg .b64 a, b;\nsetp.eq.b32 more, 0, 0;\n"                                  \
                 "setp.ne.b32 p, " WGMMA_P##N ", 0;\n"                                                                 \
                 WGMMA_STEP(N, types, signs, WGMMA_A##N ", " WGMMA_B##N ", p")                                         \
                 WGMMA_NEXT(N, types, signs, "2") WGMMA_NEXT(N, types, signs, "4") WGMMA_NEXT(N, types, signs, "6")    \
                 "}"                                                                                                   \
                 : WGMMA_R##N(c, d)                                                                                    \
                 : "l"(a), "l"(b), "r"(accumulate)                                                                     \
                 : "memory")
#define WGMMA_STEP(N, types, signs, from)                                                                              \
    "wgmma.mma_async.sync.aligned.m64n" #N types " {" WGMMA_S##N "}, " from signs ";\n"
#define WGMMA_NEXT(N, types, signs, step)                                                                              \
    "add.s64 a, " WGMMA_A##N ", " step ";\nadd.s64 b, " WGMMA_B##N ", " step ";\n"                                     \
    WGMMA_STEP(N, types, signs, "a, b, more")
#define WGMMA_Q(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define WGMMA_S8 "%0,%1,%2,%3"
#define WGMMA_R8(c, d) WGMMA_Q(c, d, 0)
#define WGMMA_A8 "%4"
#define WGMMA_B8 "%5"
#define WGMMA_P8 "%6"
#define WGMMA_S16 WGMMA_S8 ",%4,%5,%6,%7"
#define WGMMA_R16(c, d) WGMMA_R8(c, d), WGMMA_Q(c, d, 4)
#define WGMMA_A16 "%8"
#define WGMMA_B16 "%9"
#define WGMMA_P16 "%10"
#define WGMMA_S24 WGMMA_S16 ",%8,%9,%10,%11"
#define WGMMA_R24(c, d) WGMMA_R16(c, d), WGMMA_Q(c, d, 8)
#define WGMMA_A24 "%12"
#define WGMMA_B24 "%13"
#define WGMMA_P24 "%14"
#define WGMMA_S32 WGMMA_S24 ",%12,%13,%14,%15"
#define WGMMA_R32(c, d) WGMMA_R24(c, d), WGMMA_Q(c, d, 12)
#define WGMMA_A32 "%16"
#define WGMMA_B32 "%17"
#define WGMMA_P32 "%18"
#define WGMMA_S40 WGMMA_S32 ",%16,%17,%18,%19"
#define WGMMA_R40(c, d) WGMMA_R32(c, d), WGMMA_Q(c, d, 16)
#define WGMMA_A40 "%20"
#define WGMMA_B40 "%21"
#define WGMMA_P40 "%22"
#define WGMMA_S48 WGMMA_S40 ",%20,%21,%22,%23"
#define WGMMA_R48(c, d) WGMMA_R40(c, d), WGMMA_Q(c, d, 20)
#define WGMMA_A48 "%24"
#define WGMMA_B48 "%25"
#define WGMMA_P48 "%26"
#define WGMMA_S56 WGMMA_S48 ",%24,%25,%26,%27"
#define WGMMA_R56(c, d) WGMMA_R48(c, d), WGMMA_Q(c, d, 24)
#define WGMMA_A56 "%28"
#define WGMMA_B56 "%29"
#define WGMMA_P56 "%30"
#define WGMMA_S64 WGMMA_S56 ",%28,%29,%30,%31"
#define WGMMA_R64(c, d) WGMMA_R56(c, d), WGMMA_Q(c, d, 28)
#define WGMMA_A64 "%32"
#define WGMMA_B64 "%33"
#define WGMMA_P64 "%34"
#define WGMMA_S72 WGMMA_S64 ",%32,%33,%34,%35"
#define WGMMA_R72(c, d) WGMMA_R64(c, d), WGMMA_Q(c, d, 32)
#define WGMMA_A72 "%36"
#define WGMMA_B72 "%37"
#define WGMMA_P72 "%38"
#define WGMMA_S80 WGMMA_S72 ",%36,%37,%38,%39"
#define WGMMA_R80(c, d) WGMMA_R72(c, d), WGMMA_Q(c, d, 36)
#define WGMMA_A80 "%40"
#define WGMMA_B80 "%41"
#define WGMMA_P80 "%42"
#define WGMMA_S88 WGMMA_S80 ",%40,%41,%42,%43"
#define WGMMA_R88(c, d) WGMMA_R80(c, d), WGMMA_Q(c, d, 40)
#define WGMMA_A88 "%44"
#define WGMMA_B88 "%45"
#define WGMMA_P88 "%46"
#define WGMMA_S96 WGMMA_S88 ",%44,%45,%46,%47"
#define WGMMA_R96(c, d) WGMMA_R88(c, d), WGMMA_Q(c, d, 44)
#define WGMMA_A96 "%48"
#define WGMMA_B96 "%49"
#define WGMMA_P96 "%50"
#define WGMMA_S104 WGMMA_S96 ",%48,%49,%50,%51"
#define WGMMA_R104(c, d) WGMMA_R96(c, d), WGMMA_Q(c, d, 48)
#define WGMMA_A104 "%52"
#define WGMMA_B104 "%53"
#define WGMMA_P104 "%54"
#define WGMMA_S112 WGMMA_S104 ",%52,%53,%54,%55"
#define WGMMA_R112(c, d) WGMMA_R104(c, d), WGMMA_Q(c, d, 52)
#define WGMMA_A112 "%56"
#define WGMMA_B112 "%57"
#define WGMMA_P112 "%58"
#define WGMMA_S120 WGMMA_S112 ",%56,%57,%58,%59"
#define WGMMA_R120(c, d) WGMMA_R112(c, d), WGMMA_Q(c, d, 56)
#define WGMMA_A120 "%60"
#define WGMMA_B120 "%61"
#define WGMMA_P120 "%62"
#define WGMMA_S128 WGMMA_S120 ",%60,%61,%62,%63"
#define WGMMA_R128(c, d) WGMMA_R120(c, d), WGMMA_Q(c, d, 60)
#define WGMMA_A128 "%64"
#define WGMMA_B128 "%65"
#define WGMMA_P128 "%66"
#define WGMMA_S136 WGMMA_S128 ",%64,%65,%66,%67"
#define WGMMA_R136(c, d) WGMMA_R128(c, d), WGMMA_Q(c, d, 64)
#define WGMMA_A136 "%68"
#define WGMMA_B136 "%69"
#define WGMMA_P136 "%70"
#define WGMMA_S144 WGMMA_S136 ",%68,%69,%70,%71"
#define WGMMA_R144(c, d) WGMMA_R136(c, d), WGMMA_Q(c, d, 68)
#define WGMMA_A144 "%72"
#define WGMMA_B144 "%73"
#define WGMMA_P144 "%74"
#define WGMMA_S152 WGMMA_S144 ",%72,%73,%74,%75"
#define WGMMA_R152(c, d) WGMMA_R144(c, d), WGMMA_Q(c, d, 72)
#define WGMMA_A152 "%76"
#define WGMMA_B152 "%77"
#define WGMMA_P152 "%78"
#define WGMMA_S160 WGMMA_S152 ",%76,%77,%78,%79"
#define WGMMA_R160(c, d) WGMMA_R152(c, d), WGMMA_Q(c, d, 76)
#define WGMMA_A160 "%80"
#define WGMMA_B160 "%81"
#define WGMMA_P160 "%82"
#define WGMMA_S168 WGMMA_S160 ",%80,%81,%82,%83"
#define WGMMA_R168(c, d) WGMMA_R160(c, d), WGMMA_Q(c, d, 80)
#define WGMMA_A168 "%84"
#define WGMMA_B168 "%85"
#define WGMMA_P168 "%86"
#define WGMMA_S176 WGMMA_S168 ",%84,%85,%86,%87"
#define WGMMA_R176(c, d) WGMMA_R168(c, d), WGMMA_Q(c, d, 84)
#define WGMMA_A176 "%88"
#define WGMMA_B176 "%89"
#define WGMMA_P176 "%90"
#define WGMMA_S184 WGMMA_S176 ",%88,%89,%90,%91"
#define WGMMA_R184(c, d) WGMMA_R176(c, d), WGMMA_Q(c, d, 88)
#define WGMMA_A184 "%92"
#define WGMMA_B184 "%93"
#define WGMMA_P184 "%94"
#define WGMMA_S192 WGMMA_S184 ",%92,%93,%94,%95"
#define WGMMA_R192(c, d) WGMMA_R184(c, d), WGMMA_Q(c, d, 92)
#define WGMMA_A192 "%96"
#define WGMMA_B192 "%97"
#define WGMMA_P192 "%98"

#endif
