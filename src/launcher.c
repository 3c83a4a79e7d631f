/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  One process for the server, which sees to it that every database is
 *	  swept.
 *
 * It is connected to no database and so in nobody's way.  Every naptime it
 * reads the list of databases and starts a worker in each that is due, one at
 * a time, waiting for its end:
 *
 *	due -> worker runs -> done ............ due again after naptime, or soon
 *											if time did not suffice
 *						-> nothing to do .. due again later (IDEM_LONG_NAP)
 *						-> died ........... due again later each time
 *
 * A database with nothing to do has no idem_tool, or it is switched off there.
 * CREATE EXTENSION and a reload of the configuration make everything due.
 *
 * Only one launcher runs: it holds a lock for as long as it lives.  It is
 * registered when the library is preloaded, and by idem_start_worker() until
 * the server stops otherwise.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_worker.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

/* Seconds until the launcher comes back after it was terminated or failed */
#define IDEM_RESTART_SECS	5

/* Between two rounds while there is more to do than one can */
#define IDEM_SHORT_NAP		(USECS_PER_SEC / 10)

/* When a database that had nothing to do is looked at again */
#define IDEM_LONG_NAP		(60 * USECS_PER_SEC)

/* The longest wait after workers that died one after the other */
#define IDEM_LONGEST_NAP	(300 * USECS_PER_SEC)

/* A worker lives for a second or two; this long only if something is wrong */
#define IDEM_WORKER_USECS	(30 * USECS_PER_SEC)

/* pg_database.datconnlimit of one whose DROP was interrupted */
#define IDEM_CONNLIMIT_INVALID	(-2)

PG_FUNCTION_INFO_V1(idem_start_worker);
PG_FUNCTION_INFO_V1(idem_wake_worker);

/* What the launcher knows of a database */
typedef struct DatabaseState
{
	Oid			oid;
	NameData	name;
	bool		listed;			/* in the list that was read last */
	bool		told;			/* that it is not swept, in the log */
	int			failures;		/* workers that died since one did not */
	TimestampTz due;
	IdemHand	hand;
} DatabaseState;

static HTAB *databases;

/* One message is enough for as long as there is no free worker process */
static bool told_no_worker = false;

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

static void
note_database(Form_pg_database form)
{
	DatabaseState *state;
	bool		found;

	if (form->datistemplate || !form->datallowconn ||
		form->datconnlimit == IDEM_CONNLIMIT_INVALID)
		return;

	state = hash_search(databases, &form->oid, HASH_ENTER, &found);
	if (!found)
	{
		memset((char *) state + sizeof(Oid), 0,
			   sizeof(DatabaseState) - sizeof(Oid));
		state->hand.page = InvalidBlockNumber;
	}
	state->name = form->datname;
	state->listed = true;
}

/* Forget databases that are not in the list, and what was counted of them */
static void
forget_databases(void)
{
	HASH_SEQ_STATUS seq;
	DatabaseState *state;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		if (!state->listed)
			(void) hash_search(databases, &state->oid, HASH_REMOVE, NULL);
	}

	for (int i = 0; idem_shared && i < IDEM_STATS_DATABASES; i++)
	{
		Oid			oid = idem_shared->databases[i].oid;

		if (OidIsValid(oid) &&
			!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(oid)))
			idem_stats_forget(oid);
	}
}

/*
 * Read pg_database, as autovacuum's launcher does.
 */
static void
list_databases(void)
{
	HASH_SEQ_STATUS seq;
	DatabaseState *state;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
		state->listed = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
		note_database((Form_pg_database) GETSTRUCT(tuple));
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	forget_databases();
	CommitTransactionCommand();
}

/*
 * Is it there, and can a worker connect at once?  While the database is being
 * dropped, renamed or copied it could only wait, and the others with it.
 */
static bool
is_accessible(Oid database)
{
	LOCKTAG		tag;
	bool		accessible;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	accessible = LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
	if (accessible)
	{
		AcceptInvalidationMessages();
		accessible = SearchSysCacheExists1(DATABASEOID,
										   ObjectIdGetDatum(database));
	}
	CommitTransactionCommand();
	return accessible;
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

/* Wait for the worker's end, but not for ever */
static void
wait_for_worker(BackgroundWorkerHandle *handle)
{
	TimestampTz end = GetCurrentTimestamp() + IDEM_WORKER_USECS;
	bool		terminated = false;
	pid_t		pid;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		if (GetCurrentTimestamp() >= end)
		{
			if (terminated)
				break;
			TerminateBackgroundWorker(handle);
			terminated = true;
			end = GetCurrentTimestamp() + IDEM_WORKER_USECS;
		}
		nap(USECS_PER_SEC);
	}
}

