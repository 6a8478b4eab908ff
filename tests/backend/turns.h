/* Cases dealt among processes: those that name the same file each take the next case that nobody has taken. A case's
 * number is how many were met before it, so that all of them must meet the same ones in the same order. */
#ifndef QN_TESTS_TURNS_H
#define QN_TESTS_TURNS_H

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

typedef struct turns {
    int file;  /* a byte of it for each number taken */
    long mine; /* the next case of this process */
    long met, taken;
} turns;

static inline long turns_take(const turns *t)
{
    return write(t->file, "", 1) == 1 ? (long)lseek(t->file, 0, SEEK_CUR) - 1 : -1; /* appended: its own byte's place */
}

/* path NULL: every case is this process's. 0: the file cannot be had. */
static inline int turns_open(turns *t, const char *path)
{
    *t = (turns){.file = -1};
    if (path) {
        t->file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        t->mine = t->file < 0 ? -1 : turns_take(t);
    }
    return t->mine >= 0;
}

/* Once for each case: whether it is this process's. */
static inline int turns_is_mine(turns *t)
{
    const long number = t->met++;
    if (t->file >= 0 && number != t->mine) {
        return 0;
    }
    if (t->file >= 0) {
        t->mine = turns_take(t);
    }
    t->taken++;
    return 1;
}

static inline void turns_close(turns *t)
{
    printf("%ld of %ld cases\n", t->taken, t->met);
    if (t->file >= 0) {
        close(t->file);
    }
}

#endif
