/* Vector-quantised weights of level avx2 (kernels/common/vq.h). */
#include "kernels/cpu/avx2/vec.h"

#define VQ_EIGHTS 1
#include "kernels/cpu/vq_books.h"
