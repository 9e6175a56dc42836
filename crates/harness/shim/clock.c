// The time a server reads, decided by a test.
//
// Preloaded into redis-server. The file named by TOLLGATE_CLOCK holds microseconds since the Unix
// epoch as a little-endian u64, twice; zero means the real time. src/clock.rs writes it: change
// them together.
//
// CLOCK_MONOTONIC is left alone. Redis counts its timers and the run time of scripts with it, and
// a frozen one would stop its cron.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const uint64_t *page;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_clock(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("TOLLGATE_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        // Running on in real time would make a test pass or fail by chance.
        fprintf(stderr, "clock shim: cannot map TOLLGATE_CLOCK=%s\n", path ? path : "");
        _exit(70);
    }
    close(fd);
    page = at;
}

// The time set, or zero. The writer changes the first copy, then the second, and this reads them
// in the other order: two that agree are one value that was really set.
static uint64_t set_us(void) {
    while (page) {
        uint64_t second = __atomic_load_n(&page[1], __ATOMIC_ACQUIRE);
        uint64_t first = __atomic_load_n(&page[0], __ATOMIC_ACQUIRE);
        if (first == second) return le64toh(first);
        sched_yield();
    }
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    uint64_t us = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? set_us() : 0;
    if (us) {
        ts->tv_sec = us / 1000000;
        ts->tv_nsec = us % 1000000 * 1000;
        return 0;
    }
    // Other constructors may ask before ours has run.
    return real_clock_gettime ? real_clock_gettime(id, ts) : syscall(SYS_clock_gettime, id, ts);
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec ts;
    int failed = clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out) *out = ts.tv_sec;
    return ts.tv_sec;
}
