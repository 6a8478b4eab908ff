/* Open addressing with linear probing, at most two thirds full. */
#include "base/map.h"

#include <string.h>

#include <xxhash.h>

#include "base/clock.h"

qn_map qn_map_make(const qn_ctx *ctx)
{
    return (qn_map){.ctx = ctx, .seed = qn_clock_ns() * 0x9E3779B97F4A7C15u};
}

/* Slot of the key, or the free one where it belongs. */
static qn_map_slot *find_slot(const qn_map *map, const char *key, size_t bytes, uint64_t hash)
{
    size_t i = (size_t)hash & (map->capacity - 1);
    for (;;) {
        qn_map_slot *slot = &map->slots[i];
        if (!slot->key || (slot->hash == hash && slot->bytes == bytes && memcmp(slot->key, key, bytes) == 0)) {
            return slot;
        }
        i = (i + 1) & (map->capacity - 1);
    }
}

static int grow(qn_map *map)
{
    qn_map bigger = *map;
    bigger.capacity = map->capacity ? map->capacity * 2 : 64;
    bigger.slots = qn_calloc(map->ctx, bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots) {
        return -1;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        const qn_map_slot *old = &map->slots[i];
        if (old->key) {
            *find_slot(&bigger, old->key, old->bytes, old->hash) = *old;
        }
    }
    qn_free(map->ctx, map->slots);
    *map = bigger;
    return 0;
}

int qn_map_add(qn_map *map, const char *key, size_t bytes, int32_t value)
{
    if (map->count >= map->capacity / 3 * 2 && grow(map) != 0) {
        return -1;
    }
    const uint64_t hash = XXH3_64bits_withSeed(key, bytes, map->seed);
    qn_map_slot *slot = find_slot(map, key, bytes, hash);
    if (slot->key) {
        return 1;
    }
    *slot = (qn_map_slot){key, bytes, hash, value};
    map->count++;
    return 0;
}

int32_t qn_map_get(const qn_map *map, const char *key, size_t bytes)
{
    if (!map->capacity) {
        return -1;
    }
    const qn_map_slot *slot = find_slot(map, key, bytes, XXH3_64bits_withSeed(key, bytes, map->seed));
    return slot->key ? slot->value : -1;
}

void qn_map_free(qn_map *map)
{
    qn_free(map->ctx, map->slots);
    *map = (qn_map){.ctx = map->ctx, .seed = map->seed};
}
