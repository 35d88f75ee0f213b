// An agent for tests: whoever connects to its TCP port drives libibverbs of this machine with lines of text, so that
// one program can hold both ends of any operation, and look at all bytes on both sides. It trusts everybody who
// connects: run it in a network for tests, and end it afterwards.
//
//   cc -O2 -o verbs_agent verbs_agent.c -libverbs       with -DWITH_FLUSH if verbs.h has IBV_ACCESS_FLUSH_GLOBAL
//   verbs_agent PORT                                    listens on every address; PORT 0 takes a free port
//
// Prints the port. Each connection gets a process of its own, which ends with it and takes its queue pairs along. A
// command is one line, `NAME key=value …`; the answer is one line, `ok …` or `error …`. Numbers are decimal or 0x….
// RIGHTS are names with commas between them: write, read, atomic, flush, or none.
//
//   open device=NAME | local=ADDRESS                 ok kernel= atomic_write= flush= gids=ADDRESS,…
//   mr id= len= [rights=RIGHTS foreign=1]            ok addr= lkey= rkey=        fresh zero bytes; all rights by default
//        foreign=1: in another protection domain than the queue pairs
//   mw id= qp= mr= off= len= rights=RIGHTS           ok rkey=                    binds a window of type 2
//   cq id= depth=                                    ok
//   qp id= type=rc|uc|ud cq= [sends= recvs= extended=1]   ok qpn=
//   connect qp= local=ADDRESS remote=ADDRESS mtu= dest= psn= rq_psn= [timeout= retry= rnr_retry= min_rnr= rd=
//        rights=RIGHTS state=init|rtr|rts]           ok
//   activate qp= psn= qkey= [state=init|rtr|rts]     ok                          (UD)
//   ah id= local=ADDRESS remote=ADDRESS              ok
//   recv qp= wr= [mr= off= len= count= step=]        ok
//   send qp= wr= op=send|send_imm|send_inv|write|write_imm|read|cas|fetch_add|atomic_write|flush|local_inv
//        [mr= off= len= addr= rkey= imm= invalidate= compare= swap= add= ah= dest= qkey= inline=1 fence=1 solicited=1
//        placement= whole=1]                         ok
//   poll cq= max= wait_ms= [count=]                  ok wr:status:opcode:len:imm:qpn:src_qp:flags …
//        instead of imm: the invalidated key, if the flags say so
//   fill mr= off= len= seed=                         ok              writes the pattern of that seed
//   check mr= off= len= seed=                        ok same | ok differs AT FOUND EXPECTED
//   word mr= off= [value=]                           ok VALUE        reads, or writes, 8 bytes in host order
//   hex mr= off= len=                                ok BYTES
//   put mr= off= len= hex=BYTES                      ok
//   state qp= [to=STATE]                             ok STATE        reset, init, rtr, rts, sqd, sqe, err
//   events                                           ok NAME …       the asynchronous events since the last time
//   counters                                         ok name=value …      hw_counters of port 1
//   destroy qp= | mr= | ah= | all=1                  ok
//   die                                              no answer: the process kills itself, as kill -9 would

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { MOST_QPS = 2048, MOST_OTHERS = 64, MOST_WORDS = 32, MOST_POLLED = 512, LINE = 65536 };

struct memory {
	struct ibv_mr *mr;
	uint8_t *bytes;
	size_t len;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_pd *foreign_pd;
static struct memory memories[MOST_OTHERS];
static struct ibv_cq *cqs[MOST_OTHERS];
static struct ibv_ah *ahs[MOST_OTHERS];
static struct ibv_mw *mws[MOST_OTHERS];
static struct ibv_qp *qps[MOST_QPS];
static bool extended[MOST_QPS];

static char *words[MOST_WORDS];
static int word_count;
static char answer[LINE];
static size_t answered;

// ---- answers and arguments

static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int written = vsnprintf(answer + answered, sizeof answer - answered, format, list);
	va_end(list);
	if (written > 0)
		answered += written;
	if (answered >= sizeof answer)
		answered = sizeof answer - 1;
}

