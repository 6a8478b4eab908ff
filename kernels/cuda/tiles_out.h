/* How sums of the tiles of tiles.h leave: through shared memory and the copy engine, out of the ring, or by lanes. The
 * includer has read tiles.h, which says what it defines before. */
#ifndef QN_KERNELS_CUDA_TILES_OUT_H
#define QN_KERNELS_CUDA_TILES_OUT_H

/* Words of a lane's results in a row: f32, or two neighbours of 16 bits. */
#if OUT == 2
#define OUT_BYTES 4
#define ROW_WORDS (BN / 4)
#else
#define OUT_BYTES 2
#define ROW_WORDS (BN / 8)
DEV u32 pack(float low, float high)
{
    return OUT == 0 ? pack_bf16(low, high) : pack_f16(low, high);
}
#endif

/* `columns` of a row of sums, a constant: `half` 0 the lane's first row, 1 the one 8 below. */
DEV void pack_row(u32 *words, const float *sums, int half, int columns)
{
#pragma unroll
    for (int j = 0; j < columns / 8; j++) {
        const float x = sums[4 * j + 2 * half], y = sums[4 * j + 2 * half + 1];
#if OUT == 2
        words[2 * j] = __float_as_uint(x);
        words[2 * j + 1] = __float_as_uint(y);
#else
        words[j] = pack(x, y);
#endif
    }
}

/* The lane's two columns of each of `count` parts of 8, the first at `column`, as far as they are columns of d. */
#if OUT == 2
/* Without a branch: there are as many of these as the lane has pairs. */
DEV void store_pair(char *to, int column, int n, int vector, u32 x, u32 y)
{
    asm volatile("{\n.reg .pred wide, one, two;\n"
                 "setp.lt.s32 two, %2, %3;\n"
                 "setp.ne.and.s32 wide, %4, 0, two;\n"
                 "setp.lt.and.s32 two, %2, %3, !wide;\n"
                 "setp.le.and.s32 one, %2, %3, !wide;\n"
                 "@wide st.global.v2.u32 [%0], {%1, %5};\n"
                 "@one st.global.u32 [%0], %1;\n"
                 "@two st.global.u32 [%0 + 4], %5;\n}" ::"l"(to),
                 "r"(x), "r"(column), "r"(n - 1), "r"(vector), "r"(y)
                 : "memory");
}

DEV void store_pairs(char *row, int column, int n, int count, int vector, const u32 *words)
{
    row += (i64)column * 4;
    asm("" : "+l"(row)); /* once: the compiler would do it for every pair */
#pragma unroll
    for (int j = 0; j < count; j++) {
        store_pair(row + 32 * j, column + 8 * j, n, vector, words[2 * j], words[2 * j + 1]);
    }
}
#else
DEV void store_pairs(char *row, int column, int n, int count, int vector, u32 a, u32 b, u32 c, u32 d)
{
#pragma unroll 1
    for (; count > 0; count--, column += 8, a = b, b = c, c = d) {
        u16 *const to = (u16 *)row + column;
        if (vector && column + 1 < n) {
            *(u32 *)to = a;
        } else if (column < n) {
            to[0] = (u16)a;
            if (column + 1 < n) {
                to[1] = (u16)(a >> 16);
            }
        }
    }
}
#endif

/* A row of results to d. `row` is NULL where the row is no row of d; all lanes come here, since the 16-bit types are
 * exchanged within a quad so that a lane stores 16 bytes. */
DEV void store_row(char *row, const u32 *words, int column, int columns, int n, u32 lane, int vector)
{
    const int pair = column + 2 * (int)(lane % 4);
#if OUT == 2
    if (row != 0) {
        store_pairs(row, pair, n, columns / 8, vector, words);
    }
#else
#pragma unroll
    for (int j = 0; j < columns / 8; j += 4) {
        u32 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = j + i < columns / 8 ? words[j + i] : 0;
        }
        if (j + 4 <= columns / 8 && vector && column + 8 * j + 32 <= n) {
            /* Transpose 4 x 4 words in the quad: lane i gets the 8 columns of part j + i. */
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const u32 got = __shfl_xor_sync(~0u, lane & 1 ? v[i] : v[i + 1], 1);
                v[i] = lane & 1 ? got : v[i];
                v[i + 1] = lane & 1 ? v[i + 1] : got;
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 got = __shfl_xor_sync(~0u, lane & 2 ? v[i] : v[i + 2], 2);
                v[i] = lane & 2 ? got : v[i];
                v[i + 2] = lane & 2 ? v[i + 2] : got;
            }
            if (row != 0) {
                *(uint4 *)(row + (i64)(column + 8 * j + 8 * (int)(lane % 4)) * 2) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        } else if (row != 0) {
            const int count = columns / 8 - j < 4 ? columns / 8 - j : 4;
            store_pairs(row, pair + 8 * j, n, count, vector, v[0], v[1], v[2], v[3]);
        }
    }
