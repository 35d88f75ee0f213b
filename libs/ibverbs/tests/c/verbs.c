/* What the programs of the distribution do not try: the extended interfaces, errors, and events. One process, on one device. */

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 8192, REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* Headers of before rdma-core 44 have no atomic writes. */
#ifdef NO_ATOMIC_WRITE
enum { WITH_EIGHT_BYTES = 0 };

static void write_eight_bytes(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, void *bytes) {
    ibv_wr_rdma_write(qp, rkey, at);
    ibv_wr_set_inline_data(qp, bytes, 8);
}
#else
enum { WITH_EIGHT_BYTES = IBV_QP_EX_WITH_ATOMIC_WRITE };

static void write_eight_bytes(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, void *bytes) {
    ibv_wr_atomic_write(qp, rkey, at, bytes);
}
#endif

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

static void to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    CHECK(qp->state == IBV_QPS_INIT);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &attr, mask & ~IBV_QP_DEST_QPN) == EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7, .max_rd_atomic = 4};
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ALT_PATH) == EOPNOTSUPP);
}

static struct ibv_qp *make(struct ibv_cq *cq, struct ibv_srq *srq) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = {.max_send_wr = 8, .max_recv_wr = 2, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 6},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW |
                          WITH_EIGHT_BYTES,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp != NULL && init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 8);
    CHECK(ibv_qp_to_qp_ex(qp) != NULL);
    return qp;
}

/* Waits for one completion by the extended interface, and leaves it the present one. */
static void next(struct ibv_cq_ex *cq) {
    struct ibv_poll_cq_attr attr = {0};
    int found;
    while ((found = ibv_start_poll(cq, &attr)) == ENOENT) {
    }
    CHECK(found == 0);
}

static void errors(struct ibv_cq *cq) {
    /* Memory that is not there, and memory that must not be written. */
    void *gone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED);
    CHECK(ibv_reg_mr(pd, gone, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EFAULT);
    CHECK(munmap(gone, 4096) == 0);
    CHECK(ibv_reg_mr(pd, gone, 4096, 0) == NULL && errno == EFAULT);
    static char bytes[64];
    CHECK(ibv_reg_mr(pd, bytes, 64, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
    CHECK(ibv_reg_mr_iova2(pd, bytes, 64, 0, 1 << 12) == NULL && errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_mr_iova2(pd, bytes, 64, 0x1000, IBV_ACCESS_OPTIONAL_FIRST | IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != NULL);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    uint32_t old = mr->lkey;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, REMOTE) == 0 && mr->lkey == old);
    CHECK(ibv_dereg_mr(mr) == 0);

    struct ibv_pd *alone = ibv_alloc_pd(context);
    struct ibv_ah_attr vector = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
    CHECK(alone != NULL);
    struct ibv_ah *handle = ibv_create_ah(alone, &vector);
    CHECK(handle != NULL && ibv_dealloc_pd(alone) == EBUSY && errno == EBUSY);
    handle->handle++;
    CHECK(ibv_destroy_ah(handle) == ENOENT);
    handle->handle--;
    CHECK(ibv_destroy_ah(handle) == 0);
    alone->handle++;
    CHECK(ibv_dealloc_pd(alone) == ENOENT && ibv_create_ah(alone, &vector) == NULL && errno == ENOENT);
    alone->handle--;
    CHECK(ibv_dealloc_pd(alone) == 0);

    CHECK(ibv_create_cq(context, 0, NULL, NULL, 0) == NULL && errno == EINVAL);
    CHECK(ibv_create_cq(context, 16, NULL, NULL, 1) == NULL && errno == EINVAL);
    struct ibv_qp *qp = make(cq, NULL);
    CHECK(ibv_destroy_cq(cq) == EBUSY);
    struct ibv_sge element = {.addr = (uintptr_t)bytes, .length = 8};
    struct ibv_recv_wr more[3] = {{.wr_id = 1, .next = &more[1]}, {.wr_id = 2, .next = &more[2]}, {.wr_id = 3}}, *bad_recv;
    struct ibv_sge two[2] = {element, element};
    struct ibv_recv_wr large = {.sg_list = two, .num_sge = 2};
    CHECK(ibv_post_recv(qp, more, &bad_recv) == EINVAL && bad_recv == &more[0]);
    to_init(qp);
    CHECK(ibv_post_recv(qp, &large, &bad_recv) == EINVAL && bad_recv == &large);
    CHECK(ibv_post_recv(qp, more, &bad_recv) == ENOMEM && bad_recv == &more[2]);
    struct ibv_send_wr send[2] = {{.next = &send[1], .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE, .sg_list = &element, .num_sge = 1},
                                  {.opcode = IBV_WR_TSO}}, *bad;
    CHECK(ibv_post_send(qp, send, &bad) == EINVAL && bad == &send[0]);
    connect_to(qp, qp->qp_num);
    send[0].sg_list[0].length = 65;
    CHECK(ibv_post_send(qp, send, &bad) == ENOMEM && bad == &send[0]);
    send[0].num_sge = 33;
    CHECK(ibv_post_send(qp, send, &bad) == EINVAL && bad == &send[0]);
    send[0].num_sge = 0;
    CHECK(ibv_post_send(qp, send, &bad) == EOPNOTSUPP && bad == &send[1]);
    /* What the verbs say of it. */
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == qp->qp_num && attr.path_mtu == IBV_MTU_1024);
    CHECK(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid) == 0 && attr.ah_attr.is_global == 1 && init.cap.max_send_wr == 8);
    CHECK(ibv_destroy_qp(qp) == 0);
    struct ibv_wc wc[8];
    while (ibv_poll_cq(cq, 8, wc) > 0) {
    }
}

