/* Domains and memory that the usual programs do not use: parent domains, device memory, on-demand paging, regions that change, windows
 * of type 1. */

#include "check.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define PAGE 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE | IBV_ACCESS_ON_DEMAND,
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_qp *make(struct ibv_pd *domain) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(domain, &init);
    CHECK(qp != NULL);
    return qp;
}

static struct ibv_wc finish(void) {
    struct ibv_wc wc;
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    CHECK(found == 1);
    return wc;
}

/* One request on queue pairs that are made for it, because an error ends them. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey) {
    struct ibv_qp *qp = make(pd), *far = make(pd);
    connect_to(qp, far->qp_num);
    connect_to(far, qp->qp_num);
    struct ibv_sge element = {.addr = addr, .length = length, .lkey = lkey};
    struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &element, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = rkey, wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = rkey;
    }
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    struct ibv_wc wc = finish();
    CHECK(wc.wr_id == 5 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(far) == 0);
    return wc.status;
}

static void domains(void) {
    struct ibv_td_init_attr no_attributes = {0}, unknown = {.comp_mask = 1};
    CHECK(ibv_alloc_td(context, &unknown) == NULL && errno == EOPNOTSUPP);
    struct ibv_td *td = ibv_alloc_td(context, &no_attributes);
    CHECK(td != NULL);
    struct ibv_pd *protection = ibv_alloc_pd(context);
    struct ibv_parent_domain_init_attr wanted = {.pd = protection, .td = td};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &wanted);
    CHECK(parent != NULL && parent->context == context);
    wanted.pd = NULL;
    CHECK(ibv_alloc_parent_domain(context, &wanted) == NULL && errno == EINVAL);
    CHECK(ibv_dealloc_pd(protection) == EBUSY && ibv_dealloc_td(td) == EBUSY);
    /* What is registered with one can be used with the other. */
    static uint64_t word = 41;
    struct ibv_mr *mr = ibv_reg_mr(protection, &word, sizeof word, REMOTE);
    struct ibv_pd *usual = pd;
    pd = parent;
    CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)&word, 8, mr->lkey, (uintptr_t)&word, mr->rkey) == IBV_WC_SUCCESS);
    CHECK(word == 41);
    pd = usual;
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(protection) == 0);
}

static void device_memory(void) {
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.max_dm_size >= 1 << 18);
    struct ibv_alloc_dm_attr attr = {.length = device.max_dm_size + 1};
    CHECK(ibv_alloc_dm(context, &attr) == NULL && errno == ENOMEM);
    attr.length = 256;
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    CHECK(dm != NULL);
    char text[64] = "what the device keeps for a while", back[64] = {0};
    CHECK(ibv_memcpy_to_dm(dm, 64, text, 64) == 0 && ibv_memcpy_from_dm(back, dm, 64, 64) == 0 && memcmp(text, back, 64) == 0);
    CHECK(ibv_memcpy_to_dm(dm, 2, text, 4) == EFAULT && ibv_memcpy_to_dm(dm, 252, text, 8) == EFAULT);
    CHECK(ibv_reg_dm_mr(pd, dm, 64, 64, REMOTE) == NULL && errno == EINVAL);
    CHECK(ibv_reg_dm_mr(pd, dm, 200, 64, REMOTE | IBV_ACCESS_ZERO_BASED) == NULL && errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 64, 64, REMOTE | IBV_ACCESS_ZERO_BASED);
    struct ibv_mr *empty = ibv_reg_dm_mr(pd, dm, 0, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
    struct ibv_mr *mine = ibv_reg_mr(pd, back, sizeof back, REMOTE);
    CHECK(mr != NULL && empty != NULL && mine != NULL && ibv_free_dm(dm) == EBUSY);
    memset(back, 0, sizeof back);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)back, 60, mine->lkey, 4, mr->rkey) == IBV_WC_SUCCESS && memcmp(back, text + 4, 60) == 0);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)back, 64, mine->lkey, 4, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(run(IBV_WR_RDMA_WRITE, 0, 1, empty->lkey, (uintptr_t)back, mine->rkey) == IBV_WC_LOC_PROT_ERR);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(empty) == 0 && ibv_dereg_mr(mine) == 0 && ibv_free_dm(dm) == 0);
}