#endif
}

#if STORE
/* Columns [0, ROOM) of `sums` through shared memory and the copy engine, from where the stores go on while the next
 * tile begins: boxes of 64 rows x BOX columns with the 128-byte swizzle, from `at` on. */
#define BOX (128 / OUT_BYTES)
#if OUT == 2
DEV void stage_rows(u32 at, const float *sums, int columns, u32 warp, u32 lane)
{
    const u32 row = warp * 16 + lane / 4, right = lane % 4 / 2;
#pragma unroll
    for (int j = 0; j < columns / 8; j++) {
        const u32 chunk = (u32)(j % 4) * 2 + right;
        const u32 to = at + (u32)(j / 4) * 8192 + row * 128 + (chunk ^ (row % 8)) * 16 + lane % 2 * 8;
        store_shared_f32x2(to, sums[4 * j], sums[4 * j + 1]);
        store_shared_f32x2(to + 8 * 128, sums[4 * j + 2], sums[4 * j + 3]);
    }
}
#else
/* Two words of each 8 columns: the lane's pair in its first row, and 8 rows below. */
DEV void pack_columns(u32 *words, const float *sums, int columns)
{
#pragma unroll
    for (int j = 0; j < columns / 4; j++) {
        words[j] = pack(sums[2 * j], sums[2 * j + 1]);
    }
}

DEV void stage_words(u32 at, const u32 *words, int columns, u32 warp, u32 lane)
{
    const u32 row = warp * 16 + lane % 16, right = lane / 16;
#pragma unroll
    for (int j = 0; j < columns / 8; j += 2) {
        const u32 chunk = (u32)(j % 8) + right;
        store_matrix(at + (u32)(j / 8) * 8192 + row * 128 + (chunk ^ (lane % 8)) * 16, words[2 * j], words[2 * j + 1],
                     words[2 * j + 2], words[2 * j + 3]);
    }
}

DEV void stage_rows(u32 at, const float *sums, int columns, u32 warp, u32 lane)
{
    u32 words[BN / 4];
    pack_columns(words, sums, columns);
    stage_words(at, words, columns, warp, lane);
}
#endif

#if BY_ROWS
/* A warp's rows of a box by its lanes, as far as the group has them. `row` and `column` are the
 * box's first, `d` is the group's first row. */
DEV void store_part(const extent *p, const walk *w, u32 box, char *d, i64 d_row, int row, int column, u32 warp,
                    u32 lane)
{
    const u32 chunk = lane % 8;
    __syncwarp();
#pragma unroll 1
    for (u32 i = warp * 16 + lane / 8; i < warp * 16 + 16; i += 4) {
        if (row + (int)i < w->rows && column + 8 * (int)chunk < p->n) {
            const uint4 v = load_shared_u32x4(box + i * 128 + (chunk ^ (i % 8)) * 16);
            *(uint4 *)(d + ((row + (int)i) * d_row + column + 8 * (int)chunk) * OUT_BYTES) = v;
        }
    }
}
#endif

#if STORE == 2
/* The same out of the ring: a warpgroup's own rows of a in the last two stages, which it has multiplied and not given
 * back (release_held), take a product's two boxes. */
DEV void store_held(const ring *r, u32 last, const extent *p, const walk *w, const tensor_map *d_map, char *d,
                    i64 d_row, float sums[WAVES][BN / 2], u32 which, u32 whole, u32 group, u32 warp, u32 lane)
{
    const u32 before = last == 0 ? STAGES - 1 : last - 1;
    const u32 at[2] = {r->a + before * A_BYTES, r->a + last * A_BYTES};
    threads_sync(1 + group, 128); /* all have multiplied, also where there are no rows: one warp gives back for all */
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
        if (which >> v & 1) {
            stage_rows(at[0] + PRODUCT_ROW(group, v) * 128, sums[v], 64, warp, lane);
            stage_rows(at[1] + PRODUCT_ROW(group, v) * 128, sums[v] + 32, 64, warp, lane);
        }
    }
    fence_proxy_async();
    threads_sync(1 + group, 128);
    if (warp == 0 && lane == 0) {
        for (u32 i = 0; i < 2 * WAVES; i++) {
            const u32 row = PRODUCT_ROW(group, i / 2);
            if (whole >> (i / 2) & 1) {
                tensor_store_3d(d_map, at[i % 2] + row * 128, w->column + (int)(i % 2) * 64,
                                w->first + w->row + (int)row, LAYOUT == MASKED ? w->group : 0, 0);
            }
        }
        tensor_store_commit();
    }
    __syncwarp();
