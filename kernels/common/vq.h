/* What the runners of vq_mm (src/backend/cpu/run_vq_*.c) and their kernels
 * (kernels/cpu/<isa>/vq_<isa>.c) agree on.
 *
 * Books: the portable form. A row of weights is a run of groups; a group is the
 * sum of one vector of each book, chosen by codes that follow one another in a
 * bit stream, lowest bit first. Every format is one or a few such runs. */
#ifndef QN_KERNELS_VQ_H
#define QN_KERNELS_VQ_H

#include <stdint.h>

#define QN_VQ_BOOKS 64
#define QN_VQ_VECTOR 256   /* elements of a vector at most */
#define QN_VQ_ACROSS 16    /* elements of a vector that lies across rows, at most: of longer ones a part */
#define QN_VQ_STREAM_PAD 8 /* bytes readable past a stream's last code */

#define QN_VQ_DOT_ROWS 8    /* of x that are multiplied by vectors as they are looked up; ... */
#define QN_VQ_ACROSS_ROWS 2 /* ... that lie across columns: more are faster with weights that are decoded once */

/* Elements of tables. Those of 16 bits are vectors of eight, `stride` is 8 then: a table of 65536 that one row looks up
 * in memory of its own size is what its time goes to. */
typedef enum qn_vq_entry { QN_VQ_ENTRY_F32 = 0, QN_VQ_ENTRY_F16, QN_VQ_ENTRY_BF16 } qn_vq_entry;

typedef struct qn_vq_run {
    int32_t books, vector; /* elements of a vector */
    qn_vq_entry entry;
    int64_t stride;            /* elements from a vector to the next of its book */
    int32_t bits[QN_VQ_BOOKS]; /* of a code, at most 16 */
    const void *table[QN_VQ_BOOKS];
    const uint8_t *codes;
    int64_t first_bit, groups;
} qn_vq_run;

/* out[groups * vector]: sums of the books' vectors in their order, f32. */
typedef void (*qn_vq_decode_fn)(const qn_vq_run *run, float *out);

/* The same for vectors that lie across rows of weights: element j of group g to out[j * stride + g], j < run->vector.
 */
typedef void (*qn_vq_decode_across_fn)(const qn_vq_run *run, float *out, int64_t stride);

/* Weights of vectors of eight by at most QN_VQ_DOT_ROWS rows of x, x_stride floats apart, without storing them: columns
 * of w with codes `stream` bytes apart. The same chains as a tile's (kernels/common/mm.h), in its lanes. */
typedef void (*qn_vq_dot_fn)(const qn_vq_run *run, int64_t stream, int64_t columns, const float *x, int64_t x_stride,
                             int64_t rows, float *lanes);

/* The same of vectors that lie across eight columns of w, by at most QN_VQ_ACROSS_ROWS rows. */
typedef void (*qn_vq_dot_across_fn)(const qn_vq_run *run, const float *x, int64_t x_stride, int64_t rows, float *lanes);

typedef struct qn_vq_books_set {
    int chunks; /* pieces of a run, of K, are decoded as fast as all of it */
    qn_vq_decode_fn decode;
    qn_vq_decode_across_fn across;
    qn_vq_dot_fn dot; /* NULL: none, nor the next one */
    qn_vq_dot_across_fn dot_across;
} qn_vq_books_set;

