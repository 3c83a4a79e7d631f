/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: counters, marks and hints of keys, the launcher.
 *
 * Exists only when the library is preloaded.  It starts afresh with the
 * server, and after a backend's crash.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/idem_shared.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define IDEM_SHMEM_NAME "idem_tool"

IdemShared *idem_shared = NULL;

static shmem_request_hook_type next_request_hook = NULL;
static shmem_startup_hook_type next_startup_hook = NULL;

/* Ask for the space */
static void
request(void)
{
	if (next_request_hook)
		next_request_hook();
	RequestAddinShmemSpace(MAXALIGN(sizeof(IdemShared)));
	RequestNamedLWLockTranche(IDEM_SHMEM_NAME, 1);
}

static void
init_database(IdemDatabase *database)
{
	SpinLockInit(&database->mutex);
	for (int i = 0; i < IDEM_STRIPES; i++)
	{
		for (int j = 0; j < IDEM_COUNTS; j++)
			pg_atomic_init_u64(&database->stripes[i].counts[j], 0);
	}
}

/* Take the space, and set it up if we are the first */
static void
startup(void)
{
	bool		found;

	if (next_startup_hook)
		next_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	idem_shared = ShmemInitStruct(IDEM_SHMEM_NAME, sizeof(IdemShared), &found);
	if (!found)
	{
		memset(idem_shared, 0, sizeof(IdemShared));
		idem_shared->lock = &(GetNamedLWLockTranche(IDEM_SHMEM_NAME))->lock;
		pg_atomic_init_u32(&idem_shared->launcher, 0);
		pg_atomic_init_u32(&idem_shared->wakes, 0);
		for (int i = 0; i < IDEM_MARKS; i++)
			pg_atomic_init_u64(&idem_shared->marks[i], 0);
		for (int i = 0; i < IDEM_STATS_DATABASES; i++)
			init_database(&idem_shared->databases[i]);
		idem_hints_init(idem_shared->hints, IDEM_SHARED_HINTS);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Called once, when the library is preloaded */
void
idem_shmem_init(void)
{
	next_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	next_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}
