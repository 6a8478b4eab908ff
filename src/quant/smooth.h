/* Smoothing: the inputs of the linear layers are divided, column by column, by
 * factors that the weights before them are made smaller by and their own weights
 * larger (SmoothQuant; Xiao et al. 2022). The model computes the same; inputs with a
 * few large columns, which cost a scale shared by all columns dearly, become even.
 *
 *     d[k] = amax(x[:,k])^alpha / amax(W[:,k])^(1-alpha), over its geometric mean
 *     q, k, v and gate, up       columns * d, the norm before them / d
 *     down                       columns * d, rows of up / d
 *     o                          columns * d, rows of v / d; d is shared by the heads that share a value head
 *
 * A norm stays in the format it is written in: d is set so that gain / d is such a
 * number, and nothing is lost. Called by quantize.c between calibration and encoding. */
#ifndef QN_QUANT_SMOOTH_H
#define QN_QUANT_SMOOTH_H

#include "quant/calibrate.h"

/* alpha for a scheme; 0: its activations gain nothing. Even grids and e2m1 gain; FP8, whose
 * error is relative to each number, does not. */
float qn_smooth_alpha(const qn_scheme *scheme);

/* Set the scale vectors of the outputs (outputs.h) and bring the calibration's largest inputs
 * in line with them; qn_calibration_settle does so with its products. QN_E_MEMORY. */
qn_status qn_smooth(qn_ctx *ctx, const qn_hparams *hparams, qn_outputs *outputs, qn_calibration *calibration,
                    float alpha, const qn_exec *exec, qn_error *error);

#endif