static bool fail(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	answered = 0;
	say("error ");
	vsnprintf(answer + answered, sizeof answer - answered, format, list);
	va_end(list);
	answered = strlen(answer);
	return false;
}

static bool system_failed(const char *what)
{
	int number = errno;
	return fail("%s: %s (%d)", what, strerror(number), number);
}

static const char *text(const char *key)
{
	size_t len = strlen(key);
	for (int i = 1; i < word_count; i++)
		if (!strncmp(words[i], key, len) && words[i][len] == '=')
			return words[i] + len + 1;
	return NULL;
}

static uint64_t number_or(const char *key, uint64_t otherwise)
{
	const char *value = text(key);
	return value ? strtoull(value, NULL, 0) : otherwise;
}

static uint64_t number(const char *key)
{
	return number_or(key, 0);
}

static struct memory *memory_of(void)
{
	uint64_t id = number("mr");
	if (id >= MOST_OTHERS || !memories[id].mr)
		return NULL;
	struct memory *memory = &memories[id];
	uint64_t off = number("off"), len = number("len");
	return off <= memory->len && len <= memory->len - off ? memory : NULL;
}

static struct ibv_qp *qp_of(void)
{
	uint64_t id = number("qp");
	return id < MOST_QPS ? qps[id] : NULL;
}

// ---- bytes

// Byte i of the pattern of a seed: the i-th byte of the sequence of splitmix64.
static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	uint64_t z = seed + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

// Calls `visit` with pieces of the pattern, 8 bytes at a time and fewer at the end.
static bool each_word(uint64_t len, uint64_t seed, uint8_t *bytes, bool (*visit)(uint8_t *, const uint8_t *, size_t))
{
	for (uint64_t at = 0; at < len; at += 8) {
		uint64_t piece = pattern_word(seed, at / 8);
		size_t size = len - at < 8 ? len - at : 8;
		if (!visit(bytes + at, (const uint8_t *)&piece, size))
			return false;
	}
	return true;
}

static bool copy(uint8_t *bytes, const uint8_t *piece, size_t size)
{
	memcpy(bytes, piece, size);
	return true;
}

static uint8_t *differs;
static uint8_t expected;

static bool compare(uint8_t *bytes, const uint8_t *piece, size_t size)
{
	if (!memcmp(bytes, piece, size))
		return true;
	size_t i = 0;
	while (bytes[i] == piece[i])
		i++;
	differs = bytes + i;
	expected = piece[i];
	return false;
}

static bool fill(void)
{
	struct memory *memory = memory_of();
	if (!memory)
		return fail("no such memory");
	return each_word(number("len"), number("seed"), memory->bytes + number("off"), copy);
}

static bool check(void)
{
	struct memory *memory = memory_of();
	if (!memory)
		return fail("no such memory");
	uint8_t *bytes = memory->bytes + number("off");
	if (each_word(number("len"), number("seed"), bytes, compare))
		say(" same");
	else
		say(" differs %td %u %u", differs - bytes, *differs, expected);
	return true;
}

static bool word(void)
{
	struct memory *memory = memory_of();
	uint64_t off = number("off"), value;
	if (!memory || off % 8 || off + 8 > memory->len)
		return fail("no such word");
	if (text("value")) {
		value = number("value");
		memcpy(memory->bytes + off, &value, 8);
	}
	memcpy(&value, memory->bytes + off, 8);
	say(" %" PRIu64, value);
	return true;
}

static bool hex(void)
{
	struct memory *memory = memory_of();
	uint64_t off = number("off"), len = number("len");
	if (!memory || len > 16384)
		return fail("no such memory, or more than 16384 bytes");
	say(" ");
	for (uint64_t i = 0; i < len; i++)
		say("%02x", memory->bytes[off + i]);
	return true;
}