#if BY_ROWS
    if (which != whole) {
        for (u32 i = 0; i < 2 * WAVES; i++) {
            const u32 row = PRODUCT_ROW(group, i / 2);
            if ((which & ~whole) >> (i / 2) & 1) {
                store_part(p, w, at[i % 2] + row * 128, d, d_row, w->row + (int)row, w->column + (int)(i % 2) * 64,
                           warp, lane);
            }
        }
        threads_sync(1 + group, 128); /* the stages may be given back */
    }
#endif
}

/* One warp of the warpgroup, for all four, when the boxes have been read. */
DEV void release_held(const ring *r, u32 last, u32 lane)
{
    const u32 before = last == 0 ? STAGES - 1 : last - 1;
    if (lane == 0) {
        tensor_store_wait_read();
    }
    __syncwarp();
    if (lane < 4 * CLUSTER) {
#if CLUSTER > 1
        barrier_arrive_cluster(cluster_address(r->empty + 8 * before, lane / 4));
        barrier_arrive_cluster(cluster_address(r->empty + 8 * last, lane / 4));
#else
        barrier_arrive(r->empty + 8 * before);
        barrier_arrive(r->empty + 8 * last);
#endif
    }
    __syncwarp();
}
#endif

/* The warpgroup may write to its part of the staging place: what was there has been read. */
DEV void staging_wait(u32 group, u32 warp, u32 lane)
{
    if (warp == 0 && lane == 0) {
        tensor_store_wait_read();
    }
    threads_sync(1 + group, 128);
}

/* Columns [first, first + ROOM) of a warpgroup's products, staged, to d; bit v of `which`: product v; `whole`: of which
 * all rows are the group's, or may be written. `policy`: of L2, 0 for none. */
DEV void staged_leave(const extent *p, const walk *w, const tensor_map *d_map, u32 staging, char *d, i64 d_row,
                      int first, u32 which, u32 whole, u64 policy, u32 group, u32 warp, u32 lane)
{
    fence_proxy_async();
    threads_sync(1 + group, 128);
    if (warp == 0 && lane == 0) {
        for (u32 i = 0; i < WAVES * (ROOM / BOX); i++) {
            const u32 row = PRODUCT_ROW(group, i / (ROOM / BOX)), part = i % (ROOM / BOX);
            if (whole >> (i / (ROOM / BOX)) & 1) {
                tensor_store_3d(d_map, staging + row * (ROOM * OUT_BYTES) + part * 8192,
                                w->column + first + (int)part * BOX, w->first + w->row + (int)row,
                                LAYOUT == MASKED ? w->group : 0, policy);
            }
        }
        tensor_store_commit();
    }
#if BY_ROWS
    for (u32 i = 0; which != whole && i < WAVES * (ROOM / BOX); i++) {
        const u32 row = PRODUCT_ROW(group, i / (ROOM / BOX)), part = i % (ROOM / BOX);
        if ((which & ~whole) >> (i / (ROOM / BOX)) & 1) {
            store_part(p, w, staging + row * (ROOM * OUT_BYTES) + part * 8192, d, d_row, w->row + (int)row,
                       w->column + first + (int)part * BOX, warp, lane);
        }
    }
#endif
}

/* Columns [first, first + ROOM) of a warpgroup's products to d through `staging`, where shared memory has the place of
 * as many; see staged_leave. */
DEV void store_columns(const extent *p, const walk *w, const tensor_map *d_map, u32 staging, char *d, i64 d_row,
                       float sums[WAVES][BN / 2], int first, u32 which, u32 whole, u64 policy, u32 group, u32 warp,
                       u32 lane)
{
    staging_wait(group, warp, lane);
    if (which & 1) {
        stage_rows(staging + PRODUCT_ROW(group, 0) * (ROOM * OUT_BYTES), sums[0] + first / 2, ROOM, warp, lane);
    }
#if BM == 128 * GROUPS
    if (which & 2) {
        stage_rows(staging + PRODUCT_ROW(group, 1) * (ROOM * OUT_BYTES), sums[1] + first / 2, ROOM, warp, lane);
    }
#endif
    staged_leave(p, w, d_map, staging, d, d_row, first, which, whole, policy, group, warp, lane);
}
#endif

