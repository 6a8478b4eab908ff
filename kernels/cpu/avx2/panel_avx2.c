/* Panel kernels of level avx2. */
#include "kernels/cpu/avx2/pairs.h"

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_set.h"
