/* A process that talks to itself by rsockets: each call of a stream, with bytes that are compared. The argument is its address. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/select.h>
#include <sys/uio.h>

#include "../../../ibverbs/tests/c/check.h"

enum { PORT = 7471, LARGE = 3000000 };

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
    CHECK(rrecv(socket, first, 4, MSG_PEEK) == 4 && memcmp(first, "one ", 4) == 0);
    memset(first, 0, 4);
    CHECK(rreadv(socket, parts, 2) == 12);
    CHECK(memcmp(first, "one ", 4) == 0 && memcmp(second, "and more", 8) == 0);
    CHECK(rsendmsg(socket, &message, 0) == 12);
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
    char first[4], second[8], more[4];
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
    CHECK(rsocket(AF_INET, SOCK_DGRAM, 0) == -1 && errno == EOPNOTSUPP);
    CHECK(rbind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(rlisten(listener, 4) == 0);
    CHECK(rgetsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) == 0 && value == 1);
    CHECK(rsend(socket, "x", 1, 0) == -1);
    CHECK(pthread_create(&server, NULL, serve, &listener) == 0);
    CHECK(rconnect(socket, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    talk(socket);
    pthread_join(server, NULL);
    CHECK(rclose(socket) == 0 && rclose(listener) == 0);
    CHECK(rclose(socket) == -1 && errno == EBADF);
    CHECK(rsend(socket, "x", 1, 0) == -1 && errno == EBADF);
    return 0;
}
