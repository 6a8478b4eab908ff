/* Which unpack fragment decodes rows of a plain element format. */
#ifndef QN_BACKEND_CPU_MM_FRAGMENT_H
#define QN_BACKEND_CPU_MM_FRAGMENT_H

#include <quern/format.h>

#include "kernels/common/mm.h"

/* QN_MM_ANY: through the format's decoder. */
qn_mm_fragment qn_mm_fragment_of(qn_format format);

#endif
