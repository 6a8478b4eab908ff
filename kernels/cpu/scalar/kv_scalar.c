/* Keys and values from codes at level scalar (kernels/common/kv.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/kv.h"
