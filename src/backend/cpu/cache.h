/* The caches of this processor. */
#ifndef QN_BACKEND_CPU_CACHE_H
#define QN_BACKEND_CPU_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the last-level caches that this many threads can fill between them; 0: the processor tells none. */
size_t qn_cpu_last_cache_bytes(int32_t threads);

#endif
