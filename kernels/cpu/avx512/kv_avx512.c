/* Keys and values from codes at level avx512 (kernels/common/kv.h). */
#include "kernels/cpu/avx512/vec.h"

#include "kernels/cpu/kv.h"