/* Tiles: gptvq by exact integers. A tile of weights is 256 columns of K by a panel of 16 rows of w (columns of the
 * output), 1024 codes: line q of 64 bytes holds in byte 4 i + g the code of row i, elements 16 q + 4 g to + 3. All of
 * its rows share a book of 256 vectors of four int8, kept as four tables of bytes, one an element, plus 128.
 *
 * A row of x becomes digits, 256 elements at a time: x = scale * (d0 + 256 d1 + 65536 d2), int8 digits, scale a power
 * of two so that the largest |x| is about 2^22 to 2^23 of it. Where rounding to multiples of 256 (so that it has no
 * sign of its own, kernels/cpu/vq_dither.h) stays within what the row's f32 sums may be off by, d0 is 0 in the whole
 * tile and need not be multiplied: a matter of the row's own values. Digits lie as the level's kernel takes them; of
 * VNNI dots as the bytes of looked-up lines do: byte 16 q + 4 j + g of a plane is element 16 q + 4 g + j. So each
 * digit's sum over a tile is an exact integer in any order, and
 *
 *     sum = fma(s0 + 256 s1 + 65536 s2, scale * book scale, sum)      over the tiles along K, f32
 *
 * is the same whatever the instructions, the rows of a call and the threads. */
#define QN_VQ_TILE_K 256
#define QN_VQ_PANEL 16
#define QN_VQ_BLOCK 64 /* rows of w a call: four panels */
#define QN_VQ_PLANES 3
#define QN_VQ_TILE_BYTES 1024 /* codes of a tile; a tile's book */
#define QN_VQ_ROW_GROUP 16    /* digits of rows are readable up to a multiple of this when there are more */

typedef struct qn_vq_tiles_call {
    const uint8_t *codes;     /* [blocks][2][tiles][2][1024]: a block's pairs of panels, tile after tile along K */
    const uint8_t *books;     /* [tiles][4][256] */
    const float *book_scales; /* [tiles] */
    int64_t tiles, blocks;    /* of the same books; one for a single row of x */
    int64_t k, panels;        /* elements of a row that are not padding; such panels of the blocks */
    const int8_t *digits;     /* row m from + m * digit_stride: [tiles][3][256]; avx2: words d1 + 256 d2, then d0 */
    int64_t digit_stride;     /* a multiple of 64 */
    const float *scales;      /* row m from + m * tiles */
    const int32_t *offsets;   /* row m from + m * tiles * 4: -128 times the sums of the digits of each plane; the first
                                 plane that is not all zeros, 0 or 1 */
    int64_t rows;
    float *sums;   /* [blocks][rows][64], written whole; 64-byte aligned */
    char *scratch; /* QN_VQ_TILES_SCRATCH bytes, 64-byte aligned, private to the thread */
} qn_vq_tiles_call;

#define QN_VQ_TILES_SCRATCH 24576

/* Digits of a row's tiles, zeros behind k; 1 when they cannot hold them: NaN, infinity, far below or above 1. */
typedef int (*qn_vq_digits_fn)(const float *x, int64_t k, int8_t *planes, float *scales, int32_t *offsets);

typedef struct qn_vq_tiles_set {
    void (*mm)(const qn_vq_tiles_call *call);
    qn_vq_digits_fn digits;
} qn_vq_tiles_set;

extern const qn_vq_tiles_set qn_vq_tiles__avx2, qn_vq_tiles__avx512vnni, qn_vq_tiles__amx;

/* Partial sums: aqlm with codebooks of 256 entries. A slab is some groups of K with all their codes, QN_VQ_LOOKUPS of
 * them at most. For a row of x each (group, codebook) has a table of the 256 products x . vector, in f32 by a chain of
 * fused multiply-adds, rounded to integers of one power of two that the slab's largest possible product fits into; a
 * weight row's sum over the slab is then a sum of looked-up integers, exact in any order:
 *
 *     sum = fma(sum of integers, unit, sum)      over the slabs of a part, f32; parts are added in order
 *
 * Integers have 21 bits, or 16 where the rounding that this adds to a row's sums stays within the error budget (the
 * row's `coarse` slabs, kernels/cpu/vq_sums.h): a matter of the row's values and of the weights, so bits do not depend
 * on what a row is computed with. Rounding has no sign of its own (kernels/cpu/vq_dither.h). Where 21 bits are too few,
 * since a row of w is so much smaller than the longest vectors, a slab's products stay floats (`plain`).
 *
 * Tables of one row lie as planes of bytes, 256 each: two planes of eight bits of integer + 2^15, or three of seven
 * bits of integer + 2^20, two of which add up to a byte; at level avx2, where a lookup is a load and all integers have
 * 21 bits, as the integers themselves. Codes lie in blocks of 64 rows of w, a line of 64 bytes a lookup; byte 4 i + r
 * of a line is row 16 r + i, so that sums come out in the order of rows. A call of bytes walks two runs of blocks at
 * once, the first and the second half of its rows: two streams of memory are faster than one.
 *
 * More rows of x go eight at a time (with 512 bits sixteen): a table then holds the same integers as int32, those of
 * all rows beside each other, and one load and one addition a code serve them all. Where so few rows of w take from a
 * table that it is not worth making, sixteen rows of x at a time are multiplied by the vectors that codes choose: the
 * same chain, rounded to the same integer. */
