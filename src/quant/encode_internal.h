/* Shared by the encoder's two files: encode.c (scales, plain rounding) and feedback.c. */
#ifndef QN_QUANT_ENCODE_INTERNAL_H
#define QN_QUANT_ENCODE_INTERNAL_H

#include "quant/encode.h"

#define QN_LANES 8 /* partial sums of a long sum, added in a fixed order */

/* Elements that share a scale. */
typedef struct qn_tile {
    const float *w;
    const float *importance; /* of the first column; NULL: none */
    int64_t rows, columns, stride;
} qn_tile;

typedef struct qn_scale_choice {
    uint8_t stored[8]; /* the scale as written */
    float value;       /* what codes are multiplied by */
} qn_scale_choice;

qn_scale_choice qn_choose_scale(const qn_encoder *encoder, const qn_tile *tile);

void qn_encode_rows_feedback(const qn_encoder *encoder, const float *w, int64_t rows, void *data, void *scales,
                             float *scratch, qn_encode_sums *sums);

#endif
