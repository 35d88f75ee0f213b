/*
 * A simulated RoCE network for an external scheduler, in virtual time.
 *
 * The scheduler opens a network, posts sends, receives and tokens, and fetches one event after the other. Time
 * passes only in roce_sim_next; all other functions act at the current time. docs/how-to/embed-simulator.md has
 * an example. Link with -lroce_sim_c.
 *
 * Ranks are the hosts of the scenario in their order, from 0. Times are picoseconds of virtual time. The same
 * calls give the same events and times.
 *
 * Pointers to a network come from roce_sim_open. A null pointer, and only that, is an error that the functions
 * notice. One thread at a time may use a network; different networks are independent. No function keeps a
 * pointer that it gets. No function ends the process.
 */
#ifndef ROCE_SIM_H
#define ROCE_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A network. */
struct roce_sim;

/* Errors: the negative results of functions. roce_sim_error returns the text of the last one. */
enum {
    ROCE_SIM_ERROR_ARGUMENT = -1,  /* A pointer is null. There is no text. */
    ROCE_SIM_ERROR_RANK = -2,      /* A rank does not exist, or both ranks are equal. */
    ROCE_SIM_ERROR_SIZE = -3,      /* A message has 0 bytes, or all messages of two ranks have 2^40 or more. */
    ROCE_SIM_ERROR_SHORT = -4,     /* A receive has fewer bytes than its send. */
    ROCE_SIM_ERROR_UNMATCHED = -5, /* Only sends without a receive, or receives without a send, are left. */
    ROCE_SIM_ERROR_STOPPED = -6,   /* The time `stop` of the scenario came. Later calls return it again. */
    ROCE_SIM_ERROR_FAILED = -7,    /* Two ranks have no path, or their queue pair failed. */
    ROCE_SIM_ERROR_INTERNAL = -8   /* A defect of the library. Later calls return it again. */
};

/* Kinds of events. */
enum {
    ROCE_SIM_SENT = 1,     /* A send is complete: the acknowledgement of its last byte has arrived. */
    ROCE_SIM_RECEIVED = 2, /* A receive is complete: all bytes of its send have arrived. */
    ROCE_SIM_SCHEDULED = 3 /* The time of a token has come. */
};

/* An event. Fields that do not belong to its kind are 0, and `handle` is -1. */
struct roce_sim_event {
    uint32_t kind;     /* ROCE_SIM_SENT, ROCE_SIM_RECEIVED or ROCE_SIM_SCHEDULED. */
    uint32_t from;     /* The rank of the sender. */
    uint32_t to;       /* The rank of the receiver. */
    uint32_t reserved; /* 0. */
    int64_t handle;    /* The result of roce_sim_send or roce_sim_receive. */
    uint64_t tag;      /* The tag of the message. */
    uint64_t bytes;    /* The bytes of the send, also for a receive. */
    uint64_t token;    /* The token of roce_sim_schedule. */
    uint64_t time;     /* The time of the event, which is roce_sim_now from now on. */
};

/*
 * Opens a network at time 0 and returns it. The caller owns it and ends it with roce_sim_close.
 *
 * `scenario` is UTF-8. With a line break it is the text of a scenario. Without one it is the path of a file, or
 * the name of a shipped scenario if there is no such file. Topology, hosts and switches of the scenario apply;
 * its flows, which may be missing, do not. Files that it names are relative to its own file, or to the current
 * directory for a text.
 *
 * Returns a null pointer if the network cannot be built, and writes the reason into `error`, which has room for
 * `size` bytes: as much as fits, with a zero byte at the end. `error` may be null, or `size` 0.
 */
struct roce_sim *roce_sim_open(const char *scenario, char *error, size_t size);

/* Returns the number of ranks, or 0 for a null pointer. */
uint32_t roce_sim_ranks(const struct roce_sim *sim);

/* Returns the current time in picoseconds: that of the last event. Returns 0 for a null pointer. */
uint64_t roce_sim_now(const struct roce_sim *sim);

/*
 * Sends `bytes` bytes from one rank to another now, whether or not their receive exists. Messages between two
 * ranks share a queue pair and arrive in the order of the sends.
 *
 * Returns the handle of the send, which is 0 or more, or an error; then nothing is sent.
 */
int64_t roce_sim_send(struct roce_sim *sim, uint32_t from, uint32_t to, uint64_t tag, uint64_t bytes);

/*
 * Receives a message of at most `bytes` bytes from `from` at `to`. Of the sends and receives with the same ranks
 * and tag, the first send belongs to the first receive, the second one to the second, and so on, in the order of
 * the calls. The receive is complete when the message has arrived, or at once if it has arrived before.
 *
 * Returns the handle of the receive, which is 0 or more, or an error; then nothing is received.
 */
int64_t roce_sim_receive(struct roce_sim *sim, uint32_t from, uint32_t to, uint64_t tag, uint64_t bytes);

/* Returns `token` as an event `after` picoseconds from now. Returns 0 or an error. */
int roce_sim_schedule(struct roce_sim *sim, uint64_t after, uint64_t token);

/*
 * Lets time pass until the next event and writes it. At equal times, completions that have already happened come
 * first, then tokens in the order of their calls, then what happens in the network.
 *
 * Returns 1 with an event; 0 if nothing is left: every send and receive is complete, and no token is scheduled;
 * or an error. After 0 and ROCE_SIM_ERROR_UNMATCHED, other calls may follow. `event` is only written with 1.
 */
int roce_sim_next(struct roce_sim *sim, struct roce_sim_event *event);

/*
 * Returns the text of the last error of a function that was called with this network, or an empty text. The
 * network owns the text, which is valid until the next call with this network.
 */
const char *roce_sim_error(const struct roce_sim *sim);

/* Returns a hash over all events of the network so far. Equal calls give equal hashes. Returns 0 for a null pointer. */
uint64_t roce_sim_trace_hash(const struct roce_sim *sim);

/* Ends a network and frees its memory. A null pointer has no effect. */
void roce_sim_close(struct roce_sim *sim);

#ifdef __cplusplus
}
#endif

#endif
