// A listener of rdma_cm for tests: it accepts every connection and does nothing with it, so that a program on the
// other side can send any packet to the queue pair. The private data of the answer offers registered memory.
//
//   cc -O2 -o rdma_cm_target rdma_cm_target.c -lrdmacm -libverbs
//   rdma_cm_target ADDRESS PORT                 ADDRESS is that of the NIC
//
// Prints the port, and a line for each connection. Whoever connects may write to the memory: run it in a network for
// tests, and end it afterwards.

#include <arpa/inet.h>
#include <endian.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096, REQUESTS = 16, READS = 16, BACKLOG = 8 };

// The private data of an accepted connection, every number in network byte order.
struct offer {
	char what[8];
	uint64_t address;
	uint32_t key;
	uint32_t len;
} __attribute__((packed));

// What a connection owns.
struct target {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *bytes;
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void release(struct rdma_cm_id *id)
{
	struct target *target = id->context;
	if (target) {
		if (id->qp)
			rdma_destroy_qp(id);
		if (target->mr)
			ibv_dereg_mr(target->mr);
		if (target->cq)
			ibv_destroy_cq(target->cq);
		if (target->pd)
			ibv_dealloc_pd(target->pd);
		free(target->bytes);
		free(target);
	}
	rdma_destroy_id(id);
}

// Creates a queue pair with registered memory. Fails if the device has no room.
static int prepare(struct rdma_cm_id *id, struct target *target)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	target->bytes = aligned_alloc(BYTES, BYTES);
	target->pd = ibv_alloc_pd(id->verbs);
	target->cq = ibv_create_cq(id->verbs, 2 * REQUESTS, NULL, NULL, 0);
	if (!target->bytes || !target->pd || !target->cq)
		return -1;
	memset(target->bytes, 0, BYTES);
	target->mr = ibv_reg_mr(target->pd, target->bytes, BYTES, rights);
	if (!target->mr)
		return -1;
	struct ibv_qp_init_attr attributes = {
		.send_cq = target->cq,
		.recv_cq = target->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = REQUESTS, .max_recv_wr = REQUESTS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return rdma_create_qp(id, target->pd, &attributes);
}

static void accept_request(struct rdma_cm_id *id, const struct rdma_conn_param *asked)
{
	struct target *target = calloc(1, sizeof *target);
	id->context = target;
	if (!target || prepare(id, target)) {
		perror("no queue pair");
		rdma_reject(id, NULL, 0);
		release(id);
		return;
	}
	struct offer offer = { .what = "memory 1" };
	offer.address = htobe64((uintptr_t)target->bytes);
	offer.key = htobe32(target->mr->rkey);
	offer.len = htobe32(BYTES);
	struct rdma_conn_param answer = {
		.private_data = &offer,
		.private_data_len = sizeof offer,
		.responder_resources = asked->initiator_depth < READS ? asked->initiator_depth : READS,
		.initiator_depth = asked->responder_resources < READS ? asked->responder_resources : READS,
		.rnr_retry_count = asked->rnr_retry_count,
	};
	if (rdma_accept(id, &answer)) {
		perror("cannot accept");
		release(id);
		return;
	}
	printf("queue pair 0x%x\n", id->qp->qp_num);
}

int main(int count, char **words)
{
	if (count != 3) {
		fprintf(stderr, "usage: %s ADDRESS PORT\n", words[0]);
		return 2;
	}
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	if (rdma_getaddrinfo(words[1], words[2], &hints, &found))
		die(words[1]);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
		die("no listener");
	if (rdma_bind_addr(listener, found->ai_src_addr) || rdma_listen(listener, BACKLOG))
		die("cannot listen");
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("listening on port %u\n", ntohs(rdma_get_src_port(listener)));
	struct rdma_cm_event *event;
	while (!rdma_get_cm_event(channel, &event)) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;
		struct rdma_conn_param asked = event->param.conn;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST)
			accept_request(id, &asked);
		else if (kind == RDMA_CM_EVENT_DISCONNECTED)
			rdma_disconnect(id);
		if (id != listener && (kind == RDMA_CM_EVENT_TIMEWAIT_EXIT || kind == RDMA_CM_EVENT_CONNECT_ERROR ||
				       kind == RDMA_CM_EVENT_UNREACHABLE))
			release(id);
	}
	die("no events");
}
