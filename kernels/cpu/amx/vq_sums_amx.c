/* Partial-sum tables of aqlm, one row of x, of level amx: on its processors a permute of two registers is three
 * operations. */
#define QN_ISA amx
#define QN_SHORT_PERMUTES
#include "kernels/cpu/avx512vnni/vq_sums.h"

const qn_vq_sums_fn qn_vq_sums_one__amx = sums_one;
