/* Vector-quantised weights of level scalar (kernels/common/vq.h). */
#include "kernels/cpu/scalar/vec.h"

#include "kernels/cpu/vq_books.h"
