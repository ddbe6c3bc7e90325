/* Many clients that ask the same at once, in one process that is fast enough to measure a thousand streams.
 *
 *   crowd REQUEST_FILE PORT:COUNT:DELAY_MS [PORT:COUNT:DELAY_MS ...]
 *
 * Connects all, prints "connected" and waits for a line on stdin. Then each group asks, DELAY_MS after that line, and
 * "asked" is printed once all have. Reads every answer to its end and prints one JSON line: for each group the answers'
 * statuses, sizes and digests, how long each took from its question to its last byte, and the lag of each live event:
 * its arrival less the stamp {"t":NANOSECONDS of CLOCK_MONOTONIC} that the origin wrote into it. An event is live for a
 * client when it was written after the client had its answer's head: what came before is history. Of later groups there
 * is also how far they are behind the first group's first client, event by event.
 * Exits 1 when a connection fails or after 60 s. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 65536, GROUPS = 16, PATIENCE_S = 60 };

typedef struct {
    float *at;
    size_t count, room;
} Samples;

typedef struct {
    int64_t written, came;
} Arrival;

typedef struct {
    Arrival *at;
    size_t count, room;
} Arrivals;

typedef struct {
    int port, count, delay_ms;
    Samples took_ms, lag_ms, behind_ms;
    Arrivals arrivals; /* of live events; of the first group only its first client's */
    int statuses[600];
    long events_least, events_most, bytes_least, bytes_most;
    uint64_t digest;
    int same; /* whether all answers had the same digest */
} Group;

typedef struct {
    int socket, status, chunked, done, compared;
    Group *group;
    int64_t asked, head_at;
    long length, bytes, events; /* length: of the answer, -1 until known or where it is chunked */
    uint64_t digest;
    size_t filled, lined, chunk; /* chunk: bytes that are left of this one, its CRLF included */
    char *buffer, *line;         /* what has come and was not taken yet; the beginning of a line of the body */
} Client;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void add(Samples *samples, double value) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? samples->room * 2 : 4096;
        samples->at = realloc(samples->at, samples->room * sizeof(float));
        if (!samples->at) fail("memory");
    }
    samples->at[samples->count++] = (float)value;
}

static void note(Arrivals *arrivals, int64_t written, int64_t came) {
    if (arrivals->count == arrivals->room) {
        arrivals->room = arrivals->room ? arrivals->room * 2 : 4096;
        arrivals->at = realloc(arrivals->at, arrivals->room * sizeof(Arrival));
        if (!arrivals->at) fail("memory");
    }
    arrivals->at[arrivals->count++] = (Arrival){written, came};
}

static int by_stamp(const void *a, const void *b) {
    int64_t x = ((const Arrival *)a)->written, y = ((const Arrival *)b)->written;
    return (x > y) - (x < y);
}

/* How far a group's events are behind the same events at the first client, whose stamps ascend. */
static void compare(Group *group, const Arrivals *first) {
    for (size_t i = 0; i < group->arrivals.count; i++) {
        Arrival *one = &group->arrivals.at[i];
        Arrival *same = bsearch(one, first->at, first->count, sizeof(Arrival), by_stamp);
        if (same) add(&group->behind_ms, (one->came - same->came) / 1e6);
    }
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, Samples *s) {
    if (!s->count) {
        printf("\"%s\":null", name);
        return;
    }
    qsort(s->at, s->count, sizeof(float), ascending);
    printf("\"%s\":{\"n\":%zu,\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f}", name, s->count, s->at[s->count / 2],
           s->at[s->count * 99 / 100], s->at[s->count - 1]);
}

static void digest(Client *c, const char *bytes, size_t size) { /* FNV-1a */
    for (size_t i = 0; i < size; i++) c->digest = (c->digest ^ (unsigned char)bytes[i]) * 1099511628211ULL;
}

static void finish(Client *c) {
    Group *g = c->group;
    add(&g->took_ms, (now_ns() - c->asked) / 1e6);
    if (c->status > 0 && c->status < 600) g->statuses[c->status]++;
    if (c->events < g->events_least) g->events_least = c->events;
    if (c->events > g->events_most) g->events_most = c->events;
    if (c->bytes < g->bytes_least) g->bytes_least = c->bytes;
    if (c->bytes > g->bytes_most) g->bytes_most = c->bytes;
    if (g->took_ms.count == 1) g->digest = c->digest;
    else if (g->digest != c->digest) g->same = 0;
    c->done = 1;
    close(c->socket);
}

/* A whole line of an event stream. */
static void take_line(Client *c, const char *line, size_t size) {
    static const char stamp[] = "data: {\"t\":";
    digest(c, line, size);
    if (size > sizeof stamp && memcmp(line, stamp, sizeof stamp - 1) == 0) {
        int64_t written = strtoll(line + sizeof stamp - 1, NULL, 10);
        c->events++;
        if (written <= c->head_at) return;
        int64_t came = now_ns();
        add(&c->group->lag_ms, (came - written) / 1e6);
        if (c->compared) note(&c->group->arrivals, written, came);
    }
}

/* Bytes of a chunked body, the coding taken away. Chunks may end anywhere in a line. */
static void take_text(Client *c, const char *text, size_t size) {
    c->bytes += (long)size;
    while (size) {
        const char *end = memchr(text, '\n', size);
        size_t part = end ? (size_t)(end + 1 - text) : size;
        if (c->lined + part > BUFFER) fail("a line is too long");
        memcpy(c->line + c->lined, text, part);
        c->lined += part;
        text += part;
        size -= part;
        if (end) {
            take_line(c, c->line, c->lined);
            c->lined = 0;
        }
    }
}

