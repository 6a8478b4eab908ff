#include "format/kv.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static const qn_kv_scheme table[] = {
    {.info = {.name = "f32", .summary = "floats of 32 bits"}, .format = QN_F32},
    {.info = {.name = "bf16", .summary = "BF16, on the CPU"}, .format = QN_BF16},
    {.info = {.name = "fp8", .summary = "FP8 e4m3 with a scale for every token and head"},
     .scaled = 1,
     .format = QN_F8_E4M3},
    {.info = {.name = "cq4", .summary = "coupled codes of 2 channels in 8 bits: 4 bits a channel", .codebooks = 1},
     .channels = 2,
     .bits = 8,
     .format = QN_U8},
    {.info = {.name = "cq2", .summary = "coupled codes of 4 channels in 8 bits: 2 bits a channel", .codebooks = 1},
     .channels = 4,
     .bits = 8,
     .format = QN_U8},
    {.info = {.name = "cq1", .summary = "coupled codes of 8 channels in 8 bits: 1 bit a channel", .codebooks = 1},
     .channels = 8,
     .bits = 8,
     .format = QN_U8},
};

enum { SCHEMES = sizeof table / sizeof *table };

const qn_kv_scheme *qn_kv_find(const char *name)
{
    for (size_t i = 0; i < SCHEMES; i++) {
        if (strcmp(table[i].info.name, name ? name : QN_KV_DEFAULT) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

qn_status qn_kv_at(int32_t i, qn_kv_info *info)
{
    if (i < 0 || i >= SCHEMES || !info) {
        return QN_E_ARGUMENT;
    }
    *info = table[i].info;
    return QN_OK;
}

size_t qn_kv_scales_at(int32_t heads, int32_t size)
{
    return qn_align_up((size_t)heads * (size_t)size, sizeof(float));
}

size_t qn_kv_row_bytes(const qn_kv_scheme *scheme, int32_t heads, int32_t size)
{
    const size_t elements = (size_t)heads * (size_t)size;
    if (scheme->channels) {
        return elements / (size_t)scheme->channels;
    }
    return scheme->scaled ? qn_kv_scales_at(heads, size) + (size_t)heads * sizeof(float)
                          : elements * (scheme->format == QN_BF16 ? 2 : sizeof(float));
}

qn_shape qn_kv_book_shape(const qn_kv_scheme *scheme, int32_t heads, int32_t size)
{
    return qn_shape_make(QN_F16, 4, heads, size / scheme->channels, INT64_C(1) << scheme->bits, scheme->channels);
}
