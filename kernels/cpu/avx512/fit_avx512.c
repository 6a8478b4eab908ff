/* Fitting codebooks at level avx512 (kernels/common/fit.h). */
#include "kernels/cpu/avx512/vec.h"

#include "kernels/cpu/fit.h"