#define QN_VQ_LOOKUPS 16 /* their tables are in the first cache together */
#define QN_VQ_LINE 128
#define QN_VQ_TABLE_BYTES 768
#define QN_VQ_TABLE_ENTRIES 256
#define QN_VQ_LONGEST 16
#define QN_VQ_SIDE_LOOKUPS 4  /* at a time */
#define QN_VQ_SIDE_VECTOR 256 /* elements of a vector at most */
#define QN_VQ_MANY_ROWS 16
#define QN_VQ_SUMS_SCRATCH (QN_VQ_SIDE_LOOKUPS * QN_VQ_TABLE_ENTRIES * QN_VQ_MANY_ROWS * 4) /* bytes */
#define QN_VQ_MANY_FLOATS 8192 /* of their elements in a slab, at most */

/* What a row's products of a slab are multiplied by, and the inverse; both 0 for zeros. */
typedef struct qn_vq_sums_scale {
    float factor, unit;
    int16_t coarse; /* integers of 16 bits, else 21 */
    int16_t plain;  /* floats; factor and unit are 0 */
} qn_vq_sums_scale;

/* A row's slabs. Returns 1 when its products fit no such integers (NaN, infinities, far below or above 1). */
typedef struct qn_vq_sums_row {
    const float *x;
    int64_t k, groups, slab_groups, books, vector;
    const float *longest;          /* [books][vector][QN_VQ_LONGEST]: each codebook's longest vectors */
    float longest_norm, next_norm; /* the longest of them; of all others */
    float least; /* norm of a row of w that is not zero, the magnitudes of an element's terms summed */
    int coarse;  /* slabs may be */
    qn_vq_sums_scale *scales;
} qn_vq_sums_row;

typedef int (*qn_vq_sums_scale_fn)(const qn_vq_sums_row *row);

/* A slab of some rows of x: one or two, eight or sixteen beside each other ("wide" below). */
typedef struct qn_vq_sums_call {
    const uint8_t *codes; /* [2 lines][lookups][64] */
    const uint8_t *next;  /* those of the call that follows, to be fetched */
    int64_t lines, lookups, books, vector;
    int64_t blocks; /* of 64 rows of w, 2 * lines or fewer: those that are not padding */
    int64_t first;  /* lookup, counted along K */
    const float *x; /* row r of the slab from + r * x_stride */
    int64_t x_stride, rows;
    const qn_vq_sums_scale *scales; /* row r's of the slab at r * scale_stride */
    int64_t scale_stride;
    const float *book;   /* [books][vector][256] */
    char *tables;        /* QN_VQ_SUMS_SCRATCH bytes, 64-byte aligned, private to the thread, ... */
    int32_t *totals;     /* ... and, for side, [2 * lines * 64][wide] */
    float *sums;         /* [2 * lines * 64][wide]: go on with the slab's lookups; 64-byte aligned */
    int64_t sums_stride; /* `one`: to the next row's */
} qn_vq_sums_call;

typedef void (*qn_vq_sums_fn)(const qn_vq_sums_call *call);

typedef struct qn_vq_sums_set {
    qn_vq_sums_scale_fn scale;
    qn_vq_sums_fn side, many;
} qn_vq_sums_set;

