/* Attention parts of level scalar (kernels/common/attention.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/attention.h"
