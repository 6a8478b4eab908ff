/* y = x w^T for one row of x by partial sums, of a codebook that shared memory does not hold: a cluster of eight blocks
 * takes the vectors of x eight at a time, and each block keeps one table, the products of all entries with one of them,
 * as f16. A code is then one access of 2 bytes.
 *
 * A block makes the products of an eighth of the entries with all eight vectors, by matrix instructions whose rows are
 * entries and whose columns are vectors, and each table's share goes to the memory of the block that keeps it. So the
 * book is read once a pass by a cluster, not by a block. Codes are exchanged too, as they lie by rows of w: a block
 * reads the eight codes, 16 bytes, of an eighth of the rows, turns eight rows' around and sends each block its column.
 * Entries lie in the rows of instructions so that what a lane has of a table, turned, is 16 bytes of it.
 *
 * A vector of x is multiplied by a power of two that brings its largest element times the book's to about 2^12, so that
 * a product neither overflows nor loses digits; sums of a row stay in registers, and are added over the cluster, in
 * order of rank, at the end. Clusters' sums are parts, added by qn_vq_finish.
 *
 * Host contract
 *   Parameters: BITS 13 to 16, VECTOR 8 or 16, X_FORMAT, TASKS 1 to 7: rows of a range, by 4096;
 *     STAGED, 1 to 8: of eight rows' codes those that wait in shared memory for their pass;
 *     IN_SHARED and IN_REGISTERS: chunks of 512 entries of a block's share that stay there, the others are read again
 *     in each pass
 *   One codebook, f16, without gaps at multiples of 16; codes of two bytes, rows of them at multiples of 16; groups a
 *   multiple of 8
 *   Launch: block 512, grid {8 * clusters, ranges}, clusters of 8; qn_cuda_vq_exchange_cut_of's shared memory */
#include "vq_parts.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define CLUSTER 8
#define ENTRIES (1 << BITS)
#define SLICE (ENTRIES / CLUSTER)
#define DEPTH (VECTOR / 8) /* words of an entry a lane */
#define RANGE (TASKS * THREADS * 8)
#define SHARE (RANGE / CLUSTER) /* rows whose codes a block reads */
#define TABLE_BYTES (ENTRIES * 2)
#define CODES_AT (TABLE_BYTES > RANGE * 4 ? TABLE_BYTES : RANGE * 4) /* the table's room is that of sums at the end */
#define CHUNK (WARPS * 32)                                           /* entries, 32 a warp */
#define CHUNKS (SLICE / CHUNK)
#define CHUNK_BYTES (CHUNK * VECTOR * 2)
#define READERS (SHARE / 8) /* threads */
#define STAGE_AT (CODES_AT + RANGE * 2)
#define BOOK_AT (STAGE_AT + STAGED * READERS * 16)
#define KEPT (IN_REGISTERS + IN_SHARED)
#define TOGETHER ((CHUNKS - KEPT) % 2 ? 1 : 2)         /* chunks that come at a time */
#define LARGEST_AT (BOOK_AT + IN_SHARED * CHUNK_BYTES) /* [CLUSTER][WARPS] */
#define CAME_AT (LARGEST_AT + CLUSTER * WARPS * 4)     /* barriers: codes have come to the block, */
#define READY_AT (CAME_AT + 8)                         /* and what a pass looks up is there */

extern __shared__ __align__(128) u8 memory[];

/* ---- products ---- */

/* The largest magnitude of the block's share of the book that the warp sees, as the bits of a f16. */
DEV u32 largest_of_slice(const qn_cuda_vq &a, u32 rank)
{
    const uint4 *const from = (const uint4 *)(a.books + (i64)rank * SLICE * VECTOR * 2);
    u32 most = 0;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < SLICE * DEPTH; i += THREADS) {
        const uint4 v = from[i];
        most = __vmaxu2(__vmaxu2(most, v.x & 0x7fff7fffu), v.y & 0x7fff7fffu);
        most = __vmaxu2(__vmaxu2(most, v.z & 0x7fff7fffu), v.w & 0x7fff7fffu);
    }
    return __reduce_max_sync(~0u, max(most >> 16, most & 0xffffu));
}

/* The lane's elements of vector lane / 4 of a pass as an operand, and what products are to be multiplied by. */
DEV float operand_of(const qn_cuda_vq &a, int pass, u32 largest, int lane, u32 *operand)
{
    float v[DEPTH][2];
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < DEPTH * 2; i++) {
        v[i / 2][i % 2] =
            load_float(a.x, (i64)(pass * 8 + lane / 4) * VECTOR + i / 2 * 8 + lane % 4 * 2 + i % 2, X_FORMAT);
        most = max(most, __float_as_uint(v[i / 2][i % 2]) & 0x7fffffffu);
    }
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    /* elements of the book are below 2^(exponent - 14), those of x below 2^(exponent - 126) */
    const int of_book = (int)(largest >> 10), of_x = (int)(most >> 23);
    const int up = max(-126, min(126, min(153 - DEPTH - of_book, 141) - of_x));
    const float scale = __uint_as_float((u32)(127 + up) << 23);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        operand[d] = pack_f16(v[d][0] * scale, v[d][1] * scale);
    }
    return __uint_as_float((u32)(127 - up) << 23);
}

