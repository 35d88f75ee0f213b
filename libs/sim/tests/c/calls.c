/* Right and wrong calls of every function of roce_sim.h; libs/sim/tests/library.rs expects the output. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "roce_sim.h"

static const char SCENARIO[] = "name = \"two hosts\"\n[topology]\nkind = \"star\"\nhosts = 2\n";

static void show(const char *what, int64_t result, const struct roce_sim *sim)
{
    printf("%s: %" PRId64 " %s\n", what, result, result < 0 ? roce_sim_error(sim) : "");
}

static void next(struct roce_sim *sim)
{
    struct roce_sim_event event;
    int result;

    memset(&event, 0xff, sizeof event);
    result = roce_sim_next(sim, &event);
    if (result != 1) {
        show("next", result, sim);
        return;
    }
    printf("event: kind %" PRIu32 ", %" PRIu32 " to %" PRIu32 ", reserved %" PRIu32 ", handle %" PRId64, event.kind,
           event.from, event.to, event.reserved, event.handle);
    printf(", tag %" PRIx64 ", %" PRIu64 " bytes, token %" PRIx64 ", %" PRIu64 " ps, now %d\n", event.tag, event.bytes,
           event.token, event.time, event.time == roce_sim_now(sim));
}

int main(void)
{
    struct roce_sim_event event;
    char reason[300] = "unchanged";
    char few[9];
    struct roce_sim *sim;
    struct roce_sim *other;

    printf("open nothing: %d, %s\n", roce_sim_open(NULL, reason, sizeof reason) == NULL, reason);
    printf("open a misspelled key: %d, ", roce_sim_open("[topology]\nkid = 1\n", reason, sizeof reason) == NULL);
    printf("%s\n", reason);
    printf("open into few bytes: %d, %s\n", roce_sim_open("/no/such/file", few, sizeof few) == NULL, few);
    printf("open without room: %d\n", roce_sim_open("/no/such/file", NULL, 100) == NULL);

    printf("null: %" PRIu32 " %" PRIu64 " %" PRIx64 " \"%s\"\n", roce_sim_ranks(NULL), roce_sim_now(NULL),
           roce_sim_trace_hash(NULL), roce_sim_error(NULL));
    show("null send", roce_sim_send(NULL, 0, 1, 0, 1), NULL);
    show("null receive", roce_sim_receive(NULL, 0, 1, 0, 1), NULL);
    show("null schedule", roce_sim_schedule(NULL, 0, 0), NULL);
    show("null next", roce_sim_next(NULL, &event), NULL);
    roce_sim_close(NULL);

    sim = roce_sim_open(SCENARIO, reason, sizeof reason);
    other = roce_sim_open(SCENARIO, NULL, 0);
    if (sim == NULL || other == NULL) {
        printf("%s\n", reason);
        return 1;
    }
    printf("ranks: %" PRIu32 "\n", roce_sim_ranks(sim));
    show("next without a place", roce_sim_next(sim, NULL), sim);
    next(sim);
    show("no rank", roce_sim_send(sim, 0, 2, 0, 1), sim);
    show("itself", roce_sim_receive(sim, 1, 1, 0, 1), sim);
    show("empty", roce_sim_send(sim, 0, 1, 0, 0), sim);
    show("schedule", roce_sim_schedule(sim, 7, UINT64_MAX), sim);
    show("send", roce_sim_send(sim, 0, 1, UINT64_MAX - 1, 1000), sim);
    show("short", roce_sim_receive(sim, 0, 1, UINT64_MAX - 1, 999), sim);
    next(sim);
    next(sim);
    next(sim);
    show("receive", roce_sim_receive(sim, 0, 1, UINT64_MAX - 1, 2000), sim);
    next(sim);
    next(sim);
    show("schedule for later", roce_sim_schedule(sim, UINT64_MAX, 1), sim);
    next(sim);
    show("send after the end", roce_sim_send(sim, 0, 1, 0, 1), sim);
    printf("hashes differ: %d\n", roce_sim_trace_hash(sim) != roce_sim_trace_hash(other));
    roce_sim_close(sim);
    roce_sim_close(other);
    return 0;
}
