/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  One process for the server, which sees to it that every database is
 *	  swept.
 *
 * It is connected to no database and so in nobody's way.  Every naptime it
 * reads the list of databases and starts a worker in each that is due, one at
 * a time, waiting for its end.  CREATE EXTENSION and a reload of the
 * configuration make everything due (databases.c has the details).
 *
 * Only one launcher runs: it holds a lock for as long as it lives.  It is
 * registered when the library is preloaded, and by idem_start_worker() until
 * the server stops otherwise.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/idem_worker.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* Seconds until the launcher comes back after it was terminated or failed */
#define IDEM_RESTART_SECS	5

/*
 * A worker lives for a second or two, and for three if a trigger hangs.  After
 * this long it is ended, and if that does not help we go on without it: other
 * databases are not to wait for what goes wrong in one.
 */
#define IDEM_WORKER_SECS	4
#define IDEM_DYING_SECS		1

/* However often idem_wake_worker() is called, we get up once in this time */
#define IDEM_WAKE_USECS		USECS_PER_SEC

PG_FUNCTION_INFO_V1(idem_start_worker);
PG_FUNCTION_INFO_V1(idem_wake_worker);

/* One message is enough for as long as there is no free worker process */
static bool told_no_worker = false;

/* Calls of idem_wake_worker() that we have attended to, and when to do so next */
static uint32 wakes_seen = 0;
static int64 next_wake = 0;

/* idem_wake_worker() was called in this transaction */
static bool wake_at_commit = false;

static void
describe_launcher(BackgroundWorker *worker)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = IDEM_RESTART_SECS;
	strlcpy(worker->bgw_library_name, IDEM_EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, "idem_launcher_main", BGW_MAXLEN);
	strlcpy(worker->bgw_type, "idem_tool launcher", BGW_MAXLEN);
	strlcpy(worker->bgw_name, "idem_tool launcher", BGW_MAXLEN);
}

/* Called once, when the library is preloaded */
void
idem_launcher_init(void)
{
	BackgroundWorker worker;

	describe_launcher(&worker);
	RegisterBackgroundWorker(&worker);
}

/* Be the only launcher.  False if there is one. */
static bool
lock_launcher(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, InvalidOid, 0, 0, IDEM_LOCK_LAUNCHER);
	return LockAcquire(&tag, ExclusiveLock, true, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_launcher(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, InvalidOid, 0, 0, IDEM_LOCK_LAUNCHER);
	LockRelease(&tag, ExclusiveLock, true);
}

static uint32
wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = idem_wait_event("IdemToolLauncherMain");
	return event;
}

/* Sleep until something happens, "usecs" at most; then attend to signals */
static void
nap(int64 usecs)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Max(usecs / 1000, 1), wait_event());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Wait for the worker's end, so many seconds at most.  True: it has ended. */
static bool
ends_within(BackgroundWorkerHandle *handle, int seconds)
{
	int64		end = idem_clock() + seconds * USECS_PER_SEC;
	pid_t		pid;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		int64		now = idem_clock();

		if (now >= end)
			return false;
		nap(end - now);
	}
	return true;
}

/*
 * Wait for the worker's end.  One that overstays is terminated, which a trigger
 * cannot catch as it can a cancellation.
 */
static void
wait_for_worker(BackgroundWorkerHandle *handle, IdemDatabaseState *state)
{
	if (ends_within(handle, IDEM_WORKER_SECS))
		return;
	TerminateBackgroundWorker(handle);
	ereport(LOG,
			(errmsg("idem_tool ended a worker in database \"%s\" that took longer than %d seconds",
					NameStr(state->name), IDEM_WORKER_SECS),
			 errhint("A trigger on a table of idem_tool might hang.")));
	(void) ends_within(handle, IDEM_DYING_SECS);
}

/* Have the database swept.  False if no worker process is free. */
static bool
serve(IdemDatabaseState *state)
{
	dsm_segment *segment;
	IdemRound  *round;
	BackgroundWorkerHandle *handle;
	char		activity[NAMEDATALEN + 32];

	segment = dsm_create(sizeof(IdemRound), 0);
	round = dsm_segment_address(segment);
	memset(round, 0, sizeof(IdemRound));
	round->database = state->oid;
	round->hand = state->hand;

	handle = idem_worker_start(round, dsm_segment_handle(segment));
	if (handle != NULL)
	{
		snprintf(activity, sizeof(activity), "sweeping database \"%s\"",
				 NameStr(state->name));
		pgstat_report_activity(STATE_RUNNING, activity);
		wait_for_worker(handle, state);
		idem_database_schedule(state, round);
		pfree(handle);
		pgstat_report_activity(STATE_IDLE, "");
	}
	dsm_detach(segment);
	return handle != NULL;
}

