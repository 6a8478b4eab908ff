/* Hash map from byte strings to 32-bit indices: how every reader finds names
 * and duplicates in linear time. Keys are borrowed and must outlive the map.
 * Seeded per map, so that a file cannot choose its collisions. */
#ifndef QN_BASE_MAP_H
#define QN_BASE_MAP_H

#include "base/context.h"

typedef struct qn_map_slot {
    const char *key; /* NULL: free */
    size_t bytes;
    uint64_t hash;
    int32_t value;
} qn_map_slot;

typedef struct qn_map {
    const qn_ctx *ctx;
    qn_map_slot *slots;
    size_t capacity, count; /* capacity: 0 or a power of two */
    uint64_t seed;
} qn_map;

qn_map qn_map_make(const qn_ctx *ctx);

/* Add a key. Returns 0: added; 1: it is there already (its value stays); -1: out of memory. */
int qn_map_add(qn_map *map, const char *key, size_t bytes, int32_t value);

/* Value of a key; -1 when there is none. */
int32_t qn_map_get(const qn_map *map, const char *key, size_t bytes);

void qn_map_free(qn_map *map);

#endif