static bool put(void)
{
	struct memory *memory = memory_of();
	const char *hex = text("hex");
	uint64_t len = number("len");
	if (!memory || !hex || strlen(hex) != 2 * len)
		return fail("no such memory, or not as many bytes as len says");
	for (uint64_t i = 0; i < len; i++) {
		unsigned byte;
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return fail("hex has other signs than digits");
		memory->bytes[number("off") + i] = byte;
	}
	return true;
}

// ---- objects

// The rights after a key. A right that these headers do not know is left out: `open` says whether there is a FLUSH.
static int rights(const char *key, int otherwise)
{
	const char *value = text(key);
	int access = 0;
	if (!value)
		return otherwise;
	if (strstr(value, "write"))
		access |= IBV_ACCESS_REMOTE_WRITE;
	if (strstr(value, "read"))
		access |= IBV_ACCESS_REMOTE_READ;
	if (strstr(value, "atomic"))
		access |= IBV_ACCESS_REMOTE_ATOMIC;
#ifdef WITH_FLUSH
	if (strstr(value, "flush"))
		access |= IBV_ACCESS_FLUSH_GLOBAL;
#endif
	return access;
}

static bool address(const char *key, union ibv_gid *gid)
{
	const char *value = text(key);
	struct in_addr v4;
	if (!value)
		return fail("%s is missing", key);
	memset(gid, 0, sizeof *gid);
	if (inet_pton(AF_INET, value, &v4) == 1) {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &v4, 4);
		return true;
	}
	return inet_pton(AF_INET6, value, gid->raw) == 1 || fail("%s=%s is no address", key, value);
}

static int gid_index(const union ibv_gid *wanted)
{
	union ibv_gid gid;
	for (int i = 0; i < 16; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, wanted, sizeof gid))
			return i;
	return -1;
}

static bool route(struct ibv_ah_attr *attr)
{
	union ibv_gid local;
	memset(attr, 0, sizeof *attr);
	if (!address("local", &local) || !address("remote", &attr->grh.dgid))
		return false;
	int index = gid_index(&local);
	if (index < 0)
		return fail("the device has no GID for %s", text("local"));
	attr->is_global = 1;
	attr->port_num = 1;
	attr->grh.sgid_index = index;
	attr->grh.hop_limit = 64;
	return true;
}

static bool open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	const char *name = text("device");
	union ibv_gid local;
	if (context)
		return fail("a device is open already");
	if (!name && !address("local", &local))
		return false;
	for (int i = 0; list && i < count && !context; i++) {
		if (name && strcmp(ibv_get_device_name(list[i]), name))
			continue;
		context = ibv_open_device(list[i]);
		if (context && !name && gid_index(&local) < 0) {
			ibv_close_device(context);
			context = NULL;
		}
	}
	if (!context)
		return fail("cannot open %s, one of %d devices", name ? name : text("local"), count);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	pd = ibv_alloc_pd(context);
	if (!pd)
		return system_failed("ibv_alloc_pd");
	struct utsname system;
	uname(&system);
	struct ibv_device_attr_ex attr;
	uint64_t flags = 0;
	if (!ibv_query_device_ex(context, NULL, &attr))
		flags = attr.device_cap_flags_ex;
	// IB_DEVICE_FLUSH_GLOBAL, IB_DEVICE_ATOMIC_WRITE of the kernel.
	int flush = flags >> 38 & 1, atomic_write = flags >> 40 & 1;
#ifndef WITH_FLUSH
	flush = 0;
#endif
	say(" kernel=%s flush=%d atomic_write=%d gids=", system.release, flush, atomic_write);
	union ibv_gid gid;
	char shown[INET6_ADDRSTRLEN];
	for (int i = 0; i < 16; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && (gid.global.subnet_prefix || gid.global.interface_id))
			say("%s,", inet_ntop(AF_INET6, gid.raw, shown, sizeof shown));
	return true;
}

