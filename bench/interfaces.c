// Measures ways to pass UDP datagrams to the kernel and to take them, between two network namespaces.
//
//   interfaces NETNS ADDRESS NETNS ADDRESS sendmmsg|zerocopy|uring|uring-zerocopy recvmmsg|uring SEGMENT SEGMENTS SOCKETS MILLISECONDS
//
// A process in each namespace, each on its processor: the first sends messages of SEGMENTS datagrams of SEGMENT bytes, which the
// kernel splits, by turns on SOCKETS sockets with a source port each. The other takes them, joined, and checks the number at the
// beginning and the end of every datagram. 1 MiB or 512 messages are on the way at most; both sides poll. Prints the number of
// datagrams per second, in millions, and whether the kernel copied where it was asked not to. bench/interfaces runs it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUN 16
#define SLOTS 64
#define SLOT 65536
#define PORT 18799

#define CHECK(condition) ((condition) ? (void)0 : die(#condition, __LINE__))
static void die(const char *what, int line) {
    fprintf(stderr, "interfaces.c:%d: %s: %s\n", line, what, strerror(errno));
    exit(1);
}

static int segment, segments, sockets, milliseconds;
static struct shared {
    _Atomic uint64_t taken __attribute__((aligned(128)));
    _Atomic int ready __attribute__((aligned(128)));
    _Atomic uint64_t end;
} *shared;

static uint64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000ull + at.tv_nsec;
}

static void enter(const char *name, int processor) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static int open_socket(const char *address, int port) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), size = 16 << 20;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &at.sin_addr);
    // The kernel closes the sockets of an io_uring some time after its process ended.
    for (int attempts = 0; bind(fd, (void *)&at, sizeof at) != 0; attempts++) CHECK(errno == EADDRINUSE && attempts < 2000 && !usleep(1000));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    return fd;
}

// ---- the sender

static uint8_t *area;
static uint64_t number;
static struct sockaddr_in peer = {.sin_family = AF_INET};
static int fds[64];
static struct mmsghdr headers[SLOTS];
static struct iovec pieces[SLOTS];
static struct {
    struct cmsghdr header;
    uint16_t segment;
    uint16_t rest[3];
} control[SLOTS];

static void write_message(int slot) {
    uint8_t *start = area + (size_t)slot * SLOT;
    for (int index = 0; index < segments; index++) {
        uint8_t *at = start + index * segment;
        memcpy(at, &number, 8);
        memcpy(at + segment - 8, &number, 8);
        number++;
    }
}

