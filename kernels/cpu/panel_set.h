/* The panel set of a level that takes rows as f32 and int16. Included last by its panel_<isa>.c. */
PANEL_MM(mm_bf16, QN_PANEL_BF16)
PANEL_MM_F8(mm_e4m3, E4M3)
PANEL_MM_F8(mm_e5m2, E5M2)
#ifndef FP4_ELSEWHERE
PANEL_MM(mm_nvfp4, QN_PANEL_NVFP4)
PANEL_MM(mm_mxfp4, QN_PANEL_MXFP4)
#endif
PANEL_MM(mm_f32, QN_PANEL_F32)

const qn_panel_set QN_NAME(panel) = {.rows_f = QN_PANEL_ROWS_F32,
                                     .rows_i8 = QN_PANEL_ROWS_I16,
                                     .row_group = 1,
                                     .row_multiple = 1,
                                     .mr = PAIR_MR_MANY,
                                     .nr = PAIR_NR_MANY * QN_PANEL_COLS,
                                     .rows_block = 256,
                                     .panels_block = 16,
                                     .scratch_bytes = PANEL_SCRATCH > I8_SCRATCH ? PANEL_SCRATCH : I8_SCRATCH,
                                     .words = i8_words,
                                     .mm = {[QN_PANEL_BF16] = mm_bf16,
                                            [QN_PANEL_E4M3] = mm_e4m3,
                                            [QN_PANEL_E5M2] = mm_e5m2,
#ifndef FP4_ELSEWHERE
                                            [QN_PANEL_NVFP4] = mm_nvfp4,
                                            [QN_PANEL_MXFP4] = mm_mxfp4,
#endif
                                            [QN_PANEL_F32] = mm_f32,
                                            [QN_PANEL_I8] = mm_i8}};
