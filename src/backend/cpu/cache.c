/* Sizes of the caches, by cpuid: measuring (src/plan/ceiling.c) must know what it has to go past.
 *
 * Both makers describe each cache in the same form, in leaves of their own. A
 * last-level cache may be shared by fewer threads than there are (AMD has one a
 * group of cores), so as many are counted as that many threads can reach. Under a
 * hypervisor the leaf tells the host's cache, of which a guest may get a part:
 * then the number is too large, which only makes measuring go further past it. */
#include "backend/cpu/cache.h"

#if defined(__x86_64__)

#include <cpuid.h>

#define LEAF_INTEL 4u
#define LEAF_AMD 0x8000001Du
#define AMD_TOPOLOGY (1u << 22) /* of leaf 0x80000001, ecx */

static size_t last_cache(unsigned leaf, int32_t threads)
{
    unsigned a, b, c, d, level = 0;
    size_t bytes = 0;
    for (unsigned i = 0; i < 16 && __get_cpuid_count(leaf, i, &a, &b, &c, &d); i++) {
        const unsigned type = a & 31u, this_level = a >> 5 & 7u;
        if (type == 0) {
            break;
        }
        if (type == 2 || this_level < level) { /* instructions */
            continue;
        }
        const size_t ways = (b >> 22) + 1, parts = (b >> 12 & 1023u) + 1, line = (b & 4095u) + 1, sets = (size_t)c + 1;
        const size_t sharing = (a >> 14 & 4095u) + 1, wanted = threads > 0 ? (size_t)threads : 1;
        level = this_level;
        bytes = ways * parts * line * sets * ((wanted + sharing - 1) / sharing);
    }
    return bytes;
}

size_t qn_cpu_last_cache_bytes(int32_t threads)
{
    const size_t intel = last_cache(LEAF_INTEL, threads);
    unsigned a, b, c, d;
    if (intel || !__get_cpuid(0x80000001u, &a, &b, &c, &d) || !(c & AMD_TOPOLOGY)) {
        return intel;
    }
    return last_cache(LEAF_AMD, threads);
}

#else

size_t qn_cpu_last_cache_bytes(int32_t threads)
{
    (void)threads;
    return 0;
}

#endif
