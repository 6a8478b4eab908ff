/* Which unpack fragment decodes rows of a plain element format. */
#include "backend/cpu/mm_fragment.h"

qn_mm_fragment qn_mm_fragment_of(qn_format format)
{
    switch ((int)format) {
    case QN_F32: return QN_MM_FRAG_F32;
    case QN_F16: return QN_MM_FRAG_F16;
    case QN_BF16: return QN_MM_FRAG_BF16;
    case QN_F8_E4M3: return QN_MM_FRAG_E4M3;
    default: return QN_MM_ANY;
    }
}
