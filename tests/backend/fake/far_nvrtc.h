/* What far_nvrtc.c and far_compiler.c say to each other over a socket: numbers, and strings with their lengths before.
 * A request is the options' count, they, the source and its name, the headers' count, their texts and their names; an
 * answer is the result, the log and what was made. */
#ifndef QN_TESTS_BACKEND_FAKE_FAR_NVRTC_H
#define QN_TESTS_BACKEND_FAKE_FAR_NVRTC_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

/* In place of a program's PTX: who compiles it when it is wanted, which most programs of a plan never are. Of the
 * process that asked for it. */
#define FAR_LATER "\001later"
typedef struct far_later {
    char mark[8];
    pid_t process;
    const char *(*text)(void *program); /* NULL: it does not compile, and stderr has why */
    void *program;
} far_later;

/* 1: all bytes went. */
static inline int far_send(int to, const void *bytes, size_t size)
{
    for (const char *at = bytes; size > 0;) {
        const ssize_t n = send(to, at, size, MSG_NOSIGNAL);
        if (n <= 0) {
            return 0;
        }
        at += n;
        size -= (size_t)n;
    }
    return 1;
}

static inline int far_send_text(int to, const char *text, uint64_t size)
{
    return far_send(to, &size, sizeof size) && far_send(to, text, size);
}

static inline int far_receive(int from, void *bytes, size_t size)
{
    return size == 0 || recv(from, bytes, size, MSG_WAITALL) == (ssize_t)size;
}

/* With a 0 behind it, the caller's to free; NULL: it did not come. */
static inline char *far_receive_text(int from, uint64_t *size)
{
    if (!far_receive(from, size, sizeof *size)) {
        return NULL;
    }
    char *const text = malloc(*size + 1);
    if (text && far_receive(from, text, *size)) {
        text[*size] = 0;
        return text;
    }
    free(text);
    return NULL;
}

#endif