static void
tell_no_worker(void)
{
	if (!told_no_worker)
		ereport(LOG,
				(errmsg("idem_tool found no free worker process and will try again"),
				 errhint("You might need to increase \"%s\".",
						 "max_worker_processes")));
	told_no_worker = true;
}

/* Sweep every database whose turn it is */
static void
serve_databases(void)
{
	ListCell   *lc;

	foreach(lc, idem_databases_due())
	{
		IdemDatabaseState *state = lfirst(lc);

		if (!idem_database_accessible(state->oid))
			continue;
		if (!serve(state))
		{
			tell_no_worker();
			return;
		}
		told_no_worker = false;
	}
}

static uint32
wakes(void)
{
	return idem_shared ? pg_atomic_read_u32(&idem_shared->wakes) : 0;
}

/* Does anybody want everything looked at? */
static bool
has_news(void)
{
	return ConfigReloadPending ||
		(wakes() != wakes_seen && idem_clock() >= next_wake);
}

static void
attend_to_news(void)
{
	if (!has_news())
		return;
	wakes_seen = wakes();
	next_wake = idem_clock() + IDEM_WAKE_USECS;
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	idem_databases_all_due();
}

/* Sleep until a database is due or there is news, which is seldom the latch's */
static void
rest(void)
{
	int64		end = idem_clock() + idem_databases_nap();

	for (;;)
	{
		int64		now = idem_clock();
		int64		until = wakes() == wakes_seen ? end : Min(end, next_wake);

		if (has_news() || now >= end)
			break;
		nap(until - now);
	}
}

static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&idem_shared->launcher, 0);
}

/* Let idem_wake_worker() find us */
static void
announce(void)
{
	if (idem_shared == NULL)
		return;
	pg_atomic_write_u32(&idem_shared->launcher, MyProcPid);
	before_shmem_exit(leave, 0);
}

/*
 * Entry point of the process.  It ends by an error or by SIGTERM and is then
 * started again; with exit code 0 only if another launcher is there.
 */
void
idem_launcher_main(Datum main_arg)
{
	MemoryContext loop;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	if (!lock_launcher())
		proc_exit(0);

	announce();
	pgstat_report_activity(STATE_IDLE, "");
	loop = AllocSetContextCreate(TopMemoryContext, "idem_tool launcher",
								 ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextReset(loop);
		MemoryContextSwitchTo(loop);
		attend_to_news();
		idem_databases_list();
		MemoryContextSwitchTo(loop);
		serve_databases();
		rest();
	}
}

/*
 * idem_start_worker() → boolean
 *
 * Start the launcher of a server that has none, until it stops.  False: there
 * is one.  Errors: 42501 for all but superusers, since it is a process of the
 * server's and looks into every database, whoever may call the functions of
 * this one; 25006 on a standby, 53000 if no worker process is free.
 */
Datum
idem_start_worker(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	pid_t		pid;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to start the worker"),
				 errdetail("Only superusers may start a process that sweeps all databases."),
				 errhint("Call idem_sweep() in your database from time to time.")));
	PreventCommandDuringRecovery("idem_start_worker()");
	if (!lock_launcher())
		PG_RETURN_BOOL(false);
	unlock_launcher();

	describe_launcher(&worker);
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no worker process is free"),
				 errhint("You might need to increase \"%s\".",
						 "max_worker_processes")));
	if (WaitForBackgroundWorkerStartup(handle, &pid) != BGWH_STARTED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not start the worker"),
				 errhint("See the server log.")));
	PG_RETURN_BOOL(true);
}

/* Wake the launcher, if there is one */
static void
wake_launcher(void)
{
	uint32		pid = pg_atomic_read_u32(&idem_shared->launcher);
	PGPROC	   *proc = pid == 0 ? NULL : BackendPidGetProc(pid);

	pg_atomic_fetch_add_u32(&idem_shared->wakes, 1);
	if (proc != NULL)
		SetLatch(&proc->procLatch);
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && wake_at_commit)
		wake_launcher();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		wake_at_commit = false;
}

/*
 * idem_wake_worker() → boolean
 *
 * Have every database looked at once the transaction commits; CREATE EXTENSION
 * does it.  False: nobody listens, since the library is not preloaded or no
 * launcher is running at the moment, as on a standby.
 */
Datum
idem_wake_worker(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (idem_shared == NULL)
		PG_RETURN_BOOL(false);
	if (!registered)
		RegisterXactCallback(xact_callback, NULL);
	registered = true;

	/* in any case: one that is about to start may look before we commit */
	wake_at_commit = true;
	PG_RETURN_BOOL(pg_atomic_read_u32(&idem_shared->launcher) != 0);
}