static void on_demand(void) {
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
    CHECK(device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC);
    /* A range of which nothing is mapped yet. */
    char *range = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(range != MAP_FAILED && ibv_reg_mr(pd, range, 4 * PAGE, REMOTE) == NULL && errno == EFAULT);
    struct ibv_mr *mr = ibv_reg_mr(pd, range, 4 * PAGE, REMOTE | IBV_ACCESS_ON_DEMAND);
    struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, REMOTE | IBV_ACCESS_ON_DEMAND);
    CHECK(mr != NULL && all != NULL);
    uint64_t word = 0x0123456789abcdef;
    uintptr_t at = (uintptr_t)&word, there = (uintptr_t)range + PAGE;
    CHECK(run(IBV_WR_RDMA_WRITE, at, 8, all->lkey, there, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(run(IBV_WR_RDMA_WRITE, there, 8, mr->lkey, at, all->rkey) == IBV_WC_LOC_PROT_ERR);
    CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8, all->lkey, there, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    struct ibv_sge advised = {.addr = there, .length = 8, .lkey = mr->lkey};
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &advised, 1) == EFAULT);
    CHECK(mprotect(range + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &advised, 1) == 0);
    advised.addr = (uintptr_t)range + 4 * PAGE;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &advised, 1) == EFAULT);
    CHECK(run(IBV_WR_RDMA_WRITE, at, 8, all->lkey, there, mr->rkey) == IBV_WC_SUCCESS && memcmp(range + PAGE, &word, 8) == 0);
    uint64_t old = 0;
    CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)&old, 8, all->lkey, there, mr->rkey) == IBV_WC_SUCCESS && old == word);
    /* Over the end of what is mapped, and after it is gone again. */
    CHECK(run(IBV_WR_RDMA_WRITE, at, 8, all->lkey, there + PAGE - 4, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(munmap(range + PAGE, PAGE) == 0);
    CHECK(run(IBV_WR_RDMA_READ, at, 8, all->lkey, there, all->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(all) == 0 && munmap(range, 4 * PAGE) == 0);
}

/* Regression: a request for memory that was truncated, unmapped or protected after it was registered ended the process. */
static void lost_memory(void) {
    uint64_t word = 7;
    struct ibv_mr *mine = ibv_reg_mr(pd, &word, 8, REMOTE);
    uintptr_t at = (uintptr_t)&word;
    for (int way = 0; way < 3; way++) {
        FILE *file = tmpfile();
        CHECK(file != NULL && ftruncate(fileno(file), 2 * PAGE) == 0);
        char *range = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        CHECK(range != MAP_FAILED);
        struct ibv_mr *mr = ibv_reg_mr(pd, range, 2 * PAGE, REMOTE);
        uintptr_t there = (uintptr_t)range + PAGE;
        CHECK(mr != NULL && run(IBV_WR_RDMA_WRITE, at, 8, mine->lkey, there, mr->rkey) == IBV_WC_SUCCESS);
        switch (way) {
            case 0: CHECK(ftruncate(fileno(file), PAGE) == 0); break;
            case 1: CHECK(munmap(range + PAGE, PAGE) == 0); break;
            default: CHECK(mprotect(range + PAGE, PAGE, PROT_NONE) == 0);
        }
        CHECK(run(IBV_WR_RDMA_WRITE, at, 8, mine->lkey, there, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
        CHECK(run(IBV_WR_RDMA_READ, at, 8, mine->lkey, there, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
        CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8, mine->lkey, there, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
        CHECK(run(IBV_WR_RDMA_WRITE, there, 8, mr->lkey, at, mine->rkey) == IBV_WC_LOC_PROT_ERR);
        CHECK(run(IBV_WR_RDMA_WRITE, at, 8, mine->lkey, (uintptr_t)range, mr->rkey) == IBV_WC_SUCCESS);
        CHECK(ibv_dereg_mr(mr) == 0 && munmap(range, PAGE) == 0 && fclose(file) == 0);
    }
    CHECK(ibv_dereg_mr(mine) == 0);
}

static void regions(void) {
    static uint64_t words[4] = {1, 2, 3, 4}, others[4] = {5, 6, 7, 8};
    struct ibv_mr *mine = ibv_reg_mr(pd, words, sizeof words, REMOTE);
    struct ibv_mr *mr = ibv_reg_mr(pd, others, sizeof others, REMOTE);
    uint32_t lkey = mr->lkey, rkey = mr->rkey;
    uintptr_t first = (uintptr_t)others;
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mine->lkey, first, rkey) == IBV_WC_SUCCESS && words[0] == 5);
    CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 8, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
    /* The keys stay, the rights go. */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    CHECK(mr->lkey == lkey && mr->rkey == rkey);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mine->lkey, first, rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, others + 2, 8, REMOTE) == 0);
    CHECK(mr->addr == others + 2 && mr->length == 8 && mr->rkey == rkey);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mine->lkey, first, rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mine->lkey, first + 16, rkey) == IBV_WC_SUCCESS && words[0] == 7);
    struct ibv_pd *other = ibv_alloc_pd(context);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0 && mr->pd == other && ibv_dealloc_pd(other) == EBUSY);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mine->lkey, first + 16, rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(mine) == 0 && ibv_dealloc_pd(other) == 0);
    /* Nothing is there, and nothing is kept. */
    struct ibv_mr *null = ibv_alloc_null_mr(pd);
    mr = ibv_reg_mr(pd, words, sizeof words, REMOTE);
    CHECK(null != NULL && run(IBV_WR_RDMA_WRITE, 0x1234, 8, null->lkey, (uintptr_t)words, mr->rkey) == IBV_WC_SUCCESS && words[0] == 0);
    /* Regression: peers could not name it, as `perftest --use-null-mr` does. */
    words[0] = 9;
    CHECK(run(IBV_WR_RDMA_WRITE, (uintptr_t)words, 8, mr->lkey, 0x1234, null->rkey) == IBV_WC_SUCCESS);
    CHECK(run(IBV_WR_RDMA_READ, (uintptr_t)words, 8, mr->lkey, 0x1234, null->rkey) == IBV_WC_SUCCESS && words[0] == 0);
    words[0] = 9;
    CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)words, 8, mr->lkey, 0x1230, null->rkey) == IBV_WC_SUCCESS && words[0] == 0);
    CHECK(ibv_dereg_mr(null) == 0 && ibv_dereg_mr(mr) == 0);
}

