/* Host side of what the matrix product kernels for Hopper share: tiles of kernels/cuda/tiles.h, strips of
 * block_scaled_mm_skinny.cu, their programs and tensor maps. Used by run_block_scaled_mm.c,
 * run_grouped_block_scaled_mm.c and run_scaled_mm.c. */
#ifndef QN_BACKEND_CUDA_TILES_H
#define QN_BACKEND_CUDA_TILES_H

#include "backend/cuda/cuda.h"

enum {
    QN_TILE_SHARED = 232448, /* most dynamic shared memory of a block */
    QN_TILE_GROUPS = 2,      /* warpgroups that multiply, of most tiles */
    QN_TILE_THREADS = 128 + 128 * QN_TILE_GROUPS,
    QN_MOST_GRID_Y = 65535
};

/* LAYOUT of the kernels. */
enum { QN_ONE_MATRIX = 0, QN_GROUP_OFFSETS = 1, QN_GROUPS_MASKED = 2 };

typedef struct qn_tile {
    int32_t bm, bn, stages, cluster, parts, store, split;
    double weight;   /* share of the best tile's speed that it reaches when the card is full */
    double epilogue; /* what a tile takes beside its k-blocks, in k-blocks */
    int32_t held;    /* 1: results leave through the copy engine out of a tile's last two stages of the ring */
    int32_t told;    /* 1: groups' tiles, which the loading thread announces in shared memory */
    int32_t tickets; /* 1: blocks take tiles as they are ready for them; the launch is cooperative */
} qn_tile;

/* Parameters of the kernel for few rows. */
typedef struct qn_strip {
    int32_t groups, split, unroll, stages, occupancy, pair, teams;
    int32_t late;  /* 1: faster when constant weights wait too */
    int32_t parts; /* products in flight */
    int32_t store; /* 1: through the copy engine */
} qn_strip;

enum { QN_STRIP_ROWS = 128 }; /* most rows of a strip */

/* The tiles for more than 128 rows. */
enum {
    QN_TILE_TALL = 0,
    QN_TILE_THREE, /* warpgroups */
    QN_TILE_THREE_STORED,
    QN_TILE_WIDE,
    QN_TILE_ANY,
    QN_TILE_SQUARE,
    QN_TILE_NARROW,
    QN_BLOCK_TILES
};

/* Such a tile, for outputs that may leave through the copy engine or not. */
qn_tile qn_block_tile(int32_t i, int may_store, int32_t layout);

/* A tile of one row of tiles, for at most 64 or 128 rows, that many columns wide, of clusters that share a or parts of
 * K. 0: there is none. */
int qn_few_tile(int32_t rows, int32_t columns, int32_t store, int32_t cluster, int32_t split, qn_tile *tile);

/* Estimated time of so many tiles with that many k-blocks, in steps of one sum and one k-block of the best tile. */
double qn_tile_cost(const qn_tile *tile, double tiles, int64_t blocks, int32_t sms);

/* Clusters of so many blocks, at most 8 and one a multiprocessor, that surely run at a time, measured on H200s, which
 * differ in how many multiprocessors their parts have. 0 of seven. */
int32_t qn_tile_clusters(int32_t blocks, int32_t sms);

/* Estimated microseconds of one row of tiles of qn_few_tile, neither stored by boxes nor sharing a, with 64 or 128
 * rows, and of strips of 64 rows and 1, 2 or 3 warpgroups, one team, without parts of K: but for what all cuts of a
 * product take. 0: there is no such tile, or not all of them, or of the strips, are resident as they must be. */
double qn_few_tile_cost(int32_t rows, int32_t columns, int32_t split, int64_t n, int64_t k, int32_t sms);
double qn_few_strip_cost(const qn_strip *strip, int64_t n, int64_t k, int32_t sms);

/* The same of so many rows of tiles with 128 rows, and with what all cuts take; whole K in any number of rounds. */
double qn_several_tile_cost(int32_t several, int32_t columns, int32_t split, int64_t n, int64_t k, int32_t sms);

/* The height of the strip for that many rows, at most 128. */
int32_t qn_strip_height(int64_t rows);

/* Whether the kernel has that strip: within its host contract, without spilled registers. */
int qn_strip_exists(const qn_strip *strip, int32_t rows);

