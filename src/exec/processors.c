/* Processors and quota of this process, read once when a pool is made.
 *
 * The affinity mask says which processors there are, sysfs which of them share a
 * core, and the control group files (version 2 and version 1, every level up to
 * the root) how much time: a container granted 2 processors of 64 wants 2 threads.
 * A file that is missing or odd means no limit. */
#include "exec/processors.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The beginning of a small file as text; 0 when there is none. */
static int read_text(const char *path, char *text, size_t capacity)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    size_t length = 0;
    while (length < capacity - 1) {
        const ssize_t n = read(file, text + length, capacity - 1 - length);
        if (n <= 0) {
            break;
        }
        length += (size_t)n;
    }
    close(file);
    text[length] = '\0';
    return length > 0;
}

/* ---- processors ---- */

/* 1 when a processor before this one in the mask is of the same core. list: "0,64", "0-1". */
static int shares_core(const char *list, int32_t id, const cpu_set_t *mask)
{
    for (const char *p = list; *p && *p != '\n';) {
        char *end;
        const long first = strtol(p, &end, 10);
        long last = first;
        if (end == p) {
            return 0;
        }
        if (*end == '-') {
            p = end + 1;
            last = strtol(p, &end, 10);
        }
        for (long i = first < 0 ? 0 : first; i <= last && i < id; i++) {
            if (CPU_ISSET((size_t)i, mask)) {
                return 1;
            }
        }
        p = *end == ',' ? end + 1 : end;
        if (p == end && *end && *end != '\n') {
            return 0;
        }
    }
    return 0;
}

static int is_second_of_core(const char *root, int32_t id, const cpu_set_t *mask)
{
    char path[512], list[256];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, id);
    return read_text(path, list, sizeof list) && shares_core(list, id, mask);
}

static void reverse(int32_t *ids, int32_t count)
{
    for (int32_t i = 0, j = count - 1; i < j; i++, j--) {
        const int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
}

/* The processor the caller is on comes first: pools of several processes then seldom meet on the others. */
static void begin_with(int32_t *ids, int32_t count, int32_t current)
{
    for (int32_t i = 1; i < count; i++) {
        if (ids[i] == current) {
            reverse(ids, i);
            reverse(ids + i, count - i);
            reverse(ids, count);
            return;
        }
    }
}

void qn_processors_get(const char *root, qn_processors *processors)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    *processors = (qn_processors){.count = 1};
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) < 1) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        processors->count = n > QN_MOST_PROCESSORS ? QN_MOST_PROCESSORS : (n > 0 ? (int32_t)n : 1);
        return;
    }
    int32_t firsts = 0, seconds = 0, second[QN_MOST_PROCESSORS];
    for (int32_t id = 0; id < QN_MOST_PROCESSORS && id < CPU_SETSIZE; id++) {
        if (CPU_ISSET((size_t)id, &mask)) {
            if (is_second_of_core(root, id, &mask)) {
                second[seconds++] = id;
            } else {
                processors->ids[firsts++] = id;
            }
        }
    }
    begin_with(processors->ids, firsts, sched_getcpu());
    memcpy(processors->ids + firsts, second, (size_t)seconds * sizeof *second);
    processors->count = firsts + seconds;
    processors->known = 1;
}

/* ---- quota ---- */

static double smaller_limit(double a, double b)
{
    return a <= 0 || (b > 0 && b < a) ? b : a;
}

/* Time over period, both in microseconds; 0 when the first is no number ("max") or negative. */
static double share(const char *quota, const char *period)
{
    const double time = strtod(quota, NULL), of = strtod(period, NULL);
    return time > 0 && of > 0 ? time / of : 0;
}

static double quota_in(const char *folder, int version)
{
    char path[1024], first[64], second[64];
    if (version == 2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        const char *space = read_text(path, first, sizeof first) ? strchr(first, ' ') : NULL;
        return space ? share(first, space + 1) : 0;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, first, sizeof first)) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_text(path, second, sizeof second) ? share(first, second) : 0;
}

/* The smallest limit of a group and those it is in. */
static double quota_of_group(const char *root, const char *group, int version)
{
    char folder[768];
    const int n = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root, version == 2 ? "" : "/cpu", group);
    if (n < 0 || (size_t)n >= sizeof folder) {
        return 0;
    }
    const size_t shortest = (size_t)n - strlen(group);
    double limit = 0;
    for (size_t length = (size_t)n;;) {
        folder[length] = '\0';
        limit = smaller_limit(limit, quota_in(folder, version));
        if (length <= shortest) {
            return limit;
        }
        do {
            length--;
        } while (length > shortest && folder[length] != '/');
    }
}

/* 1 when "cpu" is one of the controllers "cpu,cpuacct". */
static int names_cpu(const char *controllers)
{
    for (const char *p = controllers; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (strncmp(p, "cpu", 3) == 0 && (p[3] == ',' || p[3] == '\0')) {
            return 1;
        }
    }
    return 0;
}

double qn_processors_quota(const char *root)
{
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text, sizeof text)) {
        return 0;
    }
    double limit = 0;
    /* each line: hierarchy:controllers:group */
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = '\0';
        }
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        controllers++;
        if (*controllers == '\0' || names_cpu(controllers)) {
            limit = smaller_limit(limit, quota_of_group(root, group, *controllers == '\0' ? 2 : 1));
        }
    }
    return limit;
}
