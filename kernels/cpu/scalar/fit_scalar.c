/* Fitting codebooks at level scalar (kernels/common/fit.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/fit.h"
