/* Calls every exported function of both libraries with pointers that are null, that are no object or another kind of object, and that
 * were destroyed. Each function is called in processes of its own, so that a crash is seen as a signal and named.
 *
 *   handles ADDRESS            every function with every wrong handle: each call must be refused with EINVAL
 *   handles ADDRESS SEED       a sequence of random calls with right and wrong handles: nothing may crash or hang
 *   handles ADDRESS NAME       one function
 *   handles                    the names of the functions
 */

#define _GNU_SOURCE
#define CHECK_EXIT _exit
#include "../../../ibverbs/tests/c/check.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Kinds of objects, as letters. Small letters are optional: a null pointer is no error. */
static const char KINDS[] = "DLCPMWAHQRGIEVNTFUK";
enum { MOST_ARGUMENTS = 6, ROOM = 4096, CALLS_OF_A_SEQUENCE = 40, LONGEST_SECONDS = 30 };

/* How a function says that it refuses: 'p' a null pointer and errno, 's' the error number, 'c' -1 and errno, 'n' the negated error number,
 * 'v' not at all. A capital letter: with right arguments it succeeds. 'u': it is not supported, or the descriptor is none of
 * an rsocket, and it says so.
 *
 * Arguments are letters of KINDS, and:
 *   h e p    as H E P, or null       J    an identifier that is not bound yet
 *   o        room for an answer      O    the same, or null
 *   0..9     that number             l    64, a length     B    32     Z    56     Y    400     X    0x106, a port space     k    0xffff
 *   m        memory                  s S  a text; a text or null       a z  an address; an address or null
 *   c r i d  attributes of a queue pair, a shared receive queue, an address handle, of a change
 *   u v q w  extended attributes of a queue pair, a shared receive queue, a completion queue; attributes of a parent domain
 *   x y j t  an event of a queue pair; attributes of a queue pair whose queue for sends, for receives, or shared queue is wrong
 *   g b f    the bytes before a datagram; a GID; attributes with a state
 * After '!' only null pointers are tried: the function moves data, or takes what an application may have made itself.
 *A call after '#' may wait, and is no part of random sequences. */
struct call {
    const char *name;
    char answer;
    const char *arguments;
};

