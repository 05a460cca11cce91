/* A wall clock that is as far ahead as a file says: loaded before the C library (LD_PRELOAD).
 *
 * MOONMESH_CHAOS_CLOCK names a file of eight bytes: how many seconds, as int64 of this host. It is mapped, so what is
 * written to it counts at once, in all processes. The monotonic clocks go on as they are, as on a real host. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none;
static volatile int64_t *ahead = &none;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("MOONMESH_CHAOS_CLOCK");
  real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
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
