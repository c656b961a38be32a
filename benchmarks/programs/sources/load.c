/* Asks a server over and over, through connections that stay, and tells how long it took to answer.
 *
 * usage: load redis|http|postgres PORT CONNECTIONS ITEMS
 * For each line "SECONDS RATE" read it asks for so many seconds and prints a line
 *     REQUESTS WALL_NS FAILED P50_NS P99_NS P999_NS WORST_NS SLOWEST_SECOND
 * RATE 0: the next request of a connection follows at once upon an answer. Otherwise so many
 * requests a second fall due at equal distances, whatever the server does, and the time of each is
 * counted from then. SLOWEST_SECOND is the least number of answers in a whole second.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 1 << 20,
    MAX_CONNECTIONS = 256,
    STEPS = 64,          /* of the histogram in an octave: 1.6 % */
    BUCKETS = 64 * STEPS,
    VALUE_BYTES = 100,
    SET_EVERY = 5,
    POSTGRES_VERSION = 196608,
    DRAIN_MS = 10000,
};
#define SECOND UINT64_C(1000000000)

typedef struct {
    int fd;
    bool is_waiting;
    uint64_t due; /* when the request that is under way was to be sent */
    size_t length;
    char *buffer;
} Connection;

typedef struct {
    uint64_t requests, failed, worst;
    uint64_t bucket[BUCKETS];
} Count;

static enum { REDIS, HTTP, POSTGRES } protocol;
static int port, connections, watch;
static uint64_t items, state = 1;
static Connection connection[MAX_CONNECTIONS];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- what is sent and what comes back ---- */

static size_t request(char *text, size_t size)
{
    uint64_t item = draw(items);
    if (protocol == HTTP)
        return (size_t)snprintf(text, size,
                                "GET /item/%" PRIu64 " HTTP/1.1\r\nHost: localhost\r\n\r\n", item);
    if (protocol == POSTGRES) {
        int length = snprintf(text + 5, size - 5,
                              "SELECT abalance FROM pgbench_accounts WHERE aid = %" PRIu64 ";",
                              item + 1);
        uint32_t counted = htonl((uint32_t)length + 5);
        text[0] = 'Q';
        memcpy(text + 1, &counted, sizeof counted);
        return (size_t)length + 6;
    }
    char key[32];
    int length = snprintf(key, sizeof key, "key:%" PRIu64, item);
    if (draw(SET_EVERY) != 0)
        return (size_t)snprintf(text, size, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", length, key);
    return (size_t)snprintf(text, size,
                            "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%0*" PRIu64 "\r\n", length, key,
                            VALUE_BYTES, VALUE_BYTES, item);
}

/* Length of the answer that a buffer (ended by a zero) begins with; 0: it is not all there. */
static size_t redis_answer(const char *text, size_t length)
{
    const char *line = memmem(text, length, "\r\n", 2);
    if (line == NULL)
        return 0;
    size_t head = (size_t)(line - text) + 2;
    long body = text[0] == '$' ? atol(text + 1) : -1;
    size_t whole = body < 0 ? head : head + (size_t)body + 2;
    return whole <= length ? whole : 0;
}

static size_t http_answer(const char *text, size_t length)
{
    const char *end = memmem(text, length, "\r\n\r\n", 4);
    if (end == NULL)
        return 0;
    size_t whole = (size_t)(end - text) + 4;
    for (const char *line = text; line < end; line = strchr(line, '\n') + 1)
        if (strncasecmp(line, "content-length:", 15) == 0)
            whole += strtoul(line + 15, NULL, 10);
    return whole <= length ? whole : 0;
}

/* Messages up to the one that says that the server is ready for the next query. */
static size_t postgres_answer(const char *text, size_t length)
{
    size_t at = 0;
    while (at + 5 <= length) {
        uint32_t counted;
        memcpy(&counted, text + at + 1, sizeof counted);
        size_t next = at + 1 + ntohl(counted);
        if (next > length)
            return 0;
        if (text[at] == 'Z')
            return next;
        at = next;
    }
    return 0;
}

static size_t answer(const char *text, size_t length)
{
    return protocol == REDIS  ? redis_answer(text, length)
           : protocol == HTTP ? http_answer(text, length)
                              : postgres_answer(text, length);
}

static bool is_failure(const char *text)
{
    return protocol == REDIS  ? text[0] == '-'
           : protocol == HTTP ? strncmp(text + 8, " 200", 4) != 0
                              : text[0] == 'E';
}

/* ---- connections ---- */

static void greet(Connection *c)
{
    static const char names[] = "user\0postgres\0database\0postgres\0";
    uint32_t head[2] = {htonl(sizeof head + sizeof names), htonl(POSTGRES_VERSION)};
    if (write(c->fd, head, sizeof head) != sizeof head ||
        write(c->fd, names, sizeof names) != sizeof names)
        fail("greeting");
    for (size_t length = 0; postgres_answer(c->buffer, length) == 0;) {
        ssize_t got = read(c->fd, c->buffer + length, BUFFER_BYTES - length);
        if (got <= 0 || c->buffer[0] == 'E')
            fail("greeting");
        length += (size_t)got;
    }
}

static void open_connection(Connection *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connecting");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (protocol == POSTGRES)
        greet(c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(watch, EPOLL_CTL_ADD, c->fd, &event) != 0)
        fail("watching");
    c->is_waiting = false;
    c->length = 0;
}

static void reopen(Connection *c)
{
    close(c->fd);
    open_connection(c);
}

static void ask(Connection *c, uint64_t due)
{
    char text[512];
    size_t length = request(text, sizeof text);
    c->due = due;
    c->is_waiting = true;
    if (send(c->fd, text, length, MSG_NOSIGNAL) == (ssize_t)length)
        return;
    reopen(c); /* it was closed while nothing was asked */
    c->is_waiting = true;
    if (send(c->fd, text, length, MSG_NOSIGNAL) != (ssize_t)length)
        fail("asking");
}

/* ---- counting ---- */

static size_t bucket_of(uint64_t value)
{
    if (value < STEPS)
        return value;
    int octave = 63 - __builtin_clzll(value) - 6;
    return (size_t)(octave + 1) * STEPS + ((value >> octave) - STEPS);
}

/* The greatest value of a bucket. */
static uint64_t value_of(size_t bucket)
{
    if (bucket < STEPS)
        return bucket;
    uint64_t octave = bucket / STEPS - 1;
    return ((bucket % STEPS + STEPS + 1) << octave) - 1;
}

static uint64_t quantile(const Count *count, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)count->requests), seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += count->bucket[i];
        if (seen > wanted)
            return value_of(i) < count->worst ? value_of(i) : count->worst;
    }
    return count->worst;
}

