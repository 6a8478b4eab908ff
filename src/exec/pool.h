/* What the pool offers inside the library beside qn_parallel_for. */
#ifndef QN_EXEC_POOL_H
#define QN_EXEC_POOL_H

#include <stddef.h>

#include <quern/exec.h>

/* A hint: these bytes are what the next jobs read from front to back, shared out as tasks are. Threads that wait bring
 * the first of theirs into their caches; nobody reads them for it, so they may be freed at any time. NULL: nothing.
 * Without effect where exec has no pool. */
void qn_exec_ahead(const qn_exec *exec, const void *data, size_t bytes);

#endif
