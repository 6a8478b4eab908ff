/* Codecs of f32 and f64 (docs/formats/floats.md). f64 is read from checkpoints
 * only to be narrowed, so it goes through the compiler's own conversion. */
#include <string.h>

#include "format/codecs.h"

QN_DECODER(f32)
{
    if (count) {
        memcpy(destination, source, (size_t)count * sizeof *destination);
    }
}

QN_ENCODER(f32)
{
    if (count) {
        memcpy(destination, source, (size_t)count * sizeof *source);
    }
}

QN_DECODER(f64)
{
    const uint8_t *bytes = source;
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, bytes + i * 8, 8);
        destination[i] = (float)value;
    }
}

QN_ENCODER(f64)
{
    uint8_t *bytes = destination;
    for (int64_t i = 0; i < count; i++) {
        const double value = (double)source[i];
        memcpy(bytes + i * 8, &value, 8);
    }
}
