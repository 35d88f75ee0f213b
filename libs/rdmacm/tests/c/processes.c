/* Two processes: the server waits until it is told that its peer has gone; the client connects and exits without a disconnect. */

#include "../../../ibverbs/tests/c/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 7175 };

static struct rdma_event_channel *channel;
static struct ibv_qp_init_attr attributes = {.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};

/* Acknowledges the next event, which has to be this one, and returns its identifier. */
static struct rdma_cm_id *pass(enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type) {
        fprintf(stderr, "%s, status %d, in place of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    return id;
}

static void serve(struct rdma_cm_id *id, struct sockaddr_in *address) {
    CHECK(rdma_bind_addr(id, (struct sockaddr *)address) == 0 && rdma_listen(id, 1) == 0);
    printf("listening\n");
    fflush(stdout);
    struct rdma_conn_param answer = {.responder_resources = 1, .initiator_depth = 1};
    struct rdma_cm_id *passive = pass(RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(rdma_create_qp(passive, NULL, &attributes) == 0 && rdma_accept(passive, &answer) == 0);
    CHECK(pass(RDMA_CM_EVENT_ESTABLISHED) == passive);
    CHECK(pass(RDMA_CM_EVENT_DISCONNECTED) == passive);
    printf("the peer has gone\n");
}

static void connect_and_leave(struct rdma_cm_id *id, struct sockaddr_in *address) {
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 1000) == 0);
    pass(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct rdma_conn_param ask = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    CHECK(rdma_create_qp(id, NULL, &attributes) == 0 && rdma_connect(id, &ask) == 0);
    pass(RDMA_CM_EVENT_ESTABLISHED);
    /* A program that looks before it fetches waits for ever if there is no event. */
    struct pollfd descriptor = {.fd = channel->fd, .events = POLLIN};
    printf("the descriptor is %sreadable\n", poll(&descriptor, 1, 300) == 0 ? "not " : "");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    /* Ends a server that waits in vain. */
    alarm(20);
    struct rdma_cm_id *id;
    CHECK((channel = rdma_create_event_channel()) != NULL && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    (strcmp(argv[1], "server") == 0 ? serve : connect_and_leave)(id, &address);
    exit(0);
}