/* Undo the chunked coding (RFC 9112, 7.1); nobody here sends trailers. */
static void take_chunks(Client *c) {
    char *at = c->buffer, *limit = c->buffer + c->filled;
    while (at < limit && !c->done) {
        if (c->chunk) {
            size_t here = (size_t)(limit - at) < c->chunk ? (size_t)(limit - at) : c->chunk;
            size_t text = c->chunk > 2 ? c->chunk - 2 : 0;
            take_text(c, at, here < text ? here : text);
            c->chunk -= here;
            at += here;
            continue;
        }
        char *end = memmem(at, (size_t)(limit - at), "\r\n", 2);
        if (!end) break;
        c->chunk = strtoul(at, NULL, 16) + 2;
        at = end + 2;
        if (c->chunk == 2) finish(c);
    }
    memmove(c->buffer, at, c->filled = (size_t)(limit - at));
}

static int take_head(Client *c) {
    char *end = memmem(c->buffer, c->filled, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    c->status = atoi(c->buffer + 9);
    c->head_at = now_ns();
    char *length = strcasestr(c->buffer, "\r\ncontent-length:");
    c->chunked = !length;
    if (length) c->length = atol(length + 17);
    size_t head = (size_t)(end + 4 - c->buffer);
    memmove(c->buffer, c->buffer + head, c->filled -= head);
    return 1;
}

static void take(Client *c) {
    if (!c->status && !take_head(c)) return;
    if (!c->chunked) {
        digest(c, c->buffer, c->filled);
        c->bytes += (long)c->filled;
        c->filled = 0;
        if (c->bytes >= c->length) finish(c);
        return;
    }
    take_chunks(c);
}

static void hear(Client *c) {
    ssize_t got = read(c->socket, c->buffer + c->filled, BUFFER - c->filled - 1);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("a connection ended before its answer");
    c->filled += (size_t)got;
    c->buffer[c->filled] = 0;
    take(c);
}

static void join(Client *c, Group *group, int poll) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)group->port)};
    int on = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->group = group;
    c->length = -1;
    c->digest = 14695981039346656037ULL;
    c->buffer = malloc(BUFFER);
    c->line = malloc(BUFFER);
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (!c->buffer || !c->line || c->socket < 0 || connect(c->socket, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->socket, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event)) fail("epoll");
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(4 << 20);
    if (!file || !bytes) fail(path);
    *size = fread(bytes, 1, 4 << 20, file);
    fclose(file);
    return bytes;
}

static void ask(Client *c, const char *request, size_t size) {
    c->asked = now_ns();
    if (write(c->socket, request, size) != (ssize_t)size) fail("a question did not go out whole");
}

/* Listen until all have their answers or `until`; answers whose clients are done are counted in `left`. */
static void listen_until(int poll, int64_t until, int *left) {
    struct epoll_event events[512];
    while (*left) {
        int64_t rest = until - now_ns();
        if (rest <= 0) return;
        int count = epoll_wait(poll, events, 512, (int)(rest / 1000000) + 1);
        for (int i = 0; i < count; i++) {
            Client *c = events[i].data.ptr;
            if (c->done) continue;
            hear(c);
            *left -= c->done;
        }
    }
}

static void print_group(Group *g) {
    const char *comma = "";
    printf("{\"port\":%d,\"count\":%d,\"statuses\":{", g->port, g->count);
    for (int status = 0; status < 600; status++)
        if (g->statuses[status]) {
            printf("%s\"%d\":%d", comma, status, g->statuses[status]);
            comma = ",";
        }
    printf("},\"same\":%s,\"digest\":\"%016lx\",\"events\":[%ld,%ld],\"bytes\":[%ld,%ld],", g->same ? "true" : "false",
           (unsigned long)g->digest, g->events_least, g->events_most, g->bytes_least, g->bytes_most);
    print_samples("took_ms", &g->took_ms);
    printf(",");
    print_samples("lag_ms", &g->lag_ms);
    printf(",");
    print_samples("behind_ms", &g->behind_ms);
    printf("}");
}

int main(int argc, char **argv) {
    static Group groups[GROUPS];
    int total = 0, left, many = argc - 2, poll = epoll_create1(0);
    size_t size;
    struct rlimit files = {65536, 65536};
    if (argc < 3 || many > GROUPS) return 2;
    setrlimit(RLIMIT_NOFILE, &files);
    char *request = read_file(argv[1], &size);
    for (int i = 0; i < many; i++) {
        Group *g = &groups[i];
        if (sscanf(argv[i + 2], "%d:%d:%d", &g->port, &g->count, &g->delay_ms) != 3) return 2;
        g->events_least = g->bytes_least = 1L << 60;
        g->same = 1;
        total += g->count;
    }
    Client *clients = calloc((size_t)total, sizeof(Client)), *next = clients;
    for (int i = 0; i < many; i++)
        for (int k = 0; k < groups[i].count; k++) join(next++, &groups[i], poll);
    for (int i = 0; i < total; i++) clients[i].compared = many > 1 && (i == 0 || clients[i].group != &groups[0]);
    puts("connected");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    int64_t began = now_ns(), deadline = began + PATIENCE_S * 1000000000LL;
    left = total;
    next = clients;
    for (int i = 0; i < many; i++) {
        listen_until(poll, began + groups[i].delay_ms * 1000000LL, &left);
        for (int k = 0; k < groups[i].count; k++) ask(next++, request, size);
    }
    puts("asked");
    fflush(stdout);
    listen_until(poll, deadline, &left);
    if (left) {
        fprintf(stderr, "crowd: %d of %d answers did not come\n", left, total);
        return 1;
    }
    for (int i = 1; i < many; i++) compare(&groups[i], &groups[0].arrivals);
    printf("[");
    for (int i = 0; i < many; i++) {
        if (i) printf(",");
        print_group(&groups[i]);
    }
    puts("]");
    return 0;
}