/* Products of the eight vectors with two times eight entries: pairs of f16, of a vector and two entries, as the lanes
 * of its row have them. */
DEV void multiply(const u32 *x, const u32 *low, const u32 *high, u32 *pairs)
{
    float sum[4] = {};
#if DEPTH == 2
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(low[0]), "r"(high[0]), "r"(low[1]), "r"(high[1]), "r"(x[0]), "r"(x[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(low[0]), "r"(high[0]), "r"(x[0]));
#endif
#pragma unroll
    for (int i = 0; i < 2; i++) {
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(pairs[i])
                     : "r"(pack_f16(sum[2 * i], sum[2 * i + 1])));
    }
}

/* 16 or 8 bytes to a block, whose barrier there counts them when they have landed; block: where its memory begins. */
DEV void send(u32 block, u32 at, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(block + at),
        "r"(a), "r"(b), "r"(c), "r"(d), "r"(block + READY_AT)
        : "memory");
}

DEV void send(u32 block, u32 at, u32 a, u32 b)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(block + at),
                 "r"(a), "r"(b), "r"(block + READY_AT)
                 : "memory");
}

/* Of 32 entries row n of matrix i is number n / 2 * 8 + 2 ((i + n / 2) % 4) + n % 2: a lane finds the products of eight
 * neighbouring ones, and the rows of a matrix do not share banks. */
DEV int entry_of(int matrix, int row)
{
    return row / 2 * 8 + (matrix + row / 2) % 4 * 2 + row % 2;
}

/* Four times eight entries as operands. */
struct entries {
    u32 of[4][DEPTH];
};

DEV void load_entries(const qn_cuda_vq &a, u32 rank, int chunk, int warp, int lane, entries *e)
{
    const char *const from = a.books + ((i64)rank * SLICE + chunk * CHUNK + warp * 32) * (VECTOR * 2) + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const char *const at = from + entry_of(i, lane / 4) * (VECTOR * 2);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(e->of[i][d]) : "l"(at + d * 16));
        }
    }
}

/* The same of a chunk in shared memory. */
DEV void load_matrices(u32 base, int chunk, int warp, int lane, entries *e)
{
    const u32 at = base + BOOK_AT + (u32)(chunk * CHUNK + warp * 32 + entry_of(lane / 8, lane % 8)) * (VECTOR * 2);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(e->of[0][d]), "=r"(e->of[1][d]), "=r"(e->of[2][d]), "=r"(e->of[3][d])
                     : "r"(at + d * 16)
                     : "memory");
    }
}

/* The warp's products of a chunk to the tables. */
DEV void send_products(const u32 *x, const entries &e, u32 block, u32 table, int chunk, int warp, int lane)
{
    u32 pair[4];
    multiply(x, e.of[0], e.of[1], pair);
    multiply(x, e.of[2], e.of[3], pair + 2);
    if (lane & 1) {
        const u32 kept = pair[3];
        pair[3] = pair[2], pair[2] = pair[1], pair[1] = pair[0], pair[0] = kept;
    }
    const bool swap = lane & 2;
    send(block, table + (u32)(chunk * WARPS + warp) * 64, swap ? pair[2] : pair[0], swap ? pair[3] : pair[1],
         swap ? pair[0] : pair[2], swap ? pair[1] : pair[3]);
}

/* ---- codes ---- */

/* 16 bytes of four rows each. */
struct pieces {
    uint4 of_row[4];
};

/* at: where in a block's memory. Blocks begin with different others, or all would send to one at a
 * time: words are turned by the rank. */
DEV void send_pieces(pieces &p, u32 base, u32 at, u32 rank)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 &v = p.of_row[i];
        if (rank & 2) {
            v = make_uint4(v.y, v.z, v.w, v.x);
        }
        if (rank & 4) {
            v = make_uint4(v.z, v.w, v.x, v.y);
        }
    }
#pragma unroll
    for (u32 step = 0; step < CLUSTER; step++) {
        const u32 odd = (step ^ rank) & 1, block = (((step & 6) + (rank & 6)) & 7) | odd;
        u32 word[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 &low = p.of_row[2 * i], &high = p.of_row[2 * i + 1];
            const u32 a = step < 2 ? low.x : step < 4 ? low.y : step < 6 ? low.z : low.w;
            const u32 b = step < 2 ? high.x : step < 4 ? high.y : step < 6 ? high.z : high.w;
            word[i] = __byte_perm(a, b, odd ? 0x7632 : 0x5410);
        }
        send(cluster_address(base, block), at, word[0], word[1]);
    }
}

