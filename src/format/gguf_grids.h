/* Vectors of GGUF's IQ blocks (gguf_grids.c). */
#ifndef QN_FORMAT_GGUF_GRIDS_H
#define QN_FORMAT_GGUF_GRIDS_H

#include <stdint.h>

extern const uint16_t qn_grid_iq2_xxs[256], qn_grid_iq2_xs[512], qn_grid_iq2_s[1024], qn_grid_iq1_s[2048];
extern const uint16_t qn_grid_iq3_xxs[256], qn_grid_iq3_s[512];

#endif