static bool make_mr(void)
{
	uint64_t id = number("id"), len = number("len");
	if (id >= MOST_OTHERS || memories[id].mr || !len)
		return fail("no such place for memory");
	uint8_t *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		return system_failed("mmap");
	int all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, flush = 0;
#ifdef WITH_FLUSH
	flush = IBV_ACCESS_FLUSH_GLOBAL;
#endif
	int access = IBV_ACCESS_LOCAL_WRITE | rights("rights", all | flush);
	if (number("foreign") && !foreign_pd)
		foreign_pd = ibv_alloc_pd(context);
	struct ibv_pd *owner = number("foreign") ? foreign_pd : pd;
	if (!owner)
		return system_failed("ibv_alloc_pd");
	// Devices without windows or FLUSH refuse these flags.
	struct ibv_mr *mr = ibv_reg_mr(owner, bytes, len, access | IBV_ACCESS_MW_BIND);
	if (!mr)
		mr = ibv_reg_mr(owner, bytes, len, (access & ~flush) | IBV_ACCESS_MW_BIND);
	if (!mr)
		mr = ibv_reg_mr(owner, bytes, len, access & ~flush);
	if (!mr)
		return system_failed("ibv_reg_mr");
	memories[id] = (struct memory){ mr, bytes, len };
	say(" addr=%" PRIu64 " lkey=%u rkey=%u", (uint64_t)(uintptr_t)bytes, mr->lkey, mr->rkey);
	return true;
}

static bool make_mw(void)
{
	uint64_t id = number("id");
	struct memory *memory = memory_of();
	struct ibv_qp *qp = qp_of();
	if (id >= MOST_OTHERS || mws[id] || !memory || !qp)
		return fail("no such place, memory or queue pair");
	mws[id] = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mws[id])
		return system_failed("ibv_alloc_mw");
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = {
			.mw = mws[id],
			.rkey = ibv_inc_rkey(mws[id]->rkey),
			.bind_info = {
				.mr = memory->mr,
				.addr = (uintptr_t)memory->bytes + number("off"),
				.length = number("len"),
				.mw_access_flags = rights("rights", IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
			},
		},
	}, *bad;
	int error = ibv_post_send(qp, &wr, &bad);
	if (error)
		return fail("ibv_post_send of a binding: %s (%d)", strerror(error), error);
	mws[id]->rkey = wr.bind_mw.rkey;
	say(" rkey=%u", wr.bind_mw.rkey);
	return true;
}

static bool make_cq(void)
{
	uint64_t id = number("id");
	if (id >= MOST_OTHERS || cqs[id])
		return fail("no such place for a completion queue");
	cqs[id] = ibv_create_cq(context, number_or("depth", 256), NULL, NULL, 0);
	return cqs[id] ? true : system_failed("ibv_create_cq");
}

static bool make_qp(void)
{
	uint64_t id = number("id"), cq = number("cq");
	const char *type = text("type");
	if (id >= MOST_QPS || qps[id] || cq >= MOST_OTHERS || !cqs[cq] || !type)
		return fail("no such place, completion queue or type");
	enum ibv_qp_type qp_type = !strcmp(type, "rc") ? IBV_QPT_RC : !strcmp(type, "uc") ? IBV_QPT_UC : IBV_QPT_UD;
	struct ibv_qp_cap cap = {
		.max_send_wr = number_or("sends", 64),
		.max_recv_wr = number_or("recvs", 64),
		.max_send_sge = 4,
		.max_recv_sge = 4,
		.max_inline_data = 64,
	};
	extended[id] = number("extended");
	if (extended[id]) {
#ifdef WITH_FLUSH
		struct ibv_qp_init_attr_ex init = {
			.send_cq = cqs[cq], .recv_cq = cqs[cq], .cap = cap, .qp_type = qp_type, .pd = pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE,
		};
		qps[id] = ibv_create_qp_ex(context, &init);
#else
		return fail("this peer was built without FLUSH and ATOMIC WRITE");
#endif
	} else {
		struct ibv_qp_init_attr init = { .send_cq = cqs[cq], .recv_cq = cqs[cq], .cap = cap, .qp_type = qp_type };
		qps[id] = ibv_create_qp(pd, &init);
	}
	if (!qps[id])
		return system_failed("creating a queue pair");
	say(" qpn=%u", qps[id]->qp_num);
	return true;
}