/* ---- lookups ---- */

DEV float look_up(u32 at)
{
    float v;
    asm volatile("{\n.reg .b16 half;\nld.shared.b16 half, [%1];\ncvt.f32.f16 %0, half;\n}" : "=f"(v) : "r"(at));
    return v;
}

/* The thread's number and what is made of it, found again for each phase of a pass: registers are few. */
struct place {
    int thread, lane, warp;
    u32 rank;
};

DEV place place_here(void)
{
    place p;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(p.thread));
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(p.rank));
    p.lane = p.thread % 32;
    p.warp = p.thread / 32;
    return p;
}

/* Pieces of the block's share of codes are on their way during a pass, those of eight rows a thread, READERS rows
 * apart: the first STAGED to shared memory, by the copy engine, the others to registers. */
struct late_pieces {
    uint4 of_row[STAGED < 8 ? 8 - STAGED : 1];
};

DEV void ask_pieces(const qn_cuda_vq &a, const tensor_map *map, u32 base, int pass, late_pieces *late)
{
    const place p = place_here();
    u32 range;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(range));
    const int row0 = (int)range * RANGE + (int)p.rank * SHARE, more = pass < a.groups / 8;
    if (p.thread == 0 && more) {
        barrier_arrive_expect(base + CAME_AT, STAGED * READERS * 16);
#pragma unroll 1
        for (int i = 0; i < STAGED * 2; i++) {
            tensor_load_3d(base + STAGE_AT + (u32)i * (READERS * 8), map, base + CAME_AT, pass * 16,
                           row0 + i * (READERS / 2), 0, L2_EVICT_NORMAL);
        }
    }
#pragma unroll
    for (int i = STAGED; i < 8; i++) {
        const int row = row0 + i * READERS + p.thread;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (p.thread < READERS && row < a.n && more) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "l"(a.codes + (i64)row * a.codes_row + (i64)pass * 16));
        }
        late->of_row[i - STAGED < 0 ? 0 : i - STAGED] = v;
    }
}

/* What came to the blocks whose tables it is for: a thread's first four rows to one half of the share, the others to
 * the other. */
DEV void exchange_pieces(u32 base, u32 phase, const late_pieces &late)
{
    const place p = place_here();
    if (p.thread < READERS) {
        barrier_wait(base + CAME_AT, phase);
#pragma unroll
        for (int half = 1; half >= 0; half--) { /* registers are free after the first */
            pieces codes;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int piece = half * 4 + i;
                codes.of_row[i] = piece < STAGED
                                      ? load_shared_u32x4(base + STAGE_AT + (u32)(piece * READERS + p.thread) * 16)
                                      : late.of_row[piece - STAGED < 0 ? 0 : piece - STAGED];
            }
            send_pieces(codes, base, CODES_AT + (p.rank * SHARE + (u32)half * (SHARE / 2) + (u32)p.thread * 4) * 2,
                        p.rank);
        }
    }
    __syncthreads(); /* before the copy engine writes there again */
}

/* The first row of a range of the eight whose codes were sent to 16 bytes; those of each other four are READERS apart,
 * the second four begin with the row after the first. */
DEV u32 row_of_codes(u32 task)
{
    return task / (SHARE / 8) * SHARE + task / (SHARE / 16) % 2 * 4 * READERS + task % (SHARE / 16) * 2;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_vq_exchange(const __grid_constant__ qn_cuda_vq a, const __grid_constant__ tensor_map map)
{
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int cluster = (int)blockIdx.x / CLUSTER, clusters = (int)gridDim.x / CLUSTER, passes = a.groups / 8;
    const u32 rank = cluster_rank(), base = shared_address(memory);
    float sum[TASKS][8] = {};
    entries kept[IN_REGISTERS > 0 ? IN_REGISTERS : 1];
    release_next();
    if (thread == 0) {
        tensor_map_prefetch(&map);
        barrier_init(base + CAME_AT, 1);
        barrier_init(base + READY_AT, 1);
        barrier_init_fence();
    }
    cluster_arrive();
    if (!a.early) { /* weights stay: they may be read while the kernel in front works */
        wait_before();
    }
    late_pieces late;
    ask_pieces(a, &map, base, cluster, &late);
    u32 largest = largest_of_slice(a, rank);
    for (int i = thread; i < IN_SHARED * CHUNK * DEPTH; i += THREADS) {
        const uint4 v = ((const uint4 *)(a.books + ((i64)rank * SLICE + IN_REGISTERS * CHUNK) * (VECTOR * 2)))[i];
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(base + BOOK_AT + (u32)i * 16), "r"(v.x), "r"(v.y),
                     "r"(v.z), "r"(v.w)
                     : "memory");
    }
#pragma unroll
    for (int i = 0; i < IN_REGISTERS; i++) {
        load_entries(a, rank, i, warp, lane, &kept[i]);
    }
    cluster_wait();
    if (lane < CLUSTER) {
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(
                         cluster_address(base + LARGEST_AT + (rank * WARPS + (u32)warp) * 4, (u32)lane)),
                     "r"(largest)
                     : "memory");
    }
    cluster_arrive();
    cluster_wait();
    if (a.early) {
        wait_before();
    }
    largest = 0;