static void extended(void) {
    struct ibv_cq_init_attr_ex wanted = {.cqe = 32, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &wanted);
    CHECK(cq != NULL);
    wanted.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    CHECK(ibv_create_cq_ex(context, &wanted) == NULL && errno == EOPNOTSUPP);
    static char memory[LENGTH] __attribute__((aligned(4096)));
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, REMOTE | IBV_ACCESS_MW_BIND);
    CHECK(mr != NULL);
    struct ibv_qp *near = make(ibv_cq_ex_to_cq(cq), NULL), *far = make(ibv_cq_ex_to_cq(cq), NULL);
    to_init(near);
    to_init(far);
    connect_to(near, far->qp_num);
    connect_to(far, near->qp_num);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(near);
    uint64_t at = (uintptr_t)memory;

    /* A batch, of which only the last request completes visibly. */
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, mr->rkey, at + 100);
    ibv_wr_set_inline_data(qp, "hello", 5);
    qp->wr_id = 2;
    ibv_wr_rdma_write(qp, mr->rkey, at + 105);
    struct ibv_data_buf buffers[2] = {{" wor", 4}, {"ld", 2}};
    ibv_wr_set_inline_data_list(qp, 2, buffers);
    qp->wr_id = 3;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_read(qp, mr->rkey, at + 100);
    ibv_wr_set_sge(qp, mr->lkey, at + 200, 11);
    CHECK(ibv_wr_complete(qp) == 0);
    next(cq);
    CHECK(cq->wr_id == 3 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_READ);
    CHECK(ibv_wc_read_qp_num(cq) == near->qp_num);
    CHECK(ibv_next_poll(cq) == ENOENT);
    ibv_end_poll(cq);
    CHECK(memcmp(memory + 200, "hello world", 11) == 0);

    /* An aborted batch leaves nothing, and a wrong one fails as a whole. */
    ibv_wr_start(qp);
    ibv_wr_send_imm(qp, 1);
    ibv_wr_abort(qp);
    ibv_wr_start(qp);
    ibv_wr_rdma_write(qp, mr->rkey, at);
    ibv_wr_set_inline_data(qp, memory, LENGTH);
    CHECK(ibv_wr_complete(qp) == ENOMEM);

    /* Immediate data, and what the receiver sees. */
    struct ibv_sge element = {.addr = at + 300, .length = 100, .lkey = mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 9, .sg_list = &element, .num_sge = 1}, *bad_recv;
    CHECK(ibv_post_recv(far, &recv, &bad_recv) == 0);
    ibv_wr_start(qp);
    qp->wr_flags = 0;
    ibv_wr_send_imm(qp, htobe32(0x12345678));
    ibv_wr_set_sge(qp, mr->lkey, at + 100, 5);
    CHECK(ibv_wr_complete(qp) == 0);
    next(cq);
    CHECK(cq->wr_id == 9 && ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 5);
    /* Regression: the flag of the header was missing in receives of RC, where async-rdma asks for it. */
    CHECK(ibv_wc_read_wc_flags(cq) == (IBV_WC_GRH | IBV_WC_WITH_IMM) && be32toh(ibv_wc_read_imm_data(cq)) == 0x12345678);
    ibv_end_poll(cq);

    /* Eight bytes at once, and an atomic. */
    uint64_t value = 40;
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    write_eight_bytes(qp, mr->rkey, at + 1024, &value);
    ibv_wr_atomic_fetch_add(qp, mr->rkey, at + 1024, 2);
    ibv_wr_set_sge(qp, mr->lkey, at + 2048, 8);
    CHECK(ibv_wr_complete(qp) == 0);
    for (int i = 0; i < 2; i++) {
        next(cq);
        CHECK(cq->status == IBV_WC_SUCCESS);
        ibv_end_poll(cq);
    }
    CHECK(*(uint64_t *)(memory + 1024) == 42 && *(uint64_t *)(memory + 2048) == 40);

    /* A window of type 2: bound, used, and invalidated by the peer. */
    CHECK(ibv_alloc_mw(pd, 3) == NULL && errno == EINVAL);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw != NULL);
    struct ibv_qp_ex *owner = ibv_qp_to_qp_ex(far);
    struct ibv_mw_bind_info info = {.mr = mr, .addr = at + 4096, .length = 16, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    uint32_t key = ibv_inc_rkey(mw->rkey);
    ibv_wr_start(owner);
    owner->wr_flags = IBV_SEND_SIGNALED;
    /* Only the low 8 bits are the application's. */
    ibv_wr_bind_mw(owner, mw, key ^ 0x5a5a5a00, &info);
    CHECK(ibv_wr_complete(owner) == 0);
    next(cq);
    CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_BIND_MW && mw->rkey == key);
    ibv_end_poll(cq);
    CHECK(ibv_dereg_mr(mr) == EBUSY);
    CHECK(ibv_post_recv(far, &recv, &bad_recv) == 0);
    ibv_wr_start(qp);
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, key, at + 4096);
    ibv_wr_set_inline_data(qp, "window", 6);
    ibv_wr_send_inv(qp, key);
    CHECK(ibv_wr_complete(qp) == 0);
    next(cq);
    CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_wc_flags(cq) == (IBV_WC_GRH | IBV_WC_WITH_INV));
    CHECK(ibv_wc_read_invalidated_rkey(cq) == key && memcmp(memory + 4096, "window", 6) == 0);
    ibv_end_poll(cq);
    CHECK(ibv_dealloc_mw(mw) == 0);

    /* After a binding that failed, the window can be deallocated. An overwritten handle is refused. */
    mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw != NULL);
    info.addr = 4096;
    ibv_wr_start(owner);
    owner->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(owner, mw, ibv_inc_rkey(mw->rkey), &info);
    CHECK(ibv_wr_complete(owner) == 0);
    next(cq);
    CHECK(cq->status == IBV_WC_MW_BIND_ERR);
    ibv_end_poll(cq);
    mw->handle ^= 0xdeadbeef;
    CHECK(ibv_dealloc_mw(mw) == ENOENT);
    mw->handle ^= 0xdeadbeef;
    CHECK(ibv_dealloc_mw(mw) == 0);
    near->handle ^= 1;
    CHECK(ibv_destroy_qp(near) == ENOENT);
    near->handle ^= 1;

    CHECK(ibv_destroy_qp(near) == 0 && ibv_destroy_qp(far) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void events(void) {
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(channel != NULL);
    struct ibv_cq *cq = ibv_create_cq(context, 16, &gid, channel, 0), *found;
    CHECK(cq != NULL && ibv_destroy_comp_channel(channel) == EBUSY);
    void *of;
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_cq_event(channel, &found, &of) == -1 && errno == EAGAIN);
    CHECK(fcntl(channel->fd, F_SETFL, 0) == 0);

    struct ibv_srq_init_attr wanted = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &wanted);
    CHECK(srq != NULL);
    struct ibv_qp *near = make(cq, srq), *far = make(cq, srq);
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    to_init(near);
    to_init(far);
    connect_to(near, far->qp_num);
    connect_to(far, near->qp_num);
    struct ibv_recv_wr recv[2] = {{.wr_id = 1, .next = &recv[1]}, {.wr_id = 2}}, *bad_recv;
    CHECK(ibv_post_srq_recv(srq, recv, &bad_recv) == 0);
    struct ibv_srq_attr limit = {.srq_limit = 2};
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    struct ibv_srq_attr asked;
    CHECK(ibv_query_srq(srq, &asked) == 0 && asked.max_wr == 8 && asked.max_sge == 1 && asked.srq_limit == 2);

    CHECK(ibv_req_notify_cq(cq, 1) == 0);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED}, *bad;
    CHECK(ibv_post_send(near, &send, &bad) == 0);
    CHECK(ibv_get_cq_event(channel, &found, &of) == 0 && found == cq && of == &gid);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    CHECK(polled == 1 && wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.qp_num == far->qp_num);
    CHECK(wc.opcode == IBV_WC_RECV && wc.wc_flags == IBV_WC_GRH && wc.src_qp == near->qp_num && wc.pkey_index == 0 && wc.slid == 0);

    struct pollfd waiting = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&waiting, 1, 5000) == 1);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);
    CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);

    CHECK(ibv_destroy_qp(near) == 0 && ibv_destroy_qp(far) == 0);
    CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