static const struct call CALLS[] = {
    {"ibv_get_device_list", 'P', "O"},
    {"ibv_free_device_list", 'v', "L"},
    {"ibv_get_device_name", 'P', "D"},
    {"ibv_get_device_guid", 'v', "D"},
    {"ibv_get_device_index", 'v', "D"},
    {"ibv_open_device", 'P', "D"},
    {"ibv_close_device", 'S', "C"},
    {"ibv_get_async_event", 'c', "#Co"},
    {"ibv_ack_async_event", 'v', "x"},
    {"ibv_query_device", 'S', "Co"},
    {"ibv_query_port", 'S', "C1o"},
    {"ibv_query_gid", 'C', "C10o"},
    {"ibv_query_gid_type", 'C', "C10o"},
    {"ibv_query_pkey", 'C', "C10o"},
    {"ibv_get_pkey_index", 'C', "C1k"},
    {"_ibv_query_gid_ex", 'S', "C10o0B"},
    {"_ibv_query_gid_table", 'N', "Co80B"},
    {"ibv_alloc_pd", 'P', "C"},
    {"ibv_dealloc_pd", 's', "P"},
    {"ibv_reg_mr", 'P', "Pml1"},
    {"ibv_reg_mr_iova", 'P', "Pmll1"},
    {"ibv_reg_mr_iova2", 'P', "Pmll1"},
    {"ibv_rereg_mr", 'C', "M2P000"},
    {"ibv_dereg_mr", 'S', "M"},
    {"ibv_reg_dmabuf_mr", 'u', "P0l001"},
    {"ibv_alloc_buf", 'P', "Plo"},
    {"ibv_free_buf", 'v', "0"},
    {"ibv_reg_buf_mr", 'p', "P0ml1"},
    {"ibv_reg_mr_ex", 'p', "Po"},
    {"ibv_query_port_speed", 'S', "C1o"},
    /* Not supported, whatever the arguments. */
    {"_ibv_query_comp_cntr_caps", 'v', "000"},
    {"ibv_alloc_dmah", 'v', "000"},
    {"ibv_create_comp_cntr", 'v', "000"},
    {"ibv_dealloc_dmah", 'v', "000"},
    {"ibv_destroy_comp_cntr", 'v', "000"},
    {"ibv_dm_export_dmabuf_fd", 'v', "000"},
    {"ibv_export_buf_dmabuf_fd", 'v', "000"},
    {"ibv_inc_comp_cntr", 'v', "000"},
    {"ibv_inc_err_comp_cntr", 'v', "000"},
    {"ibv_qp_attach_comp_cntr", 'v', "000"},
    {"ibv_read_comp_cntr", 'v', "000"},
    {"ibv_read_err_comp_cntr", 'v', "000"},
    {"ibv_set_comp_cntr", 'v', "000"},
    {"ibv_set_err_comp_cntr", 'v', "000"},
    {"rdma_query_addrinfo", 'v', "000"},
    {"rdma_resolve_addrinfo", 'v', "000"},
    {"rdma_write_cm_event", 'v', "000"},
    {"repoll_create", 'v', "000"},
    {"repoll_ctl", 'v', "000"},
    {"repoll_wait", 'v', "000"},
    {"ibv_create_comp_channel", 'P', "C"},
    {"ibv_destroy_comp_channel", 's', "H"},
    {"ibv_create_cq", 'P', "C40h0"},
    {"ibv_resize_cq", 'S', "Q8"},
    {"ibv_destroy_cq", 's', "Q"},
    {"ibv_get_cq_event", 'c', "#Hoo"},
    {"ibv_ack_cq_events", 'v', "Q0"},
    {"ibv_create_srq", 'P', "Pr"},
    {"ibv_modify_srq", 'S', "Ro0"},
    {"ibv_query_srq", 'S', "Ro"},
    {"ibv_destroy_srq", 'S', "R"},
    {"ibv_create_qp", 'P', "Pc"},
    {"ibv_create_qp", 'P', "Py"},
    {"ibv_create_qp", 'P', "Pt"},
    {"ibv_create_qp", 'P', "Pj"},
    {"ibv_qp_to_qp_ex", 'P', "G"},
    {"ibv_modify_qp", 'S', "Gd1"},
    {"ibv_query_qp", 'S', "Go1o"},
    {"ibv_query_qp_data_in_order", 'v', "G00"},
    {"ibv_destroy_qp", 'S', "G"},
    {"ibv_create_ah", 'P', "Pi"},
    {"ibv_create_ah_from_wc", 'P', "POg1"},
    {"ibv_init_ah_from_wc", 'S', "C1Ogo"},
    {"ibv_destroy_ah", 'S', "A"},
    {"ibv_attach_mcast", 's', "Gb0"},
    {"ibv_detach_mcast", 's', "Gb0"},
    {"ibv_fork_init", 'S', ""},
    {"ibv_is_fork_initialized", 'v', ""},
    {"ibv_dofork_range", 'S', "ml"},
    {"ibv_dontfork_range", 'S', "ml"},
    {"ibv_wc_status_str", 'P', "k"},
    {"ibv_node_type_str", 'P', "k"},
    {"ibv_port_state_str", 'P', "k"},
    {"ibv_event_type_str", 'P', "k"},
    {"ibv_rate_to_mult", 'v', "k"},
    {"mult_to_ibv_rate", 'v', "k"},
    {"ibv_rate_to_mbps", 'v', "k"},
    {"mbps_to_ibv_rate", 'v', "k"},
    {"ibv_get_sysfs_path", 'P', ""},
    {"ibv_read_sysfs_file", 'c', "ssol"},
    {"ibv_import_device", 'u', "0"},
    {"ibv_import_pd", 'u', "C0"},
    {"ibv_import_mr", 'u', "P0"},
    {"ibv_import_dm", 'u', "C0"},
    {"ibv_unimport_pd", 'v', "P"},
    {"ibv_unimport_mr", 'v', "M"},
    {"ibv_unimport_dm", 'v', "O"},
    {"ibv_query_ece", 'v', "Go"},
    {"ibv_set_ece", 'v', "Go"},
    {"ibv_register_driver", 'v', "OO"},
    {"ibv_resolve_eth_l2_from_gid", 'v', "CiOO"},
    {"ibv_copy_ah_attr_from_kern", 'v', "OO"},
    {"ibv_copy_path_rec_from_kern", 'v', "OO"},
    {"ibv_copy_path_rec_to_kern", 'v', "OO"},
    {"ibv_copy_qp_attr_from_kern", 'v', "OO"},

    /* What inline functions call through the tables of a context. */
    {"table.alloc_mw", 'P', "P2"},
    {"table.dealloc_mw", 'S', "W"},
    {"table.bind_mw", 's', "GWo"},
    {"table.alloc_null_mr", 'P', "P"},
    {"table.advise_mr", 's', "P01OO"},
    {"table.alloc_td", 'P', "Co"},
    {"table.dealloc_td", 'S', "F"},
    {"table.open_xrcd", 'p', "Co"},
    {"table.close_xrcd", 'S', "K"},
    {"table.get_srq_num", 's', "Ro"},
    {"table.alloc_parent_domain", 'P', "Cw"},
    {"table.alloc_dm", 'p', "Co"},
    {"table.free_dm", 'S', "U"},
    {"table.reg_dm_mr", 'p', "PU000"},
    {"table.poll_cq", 'C', "!Q4O"},
    {"table.req_notify_cq", 'S', "!Q0"},
    {"table.post_send", 'S', "!G0O"},
    {"table.post_recv", 'S', "!G0O"},
    {"table.post_srq_recv", 'S', "!R0O"},
    {"table.query_port", 'S', "C1oZ"},
    {"table.query_device_ex", 'S', "COoY"},
    {"table.create_cq_ex", 'P', "Cq"},
    {"table.create_qp_ex", 'P', "Cu"},
    {"table.create_srq_ex", 'P', "Cv"},

    {"rdma_create_event_channel", 'P', ""},
    {"rdma_destroy_event_channel", 'v', "E"},
    {"rdma_create_id", 'C', "eo0X"},
    {"rdma_destroy_id", 'C', "I"},
    {"rdma_migrate_id", 'C', "#Ie"},
    {"rdma_bind_addr", 'C', "Ja"},
    {"rdma_resolve_addr", 'C', "Jza9"},
    {"rdma_resolve_route", 'C', "I9"},
    {"rdma_create_qp", 'C', "Ipc"},
    {"rdma_create_qp_ex", 'C', "Iu"},
    {"rdma_destroy_qp", 'v', "I"},
    {"rdma_create_srq", 'C', "Ipr"},
    {"rdma_create_srq_ex", 'C', "Iv"},
    {"rdma_destroy_srq", 'v', "I"},
    {"rdma_create_ep", 'C', "!oN00"},
    {"rdma_destroy_ep", 'v', "I"},
    {"rdma_get_request", 'c', "#Io"},
    {"rdma_listen", 'C', "J4"},
    {"rdma_connect", 'C', "IO"},
    {"rdma_accept", 'c', "IO"},
    {"rdma_establish", 'c', "I"},
    {"rdma_reject", 'c', "IO0"},
    {"rdma_reject_ece", 'c', "IO0"},
    {"rdma_notify", 'c', "I4"},
    {"rdma_disconnect", 'c', "I"},
    {"rdma_get_cm_event", 'c', "#Eo"},
    {"rdma_ack_cm_event", 'C', "V"},
    {"rdma_event_str", 'P', "k"},
    {"rdma_get_src_port", 'v', "I"},
    {"rdma_get_dst_port", 'v', "I"},
    {"rdma_join_multicast", 'c', "Ia0"},
    {"rdma_join_multicast_ex", 'c', "Io0"},
    {"rdma_leave_multicast", 'c', "Ia"},
    {"rdma_set_option", 'C', "I00o1"},
    {"rdma_init_qp_attr", 'C', "Ifo"},
    {"rdma_get_remote_ece", 'C', "Io"},
    {"rdma_set_local_ece", 'C', "Io"},
    {"rdma_getaddrinfo", 'C', "S00o"},
    {"rdma_freeaddrinfo", 'v', "N"},
    {"rdma_get_devices", 'P', "O"},
    {"rdma_free_devices", 'v', "T"},
    {"rpoll", 'C', "O00"},
    {"rsocket", 'u', "000"},
    {"rbind", 'u', "0OO"},
    {"rlisten", 'u', "00"},
    {"raccept", 'u', "0OO"},
    {"rconnect", 'u', "0OO"},
    {"rclose", 'u', "9"},
    {"rshutdown", 'u', "00"},
    {"rsend", 'u', "0O00"},
    {"rsendto", 'u', "0O00O0"},
    {"rsendmsg", 'u', "0O0"},
    {"rrecv", 'u', "0O00"},
    {"rrecvfrom", 'u', "0O00OO"},
    {"rrecvmsg", 'u', "0O0"},
    {"rread", 'u', "0O0"},
    {"rreadv", 'u', "0O0"},
    {"rwrite", 'u', "0O0"},
    {"rwritev", 'u', "0O0"},
    /* More descriptors than a set has: with fewer, it waits. */
    {"rselect", 'c', "kOOOO"},
    {"rfcntl", 'u', "000"},
    {"rsetsockopt", 'u', "000OO"},
    {"rgetsockopt", 'u', "000OO"},
    {"rgetpeername", 'u', "0OO"},
    {"rgetsockname", 'u', "0OO"},
    {"riomap", 'u', "0O0000"},
    {"riounmap", 'u', "0O0"},
    {"riowrite", 'u', "0O000"},
};
enum { NUMBER_OF_CALLS = sizeof CALLS / sizeof CALLS[0] };