static bool modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int error = ibv_modify_qp(qp, attr, mask);
	return error ? fail("%s: %s (%d)", what, strerror(error), error) : true;
}

// Whether a command that connects is to stop in this state.
static bool ends_in(const char *state)
{
	const char *last = text("state");
	return last && !strcmp(last, state);
}

static bool connect_qp(void)
{
	struct ibv_qp *qp = qp_of();
	if (!qp)
		return fail("no such queue pair");
	bool rc = qp->qp_type == IBV_QPT_RC;
	int access = IBV_ACCESS_REMOTE_WRITE;
	if (rc)
		access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
#ifdef WITH_FLUSH
	if (extended[number("qp")])
		access |= IBV_ACCESS_FLUSH_GLOBAL;
#endif
	access = rc ? rights("rights", access) : rights("rights", access) & IBV_ACCESS_REMOTE_WRITE;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	if (!modify(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "to INIT"))
		return false;
	if (ends_in("init"))
		return true;

	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = number("dest"),
		.rq_psn = number("rq_psn"),
		.max_dest_rd_atomic = number_or("rd", 16),
		.min_rnr_timer = number_or("min_rnr", 12),
	};
	int mtu = number_or("mtu", 1024);
	rtr.path_mtu = mtu == 256 ? IBV_MTU_256 : mtu == 512 ? IBV_MTU_512 : mtu == 1024 ? IBV_MTU_1024 :
		       mtu == 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
	if (!route(&rtr.ah_attr))
		return false;
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (!modify(qp, &rtr, mask, "to RTR"))
		return false;
	if (ends_in("rtr"))
		return true;

	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = number("psn"),
		.timeout = number_or("timeout", 17),
		.retry_cnt = number_or("retry", 7),
		.rnr_retry = number_or("rnr_retry", 7),
		.max_rd_atomic = number_or("rd", 16),
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return modify(qp, &rts, mask, "to RTS");
}

static bool activate(void)
{
	struct ibv_qp *qp = qp_of();
	if (!qp)
		return fail("no such queue pair");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = number("qkey") };
	if (!modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, "to INIT"))
		return false;
	if (ends_in("init"))
		return true;
	attr.qp_state = IBV_QPS_RTR;
	if (!modify(qp, &attr, IBV_QP_STATE, "to RTR"))
		return false;
	if (ends_in("rtr"))
		return true;
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = number("psn");
	return modify(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN, "to RTS");
}

static bool make_ah(void)
{
	uint64_t id = number("id");
	struct ibv_ah_attr attr;
	if (id >= MOST_OTHERS || ahs[id])
		return fail("no such place for an address handle");
	if (!route(&attr))
		return false;
	ahs[id] = ibv_create_ah(pd, &attr);
	return ahs[id] ? true : system_failed("ibv_create_ah");
}

static bool state(void)
{
	static const char *const names[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };
	struct ibv_qp *qp = qp_of();
	const char *to = text("to");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr init;
	if (!qp)
		return fail("no such queue pair");
	while (to && attr.qp_state <= IBV_QPS_ERR && strcmp(names[attr.qp_state], to))
		attr.qp_state++;
	if (to && attr.qp_state > IBV_QPS_ERR)
		return fail("no state %s", to);
	if (to && !modify(qp, &attr, IBV_QP_STATE, to))
		return false;
	int error = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);
	if (error)
		return fail("ibv_query_qp: %s", strerror(error));
	say(" %s", attr.qp_state <= IBV_QPS_ERR ? names[attr.qp_state] : "unknown");
	return true;
}

