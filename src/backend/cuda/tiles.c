/* Tiles and strips of the matrix product kernels for Hopper: see tiles.h. What the kernels expect, and which tile is
 * best where, is the host contract at the top of each source. */
#include "backend/cuda/tiles.h"

#include "base/checked.h"

int32_t qn_tile_shared(const qn_tile *t)
{
    return 1024 + t->store * t->bm * t->bn * 2 + t->stages * (128 * (t->bm + t->bn) + 4 * (t->bm + 4) + 24);
}

int32_t qn_strip_shared(const qn_strip *s, int32_t rows, int32_t layout)
{
    const int32_t apart = layout == QN_ONE_MATRIX ? 0 : 4 * rows * (64 * s->groups + 4);
    return 1032 + apart + s->stages * (s->unroll * (8192 * s->groups + 128 * rows + 4 * (rows + 4)) + 24);
}

qn_tile qn_block_tile(int32_t i, int may_store)
{
    static const qn_tile stored[QN_BLOCK_TILES] = {[QN_TILE_TALL] = {256, 128, 3, 1, 1, 1, 1.00},
                                                   [QN_TILE_TALL_PAIR] = {256, 128, 3, 2, 1, 1, 1.00},
                                                   [QN_TILE_WIDE] = {128, 192, 4, 1, 1, 1, 1.00},
                                                   [QN_TILE_ANY] = {128, 160, 6, 1, 1, 0, 0.92}};
    static const int32_t unstored_stages[QN_BLOCK_TILES] = {4, 4, 5, 6};
    qn_tile t = stored[i];
    if (!may_store) {
        t.store = 0;
        t.stages = unstored_stages[i];
    }
    return t;
}

int qn_tile_may_store(int32_t out, int64_t n)
{
    return out != QN_OUT_F32 && n % 8 == 0;
}

void qn_block_tile_program(const qn_tile *t, int32_t out, int32_t layout, qn_cuda_program *p)
{
    p->source = "block_scaled_mm.cu";
    p->entry = "qn_block_scaled_mm";
    p->shared_bytes = qn_tile_shared(t);
    qn_cuda_define(p, "OUT", out);
    qn_cuda_define(p, "LAYOUT", layout);
    qn_cuda_define(p, "BM", t->bm);
    qn_cuda_define(p, "BN", t->bn);
    qn_cuda_define(p, "STAGES", t->stages);
    qn_cuda_define(p, "CLUSTER", t->cluster);
    qn_cuda_define(p, "GROUPS", QN_TILE_GROUPS);
    qn_cuda_define(p, "PARTS", t->parts);
    qn_cuda_define(p, "STORE", t->store);
}

void qn_strip_program(const qn_strip *s, int32_t rows, int32_t out, int32_t layout, qn_cuda_program *p)
{
    p->source = "block_scaled_mm_skinny.cu";
    p->entry = "qn_block_scaled_mm_skinny";
    p->shared_bytes = qn_strip_shared(s, rows, layout);
    qn_cuda_define(p, "OUT", out);
    qn_cuda_define(p, "LAYOUT", layout);
    qn_cuda_define(p, "ROWS", rows);
    qn_cuda_define(p, "GROUPS", s->groups);
    qn_cuda_define(p, "PAIR", s->pair);
    qn_cuda_define(p, "SPLIT", s->split);
    qn_cuda_define(p, "UNROLL", s->unroll);
    qn_cuda_define(p, "STAGES", s->stages);
    qn_cuda_define(p, "OCCUPANCY", s->occupancy);
}

void qn_strip_fit(qn_strip *s, int32_t rows, int32_t layout)
{
    while (qn_strip_shared(s, rows, layout) > QN_TILE_SHARED / s->occupancy - 512) {
        s->stages--;
    }
}

qn_status qn_tile_byte_map(const qn_cuda_run *run, const void *data, int64_t k, int64_t rows, int64_t groups,
                           int64_t row_step, int64_t group_step, int32_t box, qn_tensor_map *map, qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = data,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .promotion = CU_L2_PROMOTION_128B,
                                   .dims = {(uint64_t)k, (uint64_t)rows, (uint64_t)groups},
                                   .strides = {(uint64_t)row_step, (uint64_t)group_step},
                                   .box = {128, (uint32_t)box, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

qn_status qn_tile_out_map(const qn_cuda_run *run, const void *data, int64_t n, int64_t rows, int64_t groups,
                          int64_t row_step, int64_t group_step, qn_tensor_map *map, qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = data,
                                   .type = CU_TENSOR_U16,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .dims = {(uint64_t)n, (uint64_t)rows, (uint64_t)groups},
                                   .strides = {(uint64_t)row_step, (uint64_t)group_step},
                                   .box = {64, 64, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

qn_cuda_geometry qn_tile_geometry(const qn_cuda_device *device, int32_t cluster, int64_t blocks, int32_t shared_bytes)
{
    const int64_t grid = qn_min_i64(device->sms, qn_ceil_div(blocks, cluster) * cluster);
    return (qn_cuda_geometry){.grid = {(uint32_t)(grid / cluster * cluster), 1, 1},
                              .block = {QN_TILE_THREADS, 1, 1},
                              .shared_bytes = (uint32_t)shared_bytes,
                              .cluster = (uint32_t)cluster,
                              .dependent = 1};
}
