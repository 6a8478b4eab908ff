/* Vector-quantised weights of level avx512 (kernels/common/vq.h). */
#include "kernels/cpu/avx512/vec.h"

#define VQ_EIGHTS "kernels/cpu/avx2/vq_eights.h"
#include "kernels/cpu/vq_books.h"