static bool events(void)
{
	static const struct {
		enum ibv_event_type type;
		const char *name;
	} names[] = {
		{ IBV_EVENT_QP_FATAL, "qp_fatal" },	      { IBV_EVENT_QP_REQ_ERR, "qp_request_error" },
		{ IBV_EVENT_QP_ACCESS_ERR, "qp_access_error" }, { IBV_EVENT_COMM_EST, "communication_established" },
		{ IBV_EVENT_SQ_DRAINED, "sq_drained" },	      { IBV_EVENT_QP_LAST_WQE_REACHED, "last_wqe_reached" },
	};
	struct ibv_async_event event;
	while (!ibv_get_async_event(context, &event)) {
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (names[i].type == event.event_type)
				say(" %s", names[i].name);
		ibv_ack_async_event(&event);
	}
	return true;
}

static bool destroy(void)
{
	int error = 0;
	bool all = number("all");
	// Unacknowledged events would keep a queue pair.
	events();
	// Windows first: Soft-RoCE waits forever for the windows of a queue pair that it destroys.
	for (uint64_t i = 0; i < MOST_OTHERS; i++)
		if (mws[i] && all) {
			error |= ibv_dealloc_mw(mws[i]);
			mws[i] = NULL;
		}
	for (uint64_t i = 0; i < MOST_QPS; i++)
		if (qps[i] && (all || (text("qp") && number("qp") == i))) {
			error |= ibv_destroy_qp(qps[i]);
			qps[i] = NULL;
		}
	for (uint64_t i = 0; i < MOST_OTHERS; i++) {
		if (ahs[i] && (all || (text("ah") && number("ah") == i))) {
			error |= ibv_destroy_ah(ahs[i]);
			ahs[i] = NULL;
		}
		if (memories[i].mr && (all || (text("mr") && number("mr") == i))) {
			error |= ibv_dereg_mr(memories[i].mr);
			munmap(memories[i].bytes, memories[i].len);
			memories[i].mr = NULL;
		}
		if (cqs[i] && all) {
			error |= ibv_destroy_cq(cqs[i]);
			cqs[i] = NULL;
		}
	}
	answered = strlen("ok");
	answer[answered] = '\0';
	return error ? fail("destroying: error %d", error) : true;
}

// ---- work

static bool post_recv(void)
{
	struct ibv_qp *qp = qp_of();
	struct memory *memory = memory_of();
	uint64_t count = number_or("count", 1), step = number("step"), len = number("len");
	if (!qp || (text("mr") && (!memory || number("off") + (count - 1) * step + len > memory->len)))
		return fail("no such queue pair or memory");
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = { 0 };
		if (text("mr"))
			sge = (struct ibv_sge){
				.addr = (uintptr_t)memory->bytes + number("off") + i * step,
				.length = len,
				.lkey = memory->mr->lkey,
			};
		struct ibv_recv_wr wr = { .wr_id = number("wr") + i, .sg_list = &sge, .num_sge = text("mr") ? 1 : 0 }, *bad;
		int error = ibv_post_recv(qp, &wr, &bad);
		if (error)
			return fail("ibv_post_recv: %s (%d)", strerror(error), error);
	}
	return true;
}