int main(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL && count == 1 && list[1] == NULL);
    CHECK(strcmp(ibv_get_device_name(list[0]), "roce0") == 0 && ibv_get_device_guid(list[0]) != 0);
    context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
    CHECK(strcmp(context->device->name, "roce0") == 0);

    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.gid_tbl_len == 4);
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.orig_attr.phys_port_cnt == 1);
    struct ibv_gid_entry entry, table[5];
    union ibv_gid at;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && ibv_query_gid(context, 1, 4, &at) == -1);
    CHECK(ibv_query_gid_table(context, table, 5, 0) == 4 && ibv_query_gid_table(context, table, 3, 0) == -EINVAL);
    /* Programs have the index 1 of Soft-RoCE or the index 3 of ConnectX built in. */
    for (int i = 0; i < 4; i++) {
        CHECK(ibv_query_gid(context, 1, i, &at) == 0 && memcmp(&at, &gid, sizeof gid) == 0);
        CHECK(ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
        CHECK(memcmp(&entry, &table[i], sizeof entry) == 0 && entry.gid_index == (uint32_t)i && entry.ndev_ifindex != 0);
        CHECK(memcmp(&entry.gid, &gid, sizeof gid) == 0);
    }
    uint16_t key;
    CHECK(ibv_query_pkey(context, 1, 0, &key) == 0 && key == 0xffff && ibv_get_pkey_index(context, 1, key) == 0);

    pd = ibv_alloc_pd(context);
    CHECK(pd != NULL);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(cq != NULL && cq->cqe >= 16 && ibv_resize_cq(cq, 32) == 0 && cq->cqe >= 32);
    errors(cq);
    CHECK(ibv_destroy_cq(cq) == 0);
    extended();
    events();
    CHECK(ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    puts("all is as it should be");
    return 0;
}
