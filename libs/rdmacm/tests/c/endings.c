/* Calls that do not return: a thread is cancelled in them, a handler of a signal jumps out of them, or the process is forked beside them.
 *
 * endings cancel|jump|fork|idle NUMBER SEED
 *
 * Devices 0 and 1 belong to this process. The pair of queue pairs between them shows whether device 0 still answers. */

#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../ibverbs/tests/c/check.h"

#define LENGTH 4096
#define ACCESS \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_device **devices;
static struct ibv_context *context[2];
static struct ibv_pd *pd[2];
static struct ibv_cq *cq[2];
static struct ibv_qp *qp[2];
static struct ibv_mr *mr[2];
static union ibv_gid gid[2];
static char buffer[2][LENGTH];
static struct ibv_comp_channel *channel;
static struct ibv_cq *watched;
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static unsigned random_state;

static unsigned next_random(unsigned below) {
    random_state = random_state * 1103515245u + 12345u;
    return (random_state >> 8) % below;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void move(int end) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    CHECK(!ibv_modify_qp(qp[end], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp[!end]->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = gid[!end];
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.port_num = 1;
    CHECK(!ibv_modify_qp(qp[end], &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS;
    /* 268 ms and seven retries: a machine with a load of 16 has time for an answer. */
    attr.timeout = 16;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    CHECK(!ibv_modify_qp(qp[end], &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void set_up(void) {
    int number;
    devices = ibv_get_device_list(&number);
    CHECK(devices && number == 2);
    for (int end = 0; end < 2; end++) {
        CHECK(context[end] = ibv_open_device(devices[end]));
        CHECK(pd[end] = ibv_alloc_pd(context[end]));
        CHECK(cq[end] = ibv_create_cq(context[end], 16, NULL, NULL, 0));
        CHECK(mr[end] = ibv_reg_mr(pd[end], buffer[end], LENGTH, ACCESS));
        CHECK(!ibv_query_gid(context[end], 1, 0, &gid[end]));
        struct ibv_qp_init_attr init = {
            .send_cq = cq[end], .recv_cq = cq[end], .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
        init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
        CHECK(qp[end] = ibv_create_qp(pd[end], &init));
    }
    for (int end = 0; end < 2; end++) {
        move(end);
    }
    CHECK(channel = ibv_create_comp_channel(context[0]));
    CHECK(watched = ibv_create_cq(context[0], 4, NULL, channel, 0));
    CHECK(!ibv_req_notify_cq(watched, 0));
    CHECK(events = rdma_create_event_channel());
    CHECK(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
}

/* Device 1 reads from device 0, which no thread of the program serves: only the library does. */
static void read_from_device_0(void) {
    struct ibv_sge element = {.addr = (uintptr_t)buffer[1], .length = LENGTH, .lkey = mr[1]->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
    wr.wr.rdma.remote_addr = (uintptr_t)buffer[0];
    wr.wr.rdma.rkey = mr[0]->rkey;
    CHECK(!ibv_post_send(qp[1], &wr, &bad));
    struct ibv_wc wc;
    int found;
    double end = now() + 60;
    while ((found = ibv_poll_cq(cq[1], 1, &wc)) == 0) {
        CHECK(now() < end);
    }
    if (found != 1 || wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "a READ ended with %s\n", ibv_wc_status_str(wc.status));
        exit(1);
    }
}

/* The calls in which rdma-core sleeps in `read`, and one that is not a cancellation point. */
enum { CQ_EVENT, CM_EVENT, ASYNC_EVENT, CM_REQUEST, POLL, CALLS };

static void *wait_in(void *call) {
    struct ibv_cq *of;
    void *context_of;
    struct rdma_cm_event *event;
    struct rdma_cm_id *request;
    struct ibv_async_event async_event;
    struct ibv_wc wc;
    switch ((int)(intptr_t)call) {
        case CQ_EVENT: ibv_get_cq_event(channel, &of, &context_of); break;
        case CM_EVENT: rdma_get_cm_event(events, &event); break;
        case ASYNC_EVENT: ibv_get_async_event(context[0], &async_event); break;
        case CM_REQUEST: rdma_get_request(listener, &request); break;
        default:
            for (;;) {
                CHECK(ibv_poll_cq(cq[0], 1, &wc) == 0);
                struct ibv_mr *region = ibv_reg_mr(pd[0], buffer[0], LENGTH, 0);
                CHECK(region && !ibv_dereg_mr(region));
                pthread_testcancel();
            }
    }
    return NULL;
}

static void cancel(int number) {
    for (int i = 0; i < number; i++) {
        pthread_t thread;
        void *ended;
        int call = i % CALLS;
        CHECK(!pthread_create(&thread, NULL, wait_in, (void *)(intptr_t)call));
        /* Before the call, at its beginning, and in its sleep. */
        usleep(next_random(3) * next_random(1000));
        CHECK(!pthread_cancel(thread));
        CHECK(!pthread_join(thread, &ended));
        if (ended != PTHREAD_CANCELED) {
            fprintf(stderr, "call %d returned\n", call);
            exit(1);
        }
        if (i % 16 == 0) {
            read_from_device_0();
        }
    }
}

static sigjmp_buf left;

static void leave(int signal) {
    (void)signal;
    siglongjmp(left, 1);
}

static void jump(int number) {
    signal(SIGALRM, leave);
    for (volatile int i = 0; i < number; i++) {
        struct itimerval timer = {.it_value = {.tv_usec = 1 + (i % 3) * (int)next_random(700)}};
        if (!sigsetjmp(left, 1)) {
            /* The signal comes in the call and not before it: `ppoll` and its like are where it is let in. */
            setitimer(ITIMER_REAL, &timer, NULL);
            for (;;) {
                wait_in((void *)(intptr_t)(i % POLL));
            }
        }
        if (i % 16 == 0) {
            read_from_device_0();
        }
    }
}

/* Leaves a wait and does not call the library for device 0 again; another thread reads. */
static void *read_later(void *unused) {
    (void)unused;
    for (int i = 0; i < 3; i++) {
        read_from_device_0();
    }
    return NULL;
}

static void idle(void) {
    signal(SIGALRM, leave);
    if (!sigsetjmp(left, 1)) {
        struct itimerval timer = {.it_value = {.tv_usec = 200000}};
        setitimer(ITIMER_REAL, &timer, NULL);
        for (;;) {
            wait_in((void *)CQ_EVENT);
        }
    }
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, read_later, NULL));
    CHECK(!pthread_join(thread, NULL));
}

static atomic_int is_over;

static void *churn(void *number) {
    char *own = aligned_alloc(4096, 65536);
    CHECK(own);
    struct ibv_device **list;
    while (!is_over) {
        struct ibv_mr *region = ibv_reg_mr(pd[0], own, 65536, ACCESS);
        struct ibv_cq *queue = ibv_create_cq(context[0], 16, NULL, channel, 0);
        struct ibv_wc wc;
        CHECK(region && queue && ibv_poll_cq(queue, 1, &wc) == 0);
        CHECK((list = ibv_get_device_list(NULL)));
        ibv_free_device_list(list);
        struct rdma_cm_id *id;
        CHECK(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
        if (number) {
            CHECK(ibv_poll_cq(cq[0], 1, &wc) == 0);
        }
        CHECK(!ibv_destroy_cq(queue) && !ibv_dereg_mr(region));
    }
    free(own);
    return NULL;
}

/* A child may list devices, make objects of its own and give back what it inherited. */
static void child(int which) {
    struct ibv_device **list;
    struct rdma_cm_id *id;
    int number;
    CHECK((list = ibv_get_device_list(&number)) && number == 2);
    ibv_free_device_list(list);
    CHECK(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
    switch (which) {
        case 0: break;
        case 1: CHECK(!ibv_destroy_cq(cq[1]) || errno == EBUSY); break;
        case 2:
            for (int end = 0; end < 2; end++) {
                CHECK(!ibv_destroy_qp(qp[end]) && !ibv_dereg_mr(mr[end]) && !ibv_destroy_cq(cq[end]));
                /* Regions of threads that the child does not have may be in the other one. */
                CHECK(end == 0 || !ibv_dealloc_pd(pd[end]));
                CHECK(!ibv_close_device(context[end]));
            }
            break;
        default: _exit(0);
    }
    exit(0);
}

static void fork_often(int number) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) {
        CHECK(!pthread_create(&threads[i], NULL, churn, (void *)i));
    }
    for (int i = 0; i < number; i++) {
        usleep(next_random(2000));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            /* A child that hangs ends with a signal. */
            signal(SIGALRM, SIG_DFL);
            alarm(60);
            child(i % 4);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "child %d of kind %d ended with %#x\n", i, i % 4, status);
            exit(1);
        }
        if (i % 16 == 0) {
            read_from_device_0();
        }
    }
    is_over = 1;
    for (int i = 0; i < THREADS; i++) {
        CHECK(!pthread_join(threads[i], NULL));
    }
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    int number = atoi(arguments[2]);
    random_state = (unsigned)atoi(arguments[3]);
    set_up();
    read_from_device_0();
    if (!strcmp(arguments[1], "cancel")) {
        cancel(number);
    } else if (!strcmp(arguments[1], "jump")) {
        jump(number);
    } else if (!strcmp(arguments[1], "fork")) {
        fork_often(number);
    } else {
        idle();
    }
    read_from_device_0();
    CHECK(!ibv_destroy_cq(watched) && !ibv_destroy_comp_channel(channel));
    rdma_destroy_event_channel(events);
    printf("all is as it should be\n");
    return 0;
}