static void prepare(void) {
    area = mmap(0, SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(area != MAP_FAILED);
    for (int slot = 0; slot < SLOTS; slot++) {
        control[slot].header = (struct cmsghdr){CMSG_LEN(2), SOL_UDP, UDP_SEGMENT};
        control[slot].segment = segment;
        pieces[slot] = (struct iovec){area + (size_t)slot * SLOT, (size_t)segment * segments};
        headers[slot].msg_hdr = (struct msghdr){&peer, sizeof peer, &pieces[slot], 1, &control[slot], sizeof control[slot], 0};
        if (segments == 1) headers[slot].msg_hdr.msg_control = 0, headers[slot].msg_hdr.msg_controllen = 0;
    }
}

// Waits until `messages` more may be on the way.
static void await_room(uint64_t sent, int messages) {
    uint64_t most = (1 << 20) / ((uint64_t)segment * segments);
    most = most > 512 ? 512 : most < RUN ? RUN : most;
    while (sent + messages > atomic_load_explicit(&shared->taken, memory_order_acquire) / segments + most)
        __builtin_ia32_pause();
}

static uint64_t copied, notified;
static void reap(int fd) {
    char space[256];
    struct msghdr message = {.msg_control = space, .msg_controllen = sizeof space};
    while (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct sock_extended_err *error = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        notified += error->ee_data - error->ee_info + 1;
        if (error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) copied += error->ee_data - error->ee_info + 1;
        message.msg_controllen = sizeof space;
    }
}

static void send_all(const char *how, struct io_uring *ring) {
    int zero = !strcmp(how, "zerocopy"), uring = !strncmp(how, "uring", 5), uring_zero = !strcmp(how, "uring-zerocopy");
    uint64_t sent = 0, one = 1, free_slots = SLOTS;
    uint64_t end = now_ns(CLOCK_MONOTONIC) + milliseconds * 1000000ull;
    if (zero)
        for (int index = 0; index < sockets; index++) CHECK(setsockopt(fds[index], SOL_SOCKET, SO_ZEROCOPY, &(int){1}, 4) == 0);
    while (now_ns(CLOCK_MONOTONIC) < end) {
        await_room(sent, RUN);
        int base = sent % SLOTS;
        if (zero)
            for (; sent + RUN > notified + SLOTS; reap(fds[0]))
                for (int index = 1; index < sockets; index++) reap(fds[index]);
        if (uring_zero)
            while (free_slots < RUN) {
                struct io_uring_cqe *cqe;
                CHECK(io_uring_wait_cqe(ring, &cqe) == 0);
                if (cqe->flags & IORING_CQE_F_NOTIF) free_slots++;
                else CHECK((errno = -cqe->res, cqe->res > 0));
                io_uring_cqe_seen(ring, cqe);
            }
        for (int slot = base; slot < base + RUN; slot++) write_message(slot);
        if (!uring) {
            // A call for each socket, as its messages follow each other.
            for (int index = 0, each = RUN / sockets; index < sockets; index++) {
                int first = base + index * each;
                for (int left = each; left > 0;) {
                    int count = sendmmsg(fds[index], headers + first, left, zero ? MSG_ZEROCOPY : 0);
                    if (count < 0 && (errno == ENOBUFS || errno == EAGAIN)) { reap(fds[index]); continue; }
                    CHECK(count > 0);
                    first += count, left -= count;
                }
            }
        } else {
            for (int index = 0; index < RUN; index++) {
                struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
                int fd = fds[index / (RUN / sockets)];
                if (uring_zero) io_uring_prep_sendmsg_zc(sqe, fd, &headers[base + index].msg_hdr, 0);
                else io_uring_prep_sendmsg(sqe, fd, &headers[base + index].msg_hdr, 0);
                io_uring_sqe_set_data64(sqe, one);
            }
            if (uring_zero) {
                CHECK(io_uring_submit(ring) == RUN);
                free_slots -= RUN;
            } else {
                CHECK(io_uring_submit_and_wait(ring, RUN) == RUN);
                struct io_uring_cqe *cqe;
                unsigned head, count = 0;
                io_uring_for_each_cqe(ring, head, cqe) {
                    CHECK((errno = -cqe->res, cqe->res == segment * segments));
                    count++;
                }
                CHECK(count == RUN);
                io_uring_cq_advance(ring, count);
            }
        }
        sent += RUN;
    }
    atomic_store(&shared->end, sent * segments);
    while (atomic_load(&shared->taken) < sent * segments) __builtin_ia32_pause();
}

// ---- the receiver

static uint64_t next[65536];
static uint64_t total;

// Checks the datagrams of a message; those of one source port follow each other in runs.
static void check(const uint8_t *bytes, size_t len, uint16_t port, int piece) {
    if (piece == 0) piece = len;
    for (size_t at = 0; at < len; at += piece) {
        uint64_t first, last;
        CHECK(len - at >= (size_t)segment);
        memcpy(&first, bytes + at, 8);
        memcpy(&last, bytes + at + segment - 8, 8);
        CHECK((errno = 0, first == last && first >= next[port]));
        next[port] = first + 1;
        total++;
    }
    atomic_store_explicit(&shared->taken, total, memory_order_release);
}

static int piece_of(struct msghdr *message) {
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at))
        if (at->cmsg_level == SOL_UDP && at->cmsg_type == UDP_GRO) return *(int *)CMSG_DATA(at);
    return 0;
}

static int is_done(void) {
    uint64_t end = atomic_load_explicit(&shared->end, memory_order_relaxed);
    return end && total >= end;
}

static void take_by_calls(int fd) {
    static uint8_t data[RUN][SLOT], space[RUN][64];
    static struct sockaddr_in from[RUN];
    static struct iovec piece[RUN];
    static struct mmsghdr message[RUN];
    while (!is_done()) {
        for (int index = 0; index < RUN; index++) {
            piece[index] = (struct iovec){data[index], SLOT};
            message[index].msg_hdr = (struct msghdr){&from[index], sizeof from[index], &piece[index], 1, space[index], 64, 0};
        }
        int count = recvmmsg(fd, message, RUN, MSG_DONTWAIT, 0);
        CHECK(count >= 0 || errno == EAGAIN);
        for (int index = 0; index < count; index++)
            check(data[index], message[index].msg_len, ntohs(from[index].sin_port), piece_of(&message[index].msg_hdr));
    }
}

