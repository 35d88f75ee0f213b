/* Several engines, which are the completion vectors of a device: ROCE_ENGINES is 2. One process, on one device. */

#include "check.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ENGINES = 2, LENGTH = 4096, REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

static struct ibv_qp *make(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, struct ibv_srq *srq) {
    struct ibv_qp_init_attr wanted = {
        .send_cq = send_cq,
        .recv_cq = recv_cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
    };
    return ibv_create_qp(pd, &wanted);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .min_rnr_timer = 12,
        .max_dest_rd_atomic = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void complete(struct ibv_cq *cq, struct ibv_qp *qp, uint64_t wr_id) {
    struct ibv_wc wc;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.qp_num == qp->qp_num);
}

int main(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL && count == 1);
    context = ibv_open_device(list[0]);
    CHECK(context != NULL && context->num_comp_vectors == ENGINES);
    ibv_free_device_list(list);
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    pd = ibv_alloc_pd(context);
    CHECK(pd != NULL);

    static char memory[2 * LENGTH];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(mr != NULL && channel != NULL);

    /* Vectors that the device does not have. */
    errno = 0;
    CHECK(ibv_create_cq(context, 16, NULL, NULL, ENGINES) == NULL && errno == EINVAL);
    CHECK(ibv_create_cq(context, 16, NULL, NULL, -1) == NULL && errno == EINVAL);
    struct ibv_cq_init_attr_ex extended = {.cqe = 16, .comp_vector = ENGINES};
    CHECK(ibv_create_cq_ex(context, &extended) == NULL && errno == EINVAL);
    extended.comp_vector = 1;
    struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(context, &extended);
    CHECK(cq_ex != NULL && ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);

    struct ibv_cq *cqs[ENGINES];
    struct ibv_qp *near[ENGINES], *far[ENGINES];
    for (int engine = 0; engine < ENGINES; engine++) {
        cqs[engine] = ibv_create_cq(context, 64, &cqs[engine], channel, engine);
        CHECK(cqs[engine] != NULL);
        near[engine] = make(cqs[engine], cqs[engine], NULL);
        far[engine] = make(cqs[engine], cqs[engine], NULL);
        CHECK(near[engine] != NULL && far[engine] != NULL);
        connect_to(near[engine], far[engine]->qp_num);
        connect_to(far[engine], near[engine]->qp_num);
    }
    CHECK(near[0]->qp_num >> 16 != near[1]->qp_num >> 16);

    /* Queues of two engines do not go together; a shared receive queue is in engine 0. */
    errno = 0;
    CHECK(make(cqs[0], cqs[1], NULL) == NULL && errno == EINVAL);
    struct ibv_srq_init_attr srq_wanted = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &srq_wanted);
    CHECK(srq != NULL && make(cqs[1], cqs[1], srq) == NULL && errno == EINVAL);
    struct ibv_qp *shared = make(cqs[0], cqs[0], srq);
    CHECK(shared != NULL && ibv_destroy_qp(shared) == 0 && ibv_destroy_srq(srq) == 0);

    /* One key in both, and one channel for both. */
    for (int engine = 0; engine < ENGINES; engine++) {
        memset(memory, 'a' + engine, LENGTH);
        memset(memory + LENGTH, 0, LENGTH);
        CHECK(ibv_req_notify_cq(cqs[engine], 0) == 0);
        struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = LENGTH, .lkey = mr->lkey};
        struct ibv_send_wr send = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
        send.wr.rdma.remote_addr = (uintptr_t)memory + LENGTH, send.wr.rdma.rkey = mr->rkey;
        CHECK(ibv_post_send(near[engine], &send, &bad) == 0);
        struct ibv_cq *found;
        void *of;
        CHECK(ibv_get_cq_event(channel, &found, &of) == 0 && found == cqs[engine] && of == &cqs[engine]);
        ibv_ack_cq_events(found, 1);
        complete(cqs[engine], near[engine], 7);
        CHECK(memcmp(memory, memory + LENGTH, LENGTH) == 0);
    }

    for (int engine = 0; engine < ENGINES; engine++) {
        CHECK(ibv_destroy_cq(cqs[engine]) == EBUSY);
        CHECK(ibv_destroy_qp(near[engine]) == 0 && ibv_destroy_qp(far[engine]) == 0 && ibv_destroy_cq(cqs[engine]) == 0);
    }
    CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    puts("all is as it should be");
    return 0;
}
