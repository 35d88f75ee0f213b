/* Modifies a queue pair with a value of one attribute: `attributes NAME VALUE`. Prints the error number, and the value that a query finds. */

#include "check.h"

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
       TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
       TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC };

static struct ibv_qp_attr wanted;

/* The attribute of a name: where it is, and how wide. */
static const struct {
    const char *name;
    void *field;
    int size;
} FIELDS[] = {
#define FIELD(name) {#name, &wanted.name, sizeof wanted.name}
    FIELD(pkey_index), FIELD(port_num), FIELD(path_mtu), FIELD(dest_qp_num), FIELD(rq_psn), FIELD(sq_psn),
    FIELD(max_rd_atomic), FIELD(max_dest_rd_atomic), FIELD(min_rnr_timer), FIELD(timeout), FIELD(retry_cnt), FIELD(rnr_retry),
    FIELD(ah_attr.port_num), FIELD(ah_attr.sl), FIELD(ah_attr.static_rate), FIELD(ah_attr.src_path_bits),
    FIELD(ah_attr.grh.sgid_index), FIELD(ah_attr.grh.hop_limit), FIELD(ah_attr.grh.flow_label),
};

static void *field_of(const char *name, int *size) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        if (strcmp(FIELDS[i].name, name) == 0) {
            *size = FIELDS[i].size;
            return FIELDS[i].field;
        }
    }
    fprintf(stderr, "no attribute is called %s\n", name);
    exit(2);
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask) {
    wanted.qp_state = state;
    return ibv_modify_qp(qp, &wanted, mask);
}

int main(int count, char **words) {
    CHECK(count == 3);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL && list[0] != NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd != NULL && cq != NULL);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp != NULL);
    wanted = (struct ibv_qp_attr){
        .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .max_rd_atomic = 1,
        .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
    };
    CHECK(ibv_query_gid(context, 1, 0, &wanted.ah_attr.grh.dgid) == 0);
    int size;
    void *field = field_of(words[1], &size);
    uint32_t value = strtoul(words[2], NULL, 0), found = 0;
    memcpy(field, &value, size);
    int failed = modify(qp, IBV_QPS_INIT, TO_INIT);
    if (failed == 0) {
        failed = modify(qp, IBV_QPS_RTR, TO_RTR);
    }
    if (failed == 0) {
        failed = modify(qp, IBV_QPS_RTS, TO_RTS);
    }
    CHECK(ibv_query_qp(qp, &wanted, IBV_QP_STATE, &init) == 0);
    memcpy(&found, field, size);
    printf("%d %u\n", failed, found);
    return 0;
}