#ifdef WITH_FLUSH
static bool post_extended(struct ibv_qp *qp, struct memory *memory, const char *op)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	void *local = memory->bytes + number("off");
	ibv_wr_start(ex);
	ex->wr_id = number("wr");
	ex->wr_flags = IBV_SEND_SIGNALED;
	if (!strcmp(op, "atomic_write")) {
		ibv_wr_atomic_write(ex, number("rkey"), number("addr"), local);
	} else if (!strcmp(op, "flush")) {
		ibv_wr_flush(ex, number("rkey"), number("addr"), number("len"), number_or("placement", IBV_FLUSH_GLOBAL),
			     number("whole") ? IBV_FLUSH_MR : IBV_FLUSH_RANGE);
	} else if (!strcmp(op, "write")) {
		ibv_wr_rdma_write(ex, number("rkey"), number("addr"));
		ibv_wr_set_sge(ex, memory->mr->lkey, (uintptr_t)local, number("len"));
	} else {
		ibv_wr_abort(ex);
		return fail("an extended queue pair has no operation %s here", op);
	}
	int error = ibv_wr_complete(ex);
	return error ? fail("ibv_wr_complete: %s (%d)", strerror(error), error) : true;
}
#endif

static bool post_send(void)
{
	static const struct {
		const char *name;
		enum ibv_wr_opcode opcode;
	} ops[] = {
		{ "send", IBV_WR_SEND },	 { "send_imm", IBV_WR_SEND_WITH_IMM },
		{ "write", IBV_WR_RDMA_WRITE },	 { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
		{ "read", IBV_WR_RDMA_READ },	 { "cas", IBV_WR_ATOMIC_CMP_AND_SWP },
		{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD }, { "send_inv", IBV_WR_SEND_WITH_INV },
		{ "local_inv", IBV_WR_LOCAL_INV },
	};
	struct ibv_qp *qp = qp_of();
	struct memory *memory = memory_of();
	const char *op = text("op");
	if (!qp || !op || (text("mr") && !memory))
		return fail("no such queue pair, memory or operation");
#ifdef WITH_FLUSH
	if (extended[number("qp")])
		return memory ? post_extended(qp, memory, op) : fail("no memory");
#endif
	struct ibv_sge sge = { 0 };
	if (text("mr"))
		sge = (struct ibv_sge){
			.addr = (uintptr_t)memory->bytes + number("off"),
			.length = number("len"),
			.lkey = memory->mr->lkey,
		};
	struct ibv_send_wr wr = {
		.wr_id = number("wr"),
		.sg_list = &sge,
		.num_sge = sge.length ? 1 : 0,
		.send_flags = IBV_SEND_SIGNALED | (number("inline") ? IBV_SEND_INLINE : 0) |
			      (number("fence") ? IBV_SEND_FENCE : 0) | (number("solicited") ? IBV_SEND_SOLICITED : 0),
		.imm_data = htonl(number("imm")),
	}, *bad;
	if (text("invalidate"))
		wr.invalidate_rkey = number("invalidate");
	size_t i = 0;
	while (i < sizeof ops / sizeof *ops && strcmp(ops[i].name, op))
		i++;
	if (i == sizeof ops / sizeof *ops)
		return fail("no operation %s", op);
	wr.opcode = ops[i].opcode;
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		bool cas = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = number("addr");
		wr.wr.atomic.rkey = number("rkey");
		wr.wr.atomic.compare_add = number(cas ? "compare" : "add");
		wr.wr.atomic.swap = number("swap");
	} else if (qp->qp_type == IBV_QPT_UD) {
		uint64_t ah = number("ah");
		if (ah >= MOST_OTHERS || !ahs[ah])
			return fail("no such address handle");
		wr.wr.ud.ah = ahs[ah];
		wr.wr.ud.remote_qpn = number("dest");
		wr.wr.ud.remote_qkey = number("qkey");
	} else {
		wr.wr.rdma.remote_addr = number("addr");
		wr.wr.rdma.rkey = number("rkey");
	}
	int error = ibv_post_send(qp, &wr, &bad);
	return error ? fail("ibv_post_send: %s (%d)", strerror(error), error) : true;
}

static uint64_t milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * UINT64_C(1000) + now.tv_nsec / 1000000;
}

