/* wanlink: a point-to-point link with a real round-trip time, between this host and a network namespace.
 *
 * Two TUN devices, one on each side; packets read from one leave the other after the one-way delay, no
 * faster than the rate, and are dropped when the queue is full or by chance. The kernel's own TCP runs over
 * it, so congestion windows, buffers and parallel streams behave as they do on a long link.
 *
 *   wanlink NS HERE THERE RTT_MS RATE_MBIT LOSS_PERCENT     (all required; runs until SIGTERM)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define NEAR "hib0"                               /* the devices: unusual names, to avoid collisions */
#define FAR "hib1"
#define MAX_PACKET 65600
#define SLOTS 65536

typedef struct { uint64_t due_ns; uint32_t length; unsigned char *bytes; } Packet;
typedef struct {
    int from, to;
    Packet *ring;
    uint32_t head, tail;
    uint64_t line_free_ns, queued_bytes, sent, dropped;
} Direction;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int open_tun(const char *name) {
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq request = {0};
    int header = sizeof(struct virtio_net_hdr);
    if (fd < 0) { perror("/dev/net/tun"); exit(1); }
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (ioctl(fd, TUNSETIFF, &request) < 0) { perror("TUNSETIFF"); exit(1); }
    if (ioctl(fd, TUNSETVNETHDRSZ, &header) < 0) { perror("TUNSETVNETHDRSZ"); exit(1); }
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) { perror("TUNSETOFFLOAD"); exit(1); }
    return fd;
}

static void run(const char *format, ...) {
    char command[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command) != 0) { fprintf(stderr, "wanlink: failed: %s\n", command); exit(1); }
}

static void take_in(Direction *d, uint64_t delay_ns, double ns_per_byte, double loss, uint64_t queue_limit) {
    static unsigned char buffer[MAX_PACKET];
    for (int burst = 0; burst < 64; burst++) {
        ssize_t length = read(d->from, buffer, sizeof buffer);
        if (length <= 0) return;
        struct virtio_net_hdr *header = (void *)buffer;
        uint32_t wire = length - sizeof *header;
        double segments = header->gso_size ? (double)wire / header->gso_size : 1;
        uint64_t now = now_ns();
        if (d->queued_bytes + wire > queue_limit || d->tail - d->head >= SLOTS
            || (loss > 0 && drand48() < loss * segments)) { d->dropped++; continue; }
        if (d->line_free_ns < now) d->line_free_ns = now;
        d->line_free_ns += (uint64_t)(wire * ns_per_byte);
        Packet *p = &d->ring[d->tail++ % SLOTS];
        p->due_ns = d->line_free_ns + delay_ns;
        p->length = length;
        p->bytes = malloc(length);
        memcpy(p->bytes, buffer, length);
        d->queued_bytes += wire;
    }
}

static int64_t deliver_due(Direction *d) {           /* ns until the next packet is due, or -1 */
    while (d->head != d->tail) {
        Packet *p = &d->ring[d->head % SLOTS];
        int64_t wait = (int64_t)(p->due_ns - now_ns());
        if (wait > 0) return wait;
        if (write(d->to, p->bytes, p->length) < 0 && errno == EAGAIN) return 50000;
        d->queued_bytes -= p->length - sizeof(struct virtio_net_hdr);
        d->sent++;
        free(p->bytes);
        d->head++;
    }
    return -1;
}

int main(int argc, char **argv) {
    if (argc != 7) { fprintf(stderr, "usage: wanlink NS HERE THERE RTT_MS RATE_MBIT LOSS_PERCENT\n"); return 2; }
    const char *ns = argv[1], *here = argv[2], *there = argv[3];
    uint64_t delay_ns = (uint64_t)(atof(argv[4]) * 1e6 / 2);
    double ns_per_byte = 8000.0 / atof(argv[5]), loss = atof(argv[6]) / 100;
    uint64_t bdp = (uint64_t)(atof(argv[4]) * 1e6 / ns_per_byte);
    uint64_t queue_limit = 2 * bdp + 4000000;        /* in flight plus one bandwidth-delay product of buffer */
    int a = open_tun(NEAR), b = open_tun(FAR);
    run("ip netns add %s", ns);
    run("ip link set " FAR " netns %s", ns);
    run("ip addr add %s peer %s dev " NEAR " && ip link set " NEAR " up mtu 9000", here, there);
    run("ip netns exec %s sh -c 'ip addr add %s peer %s dev " FAR " && ip link set " FAR " up mtu 9000 && ip link set lo up'", ns, there, here);
    Direction out = {a, b, calloc(SLOTS, sizeof(Packet)), 0, 0, 0, 0, 0, 0};
    Direction in = {b, a, calloc(SLOTS, sizeof(Packet)), 0, 0, 0, 0, 0, 0};
    fprintf(stderr, "wanlink ready\n");
    for (;;) {
        int64_t w1 = deliver_due(&out), w2 = deliver_due(&in);
        int64_t wait = w1 < 0 ? w2 : w2 < 0 ? w1 : w1 < w2 ? w1 : w2;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        struct pollfd fds[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        ppoll(fds, 2, wait < 0 ? NULL : &timeout, NULL);
        take_in(&out, delay_ns, ns_per_byte, loss, queue_limit);
        take_in(&in, delay_ns, ns_per_byte, loss, queue_limit);
    }
}
