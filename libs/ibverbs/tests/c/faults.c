/* What a program sees of faults on demand: `faults MODE`. Prints one line for each fact; tests/faults.rs has the plans and compares. */

#include "check.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 65536, DEPTH = 8, REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char bytes[LENGTH];

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void open_first(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL && list[0] != NULL);
    context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
}

static void prepare(void) {
    open_first();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, bytes, LENGTH, REMOTE);
    CHECK(pd != NULL && cq != NULL && mr != NULL);
}

/* Makes a queue pair that is connected to itself. */
static struct ibv_qp *make(void) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp != NULL);
    return qp;
}

static void connect_to_itself(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}},
    };
    CHECK(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static int post_send(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, uint32_t length) {
    struct ibv_sge element = {.addr = (uintptr_t)bytes, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &element, .num_sge = 1};
    wr.wr.rdma.remote_addr = (uintptr_t)bytes;
    wr.wr.rdma.rkey = mr->rkey;
    int failed = ibv_post_send(qp, &wr, &bad);
    CHECK(bad == (failed ? &wr : NULL));
    return failed;
}

static int post_recv(struct ibv_qp *qp, uint64_t id) {
    struct ibv_sge element = {.addr = (uintptr_t)bytes, .length = LENGTH, .lkey = mr->lkey};
    struct ibv_recv_wr *bad = NULL, wr = {.wr_id = id, .sg_list = &element, .num_sge = 1};
    int failed = ibv_post_recv(qp, &wr, &bad);
    CHECK(bad == (failed ? &wr : NULL));
    return failed;
}

/* Polls until `count` completions have arrived; prints each, and the state of the queue pair. */
static void print_completions(struct ibv_qp *qp, int count) {
    for (double end = seconds() + 20; count > 0;) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(cq, 1, &wc);
        CHECK(found >= 0 && seconds() < end);
        if (found == 1) {
            printf("wr %d: %s, vendor_err %u\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
            count--;
        }
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    printf("state %d\n", attr.qp_state);
}

static void regions(void) {
    prepare();
    for (int i = 2; i <= 4; i++) {
        errno = 0;
        struct ibv_mr *more = ibv_reg_mr(pd, bytes, LENGTH, i == 3 ? IBV_ACCESS_RELAXED_ORDERING : 0);
        printf("ibv_reg_mr %d: %s, errno %d\n", i, more ? "region" : "null", more ? 0 : errno);
    }
}

/* Calls of each kind: those that return a pointer, an error number, and -1. */
static void calls(void) {
    regions();
    struct ibv_device_attr attr;
    for (int i = 1; i <= 3; i++) {
        printf("ibv_query_device %d: %d\n", i, ibv_query_device(context, &attr));
    }
    struct ibv_qp *qp = make();
    connect_to_itself(qp);
    int posted[2] = {post_recv(qp, 1)};
    posted[1] = post_recv(qp, 1);
    printf("ibv_post_recv: %d, then %d\n", posted[0], posted[1]);
    posted[0] = post_send(qp, 2, IBV_WR_SEND, 8);
    posted[1] = post_send(qp, 2, IBV_WR_SEND, 8);
    printf("ibv_post_send: %d, then %d\n", posted[0], posted[1]);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    CHECK(ex != NULL && post_recv(qp, 3) == 0);
    for (int i = 0; i < 2; i++) {
        ibv_wr_start(ex);
        ex->wr_id = 4;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(ex);
        ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)bytes, 8);
        posted[i] = ibv_wr_complete(ex);
    }
    printf("ibv_wr_complete: %d, then %d\n", posted[0], posted[1]);
    struct ibv_wc wc;
    errno = 0;
    int polled = ibv_poll_cq(cq, 1, &wc);
    printf("ibv_poll_cq: %d, errno %d\n", polled, errno);
    print_completions(qp, 4);
    struct ibv_async_event event;
    errno = 0;
    int got = ibv_get_async_event(context, &event);
    printf("ibv_get_async_event: %d, errno %d\n", got, errno);
    double start = seconds();
    struct ibv_pd *slow = ibv_alloc_pd(context);
    CHECK(slow != NULL);
    printf("ibv_alloc_pd: %s\n", seconds() - start >= 0.2 ? "slow" : "fast");
    posted[0] = ibv_dealloc_pd(slow);
    posted[1] = ibv_dealloc_pd(slow);
    printf("ibv_dealloc_pd: %d, then %d\n", posted[0], posted[1]);
}

/* Sends and receives, some of which complete with errors; then the queue pair starts again. */
static void completions(void) {
    prepare();
    struct ibv_qp *qp = make();
    for (int round = 0; round < 2; round++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
        connect_to_itself(qp);
        for (int i = 1; i <= 5; i++) {
            CHECK(post_recv(qp, 10 + i) == 0);
        }
        for (int i = 1; i <= 4; i++) {
            CHECK(post_send(qp, i, IBV_WR_SEND, 8) == 0);
        }
        /* All have succeeded before the first one is polled. */
        usleep(200000);
        print_completions(qp, round == 0 ? 9 : 8);
    }
}

