/* Reads tuned overrides: see tuned.h. A line is
 *
 *   DEVICE | N K M | tile BM BN STORE [CLUSTER SPLIT]
 *   DEVICE | N K M | strip GROUPS PAIR SPLIT UNROLL STAGES OCCUPANCY PARTS LATE TEAMS
 *
 * with the parameters of block_scaled_mm.cu and block_scaled_mm_skinny.cu; empty lines and those that begin with #
 * count for nothing. Other devices' lines are checked too. */
#include "backend/cuda/tuned.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/tiles.h"

enum { LINE = 256 };

/* The cut of a line after its second bar. NULL, or what is wrong. */
static const char *read_cut(const char *text, qn_tuned *t)
{
    char kind[8] = "", rest[2] = "";
    int32_t *v = t->value;
    const int found = sscanf(text, " %7s %d %d %d %d %d %d %d %d %d %1s", kind, &v[0], &v[1], &v[2], &v[3], &v[4],
                             &v[5], &v[6], &v[7], &v[8], rest);
    t->strip = strcmp(kind, "strip") == 0;
    if (!t->strip && strcmp(kind, "tile") != 0) {
        return "the cut is neither tile nor strip";
    }
    if (t->strip ? found != 10 : found != 4 && found != 6) {
        return t->strip ? "a strip has 9 numbers" : "a tile has 3 or 5 numbers";
    }
    if (t->strip) {
        const qn_strip s = qn_tuned_strip(t);
        return t->m > QN_STRIP_ROWS ? "strips are for at most 128 rows"
               : !qn_strip_exists(&s, qn_strip_height(t->m)) ? "there is no such strip"
                                                             : NULL;
    }
    qn_tile tile;
    return qn_tuned_tile(t, &tile) ? NULL : "there is no such tile for that many rows";
}

/* NULL, or what is wrong with a line that is no comment; `device` gets its device's name. */
static const char *read_line(const char *line, char *device, qn_tuned *t)
{
    const char *bar = strchr(line, '|'), *second = bar ? strchr(bar + 1, '|') : NULL;
    char rest[2] = "";
    if (!second) {
        return "it is not DEVICE | N K M | CUT";
    }
    size_t length = (size_t)(bar - line);
    while (length > 0 && line[length - 1] == ' ') {
        length--;
    }
    memcpy(device, line, length);
    device[length] = 0;
    if (sscanf(bar + 1, " %d %d %d %1[^|]", &t->n, &t->k, &t->m, rest) != 3 || t->n < 1 || t->k < 1 || t->m < 1) {
        return "N, K and M are not three positive numbers";
    }
    return read_cut(second + 1, t);
}

qn_status qn_tuned_read(const char *text, const char *file, qn_cuda_device *device, qn_error *error)
{
    qn_tuned found[QN_TUNED_MOST];
    int32_t count = 0, number = 0;
    for (const char *at = text, *end; *at; at = *end ? end + 1 : end) {
        char line[LINE], name[LINE];
        qn_tuned t = {0};
        end = at + strcspn(at, "\n");
        number++;
        QN_FAIL_IF(end - at >= LINE, error, QN_E_FORMAT, "%s:%d: the line is longer than %d characters", file, number,
                   LINE - 1);
        memcpy(line, at, (size_t)(end - at));
        line[end - at] = 0;
        if (line[strspn(line, " \t\r")] == 0 || line[0] == '#') {
            continue;
        }
        const char *wrong = read_line(line, name, &t);
        QN_FAIL_IF(wrong, error, QN_E_FORMAT, "%s:%d: %s", file, number, wrong);
        if (strcmp(name, device->name) == 0) {
            QN_FAIL_IF(count == QN_TUNED_MOST, error, QN_E_FORMAT, "%s:%d: more than %d cuts for %s", file, number,
                       QN_TUNED_MOST, name);
            found[count++] = t;
        }
    }
    const int32_t kept = device->tuned_count < QN_TUNED_MOST - count ? device->tuned_count : QN_TUNED_MOST - count;
    memmove(device->tuned + count, device->tuned, (size_t)kept * sizeof *found);
    memcpy(device->tuned, found, (size_t)count * sizeof *found);
    device->tuned_count = kept + count;
    return QN_OK;
}

void qn_tuned_embedded(qn_cuda_device *device)
{
    for (const qn_cuda_source *s = qn_cuda_sources; s->name; s++) {
        if (strcmp(s->name, QN_TUNED_FILE) == 0) {
            qn_tuned_read(s->text, QN_TUNED_FILE, device, NULL); /* a test reads it too: it is well-formed */
        }
    }
}

const qn_tuned *qn_tuned_find(const qn_cuda_device *device, int64_t n, int64_t k, int64_t m, int64_t low, int64_t high)
{
    const qn_tuned *best = NULL;
    double least = 0.0;
    for (int32_t i = 0; i < device->tuned_count; i++) {
        const qn_tuned *t = &device->tuned[i];
        const double ratio = t->m > m ? (double)t->m / (double)m : (double)m / (double)t->m;
        if (t->n == n && t->k == k && t->m > low && t->m <= high && (!best || ratio < least)) {
            best = t;
            least = ratio;
        }
    }
    return best;
}
