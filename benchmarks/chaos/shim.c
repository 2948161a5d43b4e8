/* Preloaded into a run: moves its wall clock and makes its disk slow, as a shared page of memory says.
 *
 * Monotonic clocks stay what they are, as they do when somebody sets a machine's clock.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile struct {
    long clock_s; /* added to the wall clock */
    long disk_us; /* before each fsync and rename */
} *controls;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHAOS_CONTROLS");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof *controls, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        controls = page;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && controls && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += controls->clock_s;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static void crawl(void) {
    if (controls && controls->disk_us) {
        struct timespec pause = {controls->disk_us / 1000000, controls->disk_us % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
}

int fsync(int fd) {
    crawl();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    crawl();
    return (int)syscall(SYS_fdatasync, fd);
}

int rename(const char *from, const char *to) {
    crawl();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
