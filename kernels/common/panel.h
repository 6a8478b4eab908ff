/* What the panel runner (src/backend/cpu/run_panel.c) and the panel kernels
 * (kernels/cpu/<isa>/panel_*.c) agree on: matmuls d[M,N] = a[M,K] b[N,K]^T on
 * weights packed once.
 *
 * Packed weights. Sixteen columns (rows of b) make a panel; a panel is a run of
 * blocks of 64 elements of K, both padded with zeros, so a panel streams from
 * front to back. One layout a code, the same for every instruction set and
 * machine. In a block, k counts from 0 to 63, c is the column, lines are 64 bytes:
 *
 *   bf16    2048 bytes: line j holds (w[2j][c], w[2j+1][c]) in 32-bit lane c
 *   e4m3    1024 bytes: line i holds the pairs j = 2i and 2i+1. The 16 bytes of quarter q (columns
 *   e5m2              4q..4q+3) are (w[2j][c], w[2j+1][c]) of four columns for j = 2i, then for j = 2i+1
 *   nvfp4    576 bytes: 8 lines of codes, line i: lane c has two 16-bit words h = 0, 1; bits 4p..4p+3 of
 *                     word h are the code of k = 8i + 2p + h. Then a line of e4m3 scales: byte
 *                     16q + 4g + r is the scale of group g (k in 16g..16g+15) of column 4q + r
 *   mxfp4    544 bytes: codes as nvfp4, then 32 bytes of e8m0 scales: byte 16g + c, group g of 32
 *   int8    1024 bytes: line i holds w[4i..4i+3][c] in the four bytes of lane c (the tile order of AMX)
 *   f32     4096 bytes: line k holds w[k][c]
 *   groups  codes of 4, 5, 6 or 8 bits with scales of groups of 16 or 32, as below
 *
 * Lines j of bf16 are what two-way bf16 dot instructions and AMX tiles take
 * (16 lines: one tile of K = 32); every other float code is unpacked to them.
 *
 * Exactness. e4m3, e5m2 and fp4-times-scale values are exact in bf16, up to a power of
 * two that keeps unpacking to bit moves: a kernel's weights are value / qn_panel_factor(code).
 * Instructions that flush subnormals never meet one: weights whose values leave the
 * safe range, NaN and infinities are not given to kernels (the runner computes
 * such panels another way).
 *
 * Order. Each output is one chain over K in an order that depends on nothing but the
 * instruction set: rows, columns, panels of a call and threads never change its bits. */
#ifndef QN_KERNELS_PANEL_H
#define QN_KERNELS_PANEL_H

#include <stddef.h>
#include <stdint.h>

#define QN_PANEL_COLS 16
#define QN_PANEL_K 64
#define QN_PANEL_LINE 64
#define QN_PANEL_SCALE_K 128 /* elements a block scale covers: two blocks */

typedef enum qn_panel_code {
    QN_PANEL_BF16 = 0,
    QN_PANEL_E4M3,
    QN_PANEL_E5M2,
    QN_PANEL_NVFP4,
    QN_PANEL_MXFP4,
    QN_PANEL_F32,
    QN_PANEL_I8,
    QN_PANEL_G4,  /* from here on: codes of groups */
    QN_PANEL_G4M,
    QN_PANEL_G5,
    QN_PANEL_G5M,
    QN_PANEL_G8,
    QN_PANEL_S4M,
    QN_PANEL_S5M,
    QN_PANEL_S6,
    QN_PANEL_S3,
    QN_PANEL_S2M,
    QN_PANEL_G4T,
    QN_PANEL_S4T,
    QN_PANEL_S8,
    QN_PANEL_CODES
} qn_panel_code;

/* Bytes of a block, and what kernels' sums are multiplied with. */
#define QN_PANEL_CODE_LIST(X)        \
    X(QN_PANEL_BF16, 2048, 1.0f)     \
    X(QN_PANEL_E4M3, 1024, 256.0f)   \
    X(QN_PANEL_E5M2, 1024, 65536.0f) \
    X(QN_PANEL_NVFP4, 576, 256.0f)   \
    X(QN_PANEL_MXFP4, 544, 1.0f)     \
    X(QN_PANEL_F32, 4096, 1.0f)      \
    X(QN_PANEL_I8, 1024, 1.0f)       \
    X(QN_PANEL_G4, 576, 1.0f)        \
    X(QN_PANEL_G4M, 640, 1.0f)       \
    X(QN_PANEL_G5, 704, 1.0f)        \
    X(QN_PANEL_G5M, 768, 1.0f)       \
    X(QN_PANEL_G8, 1088, 1.0f)       \
    X(QN_PANEL_S4M, 640, 1.0f)       \
    X(QN_PANEL_S5M, 768, 1.0f)       \
    X(QN_PANEL_S6, 896, 1.0f)        \
    X(QN_PANEL_S3, 640, 1.0f)        \
    X(QN_PANEL_S2M, 704, 1.0f)       \
    X(QN_PANEL_G4T, 576, 1.0f)       \
    X(QN_PANEL_S4T, 608, 1.0f)       \
    X(QN_PANEL_S8, 1152, 1.0f)