// Waits for `count` completions (1 if not said), and takes `max` at most.
static bool poll_cq(void)
{
	static struct ibv_wc done[MOST_POLLED];
	uint64_t id = number("cq"), max = number_or("max", 16), count = number_or("count", 1);
	uint64_t end = milliseconds() + number("wait_ms");
	if (id >= MOST_OTHERS || !cqs[id])
		return fail("no such completion queue");
	if (max > MOST_POLLED)
		max = MOST_POLLED;
	uint64_t found = 0;
	for (;;) {
		int got = ibv_poll_cq(cqs[id], max - found, done + found);
		if (got < 0)
			return fail("ibv_poll_cq: %d", got);
		found += got;
		if (found >= count || found >= max || milliseconds() >= end)
			break;
		if (!got)
			usleep(100);
	}
	for (uint64_t i = 0; i < found; i++)
		say(" %" PRIu64 ":%d:%d:%u:%u:%u:%u:%u", done[i].wr_id, done[i].status, done[i].opcode, done[i].byte_len,
		    done[i].wc_flags & IBV_WC_WITH_INV ? done[i].invalidated_rkey : ntohl(done[i].imm_data), done[i].qp_num, done[i].src_qp, done[i].wc_flags);
	return true;
}

static bool counters(void)
{
	char path[256], value[64];
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters", context ? ibv_get_device_name(context->device) : "");
	DIR *folder = opendir(path);
	if (!folder)
		return system_failed(path);
	for (struct dirent *entry; (entry = readdir(folder));) {
		char name[600];
		snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
		FILE *file = entry->d_name[0] == '.' ? NULL : fopen(name, "r");
		if (file && fgets(value, sizeof value, file))
			say(" %s=%llu", entry->d_name, strtoull(value, NULL, 10));
		if (file)
			fclose(file);
	}
	closedir(folder);
	return true;
}

static bool die(void)
{
	return kill(getpid(), SIGKILL) == 0;
}

// ---- the connection

static bool obey(char *line)
{
	static const struct {
		const char *name;
		bool (*run)(void);
	} commands[] = {
		{ "open", open_device }, { "mr", make_mr },	{ "cq", make_cq },	   { "qp", make_qp },
		{ "connect", connect_qp }, { "activate", activate }, { "ah", make_ah },	   { "recv", post_recv },
		{ "send", post_send },	 { "poll", poll_cq },	{ "fill", fill },	   { "check", check },
		{ "word", word },	 { "hex", hex },	{ "state", state },	   { "counters", counters },
		{ "destroy", destroy },	 { "die", die },	{ "mw", make_mw },	   { "put", put },
		{ "events", events },
	};
	word_count = 0;
	for (char *save, *word = strtok_r(line, " \r\n", &save); word && word_count < MOST_WORDS;
	     word = strtok_r(NULL, " \r\n", &save))
		words[word_count++] = word;
	answered = 0;
	say("ok");
	if (!word_count)
		return true;
	if (!context && strcmp(words[0], "open"))
		return fail("open a device first");
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(commands[i].name, words[0]))
			return commands[i].run();
	return fail("no command %s", words[0]);
}

static void serve(int connection)
{
	static char line[LINE];
	int on = 1;
	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	FILE *in = fdopen(connection, "r");
	FILE *out = fdopen(dup(connection), "w");
	if (!in || !out)
		return;
	while (fgets(line, sizeof line, in)) {
		obey(line);
		fprintf(out, "%s\n", answer);
		if (fflush(out))
			return;
	}
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s PORT\n", argv[0]);
		return 2;
	}
	signal(SIGCHLD, SIG_IGN);
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, off = 0;
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[1])) };
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	socklen_t length = sizeof any;
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 16) ||
	    getsockname(listener, (struct sockaddr *)&any, &length)) {
		perror("verbs_agent: listening");
		return 1;
	}
	printf("verbs_agent: listening on port %d\n", ntohs(any.sin6_port));
	fflush(stdout);
	for (;;) {
		int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (connection < 0)
			continue;
		if (fork() == 0) {
			close(listener);
			serve(connection);
			_exit(0);
		}
		close(connection);
	}
}
