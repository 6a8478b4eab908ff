/* Vector-quantised weights of level avx2 (kernels/common/vq.h). */
#include "kernels/cpu/avx2/vec.h"

#define VQ_DOT "kernels/cpu/avx2/vq_dot.h"
#include "kernels/cpu/vq_books.h"