/* ---- Codes of groups: the block formats of GGUF ----
 *
 * A weight is s (q - middle) + c, where q is the code and s and c belong to the group of the element:
 *     G  s = scale, c = minimum + middle s, both stored as f16
 *     S  s = d scale, c = middle s - dmin minimum: d and dmin f16 of the block, scale and minimum bytes
 * and without minima c = 0. T: four-bit codes stand for the q of a table. A block is, in this order (j: byte 0 to 3 of the 32-bit lane of column c):
 *     up to 6 bits: 8 lines i of low nibbles, byte j: k = 8i + j in the low, k = 8i + 4 + j in the high nibble
 *     5 bits: 2 lines l, byte j, bit 2t + h: the fifth bit of k = 8 (4l + t) + 4h + j
 *     6 bits: 4 lines l, byte j, bits 4t + 2h, + 1: the two upper bits of k = 8 (2l + t) + 4h + j
 *     8 bits: 16 lines i, byte j: k = 4i + j, as q = code + 128
 *     G: f16 scales [group][16], then f16 minima [group][16]
 *     S: f16 d [16], f16 dmin [16] (0 without minima; of 8 bits f32 d [16]), then bytes: scales [group][16], minima
 *     [group][16]
 *
 * Rows of x are integers here: three int8 digits of a power of two for each block of 64 (QN_PANEL_ROWS_DIGITS), so
 * that a group's sum is an exact integer in any order and at every level. x is rounded to 2^-22 of the largest of its
 * block at most, whose part of a sum is below 2^-22 sqrt(64) |x| |w| (Cauchy and Schwarz): what f32 sums may be off
 * by. */
typedef struct qn_panel_group_code {
    int8_t bits;
    int8_t group;   /* elements: 16 or 32 */
    int8_t super;   /* S */
    int8_t minima;
    int16_t middle;
    int8_t table;  /* T */
} qn_panel_group_code;

/* The values of IQ4_NL and IQ4_XS, plus 128. */
static const uint8_t qn_panel_table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static inline __attribute__((always_inline)) qn_panel_group_code qn_panel_group_code_of(const int code)
{
    switch (code) {
    case QN_PANEL_G4: return (qn_panel_group_code){4, 32, 0, 0, 8, 0};
    case QN_PANEL_G4M: return (qn_panel_group_code){4, 32, 0, 1, 8, 0};
    case QN_PANEL_G5: return (qn_panel_group_code){5, 32, 0, 0, 16, 0};
    case QN_PANEL_G5M: return (qn_panel_group_code){5, 32, 0, 1, 16, 0};
    case QN_PANEL_G8: return (qn_panel_group_code){8, 32, 0, 0, 128, 0};
    case QN_PANEL_S4M: return (qn_panel_group_code){4, 32, 1, 1, 8, 0};
    case QN_PANEL_S5M: return (qn_panel_group_code){5, 32, 1, 1, 16, 0};
    case QN_PANEL_S6: return (qn_panel_group_code){6, 16, 1, 0, 32, 0};
    case QN_PANEL_S3: return (qn_panel_group_code){4, 16, 1, 0, 4, 0};
    case QN_PANEL_G4T: return (qn_panel_group_code){4, 32, 0, 0, 128, 1};
    case QN_PANEL_S4T: return (qn_panel_group_code){4, 32, 1, 0, 128, 1};
    case QN_PANEL_S8: return (qn_panel_group_code){8, 16, 1, 0, 128, 0};
    default: return (qn_panel_group_code){4, 16, 1, 1, 2, 0};
    }
}

/* Bits of q. */
static inline __attribute__((always_inline)) int qn_panel_group_value_bits(const int code)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    return c.table ? 8 : c.bits;
}

/* Bytes of the codes of a block of 64, before its scales. */
static inline __attribute__((always_inline)) int64_t qn_panel_group_codes_bytes(const int code)
{
    const int bits = qn_panel_group_code_of(code).bits;
    return bits * (QN_PANEL_K * QN_PANEL_COLS / 8);
}

/* Bytes of a block. */
static inline __attribute__((always_inline)) int64_t qn_panel_group_bytes(const int code)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    const int64_t scales = QN_PANEL_K / c.group * QN_PANEL_COLS * (c.minima ? 2 : 1);
    return qn_panel_group_codes_bytes(code) + (c.super ? 4 * QN_PANEL_COLS + scales : 2 * scales);
}

