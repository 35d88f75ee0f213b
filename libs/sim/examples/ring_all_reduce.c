/*
 * An external scheduler in C: it drives a ring all-reduce over a simulated network.
 * sim/scenario/examples/ring_all_reduce.rs is the same program in Rust and explains the algorithm.
 *
 *     cargo build --release -p roce-sim-c
 *     cc -O2 -I libs/sim/include libs/sim/examples/ring_all_reduce.c -L target/release -lroce_sim_c -o ring
 *     LD_LIBRARY_PATH=target/release ./ring ring-all-reduce 8000000
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "roce_sim.h"

/* The bytes of the part that a rank sends in a round; sizes differ by at most one byte. */
static uint64_t size_of(uint64_t bytes, uint64_t ranks, uint64_t rank, uint64_t round)
{
    uint64_t rounds = 2 * (ranks - 1);
    uint64_t part = (rank + rounds * ranks - round) % ranks;

    return bytes / ranks + (part < bytes % ranks);
}

static int fail(struct roce_sim *sim)
{
    fprintf(stderr, "%s\n", roce_sim_error(sim));
    roce_sim_close(sim);
    return 1;
}

int main(int count, char **arguments)
{
    const char *scenario = count > 1 ? arguments[1] : "ring-all-reduce";
    uint64_t bytes = count > 2 ? strtoull(arguments[2], NULL, 10) : 8000000;
    struct roce_sim_event event;
    char reason[512];
    uint32_t ranks, rank;
    uint64_t round, rounds;
    int result;

    struct roce_sim *sim = roce_sim_open(scenario, reason, sizeof reason);
    if (sim == NULL) {
        fprintf(stderr, "%s\n", reason);
        return 1;
    }
    ranks = roce_sim_ranks(sim);
    rounds = 2 * (uint64_t)(ranks - 1);
    /* The tag of a message is its round. */
    for (rank = 0; rank < ranks; rank++)
        for (round = 0; round < rounds; round++)
            if (roce_sim_receive(sim, rank, (rank + 1) % ranks, round, size_of(bytes, ranks, rank, round)) < 0)
                return fail(sim);
    for (rank = 0; rank < ranks; rank++)
        if (roce_sim_send(sim, rank, (rank + 1) % ranks, 0, size_of(bytes, ranks, rank, 0)) < 0)
            return fail(sim);
    while ((result = roce_sim_next(sim, &event)) == 1) {
        if (event.kind != ROCE_SIM_RECEIVED || event.tag + 1 == rounds)
            continue;
        round = event.tag + 1;
        if (roce_sim_send(sim, event.to, (event.to + 1) % ranks, round, size_of(bytes, ranks, event.to, round)) < 0)
            return fail(sim);
    }
    if (result < 0)
        return fail(sim);
    printf("ranks: %" PRIu32 "\n", ranks);
    printf("time: %" PRIu64 " ps\n", roce_sim_now(sim));
    printf("trace hash: %016" PRIx64 "\n", roce_sim_trace_hash(sim));
    roce_sim_close(sim);
    return 0;
}