static const char *address;
/* Objects by their kinds: those that are there, and those that were destroyed. */
static void *live[sizeof KINDS], *freed[sizeof KINDS];
static struct rdma_cm_id *unbound;
static char zeroed[ROOM] __attribute__((aligned(64)));
static char rooms[MOST_ARGUMENTS][ROOM] __attribute__((aligned(64)));
static char memory[ROOM];
/* What is being called, for the process that waits for the one that calls. */
static struct {
    char text[200];
    int variant;
    unsigned long calls;
} *shared;

static int index_of(char kind) {
    const char *at = strchr(KINDS, kind);
    return at && kind ? (int)(at - KINDS) : -1;
}

static void *object_of(char kind) {
    return live[index_of(kind)];
}

static void *attributes(int place, char letter, void *handle);

static struct sockaddr_in own_address(int port) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, address, &own.sin_addr) == 1);
    return own;
}

static struct rdma_cm_event *resolve(struct rdma_cm_id *id, struct rdma_event_channel *channel) {
    struct sockaddr_in own = own_address(7471);
    struct rdma_cm_event *event;
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 100) == 0);
    CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
    return event;
}

/* One object of each kind. */
static void make(void **objects) {
#define PUT(kind, pointer) CHECK((objects[index_of(kind)] = (pointer)) != NULL)
    struct ibv_device **devices = ibv_get_device_list(NULL);
    PUT('L', devices);
    PUT('D', devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    PUT('C', context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    PUT('P', pd);
    PUT('M', ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    PUT('W', ibv_alloc_mw(pd, IBV_MW_TYPE_2));
    struct ibv_ah_attr vector = {.is_global = 1, .port_num = 1};
    CHECK(ibv_query_gid(context, 1, 0, &vector.grh.dgid) == 0);
    PUT('A', ibv_create_ah(pd, &vector));
    PUT('F', ibv_alloc_td(context, &(struct ibv_td_init_attr){0}));
    struct ibv_xrcd_init_attr xrc = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
    PUT('K', ibv_open_xrcd(context, &xrc));
    PUT('U', ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64}));
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    PUT('H', channel);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
    PUT('Q', cq);
    struct ibv_srq_init_attr shared_queue = {.attr = {.max_wr = 4, .max_sge = 1}};
    PUT('R', ibv_create_srq(pd, &shared_queue));
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    PUT('G', ibv_create_qp_ex(context, &init));
    struct rdma_event_channel *events = rdma_create_event_channel();
    PUT('E', events);
    struct rdma_cm_id *id, *with_event;
    CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
    PUT('I', id);
    CHECK(rdma_ack_cm_event(resolve(id, events)) == 0);
    /* The event stays with an identifier that nobody destroys, because that would wait for it. */
    CHECK(rdma_create_id(events, &with_event, NULL, RDMA_PS_TCP) == 0);
    PUT('V', resolve(with_event, events));
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE}, *information;
    CHECK(rdma_getaddrinfo(address, "7472", &hints, &information) == 0);
    PUT('N', information);
    PUT('T', rdma_get_devices(NULL));
    for (int *fd = (int[]){context->async_fd, channel->fd, events->fd, -1}; *fd >= 0; fd++) {
        CHECK(fcntl(*fd, F_SETFL, O_NONBLOCK) == 0);
    }
#undef PUT
}