static const char *port_state(struct ibv_context *of) {
    struct ibv_port_attr attr;
    CHECK(ibv_query_port(of, 1, &attr) == 0);
    return ibv_port_state_str(attr.state);
}

static void print_state_file(void) {
    char name[512], line[64] = "";
    const char *root = getenv("ROCE_SYSFS");
    if (root != NULL) {
        snprintf(name, sizeof name, "%s/sys/class/infiniband/%s/ports/1/state", root, ibv_get_device_name(context->device));
        FILE *file = fopen(name, "r");
        CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
        fclose(file);
        printf("file %s", line);
    }
}

/* Waits for events by their descriptor, and prints them. */
static void print_events(struct ibv_context *of, int count) {
    for (; count > 0; count--) {
        struct pollfd fd = {.fd = of->async_fd, .events = POLLIN};
        CHECK(poll(&fd, 1, 20000) == 1);
        struct ibv_async_event event;
        CHECK(ibv_get_async_event(of, &event) == 0);
        int is_port = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE;
        CHECK(!is_port || event.element.port_num == 1);
        printf("event: %s, port %s\n", ibv_event_type_str(event.event_type), port_state(of));
        print_state_file();
        ibv_ack_async_event(&event);
        fflush(stdout);
    }
    struct pollfd fd = {.fd = of->async_fd, .events = POLLIN};
    CHECK(poll(&fd, 1, 0) == 0);
}

/* The port is down for a while: a request that is posted then waits for its end. */
static void port(void) {
    prepare();
    struct ibv_qp *qp = make();
    connect_to_itself(qp);
    printf("port %s\n", port_state(context));
    print_events(context, 1);
    double start = seconds();
    CHECK(post_send(qp, 1, IBV_WR_RDMA_WRITE, 8) == 0);
    print_events(context, 1);
    print_completions(qp, 1);
    printf("%s\n", seconds() - start >= 0.2 ? "traffic stopped" : "traffic went on");
}

/* Writes until the link flaps after a number of bytes. */
static void flap(void) {
    prepare();
    struct ibv_qp *qp = make();
    connect_to_itself(qp);
    for (int i = 1; i <= 4; i++) {
        CHECK(post_send(qp, i, IBV_WR_RDMA_WRITE, LENGTH) == 0);
        print_completions(qp, 1);
    }
    print_events(context, 2);
}

/* One of two devices fails. */
static void fatal(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL && list[0] != NULL && list[1] != NULL);
    struct ibv_context *other = ibv_open_device(list[0]);
    context = ibv_open_device(list[1]);
    CHECK(context != NULL && other != NULL);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, bytes, LENGTH, REMOTE);
    CHECK(pd != NULL && cq != NULL && mr != NULL);
    struct ibv_qp *qp = make();
    connect_to_itself(qp);
    CHECK(post_recv(qp, 1) == 0);
    print_events(context, 1);
    print_completions(qp, 1);
    struct ibv_wc wc;
    errno = 0;
    int polled = ibv_poll_cq(cq, 1, &wc);
    printf("ibv_poll_cq: %d, errno %d\n", polled, errno);
    print_events(other, 0);
    printf("the other port is %s\n", port_state(other));
}

/* A queue pair fails. */
static void queue_pair(void) {
    prepare();
    struct ibv_qp *first = make(), *second = make();
    connect_to_itself(first);
    connect_to_itself(second);
    CHECK(post_recv(second, 1) == 0);
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&fd, 1, 20000) == 1);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(context, &event) == 0);
    printf("event: %s, of the %s one\n", ibv_event_type_str(event.event_type), event.element.qp == second ? "second" : "first");
    ibv_ack_async_event(&event);
    print_completions(second, 1);
    print_completions(first, 0);
    CHECK(ibv_destroy_qp(second) == 0);
}

/* Nanoseconds of a poll of an empty queue: the best of many rounds. */
static void cost(void) {
    prepare();
    double best = 1;
    for (int round = 0; round < 200; round++) {
        struct ibv_wc wc;
        double start = seconds();
        for (int i = 0; i < 10000; i++) {
            CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
        }
        double took = (seconds() - start) / 10000;
        best = took < best ? took : best;
    }
    printf("%.2f ns\n", best * 1e9);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } MODES[] = {{"open", open_first}, {"regions", regions}, {"calls", calls}, {"completions", completions}, {"port", port}, {"flap", flap},
                 {"fatal", fatal}, {"queue-pair", queue_pair}, {"cost", cost}};
    CHECK(count == 2);
    for (size_t i = 0; i < sizeof MODES / sizeof MODES[0]; i++) {
        if (strcmp(words[1], MODES[i].name) == 0) {
            MODES[i].run();
            return 0;
        }
    }
    return 2;
}
