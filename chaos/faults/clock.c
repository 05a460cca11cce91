/* A wall clock that is as far ahead as a file says: loaded before the C library (LD_PRELOAD).
 *
 * MOONMESH_CHAOS_CLOCK names a file of eight bytes: how many seconds, as int64 of this host. It is mapped, so what is
 * written to it counts at once, in all processes. The monotonic clocks go on as they are, as on a real host.
 *
 * The kernel's clock is not set. So a moment of this clock that a thread is to be woken at is told to the kernel in its
 * own: else every such wait is over at once while this clock is behind, and Mooncake's master turns a whole core. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none;
static volatile int64_t *ahead = &none;
static int (*real_clock)(clockid_t, struct timespec *);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("MOONMESH_CHAOS_CLOCK");
  real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  real_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* x86-64: there is an older one */
  if (!real_timedwait) real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (at != MAP_FAILED) ahead = at;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  if (!real_clock) begin();
  int code = real_clock(clock, out);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += *ahead;
  return code;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec now;
  (void)zone;
  int code = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return code;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

static struct timespec of_kernel(const struct timespec *at) {
  struct timespec moved = *at;
  moved.tv_sec -= *ahead;
  if (moved.tv_sec < 0) moved.tv_sec = 0;
  return moved;
}

/* Which clock a condition goes by is in bit 1 of what glibc (since 2.25) calls its wrefs. */
static int is_monotonic(const pthread_cond_t *cond) { return (cond->__data.__wrefs & 2) != 0; }

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict at) {
  struct timespec moved = is_monotonic(cond) ? *at : of_kernel(at);
  return real_timedwait(cond, mutex, &moved);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict at) {
  struct timespec moved = clock == CLOCK_REALTIME ? of_kernel(at) : *at;
  return real_clockwait(cond, mutex, clock, &moved);
}