/* Destroys them: all of it succeeds, whatever was called with wrong handles. A device stays. */
static void destroy(void **objects) {
#define GET(kind) objects[index_of(kind)]
    CHECK(ibv_destroy_qp(GET('G')) == 0);
    CHECK(ibv_destroy_srq(GET('R')) == 0);
    CHECK(ibv_destroy_cq(GET('Q')) == 0);
    CHECK(ibv_destroy_comp_channel(GET('H')) == 0);
    CHECK(ibv_destroy_ah(GET('A')) == 0);
    CHECK(ibv_dealloc_mw(GET('W')) == 0);
    CHECK(ibv_dereg_mr(GET('M')) == 0);
    CHECK(ibv_dealloc_td(GET('F')) == 0);
    CHECK(ibv_close_xrcd(GET('K')) == 0);
    CHECK(ibv_free_dm(GET('U')) == 0);
    CHECK(ibv_dealloc_pd(GET('P')) == 0);
    CHECK(ibv_close_device(GET('C')) == 0);
    ibv_free_device_list(GET('L'));
    CHECK(rdma_ack_cm_event(GET('V')) == 0);
    CHECK(rdma_destroy_id(GET('I')) == 0);
    rdma_destroy_event_channel(GET('E'));
    rdma_freeaddrinfo(GET('N'));
    rdma_free_devices(GET('T'));
#undef GET
}

