/* QN_NAME(tile) is qn_tile__avx2 in the folder avx2: one text, a symbol a level. */
#ifndef QN_KERNELS_NAME_H
#define QN_KERNELS_NAME_H

#define QN_NAME3(what, isa) qn_##what##__##isa
#define QN_NAME2(what, isa) QN_NAME3(what, isa)
#define QN_NAME(what) QN_NAME2(what, QN_ISA)

#define QN_INLINE static inline __attribute__((always_inline))

#endif
