/* Row-wise parts of level avx2 (kernels/common/rows.h). */
#include "kernels/cpu/avx2/vec.h"

#include "kernels/cpu/rows.h"
