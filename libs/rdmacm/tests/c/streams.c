/* A process that talks to itself by rsockets: each call of a stream, mappings and datagrams, with bytes that are compared. The argument is
 * its address. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>

#include "../../../ibverbs/tests/c/check.h"

enum { PORT = 7471, LARGE = 3000000, MAPPED = 300000, OFFSET = 4096, PORTS_OF_DATAGRAMS = 7480, ROUNDS = 500 };

static unsigned char large[LARGE];

/* Receives so many bytes and compares them with those of `large`. */
static void receive_large(int socket, size_t bytes)
{
    static unsigned char room[65536];
    for (size_t at = 0; at < bytes;) {
        size_t most = bytes - at < sizeof room ? bytes - at : sizeof room;
        ssize_t got = rrecv(socket, room, most, 0);
        CHECK(got > 0);
        CHECK(memcmp(room, large + at, got) == 0);
        at += got;
    }
}

static unsigned char mapped[MAPPED];

/* The other end writes into `mapped`, and then says so. */
static void be_written(int socket)
{
    char byte;
    CHECK(riomap(socket, mapped, MAPPED, PROT_READ, 0, 0) == -1 && errno == EINVAL);
    CHECK(riomap(socket, mapped, MAPPED, PROT_WRITE, 0, OFFSET) == OFFSET);
    CHECK(riomap(socket, mapped, 16, PROT_WRITE, 0, 0) == -1 && errno == ENOMEM);
    CHECK(rsend(socket, "m", 1, 0) == 1 && rrecv(socket, &byte, 1, MSG_WAITALL) == 1);
    CHECK(memcmp(mapped, large + 7, MAPPED) == 0);
    CHECK(riounmap(socket, mapped, 16) == -1 && errno == EINVAL);
    CHECK(riounmap(socket, mapped, MAPPED) == 0);
}

static void write_mapped(int socket)
{
    char byte;
    CHECK(rrecv(socket, &byte, 1, MSG_WAITALL) == 1);
    CHECK(riowrite(socket, large, 16, OFFSET - 1, 0) == 0 && riowrite(socket, large, 16, OFFSET + MAPPED, 0) == 0);
    CHECK(riowrite(socket, large + 7, MAPPED, OFFSET, 0) == MAPPED);
    /* What is behind the end is not written. */
    CHECK(riowrite(socket, large + 7 + MAPPED - 5, 16, OFFSET + MAPPED - 5, 0) == 5);
    CHECK(rsend(socket, "w", 1, 0) == 1);
}