static void find_functions(void);

static void prepare(void) {
    make(freed);
    make(live);
    CHECK(rdma_create_id(object_of('E'), &unbound, NULL, RDMA_PS_TCP) == 0);
    /* Last, so that no object that is there has the address of one that was destroyed. */
    destroy(freed);
    freed[index_of('D')] = NULL;
    find_functions();
}

/* The function of an inline one, out of the tables of the context. */
static void *table_entry(const char *name) {
    struct ibv_context *context = object_of('C');
    struct verbs_context *verbs = verbs_get_ctx(context);
    CHECK(verbs != NULL);
#define IN_OPS(entry) if (strcmp(name, #entry) == 0) return (void *)context->ops.entry
#define IN_VERBS(entry) if (strcmp(name, #entry) == 0) return (void *)verbs->entry
    IN_OPS(alloc_mw);
    IN_OPS(dealloc_mw);
    IN_OPS(bind_mw);
    IN_OPS(poll_cq);
    IN_OPS(req_notify_cq);
    IN_OPS(post_send);
    IN_OPS(post_recv);
    IN_OPS(post_srq_recv);
    IN_VERBS(alloc_null_mr);
    IN_VERBS(advise_mr);
    IN_VERBS(alloc_td);
    IN_VERBS(dealloc_td);
    IN_VERBS(open_xrcd);
    IN_VERBS(close_xrcd);
    IN_VERBS(get_srq_num);
    IN_VERBS(alloc_parent_domain);
    IN_VERBS(alloc_dm);
    IN_VERBS(free_dm);
    IN_VERBS(reg_dm_mr);
    IN_VERBS(query_port);
    IN_VERBS(query_device_ex);
    IN_VERBS(create_cq_ex);
    IN_VERBS(create_qp_ex);
    IN_VERBS(create_srq_ex);
    return NULL;
}

static void *function_of(const struct call *call) {
    void *found;
    if (strncmp(call->name, "table.", 6) == 0) {
        found = table_entry(call->name + 6);
    } else if (strcmp(call->name, "ibv_query_gid_type") == 0) {
        found = dlvsym(RTLD_DEFAULT, call->name, "IBVERBS_PRIVATE_34");
    } else {
        found = dlsym(RTLD_DEFAULT, call->name);
    }
    if (!found) {
        fprintf(stderr, "there is no %s\n", call->name);
        _exit(1);
    }
    return found;
}