/* The cut of a tuned entry. qn_tuned_tile: 0: there is no such tile for that many rows. */
qn_strip qn_tuned_strip(const qn_tuned *tuned);
int qn_tuned_tile(const qn_tuned *tuned, qn_tile *tile);

/* Whether rows of d may leave through the copy engine, as far as a plan knows: out is a QN_OUT_*. */
int qn_tile_may_store(int32_t out, int64_t n);

/* Parameters and size of a program of block_scaled_mm.cu, and of block_scaled_mm_skinny.cu with that many rows. */
void qn_block_tile_program(const qn_tile *tile, int32_t out, int32_t layout, qn_cuda_program *program);
void qn_strip_program(const qn_strip *strip, int32_t rows, int32_t out, int32_t layout, qn_cuda_program *program);

/* Dynamic shared memory of a block. */
int32_t qn_tile_shared(const qn_tile *tile);
int32_t qn_strip_shared(const qn_strip *strip, int32_t rows, int32_t layout);

/* Threads of a block of a tile of block_scaled_mm.cu: those that multiply, and four warps that load. */
uint32_t qn_tile_threads(const qn_tile *tile);

/* Threads of a block of a strip: those that multiply, and the warps that load, of many rows four. */
static inline uint32_t qn_strip_threads(const qn_strip *s, int32_t rows, int32_t layout)
{
    const int four = layout == QN_ONE_MATRIX && rows > 32 && s->occupancy == 1 && s->stages >= 3 * s->teams;
    return 128 * (uint32_t)(s->groups * s->teams) + (four ? 128 : 64);
}

/* How strips of few rows share the work: groups and parts of K whose blocks are all resident at once, two a
 * multiprocessor of up to two groups, and leave the fullest one least to do. Of equals the more parts, `even` 1: the
 * fewer. 0: there are too many strips for that. */
int qn_strip_deal(int64_t n, int64_t k, int32_t sms, int even, int32_t *groups, int32_t *split);

/* The same for block_scaled_mm, whose strips of one warpgroup in parts have two teams. */
int qn_strip_deal_teams(int64_t n, int64_t k, int32_t sms, int32_t *groups, int32_t *split);

/* Whether results of the strip may leave through the copy engine, where qn_tile_may_store says so: not of strips that
 * share, and not without a place beside the teams' sums. */
int qn_strip_may_store(const qn_strip *strip, int32_t rows);

/* Fewer stages until the strip's shared memory fits, as many for each team. */
void qn_strip_fit(qn_strip *strip, int32_t rows, int32_t layout);

/* A tensor of bytes [groups][rows][k] in boxes of 128 columns, or of 16-bit values [groups][rows][n] in boxes of 64 x
 * 64 as results leave; strides in bytes. */
qn_status qn_tile_byte_map(const qn_cuda_run *run, const void *data, int64_t k, int64_t rows, int64_t groups,
                           int64_t row_step, int64_t group_step, int32_t box, qn_tensor_map *map, qn_error *error);
/* The same twice: with boxes of that many rows, and with one of those that are left at the end of the rows. Where none
 * are, or no more than these, both are the same map. */
typedef struct qn_tile_boxes {
    qn_tensor_map all, last;
} qn_tile_boxes;

qn_status qn_tile_byte_boxes(const qn_cuda_run *run, const void *data, int64_t k, int64_t rows, int64_t groups,
                             int64_t row_step, int64_t group_step, int32_t box, qn_tile_boxes *boxes, qn_error *error);
qn_status qn_tile_out_map(const qn_cuda_run *run, const void *data, int64_t n, int64_t rows, int64_t groups,
                          int64_t row_step, int64_t group_step, qn_tensor_map *map, qn_error *error);

/* The geometry of a tile with QN_TILE_THREADS: the grid is at most all multiprocessors, min(that, blocks), in whole
 * clusters. */
qn_cuda_geometry qn_tile_geometry(const qn_cuda_device *device, int32_t cluster, int64_t blocks, int32_t shared_bytes);

/* Whether an address and steps in bytes are multiples of 16, as tensor maps want them. */
static inline int qn_tile_aligned(const void *data, int64_t row_step, int64_t group_step)
{
    return ((uint64_t)(uintptr_t)data | (uint64_t)row_step | (uint64_t)group_step) % 16 == 0;
}

#endif
