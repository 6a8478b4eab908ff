/* Row-wise parts of level avx512 (kernels/common/rows.h). */
#include "kernels/cpu/avx512/vec.h"

#include "kernels/cpu/rows.h"