/* At once, because the tables end with their context. */
static void *functions[NUMBER_OF_CALLS];

static void find_functions(void) {
    for (int number = 0; number < NUMBER_OF_CALLS; number++) {
        functions[number] = function_of(&CALLS[number]);
    }
}

/* The kind of handle that an argument is or has in it, and whether it may be null; 0 for other arguments. */
static char kind_of(char letter, int *may_be_null) {
    *may_be_null = strchr("hepjOSz", letter) != NULL;
    switch (letter) {
        case 'h': return 'H';
        case 'e': return 'E';
        case 'p': return 'P';
        case 'J': return 'I';
        case 'x': return 'G';
        case 'y': case 't': return 'Q';
        case 'j': return 'R';
        default: return index_of(letter) >= 0 ? letter : 0;
    }
}

/* Whether an argument of this letter is a pointer to something else than an object. */
static int is_other_pointer(char letter) {
    return strchr("oOsSazcriduvwqxytjgbf", letter) != NULL;
}

/* The argument for a letter, with this handle where it is one or has one in it. */
static long argument(int place, char letter, void *handle) {
    char *room = rooms[place];
    int ignored;
    if (kind_of(letter, &ignored) && !strchr("xytj", letter)) {
        return (long)handle;
    }
    memset(room, 0, ROOM);
    if (letter >= '0' && letter <= '9') {
        return letter - '0';
    }
    switch (letter) {
        case 'l': return 64;
        case 'B': return 32;
        case 'Z': return 56;
        case 'Y': return 400;
        case 'X': return RDMA_PS_TCP;
        case 'k': return 0xffff;
        case 'm': return (long)memory;
        case 's': case 'S': return (long)strcpy(room, address);
        case 'a': case 'z': *(struct sockaddr_in *)room = own_address(7473 + place); return (long)room;
        default: return (long)attributes(place, letter, handle);
    }
}

static void *attributes(int place, char letter, void *handle) {
    char *room = rooms[place];
    struct ibv_cq *cq = object_of('Q');
    struct ibv_qp_cap cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1};
    switch (letter) {
        case 'c': case 'y': case 't': case 'j':
            *(struct ibv_qp_init_attr *)room = (struct ibv_qp_init_attr){
                .send_cq = letter == 'y' ? handle : cq, .recv_cq = letter == 't' ? handle : cq,
                .srq = letter == 'j' ? handle : NULL, .cap = cap, .qp_type = IBV_QPT_RC};
            break;
        case 'u':
            *(struct ibv_qp_init_attr_ex *)room = (struct ibv_qp_init_attr_ex){
                .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = object_of('P')};
            break;
        case 'r': ((struct ibv_srq_init_attr *)room)->attr = (struct ibv_srq_attr){.max_wr = 2, .max_sge = 1}; break;
        case 'v':
            *(struct ibv_srq_init_attr_ex *)room = (struct ibv_srq_init_attr_ex){
                .attr = {.max_wr = 2, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = object_of('P')};
            break;
        case 'w': ((struct ibv_parent_domain_init_attr *)room)->pd = object_of('P'); break;
        case 'q': ((struct ibv_cq_init_attr_ex *)room)->cqe = 4; break;
        case 'd': ((struct ibv_qp_attr *)room)->qp_state = IBV_QPS_ERR; break;
        case 'f': ((struct ibv_qp_attr *)room)->qp_state = IBV_QPS_INIT; break;
        case 'x': *(struct ibv_async_event *)room = (struct ibv_async_event){.element.qp = handle, .event_type = IBV_EVENT_QP_FATAL}; break;
        case 'i': {
            struct ibv_ah_attr vector = {.is_global = 1, .port_num = 1};
            struct sockaddr_in own = own_address(0);
            vector.grh.dgid.raw[10] = vector.grh.dgid.raw[11] = 0xff;
            memcpy(vector.grh.dgid.raw + 12, &own.sin_addr, 4);
            memcpy(room, &vector, sizeof vector);
            break;
        }
        case 'g': {
            struct sockaddr_in own = own_address(0);
            room[20] = 0x45;
            memcpy(room + 32, &own.sin_addr, 4);
            memcpy(room + 36, &own.sin_addr, 4);
            break;
        }
        case 'b': memset(room, 0xff, 2); break;
        default: break;
    }
    return room;
}

