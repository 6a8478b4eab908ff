/* Float matmul parts of level avx2 (kernels/common/mm.h). */
#include "kernels/cpu/avx2/vec.h"

#include "kernels/cpu/mm_f32.h"
#include "kernels/cpu/finish.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/unpack.h"
#include "kernels/cpu/mm_set.h"
