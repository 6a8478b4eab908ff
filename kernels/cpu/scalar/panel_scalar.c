/* Panel kernels of level scalar. */
#include "kernels/cpu/scalar/pairs.h"

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_set.h"