static long invoke(const struct call *call, const long *arguments) {
    long (*called)(long, long, long, long, long, long) = (long (*)(long, long, long, long, long, long))functions[call - CALLS];
    errno = 0;
    return called(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

static const char *letters_of(const struct call *call) {
    return call->arguments + strspn(call->arguments, "!#");
}

static void right_arguments(const struct call *call, long *arguments) {
    const char *letters = letters_of(call);
    memset(arguments, 0, MOST_ARGUMENTS * sizeof *arguments);
    for (int place = 0; letters[place]; place++) {
        int may_be_null;
        char kind = kind_of(letters[place], &may_be_null);
        void *handle = kind ? object_of(kind) : NULL;
        arguments[place] = argument(place, letters[place], letters[place] == 'J' ? (void *)unbound : handle);
    }
}

/* Whether an answer says EINVAL, or `number`. */
static int is_refusal(char answer, long result, int number) {
    switch (answer) {
        case 'p': case 'P': return result == 0 && errno == number;
        case 's': case 'S': return (int)result == number;
        case 'c': case 'C': return (int)result == -1 && errno == number;
        case 'n': case 'N': return result == -number;
        default: return 1;
    }
}

static int is_success(char answer, long result) {
    switch (answer) {
        case 'P': return result != 0;
        case 'S': return (int)result == 0;
        case 'C': return (int)result >= 0;
        case 'N': return result >= 0;
        case 'u': return (errno == EOPNOTSUPP || errno == EBADF) && (result == 0 || (int)result == -1);
        default: return 1;
    }
}

static void note(const char *text, const struct call *call, int place) {
    snprintf(shared->text, sizeof shared->text, "%s(%s), argument %d: %s", call->name, letters_of(call), place + 1, text);
}

/* What can be wrong with a handle: null, nothing at all, zeros, destroyed, another kind. */
enum { IS_NULL, IS_WILD, IS_ZEROED, IS_FREED, IS_OTHER };

static int wrong_handle(char kind, int variant, void **handle, char *text) {
    int other = variant - IS_OTHER;
    switch (variant) {
        case IS_NULL: *handle = NULL; strcpy(text, "null"); return 1;
        case IS_WILD: *handle = (void *)0x10; strcpy(text, "no address"); return 1;
        case IS_ZEROED: *handle = zeroed + 2048; strcpy(text, "zeroed memory"); return 1;
        case IS_FREED: *handle = freed[index_of(kind)]; strcpy(text, "destroyed"); return *handle != NULL;
        default:
            /* A list of devices begins with the address of a device, and is none. */
            if (!KINDS[other] || KINDS[other] == kind) {
                return 0;
            }
            *handle = live[other];
            sprintf(text, "an object of the kind %c", KINDS[other]);
            return 1;
    }
}

/* In a process of its own: one function with one wrong argument, in all variants from `first` on. */
static void try_wrong(const struct call *call, int place, int first) {
    char letter = letters_of(call)[place], text[64];
    int may_be_null;
    char kind = kind_of(letter, &may_be_null);
    int only_null = call->arguments[0] == '!';
    for (int variant = first; variant < IS_OTHER + (int)sizeof KINDS - 1; variant++) {
        long arguments[MOST_ARGUMENTS];
        void *handle = NULL;
        int is_null = variant == IS_NULL;
        shared->variant = variant;
        if ((!is_null && (only_null || !kind)) || !wrong_handle(kind, variant, &handle, text)) {
            continue;
        }
        /* Where null is no error, the call may do something. */
        if (is_null && may_be_null && call->arguments[0] == '#') {
            continue;
        }
        right_arguments(call, arguments);
        arguments[place] = kind ? argument(place, letter, handle) : 0;
        note(text, call, place);
        long result = invoke(call, arguments);
        shared->calls++;
        if (!(is_null && may_be_null) && call->answer != 'u' && !is_refusal(call->answer, result, EINVAL)) {
            fprintf(stderr, "%s: answered %ld, errno %d\n", shared->text, result, errno);
            _exit(1);
        }
        if (is_null && may_be_null) {
            /* What it made or destroyed is in the way of the others. */
            shared->variant = variant + 1;
            _exit(99);
        }
        /* An attribute that is null is another error than its handle. */
        if (kind && is_null && strchr("xytj", letter)) {
            arguments[place] = 0;
            note("null attributes", call, place);
            result = invoke(call, arguments);
            shared->calls++;
            CHECK(is_refusal(call->answer, result, EINVAL));
        }
    }
    note("destroying everything after that", call, place);
    destroy(live);
}

static void try_right(const struct call *call) {
    long arguments[MOST_ARGUMENTS];
    right_arguments(call, arguments);
    note("right", call, -1);
    long result = invoke(call, arguments);
    shared->calls++;
    if (!is_success(call->answer, result)) {
        fprintf(stderr, "%s with right arguments answered %ld, errno %d\n", call->name, result, errno);
        _exit(1);
    }
}

static uint64_t state;

static unsigned draw(unsigned below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % below);
}

static void *random_handle(char kind) {
    char text[64];
    void *handle;
    if (draw(10) < 7 || !wrong_handle(kind, (int)draw(IS_OTHER + (int)sizeof KINDS - 1), &handle, text)) {
        return kind == 'I' && draw(2) ? (void *)unbound : object_of(kind);
    }
    return handle;
}

static void try_sequence(uint64_t seed) {
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int number = 0; number < CALLS_OF_A_SEQUENCE; number++) {
        const struct call *call = &CALLS[draw(NUMBER_OF_CALLS)];
        long arguments[MOST_ARGUMENTS];
        if (call->arguments[0] == '#' || call->arguments[0] == '!') {
            continue;
        }
        right_arguments(call, arguments);
        for (int place = 0; letters_of(call)[place]; place++) {
            char letter = letters_of(call)[place];
            int may_be_null;
            char kind = kind_of(letter, &may_be_null);
            if (kind) {
                arguments[place] = argument(place, letter, random_handle(kind));
            } else if (is_other_pointer(letter) && draw(10) == 0) {
                arguments[place] = 0;
            }
        }
        snprintf(shared->text, sizeof shared->text, "call %d of the sequence %llu: %s(%s)", number,
                 (unsigned long long)seed, call->name, letters_of(call));
        invoke(call, arguments);
        shared->calls++;
    }
}

