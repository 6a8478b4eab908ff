/* Version of the library. MAJOR changes when the ABI breaks; before 1.0 MINOR does. */
#ifndef QUERN_VERSION_H
#define QUERN_VERSION_H

#include <quern/status.h>

#define QN_VERSION_MAJOR 0
#define QN_VERSION_MINOR 1
#define QN_VERSION_PATCH 0
#define QN_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library that is running, "MAJOR.MINOR.PATCH". Static storage. Thread-safe. */
QN_API const char *qn_version(void);

#ifdef __cplusplus
}
#endif
#endif
