/* Attention parts of level avx2 (kernels/common/attention.h). */
#include "kernels/cpu/avx2/vec.h"

#include "kernels/cpu/avx2/stored.h"
#include "kernels/cpu/attention_stored.h"

#include "kernels/cpu/attention.h"
