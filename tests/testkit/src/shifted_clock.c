/* Preloaded into a server under test: moves its wall clock by the nanoseconds that the file named by
   SHIFTED_CLOCK holds. The file is mapped, so the clock can be moved while the server runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

static int64_t ahead(void) {
    if (!shift) {
        const char *path = getenv("SHIFTED_CLOCK");
        int file = path ? open(path, O_RDONLY) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        static const int64_t none = 0;
        shift = mapped == MAP_FAILED ? &none : mapped;
        if (file >= 0) close(file);
    }
    return *shift;
}

static void move(struct timespec *at) {
    int64_t nanos = at->tv_nsec + ahead() % 1000000000;
    at->tv_sec += ahead() / 1000000000;
    if (nanos < 0) { nanos += 1000000000; at->tv_sec--; }
    if (nanos >= 1000000000) { nanos -= 1000000000; at->tv_sec++; }
    at->tv_nsec = nanos;
}

/* Calls the kernel directly: an allocator may read the clock before symbols can be looked up. */
int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, which, at);
    if (!failed && which == CLOCK_REALTIME) move(at);
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