/* A block of 64 of a row of digits. Codes of groups: x[k] = scale[0] (d0 + 256 d1 + 65536 d2), |x[k]| at most
 * 2^22 scale[0]. Sums are of groups; those of digits are times -middle. 4-bit floats: kernels/cpu/avx2/fp4_avx2.c, a
 * scale for sixteen elements. A scale of NaN: not finite; one of 0: zeros, or none. */
typedef struct qn_panel_digits {
    union {
        int8_t digit[3][QN_PANEL_K];
        struct { /* of several rows of 4-bit floats; at avx2 of values of eight bits: d1 + 256 d2 and d0 */
            int16_t word[QN_PANEL_K];
            int8_t under[QN_PANEL_K];
        };
    };
    float scale[4];
    float sum[4];     /* of d0 + 256 d1 + 65536 d2 */
    int32_t high[4];  /* of d1 + 256 d2; 4-bit floats: of all digits of one row, times -12 */
    int32_t low[4];   /* of d0; 4-bit floats: whether there is a lowest digit */
} qn_panel_digits;

/* The same numbers for tiles of bf16, which add the products of an instruction in exact sums and round once where they
 * meet the sums before: halves of 32 elements, each as 65536 d2, 256 d1 and d0, in every four in the order k, k + 2,
 * k + 1, k + 3. Highest first, the sums of a group are what qn_panel_digits give, with the same roundings. */
typedef struct qn_panel_places {
    uint16_t place[2][3][QN_PANEL_K / 2];
    float scale;   /* NaN: not finite; 0: zeros */
    float sum[4];
    float rest[11];
} qn_panel_places;

/* A block of 64 of a row for 4-bit floats (kernels/cpu/fp4_bytes.h): int8, or twice the values of e2m1
 * codes with half the scales of their groups. In every eight the order k, k + 4, k + 1, k + 5, k + 2, k + 6, k + 3,
 * k + 7. */
typedef struct qn_panel_bytes {
    int8_t x[QN_PANEL_K];
    int32_t offset[4]; /* -12 times the sum of each group, or of each sixteen */
    float scale[4];    /* of codes */
} qn_panel_bytes;

/* A pair of elements of a block: what words leave of them. */
typedef struct qn_panel_rest {
    int8_t x[2];
    uint16_t pair; /* of the block's 32 */
} qn_panel_rest;

/* A block of 64 of a row of bf16 for 4-bit floats (kernels/cpu/avx512vnni/fp4_words_avx512vnni.c): x[k] is 512
 * word[k] times the scale of its sixteen, and some pairs have rests, 128ths of words. A scale of NaN: not finite; one of
 * 0: zeros. */
typedef struct qn_panel_words {
    struct qn_panel_word_block {
        int16_t word[QN_PANEL_K];
        float scale[4];
    } x;
    int32_t rests; /* that there are */
    qn_panel_rest rest[QN_PANEL_K / 2];
    int32_t unused[11];
} qn_panel_words;

/* What the packer says of a panel. */
#define QN_PANEL_SPECIAL 1   /* kernels must not compute it; what they leave for it is not looked at */
#define QN_PANEL_SUBNORMAL 2 /* e4m3, e5m2: many codes are subnormal, more than one in QN_PANEL_SUBNORMAL_SHARE */
#define QN_PANEL_SUBNORMAL_SHARE 2048

/* How a level wants the rows of a: K padded with zeros to a multiple of 64. Lines of 64 bytes of the rows of a
 * group alternate: line i of row r is at a + r / group * a_stride + (i * group + r % group) * 64. A group of 16
 * is tiles of AMX, one after the other; a group of 1 a plain row. */
typedef enum qn_panel_rows {
    QN_PANEL_ROWS_F32 = 0, /* [K] floats */
    QN_PANEL_ROWS_BF16,    /* [K/64][terms][64] bf16: x as the exact sum of 1, 2 or 3 terms */
    QN_PANEL_ROWS_I8,      /* [K] int8 */
    QN_PANEL_ROWS_I16,     /* [K/4][4] int16 in the order k, k+2, k+1, k+3: pairs for even and odd bytes */
    QN_PANEL_ROWS_DIGITS,  /* [K/64] qn_panel_digits: codes of groups; at avx2 4-bit floats */
    QN_PANEL_ROWS_PLACES,  /* [K/64] qn_panel_places: digits of codes of groups for tiles of bf16 */
    QN_PANEL_ROWS_BYTES,   /* [K/64] qn_panel_bytes: rows of int8 or of e2m1 codes, for 4-bit floats */
    QN_PANEL_ROWS_WORDS    /* [K/64] qn_panel_words: rows of bf16, for 4-bit floats */
} qn_panel_rows;

#define QN_PANEL_ALONE 2

