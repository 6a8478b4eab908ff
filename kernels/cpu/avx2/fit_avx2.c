/* Fitting codebooks at level avx2 (kernels/common/fit.h). */
#include "kernels/cpu/avx2/vec.h"

#include "kernels/cpu/fit.h"
