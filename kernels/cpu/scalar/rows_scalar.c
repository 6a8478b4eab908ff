/* Row-wise parts of level scalar (kernels/common/rows.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/rows.h"