static void take_by_uring(int fd) {
    struct io_uring ring;
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE, .cq_entries = 4096};
    CHECK(io_uring_queue_init_params(64, &ring, &params) == 0);
    size_t room = SLOT + 256;
    int entries = 64;
    uint8_t *buffers = mmap(0, room * entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct io_uring_buf_ring *of = mmap(0, entries * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (uintptr_t)of, .ring_entries = entries, .bgid = 1};
    CHECK(io_uring_register_buf_ring(&ring, &reg, 0) == 0);
    io_uring_buf_ring_init(of);
    for (int index = 0; index < entries; index++)
        io_uring_buf_ring_add(of, buffers + index * room, room, index, io_uring_buf_ring_mask(entries), index);
    io_uring_buf_ring_advance(of, entries);
    struct msghdr shape = {.msg_namelen = sizeof(struct sockaddr_in), .msg_controllen = 64};
    int armed = 0;
    while (!is_done()) {
        if (!armed) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_recvmsg_multishot(sqe, fd, &shape, 0);
            sqe->flags |= IOSQE_BUFFER_SELECT;
            sqe->buf_group = 1;
            CHECK(io_uring_submit(&ring) == 1);
            armed = 1;
        }
        io_uring_get_events(&ring);
        struct io_uring_cqe *cqe;
        unsigned head, count = 0, back = 0;
        io_uring_for_each_cqe(&ring, head, cqe) {
            count++;
            if (!(cqe->flags & IORING_CQE_F_MORE)) armed = 0;
            if (cqe->res < 0) {
                CHECK((errno = -cqe->res, cqe->res == -ENOBUFS));
                continue;
            }
            int id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
            struct io_uring_recvmsg_out *out = io_uring_recvmsg_validate(buffers + id * room, cqe->res, &shape);
            CHECK(out != 0);
            struct sockaddr_in *from = io_uring_recvmsg_name(out);
            struct msghdr message = {.msg_control = (uint8_t *)from + shape.msg_namelen, .msg_controllen = out->controllen};
            check(io_uring_recvmsg_payload(out, &shape), io_uring_recvmsg_payload_length(out, cqe->res, &shape), ntohs(from->sin_port), piece_of(&message));
            io_uring_buf_ring_add(of, buffers + id * room, room, id, io_uring_buf_ring_mask(entries), back++);
        }
        io_uring_buf_ring_advance(of, back);
        io_uring_cq_advance(&ring, count);
    }
}

int main(int count, char **words) {
    CHECK((errno = EINVAL, count == 11));
    segment = atoi(words[7]), segments = atoi(words[8]), sockets = atoi(words[9]), milliseconds = atoi(words[10]);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        enter(words[3], 1);
        int fd = open_socket(words[4], PORT);
        CHECK(setsockopt(fd, SOL_UDP, UDP_GRO, &(int){1}, 4) == 0);
        atomic_store(&shared->ready, 1);
        strcmp(words[6], "uring") ? take_by_calls(fd) : take_by_uring(fd);
        exit(0);
    }
    enter(words[1], 0);
    for (int index = 0; index < sockets; index++) fds[index] = open_socket(words[2], 20000 + index);
    peer.sin_port = htons(PORT);
    inet_pton(AF_INET, words[4], &peer.sin_addr);
    prepare();
    struct io_uring ring;
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE, .cq_entries = 1024};
    if (!strncmp(words[5], "uring", 5)) CHECK(io_uring_queue_init_params(64, &ring, &params) == 0);
    while (!atomic_load(&shared->ready)) usleep(100);
    uint64_t begun = now_ns(CLOCK_MONOTONIC);
    send_all(words[5], &ring);
    double seconds = (now_ns(CLOCK_MONOTONIC) - begun) * 1e-9, datagrams = atomic_load(&shared->end);
    printf("%.3f%s\n", datagrams / seconds * 1e-6, copied ? " (the kernel copied)" : "");
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