#ifdef WITH_BUFFERS
/* Memory that the library allocates. */
static void buffers(void) {
    struct ibv_buf *buf = NULL;
    CHECK(ibv_alloc_buf(pd, 0, &buf) == NULL && errno == EINVAL);
    char *bytes = ibv_alloc_buf(pd, 3 * PAGE, &buf);
    CHECK(bytes != NULL && buf != NULL && (uintptr_t)bytes % PAGE == 0);
    CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
    CHECK(ibv_reg_buf_mr(pd, buf, bytes + PAGE, 2 * PAGE + 1, REMOTE) == NULL && errno == EINVAL);
    CHECK(ibv_reg_buf_mr(pd, (struct ibv_buf *)bytes, bytes, PAGE, REMOTE) == NULL && errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_buf_mr(pd, buf, bytes, 3 * PAGE, REMOTE);
    CHECK(mr != NULL && mr->addr == bytes && mr->length == 3 * PAGE);
    strcpy(bytes, "of the library");
    /* The region keeps the pages. */
    ibv_free_buf(buf);
    ibv_free_buf(buf);
    uintptr_t at = (uintptr_t)bytes;
    CHECK(run(IBV_WR_RDMA_WRITE, at, 15, mr->lkey, at + 2 * PAGE, mr->rkey) == IBV_WC_SUCCESS);
    CHECK(strcmp(bytes + 2 * PAGE, "of the library") == 0 && ibv_dereg_mr(mr) == 0);

    static char own[64];
    struct ibv_mr_init_attr attr = {.length = 64, .access = REMOTE, .comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA, .addr = own, .iova = 64};
    mr = ibv_reg_mr_ex(pd, &attr);
    CHECK(mr != NULL && run(IBV_WR_RDMA_WRITE, 64, 4, mr->lkey, 80, mr->rkey) == IBV_WC_SUCCESS && ibv_dereg_mr(mr) == 0);
    attr.comp_mask = IBV_REG_MR_MASK_IOVA;
    CHECK(ibv_reg_mr_ex(pd, &attr) == NULL && errno == EINVAL);
    attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    CHECK(ibv_reg_mr_ex(pd, &attr) == NULL && errno == EOPNOTSUPP);
    uint64_t speed;
    CHECK(ibv_query_port_speed(context, 1, &speed) == 0 && speed == 1000 && ibv_query_port_speed(context, 2, &speed) == EINVAL);
    struct ibv_comp_cntr_caps caps;
    struct ibv_comp_cntr_init_attr counter = {0};
    CHECK(ibv_query_comp_cntr_caps(context, &caps) == EOPNOTSUPP);
    CHECK(ibv_create_comp_cntr(context, &counter) == NULL && errno == EOPNOTSUPP);
    struct ibv_dmah_init_attr hints = {0};
    CHECK(ibv_alloc_dmah(context, &hints) == NULL && errno == EOPNOTSUPP);
}
#else
static void buffers(void) {
}
#endif

static void windows(void) {
    static char bytes[64] = "behind a window";
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(mr != NULL && mw != NULL && mw->type == IBV_MW_TYPE_1);
    struct ibv_qp *qp = make(pd);
    connect_to(qp, qp->qp_num);
    uint32_t before = mw->rkey;
    struct ibv_mw_bind bind = {
        .wr_id = 9, .send_flags = IBV_SEND_SIGNALED,
        .bind_info = {.mr = mr, .addr = (uintptr_t)bytes, .length = 32, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE},
    };
    CHECK(ibv_bind_mw(qp, mw, &bind) == 0 && mw->rkey == ibv_inc_rkey(before));
    struct ibv_wc wc = finish();
    CHECK(wc.wr_id == 9 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
    uintptr_t last = (uintptr_t)bytes + 63;
    CHECK(run(IBV_WR_RDMA_WRITE, last, 1, mr->lkey, (uintptr_t)bytes, mw->rkey) == IBV_WC_SUCCESS && bytes[0] == 0);
    CHECK(run(IBV_WR_RDMA_WRITE, last, 1, mr->lkey, (uintptr_t)bytes + 32, mw->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(run(IBV_WR_RDMA_WRITE, last, 1, mr->lkey, (uintptr_t)bytes, before) == IBV_WC_REM_ACCESS_ERR);
    bind.bind_info.length = 0;
    CHECK(ibv_bind_mw(qp, mw, &bind) == 0 && finish().status == IBV_WC_SUCCESS);
    CHECK(run(IBV_WR_RDMA_WRITE, last, 1, mr->lkey, (uintptr_t)bytes, mw->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL && list[0] != NULL);
    context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd != NULL && cq != NULL);
    domains();
    device_memory();
    on_demand();
#ifdef __x86_64__
    lost_memory();
#endif
    regions();
    windows();
    buffers();
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("all is as it should be");
    return 0;
}
