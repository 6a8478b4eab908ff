/* Tuned overrides: for a device, N and K, which of the candidate cuts of block_scaled_mm measurements chose for how
 * many rows. Texts: data/tuned-cuts.txt, which the build embeds, and a file of that name in the cache folder, whose entries
 * come first. Read once, when a context's device is opened (load.c); used by run_block_scaled_mm.c. */
#ifndef QN_BACKEND_CUDA_TUNED_H
#define QN_BACKEND_CUDA_TUNED_H

#include "backend/cuda/cuda.h"

#define QN_TUNED_FILE "tuned-cuts.txt"

/* Entries of the embedded text for the device's name, added to the device. */
void qn_tuned_embedded(qn_cuda_device *device);

/* Those of a text, in front. QN_E_FORMAT names the line; the device then stays as it was. */
qn_status qn_tuned_read(const char *text, const char *file, qn_cuda_device *device, qn_error *error);

/* The entry for n and k whose m, above `low` and at most `high`, is nearest to m in ratio; NULL: none. */
const qn_tuned *qn_tuned_find(const qn_cuda_device *device, int64_t n, int64_t k, int64_t m, int64_t low, int64_t high);

#endif
