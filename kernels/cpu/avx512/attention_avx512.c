/* Attention parts of level avx512 (kernels/common/attention.h). */
#include "kernels/cpu/avx512/vec.h"

#include "kernels/cpu/avx512/stored.h"
#include "kernels/cpu/attention_stored.h"

#include "kernels/cpu/attention.h"
