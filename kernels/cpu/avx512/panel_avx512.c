/* Panel kernels of level avx512. */
#include "kernels/cpu/avx512/pairs.h"

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_set.h"
