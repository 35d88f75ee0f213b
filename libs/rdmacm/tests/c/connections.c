/* What the programs of the distribution do not try: two ends in one process, private data, refusals, and what was destroyed. */

#include "../../../ibverbs/tests/c/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct rdma_event_channel *channel;

/* The next event, which has to be this one; the caller acknowledges it. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type, struct rdma_cm_id *id) {
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type || (id && event->id != id)) {
        fprintf(stderr, "%s, status %d, in place of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
        exit(1);
    }
    return event;
}

static void pass(enum rdma_cm_event_type type, struct rdma_cm_id *id) {
    CHECK(rdma_ack_cm_event(expect(type, id)) == 0);
}

static struct rdma_cm_id *new_id(void) {
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, (void *)7, RDMA_PS_TCP) == 0);
    CHECK(id->channel == channel && id->context == (void *)7 && id->qp_type == IBV_QPT_RC);
    return id;
}

static struct rdma_cm_id *listen_at(const char *address, int port, int family, int expected) {
    struct sockaddr_in six_or_four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct rdma_cm_id *id = new_id();
    CHECK(inet_pton(family, address, family == AF_INET ? (void *)&six_or_four.sin_addr : (void *)&six.sin6_addr) == 1);
    CHECK(rdma_bind_addr(id, family == AF_INET ? (struct sockaddr *)&six_or_four : (struct sockaddr *)&six) == 0);
    int answer = rdma_listen(id, 4);
    CHECK(expected ? answer == -1 && errno == expected : answer == 0);
    return id;
}

static void make_qp(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    CHECK(rdma_create_qp(id, NULL, &attr) == 0);
    CHECK(id->qp && id->qp->state == IBV_QPS_INIT && id->send_cq && id->recv_cq && id->pd == id->qp->pd);
    CHECK(rdma_create_qp(id, NULL, &attr) == -1 && errno == EINVAL);
}

static struct rdma_cm_id *resolved(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct rdma_cm_id *id = new_id();
    CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
    pass(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    CHECK(id->verbs && id->pd && id->port_num == 1 && rdma_get_dst_port(id) == htons(port) && rdma_get_src_port(id));
    CHECK(rdma_resolve_route(id, 1000) == 0);
    pass(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
    CHECK(id->route.num_paths == 1 && id->route.path_rec);
    make_qp(id);
    return id;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void a_connection_carries_private_data_both_ways(const char *address) {
    struct rdma_cm_id *listener = listen_at("0.0.0.0", 7174, AF_INET, 0);
    struct rdma_cm_id *active = resolved(address, 7174);
    struct rdma_conn_param asked = {.private_data = "ask", .private_data_len = 4, .responder_resources = 3, .initiator_depth = 5, .retry_count = 7};
    CHECK(rdma_connect(active, &asked) == 0);

    struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
    struct rdma_cm_id *passive = event->id;
    CHECK(event->listen_id == listener && passive->context == (void *)7 && passive->verbs == active->verbs);
    CHECK(event->param.conn.private_data_len >= 4 && memcmp(event->param.conn.private_data, "ask", 4) == 0);
    CHECK(event->param.conn.responder_resources == 5 && event->param.conn.initiator_depth == 3);
    CHECK(rdma_ack_cm_event(event) == 0 && rdma_ack_cm_event(event) == -1 && errno == EINVAL);
    make_qp(passive);
    struct rdma_conn_param answered = {.private_data = "answer", .private_data_len = 7, .responder_resources = 255, .initiator_depth = 255};
    CHECK(rdma_accept(passive, &answered) == 0 && passive->qp->state == IBV_QPS_RTS);

    event = expect(RDMA_CM_EVENT_ESTABLISHED, active);
    CHECK(memcmp(event->param.conn.private_data, "answer", 7) == 0 && active->qp->state == IBV_QPS_RTS);
    CHECK(rdma_ack_cm_event(event) == 0);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(active->qp, &attr, 0, &init) == 0 && attr.max_rd_atomic == 5 && attr.max_dest_rd_atomic == 3);
    CHECK(attr.dest_qp_num == passive->qp->qp_num);
    pass(RDMA_CM_EVENT_ESTABLISHED, passive);

    CHECK(rdma_disconnect(active) == 0 && active->qp->state == IBV_QPS_ERR);
    /* In any order. */
    for (int i = 0; i < 2; i++) {
        pass(RDMA_CM_EVENT_DISCONNECTED, NULL);
    }
    CHECK(rdma_disconnect(passive) == 0);
    rdma_destroy_qp(active);
    rdma_destroy_qp(passive);
    CHECK(!active->qp && !active->send_cq);
    CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(passive) == 0 && rdma_destroy_id(listener) == 0);
    CHECK(rdma_destroy_id(listener) == -1 && errno == EINVAL);
    CHECK(rdma_disconnect(active) == -1 && errno == EINVAL);
}