#pragma unroll
    for (int i = 0; i < CLUSTER * WARPS; i += 32) {
        largest = max(largest, load_shared_u32(base + LARGEST_AT + (u32)(i + lane) * 4));
    }
    largest = __reduce_max_sync(~0u, largest);
    cluster_arrive_relaxed();
    u32 phase = 0;
#pragma unroll 1
    for (int pass = cluster; pass < passes; pass += clusters) {
        float by;
        if (thread == 0) {
            barrier_arrive_expect(base + READY_AT, TABLE_BYTES + RANGE * 2);
        }
        cluster_wait(); /* nobody looks up what the last pass left */
        exchange_pieces(base, phase, late);
        ask_pieces(a, &map, base, pass + clusters, &late);
        {
            const place p = place_here();
            const u32 block = cluster_address(base, (u32)p.lane / 4);
            const u32 table = (p.rank * SLICE + (u32)(p.lane % 4) * 8) * 2;
            u32 x[DEPTH];
            by = operand_of(a, pass, largest, p.lane, x);
            by = __shfl_sync(~0u, by, (int)p.rank * 4); /* of the block's own table */
            entries come[TOGETHER];                     /* from L2, while those that stay are used */
#pragma unroll
            for (int i = 0; i < TOGETHER && KEPT < CHUNKS; i++) {
                load_entries(a, p.rank, KEPT + i, p.warp, p.lane, &come[i]);
            }
#pragma unroll
            for (int i = 0; i < IN_REGISTERS; i++) {
                send_products(x, kept[i], block, table, i, p.warp, p.lane);
            }
#pragma unroll 1
            for (int chunk = IN_REGISTERS; chunk < KEPT; chunk++) {
                entries e;
                load_matrices(base, chunk - IN_REGISTERS, p.warp, p.lane, &e);
                send_products(x, e, block, table, chunk, p.warp, p.lane);
            }
#pragma unroll 1
            for (int chunk = KEPT; chunk < CHUNKS; chunk += TOGETHER) {
                entries now[TOGETHER];
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    now[i] = come[i];
                    load_entries(a, p.rank, min(chunk + TOGETHER, CHUNKS - TOGETHER) + i, p.warp, p.lane, &come[i]);
                }
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    send_products(x, now[i], block, table, chunk + i, p.warp, p.lane);
                }
            }
        }
        barrier_wait(base + READY_AT, phase);
        phase ^= 1;
        {
            const place p = place_here();
#pragma unroll
            for (int i = 0; i < TASKS; i++) {
                const uint4 v = load_shared_u32x4(base + CODES_AT + (u32)(i * THREADS + p.thread) * 16);
                const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const u32 at = (j % 2 ? words[j / 2] >> 15 : words[j / 2] << 1) & (TABLE_BYTES - 2);
                    sum[i][j] = __fmaf_rn(look_up(base + at), by, sum[i][j]);
                }
            }
        }
        cluster_arrive_relaxed();
    }
    cluster_wait();
#pragma unroll
    for (int i = 0; i < TASKS; i++) {
        const u32 at = base + row_of_codes((u32)(i * THREADS) + threadIdx.x) * 4;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            store_shared_f32(at + (u32)(j % 4 * READERS + j / 4) * 4, sum[i][j]);
        }
    }
    cluster_arrive();
    cluster_wait();
    const int row0 = (int)blockIdx.y * RANGE, rows = min(RANGE, a.n - row0);
    for (int i = thread * 4; i < SHARE; i += THREADS * 4) {
        const int row = (int)rank * SHARE + i;
        float4 all[CLUSTER];
#pragma unroll
        for (int r = 0; r < CLUSTER; r++) {
            all[r] = load_cluster_f32x4(cluster_address(base + (u32)row * 4, (u32)r));
        }
#pragma unroll
        for (int r = 1; r < CLUSTER; r++) {
            all[0].x += all[r].x, all[0].y += all[r].y, all[0].z += all[r].z, all[0].w += all[r].w;
        }
        const float found[4] = {all[0].x, all[0].y, all[0].z, all[0].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (row + j < rows) {
                a.parts[(i64)cluster * a.n + row0 + row + j] = found[j];
            }
        }
    }
    cluster_arrive_relaxed(); /* nobody leaves while its memory is read */
    cluster_wait();
}
