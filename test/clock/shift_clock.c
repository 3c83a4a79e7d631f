/*
 * shift_clock.c
 *	  Let a program live at another time of day.
 *
 * Preloaded (LD_PRELOAD), this library moves CLOCK_REALTIME and whatever is
 * read from it, and nothing else: CLOCK_MONOTONIC, timers and time-outs go on
 * as they are, which is what happens to a server whose clock is set.
 *
 *	IDEM_CLOCK_OFFSET	so many seconds, for the whole life of the process
 *	IDEM_CLOCK_FILE		a file of eight bytes, a signed number of nanoseconds
 *						in the machine's byte order; who writes to it sets the
 *						clock of all processes that have it, at once
 *
 * Both are inherited by child processes, and add up.  What cannot be used as
 * asked ends the program: a test at a wrong time would prove nothing.
 *
 *	cc -shared -fPIC -o shift_clock.so shift_clock.c
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NSEC_PER_SEC	INT64_C(1000000000)
#define NSEC_PER_USEC	1000

static const int64_t no_offset = 0;
static int64_t fixed_offset = 0;
static const volatile int64_t *mapped_offset = &no_offset;

static void
give_up(const char *name, const char *value)
{
	fprintf(stderr, "shift_clock: cannot use %s=%s: %s\n", name, value,
			strerror(errno));
	_exit(127);
}

/* Stays mapped for as long as the process lives */
static const int64_t *
map_offset(const char *path)
{
	int			file = open(path, O_RDONLY | O_CLOEXEC);
	void	   *mapped;

	if (file < 0)
		return NULL;
	mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	close(file);
	return mapped == MAP_FAILED ? NULL : mapped;
}

__attribute__((constructor)) static void
read_environment(void)
{
	const char *seconds = getenv("IDEM_CLOCK_OFFSET");
	const char *path = getenv("IDEM_CLOCK_FILE");
	char	   *end;

	if (seconds != NULL)
	{
		fixed_offset = strtoll(seconds, &end, 10) * NSEC_PER_SEC;
		if (*seconds == '\0' || *end != '\0')
		{
			errno = EINVAL;
			give_up("IDEM_CLOCK_OFFSET", seconds);
		}
	}
	if (path != NULL && (mapped_offset = map_offset(path)) == NULL)
		give_up("IDEM_CLOCK_FILE", path);
}

/*
 * The kernel's answer by the system call itself: the C library's function of
 * this name is the one that is replaced.
 */
int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int64_t		nsec;

	if (syscall(SYS_clock_gettime, clock, now) != 0)
		return -1;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
	{
		nsec = now->tv_sec * NSEC_PER_SEC + now->tv_nsec +
			fixed_offset + *mapped_offset;
		now->tv_sec = nsec / NSEC_PER_SEC;
		now->tv_nsec = nsec % NSEC_PER_SEC;
	}
	return 0;
}

/* The second argument is obsolete, and of a type that varies */
int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / NSEC_PER_USEC;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now != NULL)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
