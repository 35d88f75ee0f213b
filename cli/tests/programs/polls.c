/* What an empty ibv_poll_cq costs: with one thread, and with two threads that have a completion queue each.
 *
 * Prints the time of a call in ns with one thread, with two, and how many times as many calls two threads make. */

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 4000000, ROUNDS = 5 };

static pthread_barrier_t begin;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

/* The time of a call of this thread. */
static double polls(struct ibv_cq *cq)
{
    struct ibv_wc wc[16];
    double start = now();
    for (int call = 0; call < CALLS; call++) {
        if (ibv_poll_cq(cq, 16, wc) != 0) {
            fprintf(stderr, "a poll of an empty queue found something or failed\n");
            exit(1);
        }
    }
    return (now() - start) / CALLS;
}

static void *one_of_two(void *cq)
{
    static __thread double took;
    pthread_barrier_wait(&begin);
    took = polls(cq);
    double *result = malloc(sizeof *result);
    *result = took;
    return result;
}

static int ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    struct ibv_cq *cq[2] = {NULL, NULL};
    double one[ROUNDS], two[ROUNDS], ratio[ROUNDS];
    if (!context) {
        fprintf(stderr, "there is no device\n");
        return 1;
    }
    for (int i = 0; i < 2; i++)
        if (!(cq[i] = ibv_create_cq(context, 64, NULL, NULL, 0)))
            return 1;
    pthread_barrier_init(&begin, NULL, 2);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[2];
        double rate = 0;
        one[round] = polls(cq[0]);
        two[round] = 0;
        for (int i = 0; i < 2; i++)
            if (pthread_create(&threads[i], NULL, one_of_two, cq[i]))
                return 1;
        for (int i = 0; i < 2; i++) {
            void *took;
            pthread_join(threads[i], &took);
            two[round] += *(double *)took / 2;
            rate += 1 / *(double *)took;
            free(took);
        }
        ratio[round] = rate * one[round];
    }
    qsort(one, ROUNDS, sizeof *one, ascending);
    qsort(two, ROUNDS, sizeof *two, ascending);
    qsort(ratio, ROUNDS, sizeof *ratio, ascending);
    printf("one: %.1f two: %.1f ratio: %.2f\n", one[ROUNDS / 2], two[ROUNDS / 2], ratio[ROUNDS / 2]);
    ibv_destroy_cq(cq[0]);
    ibv_destroy_cq(cq[1]);
    ibv_close_device(context);
    ibv_free_device_list(devices);
    return 0;
}
