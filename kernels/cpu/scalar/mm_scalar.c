/* Float matmul parts of level scalar (kernels/common/mm.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/mm_f32.h"
#include "kernels/cpu/finish.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/unpack.h"
#include "kernels/cpu/mm_set.h"
