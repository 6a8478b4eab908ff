/* What a test asks of the stand-in driver (fake_cuda.c), by dlsym. */
#ifndef QN_TESTS_FAKE_CUDA_H
#define QN_TESTS_FAKE_CUDA_H

#include <stdint.h>

#define FAKE __attribute__((visibility("default")))

typedef struct fake_launch {
    long launches;
    uint32_t grid[3], block;
    void *stream;
} fake_launch;

typedef struct fake_driver {
    void *handle;
    void (*setup)(int count, int major, int minor);
    void (*sms)(int count);
    void (*break_at)(long n, int result);
    long (*calls)(void);
    long (*live)(void);
    long (*compiles)(void);
    fake_launch (*last)(void);
} fake_driver;

#endif