/* Runs a part in a process of its own. 1: all is well, 0: it failed, 2: there is more to do from shared->variant on. */
static int run(const struct call *call, int place, int variant, uint64_t seed) {
    fflush(NULL);
    strcpy(shared->text, "making the objects");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(LONGEST_SECONDS);
        prepare();
        if (!call) {
            try_sequence(seed);
        } else if (place < 0) {
            try_right(call);
        } else {
            try_wrong(call, place, variant);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) {
        return 2;
    }
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "%s: %s\n", shared->text, strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
        fprintf(stderr, "%s: ended with %d\n", shared->text, WEXITSTATUS(status));
    } else {
        return 1;
    }
    shared->variant++;
    return 0;
}

static int every_call(const char *only) {
    int broken = 0;
    for (int number = 0; number < NUMBER_OF_CALLS; number++) {
        const struct call *call = &CALLS[number];
        if (only && strcmp(only, call->name) != 0) {
            continue;
        }
        broken |= run(call, -1, 0, 0) != 1;
        for (int place = 0; letters_of(call)[place]; place++) {
            int ignored, outcome;
            if (!kind_of(letters_of(call)[place], &ignored) && !is_other_pointer(letters_of(call)[place])) {
                continue;
            }
            shared->variant = 0;
            while ((outcome = run(call, place, shared->variant, 0)) != 1) {
                broken |= outcome == 0;
            }
        }
    }
    return broken;
}

int main(int count, char **given) {
    if (count < 2) {
        for (int number = 0; number < NUMBER_OF_CALLS; number++) {
            puts(CALLS[number].name);
        }
        return 0;
    }
    address = given[1];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    char *end = NULL;
    uint64_t seed = count > 2 ? strtoull(given[2], &end, 10) : 0;
    int is_number = count > 2 && *end == 0;
    int broken = is_number ? run(NULL, 0, 0, seed) != 1 : every_call(count > 2 ? given[2] : NULL);
    printf("%lu calls%s\n", shared->calls, broken ? "" : ", all is as it should be");
    return broken;
}
