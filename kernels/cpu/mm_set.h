/* The table of one level's float matmul parts. Included last by mm.c. */
const qn_mm_f32_set QN_NAME(mm_f32) = {.lanes = VL,
                                       .mr = QN_MR,
                                       .nr = QN_NR,
                                       .tile = mm_f32_tile,
                                       .sum = mm_f32_sum,
                                       .finish = mm_finish,
                                       .split = mm_split,
                                       .unpack = {[QN_MM_ANY] = unpack_any,
#define QN_MM_FRAGMENT_ENTRY(name, unpack) [name] = unpack,
                                                  QN_MM_FRAGMENT_LIST(QN_MM_FRAGMENT_ENTRY)
#undef QN_MM_FRAGMENT_ENTRY
                                       }};
