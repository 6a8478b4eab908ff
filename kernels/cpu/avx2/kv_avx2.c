/* Keys and values from codes at level avx2 (kernels/common/kv.h). */
#include "kernels/cpu/avx2/vec.h"

#include "kernels/cpu/kv.h"