/* Read what there is; returns whether the answer is complete. */
static bool receive(Connection *c, Count *count)
{
    ssize_t got = read(c->fd, c->buffer + c->length, BUFFER_BYTES - 1 - c->length);
    if (got <= 0) {
        count->failed += c->is_waiting;
        reopen(c);
        return false;
    }
    c->length += (size_t)got;
    c->buffer[c->length] = 0;
    if (answer(c->buffer, c->length) == 0) {
        if (c->length == BUFFER_BYTES - 1)
            fail("an answer is too long");
        return false;
    }
    uint64_t took = now_ns() - c->due;
    count->requests++;
    count->failed += is_failure(c->buffer);
    count->bucket[bucket_of(took)]++;
    count->worst = took > count->worst ? took : count->worst;
    c->is_waiting = false;
    c->length = 0;
    return true;
}

static Connection *idle_connection(void)
{
    for (int i = 0; i < connections; i++)
        if (!connection[i].is_waiting)
            return &connection[i];
    return NULL;
}

/* Receive answers that arrive before a moment, and ask anew at once if `closed`. */
static int serve(Count *count, uint64_t until, uint64_t end, bool closed)
{
    struct epoll_event events[MAX_CONNECTIONS];
    uint64_t now = now_ns(), left = until > now ? until - now : 0;
    struct timespec wait = {(time_t)(left / SECOND), (long)(left % SECOND)};
    int found = epoll_pwait2(watch, events, MAX_CONNECTIONS, &wait, NULL);
    for (int i = 0; i < found; i++) {
        Connection *c = events[i].data.ptr;
        receive(c, count);
        if (closed && !c->is_waiting && (now = now_ns()) < end)
            ask(c, now);
    }
    return found;
}

static void turn(double seconds, double rate)
{
    static Count count;
    memset(&count, 0, sizeof count);
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), asked = 0;
    uint64_t second = start + SECOND, counted = 0, slowest = UINT64_MAX;
    for (int i = 0; rate == 0 && i < connections; i++)
        ask(&connection[i], now_ns());
    for (uint64_t now; (now = now_ns()) < end;) {
        uint64_t until = end < second ? end : second;
        Connection *idle = NULL;
        while (rate > 0) {
            uint64_t due = start + (uint64_t)((double)asked * 1e9 / rate);
            if ((idle = idle_connection()) == NULL || due > now) {
                until = idle != NULL && due < until ? due : until;
                break;
            }
            ask(idle, due);
            asked++;
        }
        serve(&count, until, end, rate == 0);
        if ((now = now_ns()) >= second) {
            uint64_t here = count.requests - counted;
            slowest = here < slowest ? here : slowest;
            counted = count.requests;
            second = now + SECOND;
        }
    }
    uint64_t wall = now_ns() - start, in_time = count.requests;
    for (int i = 0; i < connections; i++)
        while (connection[i].is_waiting) {
            uint64_t patience = now_ns() + DRAIN_MS * UINT64_C(1000000);
            if (serve(&count, patience, 0, false) == 0)
                fail("no answer");
        }
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
           " %" PRIu64 "\n",
           in_time, wall, count.failed, quantile(&count, 0.5), quantile(&count, 0.99),
           quantile(&count, 0.999), count.worst, slowest == UINT64_MAX ? in_time : slowest);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    double seconds, rate;
    if (argc != 5)
        return 2;
    protocol = strcmp(argv[1], "redis") == 0 ? REDIS : strcmp(argv[1], "http") == 0 ? HTTP : POSTGRES;
    port = atoi(argv[2]);
    connections = atoi(argv[3]);
    items = strtoull(argv[4], NULL, 10);
    if (connections < 1 || connections > MAX_CONNECTIONS || items < 1)
        return 2;
    prctl(PR_SET_TIMERSLACK, 1L);
    watch = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        connection[i].buffer = calloc(1, BUFFER_BYTES);
        open_connection(&connection[i]);
    }
    while (scanf("%lf %lf", &seconds, &rate) == 2)
        turn(seconds, rate);
    return 0;
}