/* Two datagram rsockets: the first datagram goes by UDP, the others by the queue pairs. */
static void exchange_datagrams(struct sockaddr_in address)
{
    int one = rsocket(AF_INET, SOCK_DGRAM, 0), other = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP), value;
    struct sockaddr_in from = address;
    socklen_t len = sizeof from;
    char room[64];
    struct iovec parts[2] = {{"two ", 4}, {"parts", 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct pollfd entry = {other, POLLIN, 0};
    CHECK(one >= 0 && other >= 0);
    from.sin_port = htons(PORTS_OF_DATAGRAMS);
    CHECK(rbind(one, (struct sockaddr *)&from, sizeof from) == 0);
    address.sin_port = htons(PORTS_OF_DATAGRAMS + 1);
    CHECK(rbind(other, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(rrecv(other, room, sizeof room, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(rsend(one, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
    CHECK(rlisten(one, 1) == -1 && errno == EOPNOTSUPP);
    CHECK(rgetsockopt(one, SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_DGRAM);
    for (int round = 0; round < 50; round++) {
        CHECK(rsendto(one, "question", 8, 0, (struct sockaddr *)&address, sizeof address) == 8);
        CHECK(rpoll(&entry, 1, 20000) == 1 && entry.revents == POLLIN);
        len = sizeof from;
        memset(&from, 0, sizeof from);
        CHECK(rrecvfrom(other, room, 3, MSG_PEEK, (struct sockaddr *)&from, &len) == 3);
        CHECK(rrecvfrom(other, room, sizeof room, 0, (struct sockaddr *)&from, &len) == 8 && memcmp(room, "question", 8) == 0);
        CHECK(from.sin_port == htons(PORTS_OF_DATAGRAMS) && from.sin_addr.s_addr == address.sin_addr.s_addr);
        if (round == 0)
            CHECK(rconnect(other, (struct sockaddr *)&from, sizeof from) == 0);
        CHECK(rsendmsg(other, &message, 0) == 9);
        CHECK(rrecv(one, room, sizeof room, 0) == 9 && memcmp(room, "two parts", 9) == 0);
    }
    CHECK(rsend(other, large, 3000, 0) == -1 && errno == EMSGSIZE);
    CHECK(rshutdown(other, SHUT_WR) == 0 && rsend(other, "x", 1, 0) == -1 && errno == EPIPE);
    CHECK(rclose(one) == 0 && rclose(other) == 0 && rclose(other) == -1 && errno == EBADF);
}

/* Sends back what it gets: in parts, then large. */
static void *serve(void *listener)
{
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    char first[4], second[8];
    struct iovec parts[2] = {{first, 4}, {second, 8}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    int socket = raccept(*(int *)listener, (struct sockaddr *)&peer, &len);
    CHECK(socket >= 0 && len == sizeof peer && peer.sin_family == AF_INET);
    write_mapped(socket);
    CHECK(rrecv(socket, first, 4, MSG_PEEK) == 4 && memcmp(first, "one ", 4) == 0);
    memset(first, 0, 4);
    CHECK(rreadv(socket, parts, 2) == 12);
    CHECK(memcmp(first, "one ", 4) == 0 && memcmp(second, "and more", 8) == 0);
    CHECK(rsendmsg(socket, &message, 0) == 12);
    /* Regression: each buffer was a transfer, so the peer sometimes read the first one alone. */
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(rrecv(socket, second, 1, 0) == 1);
        CHECK(round % 2 ? rwritev(socket, parts, 2) == 12 : rsendmsg(socket, &message, 0) == 12);
    }
    receive_large(socket, LARGE);
    CHECK(rwrite(socket, large, LARGE) == LARGE);
    /* The end of the other direction. */
    CHECK(rread(socket, first, 4) == 0);
    CHECK(rsend(socket, "bye", 3, 0) == 3);
    CHECK(rclose(socket) == 0);
    return NULL;
}

static void wait_until_readable(int socket)
{
    fd_set readable;
    struct timeval patience = {20, 0};
    struct pollfd entry = {socket, POLLIN, 0};
    FD_ZERO(&readable);
    FD_SET(socket, &readable);
    CHECK(rselect(socket + 1, &readable, NULL, NULL, &patience) == 1);
    CHECK(FD_ISSET(socket, &readable));
    CHECK(rpoll(&entry, 1, 20000) == 1 && entry.revents == POLLIN);
}

static void talk(int socket)
{
    char first[4], second[8], more[4], whole[64];
    struct iovec parts[2] = {{"one ", 4}, {"and more", 8}};
    struct iovec room[2] = {{first, 4}, {second, 8}};
    struct msghdr message = {.msg_iov = room, .msg_iovlen = 2};
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    struct pollfd nothing = {socket, POLLIN, 0};
    CHECK(rpoll(&nothing, 1, 0) == 0 && nothing.revents == 0);
    CHECK(rrecv(socket, first, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(rsendto(socket, "x", 1, 0, (struct sockaddr *)&peer, len) == -1 && errno == EISCONN);
    CHECK(rwritev(socket, parts, 2) == 12);
    wait_until_readable(socket);
    CHECK(rrecvmsg(socket, &message, MSG_WAITALL) == 12);
    CHECK(memcmp(first, "one ", 4) == 0 && memcmp(second, "and more", 8) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(rsend(socket, "?", 1, 0) == 1);
        CHECK(rrecv(socket, whole, sizeof whole, 0) == 12 && memcmp(whole, "one ", 4) == 0);
    }
    CHECK(rsendto(socket, large, LARGE, 0, NULL, 0) == LARGE);
    receive_large(socket, LARGE);
    CHECK(rshutdown(socket, SHUT_WR) == 0);
    CHECK(rsend(socket, "x", 1, 0) == -1 && errno == ECONNRESET);
    CHECK(rrecvfrom(socket, more, 3, MSG_WAITALL, (struct sockaddr *)&peer, &len) == 3);
    CHECK(memcmp(more, "bye", 3) == 0 && ntohs(peer.sin_port) == PORT);
    CHECK(rrecv(socket, more, 1, 0) == 0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int listener = rsocket(AF_INET, SOCK_STREAM, 0), socket = rsocket(AF_INET, SOCK_STREAM, 0), value = 0;
    socklen_t len = sizeof value;
    pthread_t server;
    CHECK(argc == 2 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
    for (int at = 0; at < LARGE; at++)
        large[at] = (unsigned char)(at * 7 + (at >> 8) * 13);
    CHECK(listener >= 0 && socket >= 0 && socket != listener);
    CHECK(rsocket(AF_INET, SOCK_RAW, 0) == -1 && errno == EOPNOTSUPP);
    value = 1;
    /* The listener's end says how many mappings it takes; the other end takes none. */
    CHECK(rsetsockopt(listener, 0x10000, RDMA_IOMAPSIZE, &value, sizeof value) == 0);
    CHECK(rbind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(rlisten(listener, 4) == 0);
    CHECK(rgetsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) == 0 && value == 1);
    CHECK(rsend(socket, "x", 1, 0) == -1);
    CHECK(pthread_create(&server, NULL, serve, &listener) == 0);
    CHECK(rconnect(socket, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    be_written(socket);
    talk(socket);
    pthread_join(server, NULL);
    CHECK(rclose(socket) == 0 && rclose(listener) == 0);
    CHECK(rclose(socket) == -1 && errno == EBADF);
    CHECK(rsend(socket, "x", 1, 0) == -1 && errno == EBADF);
    exchange_datagrams(address);
    return 0;
}