/* `columns` of one product's by the lanes, `row` of the group its first; `d` is the group's first row. The second of a
 * lane's rows follows the first through the same registers, since the code for one is long. */
DEV void store_rows(const extent *p, const walk *w, char *d, i64 d_row, int vector, int row, int columns,
                    const float *sums, u32 warp, u32 lane)
{
    u32 words[2][ROW_WORDS];
    row += (int)(warp * 16 + lane / 4);
    pack_row(words[0], sums, 0, columns);
    pack_row(words[1], sums, 1, columns);
    constexpr int at_once = OUT == 2 ? 2 : 1;
#pragma unroll at_once
    for (int i = 0; i < 2; i++, row += 8) {
        store_row(row < w->rows ? d + row * d_row * OUT_BYTES : 0, words[0], w->column, columns, p->n, lane, vector);
#pragma unroll
        for (int j = 0; j < columns * OUT_BYTES / 16; j++) {
            words[0][j] = words[1][j];
        }
    }
}

/* A warpgroup's products by the lanes; `d` is the group's first row. Rows follow each
 * other through the same registers, since the code for one is long; f32 have no registers for that. */
DEV void store_products(const extent *p, const walk *w, char *d, i64 d_row, float sums[WAVES][BN / 2], u32 group,
                        u32 warp, u32 lane)
{
    const int vector = (u64)d % 16 == 0 && d_row * OUT_BYTES % 16 == 0;
    u32 words[2 * WAVES][ROW_WORDS];
#pragma unroll
    for (int i = 0; i < 2 * WAVES; i++) {
        pack_row(words[i], sums[i / 2], i % 2, BN);
    }
    constexpr int at_once = OUT == 2 ? 2 * WAVES : 1;
#pragma unroll at_once
    for (int i = 0; i < 2 * WAVES; i++) {
        const int row = w->row + (int)(PRODUCT_ROW(group, i / 2) + warp * 16 + lane / 4) + i % 2 * 8;
        store_row(row < w->rows ? d + row * d_row * OUT_BYTES : 0, words[0], w->column, BN, p->n, lane, vector);
#pragma unroll
        for (int next = 1; next < 2 * WAVES; next++) {
#pragma unroll
            for (int j = 0; j < ROW_WORDS; j++) {
                words[next - 1][j] = words[next][j];
            }
        }
    }
}

#if STORE && LAYOUT == MASKED && !KEEP
/* Zeros in the lane's rows of a product that are not among the next `left`, as d has them there. */
DEV void clear_rows(float *sums, int left)
{
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        sums[4 * j] = left > 0 ? sums[4 * j] : 0.0f;
        sums[4 * j + 1] = left > 0 ? sums[4 * j + 1] : 0.0f;
        sums[4 * j + 2] = left > 8 ? sums[4 * j + 2] : 0.0f;
        sums[4 * j + 3] = left > 8 ? sums[4 * j + 3] : 0.0f;
    }
}
#endif

/* A warpgroup's products to d: by boxes where they may be, see BY_ROWS. `last`:
 * the tile's last stage. */
DEV void store_tile(const ring *r, u32 last, const extent *p, const walk *w, const tensor_map *d_map, u32 staging,
                    char *d, i64 d_row, float sums[WAVES][BN / 2], u32 group, u32 warp, u32 lane)
{
#if STORE
    u32 which = 0, whole = 0; /* products that have rows; of which all are the group's, or may be written */
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
        const int row = w->row + (int)PRODUCT_ROW(group, v);
        which |= (u32)(row < w->rows) << v;
        whole |= (u32)(BY_ROWS ? row + 64 <= w->rows : row < w->rows) << v;
#if LAYOUT == MASKED && !KEEP
        if (row < w->rows && w->rows < row + 64) {
            clear_rows(sums[v], w->rows - row - (int)(warp * 16 + lane / 4));
        }
#endif
    }
#if STORE == 2
    store_held(r, last, p, w, d_map, d, d_row, sums, which, whole, group, warp, lane);
#else
    if (which) {
#pragma unroll
        for (int first = 0; first < BN; first += ROOM) {
            store_columns(p, w, d_map, staging, d, d_row, sums, first, which, whole, 0, group, warp, lane);
        }
        __syncwarp();
    }
#endif
#else
    store_products(p, w, d, d_row, sums, group, warp, lane);
#endif
}

#endif
