/* What the programs here check with, and those of libs/rdmacm/tests/c. CHECK_EXIT ends a program: a child of a fork may define it as `_exit`. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef CHECK_EXIT
#define CHECK_EXIT exit
#endif

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            CHECK_EXIT(1);                                                                    \
        }                                                                                     \
    } while (0)

#endif
