/* Vector-quantised weights of level avx512 (kernels/common/vq.h). */
#include "kernels/cpu/avx512/vec.h"

#define VQ_EIGHTS 1
#include "kernels/cpu/vq_books.h"
