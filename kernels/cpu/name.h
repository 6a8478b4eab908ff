/* QN_NAME(tile) is qn_tile__avx2 in the folder avx2: one text, a symbol a level. */
#ifndef QN_KERNELS_NAME_H
#define QN_KERNELS_NAME_H

#define QN_NAME3(what, isa) qn_##what##__##isa
#define QN_NAME2(what, isa) QN_NAME3(what, isa)
#define QN_NAME(what) QN_NAME2(what, QN_ISA)

/* Every constant of a tile reaches its innermost loop. Builds with sanitizers leave calls as the compiler likes them:
 * checks multiplied by copies make functions that take it minutes. */
#ifdef QN_KERNEL_CALLS
#define QN_INLINE static inline
#else
#define QN_INLINE static inline __attribute__((always_inline))
#endif

#endif