/* The round is over: when is the next one? */
static void
schedule(DatabaseState *state, IdemRound *round)
{
	int64		naptime = (int64) idem_naptime * 1000;
	int64		wait = naptime;

	switch (round->end)
	{
		case IDEM_ROUND_DIED:
			state->failures = Min(state->failures + 1, 20);
			wait = Min(Max(naptime, USECS_PER_SEC) << state->failures,
					   IDEM_LONGEST_NAP);

			/* whatever it was that killed it may be somewhere in the table */
			state->hand.page = InvalidBlockNumber;
			break;
		case IDEM_ROUND_ABSENT:
		case IDEM_ROUND_OFF:
			wait = Max(naptime, IDEM_LONG_NAP);
			break;
		case IDEM_ROUND_READ_ONLY:
			if (!state->told)
				ereport(LOG,
						(errmsg("idem_tool does not sweep database \"%s\" because \"%s\" is on",
								NameStr(state->name),
								"default_transaction_read_only")));
			state->told = true;
			break;
		case IDEM_ROUND_DONE:
		case IDEM_ROUND_LOCKED:
			state->hand = round->hand;
			if (round->cut_short)
				wait = Min(naptime, IDEM_SHORT_NAP);
			break;
	}
	if (round->end != IDEM_ROUND_DIED)
		state->failures = 0;
	if (round->end != IDEM_ROUND_READ_ONLY)
		state->told = false;
	state->due = GetCurrentTimestamp() + wait;
}

/* Have the database swept.  False if no worker process is free. */
static bool
serve(DatabaseState *state)
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
		wait_for_worker(handle);
		schedule(state, round);
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
	HASH_SEQ_STATUS seq;
	DatabaseState *state;
	List	   *due = NIL;
	ListCell   *lc;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		if (state->due <= GetCurrentTimestamp())
			due = lappend(due, state);
	}

	foreach(lc, due)
	{
		state = lfirst(lc);
		if (!is_accessible(state->oid))
			continue;
		if (!serve(state))
		{
			tell_no_worker();
			return;
		}
		told_no_worker = false;
	}
}

static void
make_all_due(void)
{
	HASH_SEQ_STATUS seq;
	DatabaseState *state;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
		state->due = 0;
}

/* Has anybody a reason to have everything looked at? */
static void
attend_to_news(void)
{
	static uint32 wakes_seen = 0;
	uint32		wakes = idem_shared ? pg_atomic_read_u32(&idem_shared->wakes) : 0;

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		make_all_due();
	}
	if (wakes != wakes_seen)
		make_all_due();
	wakes_seen = wakes;
}

/* How long until a database is due, or the list should be read again */
static int64
time_to_nap(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		usecs = (int64) idem_naptime * 1000;
	HASH_SEQ_STATUS seq;
	DatabaseState *state;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		/* those that were due and could not be served wait, too */
		if (state->due > now)
			usecs = Min(usecs, state->due - now);
	}
	return usecs;
}

static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&idem_shared->launcher, 0);
}

static void
prepare(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(DatabaseState);
	databases = hash_create("idem_tool databases", 64, &ctl,
							HASH_ELEM | HASH_BLOBS);
	if (idem_shared)
	{
		pg_atomic_write_u32(&idem_shared->launcher, MyProcPid);
		before_shmem_exit(leave, 0);
	}
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

	prepare();
	pgstat_report_activity(STATE_IDLE, "");
	loop = AllocSetContextCreate(TopMemoryContext, "idem_tool launcher",
								 ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextReset(loop);
		MemoryContextSwitchTo(loop);
		attend_to_news();
		list_databases();
		MemoryContextSwitchTo(loop);
		serve_databases();
		nap(time_to_nap());
	}
}

/*
 * idem_start_worker() → boolean
 *
 * Start the launcher of a server that has none, until it stops.  False: there
 * is one.  Errors: 25006 on a standby, 53000 if no worker process is free.
 */
Datum
idem_start_worker(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	pid_t		pid;

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
 * does it.  False: the library is not preloaded, and nobody listens.
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
	wake_at_commit = true;
	PG_RETURN_BOOL(true);
}
