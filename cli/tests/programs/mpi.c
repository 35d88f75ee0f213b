// A ring and an allreduce over MPI, every number compared. Exits with 1 after a wrong number.

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 1 << 18, TURNS = 3 };

static uint64_t *numbers, *results;

static uint64_t number_of(int rank, int turn, int index) {
    return (uint64_t)rank * 1000003u + (uint64_t)turn * 7919u + (uint64_t)index;
}

static void must_be(uint64_t found, uint64_t expected, const char *what, int rank, int count, int index) {
    if (found != expected) {
        fprintf(stderr, "rank %d: %s of %d numbers: number %d is %llu, not %llu\n", rank, what, count, index,
                (unsigned long long)found, (unsigned long long)expected);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

// Each rank sends its numbers to the next rank and receives those of the rank before.
static void ring(int rank, int ranks, int turn, int count) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int i = 0; i < count; i++) {
        numbers[i] = number_of(rank, turn, i);
        results[i] = 0;
    }
    MPI_Sendrecv(numbers, count, MPI_UINT64_T, next, turn, results, count, MPI_UINT64_T, before, turn, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++) {
        must_be(results[i], number_of(before, turn, i), "ring", rank, count, i);
    }
}

// Every rank gets the sums of the numbers of all ranks.
static void allreduce(int rank, int ranks, int turn, int count) {
    for (int i = 0; i < count; i++) {
        numbers[i] = number_of(rank, turn, i);
    }
    MPI_Allreduce(numbers, results, count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (int other = 0; other < ranks; other++) {
            sum += number_of(other, turn, i);
        }
        must_be(results[i], sum, "allreduce", rank, count, i);
    }
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    numbers = malloc(LARGEST * sizeof *numbers);
    results = malloc(LARGEST * sizeof *results);
    if (numbers == NULL || results == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int count = 1; count <= LARGEST; count *= 8) {
            ring(rank, ranks, turn, count);
            allreduce(rank, ranks, turn, count);
        }
    }
    if (rank == 0) {
        printf("all numbers of %d ranks are right\n", ranks);
    }
    free(numbers);
    free(results);
    MPI_Finalize();
    return 0;
}