extern const qn_vq_sums_fn qn_vq_sums_one__avx2, qn_vq_sums_one__avx512vnni, qn_vq_sums_one__amx;
extern const qn_vq_sums_set qn_vq_sums__avx2, qn_vq_sums__avx512vnni;

/* Lattice: quip_e8p by exact integers. Four times a weight of E8P (or of E8) is an integer; plus QN_VQ_LATTICE_BIAS it
 * is a byte that dots with digits as tiles do. A unit of codes is 16 rows of w by 8 groups of 8 elements, two lines of
 * 64 codes: code 4 r + g of a line is that of row r, group g of four. 64 bytes of indices of magnitudes, and for E8P 64
 * bytes of signs: bit i is coordinate i's sign, but bit 0 is set where the point is shifted by -1/4. Coordinate 0's sign
 * follows: signs and odd magnitudes of a point are even in number together.
 *
 * Tables are of bytes, 256 for each coordinate: of magnitudes 4 m, m of 0, 1, 2 for 1/2, 3/2, 5/2, with bit 7 in
 * coordinate 0's where the point has an odd number of odd ones, m of 1; of E8 the bytes themselves.
 *
 * Books (1, or 2: the residual's) lie as [blocks of 64 rows][tiles of 256 columns][panels of 16 rows][units along K]
 * [2 lines], the last block and the last tile as short as they are. Digits lie as the level's kernel takes them: of avx2
 * in their order, else as coordinates of a line do, byte 32 l + 4 i + g of a plane is element 32 l + 8 g + i. Sums over a
 * tile are exact as above:
 *
 *     sum = fma(s0 + 256 s1 + 65536 s2, scale * unit of the book, sum)      over tiles along K and their books, f32 */
#define QN_VQ_LATTICE_BIAS 15
#define QN_VQ_LATTICE_BOOKS 2
#define QN_VQ_UNIT_K 64
#define QN_VQ_LATTICE_SCRATCH 10240
#define QN_VQ_POINT_BYTES 2048 /* tables of eight coordinates */

typedef struct qn_vq_lattice_call {
    int32_t books, last_is_e8;
    const uint8_t *codes[QN_VQ_LATTICE_BOOKS]; /* a block's */
    float unit[QN_VQ_LATTICE_BOOKS];
    const uint8_t *magnitudes, *e8;
    int64_t panels, units; /* of the block; along K */
    const int8_t *digits;  /* row m from + m * digit_stride: [tiles][3][256] */
    int64_t digit_stride;
    const float *scales;    /* row m from + m * tiles */
    const int32_t *offsets; /* row m from + m * tiles * 4 */
    int64_t rows;
    float *sums;   /* [rows][64], the block's panels written; 64-byte aligned */
    char *scratch; /* QN_VQ_LATTICE_SCRATCH bytes, 64-byte aligned, private to the thread */
} qn_vq_lattice_call;

/* x[n] becomes its Hadamard transform over sqrt(n): n = base * a power of two, mix[base][base] the matrix to multiply
 * with, NULL for base 1. scratch: n floats. */
typedef void (*qn_vq_turn_fn)(float *x, int64_t n, int64_t base, const float *mix, float *scratch);

typedef struct qn_vq_lattice_set {
    void (*mm)(const qn_vq_lattice_call *call);
} qn_vq_lattice_set;

typedef struct qn_vq_lattice_rows {
    qn_vq_digits_fn digits;
    qn_vq_turn_fn turn;
} qn_vq_lattice_rows;

extern const qn_vq_lattice_set qn_vq_lattice__avx2, qn_vq_lattice__avx512vnni, qn_vq_lattice__amx;
extern const qn_vq_lattice_rows qn_vq_lattice_rows__avx2, qn_vq_lattice_rows__avx512vnni;

extern const qn_vq_books_set qn_vq_books__scalar, qn_vq_books__avx2, qn_vq_books__avx512;

#endif