static void a_refusal_has_its_reason_and_data(const char *address) {
    struct rdma_cm_id *listener = listen_at("0.0.0.0", 7175, AF_INET, 0);
    struct rdma_cm_id *active = resolved(address, 7175);
    CHECK(rdma_connect(active, NULL) == 0);
    struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
    struct rdma_cm_id *passive = event->id;
    CHECK(rdma_ack_cm_event(event) == 0 && rdma_reject(passive, "no", 3) == 0);
    event = expect(RDMA_CM_EVENT_REJECTED, active);
    CHECK(event->status == 28 && memcmp(event->param.conn.private_data, "no", 3) == 0);
    CHECK(rdma_ack_cm_event(event) == 0 && active->qp->state == IBV_QPS_ERR);
    rdma_destroy_qp(active);
    CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(passive) == 0 && rdma_destroy_id(listener) == 0);
}

/* A server may be started at the same time; after a second there is none. */
static void a_port_without_a_listener_is_asked_for_a_while(const char *address) {
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_id *active = resolved(address, 7176);
        double begin = seconds();
        CHECK(rdma_connect(active, NULL) == 0);
        struct rdma_cm_event *event = expect(RDMA_CM_EVENT_REJECTED, active);
        double took = seconds() - begin;
        CHECK(event->status == 8 && (i == 0 ? took > 0.9 : took < 0.9));
        CHECK(rdma_ack_cm_event(event) == 0);
        rdma_destroy_qp(active);
        CHECK(rdma_destroy_id(active) == 0);
    }
}

static void a_port_has_a_listener_for_each_family(void) {
    struct rdma_cm_id *four = listen_at("0.0.0.0", 7177, AF_INET, 0);
    /* The wildcard of IPv6 stands for both families, unless it is told otherwise. */
    struct rdma_cm_id *six = new_id();
    struct sockaddr_in6 any_six = {.sin6_family = AF_INET6, .sin6_port = htons(7177)};
    int only = 1;
    CHECK(rdma_bind_addr(six, (struct sockaddr *)&any_six) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only) == 0);
    CHECK(rdma_bind_addr(six, (struct sockaddr *)&any_six) == 0 && rdma_listen(six, 4) == 0);
    struct rdma_cm_id *third = new_id();
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7177)};
    int yes = 1;
    CHECK(rdma_bind_addr(third, (struct sockaddr *)&any) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_set_option(third, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(rdma_bind_addr(third, (struct sockaddr *)&any) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_destroy_id(four) == 0 && rdma_bind_addr(third, (struct sockaddr *)&any) == 0);
    four = new_id();
    CHECK(rdma_set_option(four, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(rdma_bind_addr(four, (struct sockaddr *)&any) == 0);
    /* A listener shares its port with nobody. */
    CHECK(rdma_listen(third, 4) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_destroy_id(third) == 0 && rdma_destroy_id(four) == 0);
    four = listen_at("0.0.0.0", 7177, AF_INET, 0);
    CHECK(rdma_destroy_id(four) == 0 && rdma_destroy_id(six) == 0);
}

static void an_address_without_a_device_is_an_event(void) {
    struct sockaddr_in to = {.sin_family = AF_INET6};
    struct rdma_cm_id *id = new_id();
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(1)};
    CHECK(inet_pton(AF_INET6, "::1", &six.sin6_addr) == 1);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&six, 1000) == 0);
    struct rdma_cm_event *event = expect(RDMA_CM_EVENT_ADDR_ERROR, id);
    CHECK(event->status == -ENODEV && rdma_ack_cm_event(event) == 0);
    to.sin_family = 27;
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == -1 && errno == EAFNOSUPPORT);
    CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
    CHECK(rdma_listen(NULL, 1) == -1 && errno == EINVAL);
    CHECK(rdma_destroy_id(id) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    channel = rdma_create_event_channel();
    CHECK(channel);
    a_connection_carries_private_data_both_ways(arguments[1]);
    a_refusal_has_its_reason_and_data(arguments[1]);
    a_port_without_a_listener_is_asked_for_a_while(arguments[1]);
    a_port_has_a_listener_for_each_family();
    an_address_without_a_device_is_an_event();
    rdma_destroy_event_channel(channel);
    puts("all is as it should be");
    return 0;
}