/* One call: rows [0, rows) times panels [0, panels) along the whole of K. */
typedef struct qn_panel_call {
    const char *w;             /* blocks of panel p begin at w + p * panel_bytes */
    int64_t panel_bytes;
    int64_t panels, blocks;    /* blocks of 64 along K; may be 0 */
    const char *a;             /* group g begins at a + g * a_stride; 64-byte aligned, stride a multiple of 64 */
    int64_t a_stride;
    int64_t rows;              /* at least 1; memory is readable up to the level's row multiple */
    int32_t terms;             /* QN_PANEL_ROWS_BF16 */
    int32_t coded;             /* QN_PANEL_ROWS_BYTES: groups of rows have scales */
    int32_t alone;             /* up to QN_PANEL_ALONE rows: read one panel after the other */
    int32_t several;           /* QN_PANEL_ROWS_DIGITS: made for more rows than one, if perhaps not of this call */
    /* scales of blocks of 128 along K; sa NULL: none. The temporary chain of such a block starts at 0 and
     * sum = fma(temporary, sa[r][kb] * sb[p][kb], sum). Codes with scales of groups have none. */
    const float *sa;           /* sa[r * sa_stride + kb]; row_group > 1: sa[kb * sa_stride + r], whole groups */
    const float *sb;           /* sb[p * sb_stride + kb] */
    int64_t sa_stride, sb_stride;
    /* float or int32, 64-byte aligned, room for whole groups of rows: with a row_group of G, the sum of row r, column
     * c of panel p is at r / G * G * sums_stride + p * 16 * G + r % G * 16 + c. G of 1: plain rows; 16: tiles. */
    void *sums;
    int64_t sums_stride;       /* elements a row of a group, a multiple of 16 */
    const uint8_t *flags;      /* of panels: QN_PANEL_SPECIAL, QN_PANEL_SUBNORMAL */
    char *scratch;             /* the set's scratch_bytes, 64-byte aligned, private to the calling thread */
} qn_panel_call;

typedef void (*qn_panel_fn)(const qn_panel_call *call);

/* What digits are made for. */
typedef struct qn_panel_rounding {
    qn_panel_code code;
    float most_error; /* what rounding may leave, of the norm */
    int64_t rows;     /* of all calls */
} qn_panel_rounding;

/* Blocks of 64 elements as qn_panel_digits, qn_panel_places or qn_panel_words, from a multiple of 1024 elements of a row on. */
typedef void (*qn_panel_digits_fn)(const float *x, int64_t blocks, const qn_panel_rounding *how, void *out);

/* Fours of elements as QN_PANEL_ROWS_I16 has them. */
typedef void (*qn_panel_words_fn)(const int8_t *x, int64_t count, int16_t *out);

/* Blocks of 64 elements as QN_PANEL_ROWS_BYTES has them: int8, or with e4m3 scales of 16 e2m1 codes. */
typedef void (*qn_panel_bytes_fn)(const void *x, const uint8_t *scales, int64_t blocks, qn_panel_code code,
                                  qn_panel_bytes *out);

/* Everything of one instruction set. A code without a function has no kernel at that level. */
typedef struct qn_panel_set qn_panel_set;
struct qn_panel_set {
    qn_panel_rows rows_f;      /* rows for the float codes */
    qn_panel_rows rows_i8;     /* rows for QN_PANEL_I8 */
    int32_t row_group;         /* rows whose lines alternate: 1, 2, 4, 8 or 16 */
    int32_t row_multiple;      /* rows of a are readable up to a multiple of this */
    int32_t mr, nr;            /* register tile: rows, columns */
    int32_t rows_block, panels_block; /* what the set likes best in one call when there are many rows */
    int32_t few_panels;        /* of two to sixteen rows, at most; 0: as of one */
    size_t scratch_bytes;
    qn_panel_digits_fn digits; /* NULL: no codes of groups */
    qn_panel_words_fn words;   /* rows_i8 of QN_PANEL_ROWS_I16 */
    qn_panel_bytes_fn bytes;   /* rows_f of QN_PANEL_ROWS_BYTES */
    float unit;                /* of sums, beside qn_panel_factor; 0: 1 */
    qn_panel_fn mm[QN_PANEL_CODES];
    const qn_panel_set *few;   /* takes runs of up to few_rows rows, with the same bits; NULL: none does */
    int32_t few_rows;
};

extern const qn_panel_set qn_panel__scalar, qn_panel__avx2, qn_panel__avx512, qn_panel__avx512vnni,
    qn_panel__avx512bf16, qn_panel__amx;
extern const qn_panel_set qn_groups__avx2, qn_groups__avx512vnni, qn_groups__amx; /* of the codes of groups */
extern const qn_panel_set qn_fp4__avx2, qn_fp4__avx512vnni;        /* of the 4-bit floats */
extern const qn_panel_set qn_bytes__avx2, qn_bytes__avx512vnni;    /* the same, for rows of bytes */

#endif
