/* What a group's codes stand for, as vectors of its columns (kernels/common/panel.h). The vectors and their operations,
 * vgf_*, are the including file's: kernels/cpu/panel_groups.h names them. Every level has the same bits. */
#ifndef QN_KERNELS_GROUP_AFFINE_H
#define QN_KERNELS_GROUP_AFFINE_H

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

/* Every code of groups and the function GROUP_MM(name, code) makes for it; a set's entries of them. */
#define EACH_GROUP_CODE(X)                                                                                             \
    X(mm_g4, QN_PANEL_G4)                                                                                              \
    X(mm_g4m, QN_PANEL_G4M)                                                                                            \
    X(mm_g5, QN_PANEL_G5)                                                                                              \
    X(mm_g5m, QN_PANEL_G5M)                                                                                            \
    X(mm_g8, QN_PANEL_G8)                                                                                              \
    X(mm_s4m, QN_PANEL_S4M)                                                                                            \
    X(mm_s5m, QN_PANEL_S5M)                                                                                            \
    X(mm_s6, QN_PANEL_S6)                                                                                              \
    X(mm_s3, QN_PANEL_S3)                                                                                              \
    X(mm_s2m, QN_PANEL_S2M)                                                                                            \
    X(mm_g4t, QN_PANEL_G4T)                                                                                            \
    X(mm_s4t, QN_PANEL_S4T)                                                                                            \
    X(mm_s8, QN_PANEL_S8)

#define GROUP_ENTRY(name, code) [code] = name,

typedef struct group_affine {
    vgf scale, offset; /* w = scale (q - middle) + offset */
} group_affine;

QN_INLINE group_affine group_affine_of(const int code, const char *block, int64_t g, int64_t half)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    const int64_t groups = QN_PANEL_K / c.group, column = half / 4, lines = groups * QN_PANEL_COLS;
    const char *const at = block + qn_panel_group_codes_bytes(code);
    const vgf middle = vgf_set((float)c.middle);
    const int64_t i = g * QN_PANEL_COLS + column;
    group_affine a;
    if (!c.super) {
        a.scale = vgf_of_f16(at + i * 2);
        a.offset = c.minima ? vgf_fma(middle, a.scale, vgf_of_f16(at + (lines + i) * 2)) : a.scale;
        return a;
    }
    const char *const bytes = at + 4 * QN_PANEL_COLS + i;
    const vgf d = c.bits == 8 ? vgf_load((const float *)(const void *)at + column) : vgf_of_f16(at + column * 2);
    a.scale = vgf_mul(d, c.minima ? vgf_of_u8(bytes) : vgf_of_i8(bytes));
    a.offset = a.scale;
    if (c.minima) {
        const vgf dmin = vgf_of_f16(at + (QN_PANEL_COLS + column) * 2);
        a.offset = vgf_fnma(dmin, vgf_of_u8(bytes + lines), vgf_mul(middle, a.scale));
    }
    return a;
}

#endif
