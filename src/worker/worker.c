/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A process for one round in one database.
 *
 * It connects, sweeps for about a second and is gone: DROP DATABASE and CREATE
 * DATABASE ... TEMPLATE, which want nobody to be connected, need not wait for
 * longer.  What is to be done it finds in a segment of shared memory that
 * belongs to whoever started it, and so does the result: the launcher, or a
 * session that called idem_sweep().
 *
 *-------------------------------------------------------------------------
 */
#include "worker/idem_worker.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"

PG_FUNCTION_INFO_V1(idem_sweep);

/*
 * Start a worker for the round in the segment with this handle.  NULL if all
 * of max_worker_processes are in use.
 */
BackgroundWorkerHandle *
idem_worker_start(IdemRound *round, uint32 segment)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = UInt32GetDatum(segment);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, IDEM_EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "idem_worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idem_tool worker", BGW_MAXLEN);
	snprintf(worker.bgw_name, BGW_MAXLEN, "idem_tool worker for database %u",
			 round->database);
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

/* May there be a round?  What was set for the database decides. */
static IdemRoundEnd
conditions(IdemRound *round)
{
	if (round->whole)
		return IDEM_ROUND_DONE;
	if (!idem_worker)
		return IDEM_ROUND_OFF;
	if (DefaultXactReadOnly)
		return IDEM_ROUND_READ_ONLY;
	return IDEM_ROUND_DONE;
}

/* Leave word of an error, as much of it as there is room for */
static void
tell(IdemRound *round, const char *message)
{
	int			len = pg_mbcliplen(message, strlen(message),
								   sizeof(round->error) - 1);

	memcpy(round->error, message, len);
	round->error[len] = '\0';
}

/* Do the round; an error is logged as usual and told to whoever waits */
static void
sweep(IdemRound *round)
{
	PG_TRY();
	{
		idem_sweep_round(round);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		tell(round, error->message);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * A tag for the one worker that may have a round in the database, or for the
 * one session that may have a sweep of its own there.
 */
static void
set_sweep_tag(LOCKTAG *tag, Oid database, bool whole)
{
	SET_LOCKTAG_ADVISORY(*tag, database, whole ? 1 : 0, 0, IDEM_LOCK_SWEEP);
}

/*
 * Be the only worker that the launcher has here.  One that cannot even be
 * terminated is left behind, and must not become many.
 */
static bool
lock_round(void)
{
	LOCKTAG		tag;

	set_sweep_tag(&tag, MyDatabaseId, false);
	return LockAcquire(&tag, ExclusiveLock, true, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/* Entry point of the process */
void
idem_worker_main(Datum main_arg)
{
	dsm_segment *segment;
	IdemRound  *round;
	IdemRoundEnd end;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* whoever wanted it may be gone already */
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);
	round = dsm_segment_address(segment);

	BackgroundWorkerInitializeConnectionByOid(round->database, InvalidOid, 0);
	if (round->whole)
	{
		char		ttl[12];

		pg_ltoa(round->unknown_ttl, ttl);
		SetConfigOption("idem_tool.unknown_ttl", ttl, PGC_SUSET,
						PGC_S_SESSION);
	}

	/* until a round is over it counts as one that died */
	if (!round->whole && !lock_round())
		proc_exit(0);
	end = conditions(round);
	if (end == IDEM_ROUND_DONE)
		sweep(round);
	else
		round->end = end;
	proc_exit(0);
}

/* The caller is leaving while his worker is at it */
static void
terminate_worker(int code, Datum arg)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(arg));
}

/* Wait for the worker's end; it does not outlive us */
static void
wait_for_worker(BackgroundWorkerHandle *handle)
{
	PG_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(handle));
	{
		if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
			proc_exit(1);
	}
	PG_END_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(handle));
}

/* Have a worker do the round, if there is a free process, and wait for it */
static void
do_round(IdemRound *round, dsm_handle segment)
{
	BackgroundWorkerHandle *handle = idem_worker_start(round, segment);

	if (handle == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no worker process is free for the sweep"),
				 errhint("Try again, or raise \"%s\".",
						 "max_worker_processes")));
	wait_for_worker(handle);
}

/* Raise an error unless the round was done */
static void
check_round(IdemRound *round)
{
	switch (round->end)
	{
		case IDEM_ROUND_DONE:
			break;
		case IDEM_ROUND_LOCKED:
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("table \"%s\" is locked", "idempotency_keys")));
			break;
		case IDEM_ROUND_ABSENT:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the sweep does not see extension \"%s\"",
							IDEM_EXTENSION_NAME),
					 errhint("Commit its creation first.")));
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the sweep was not finished"),
					 round->error[0] ? errdetail("%s", round->error) :
					 errhint("See the server log.")));
			break;
	}
}

/*
 * idem_sweep() → (expired, deleted, pages)
 *
 * One whole revolution, in a process of its own, since it takes many short
 * transactions and a function has only the caller's.  So it does not see what
 * the caller has not committed, and a rollback does not take it back.  Sweeps
 * of the same database wait for each other.  Errors: 25006, 53000 if there is
 * no free worker process, 55P03 if the table stays locked for seconds, 55000
 * if the sweep broke off.
 */
Datum
idem_sweep(PG_FUNCTION_ARGS)
{
	dsm_segment *segment;
	IdemRound  *round;
	TupleDesc	desc;
	LOCKTAG		tag;
	Datum		values[3];
	bool		nulls[3] = {0};

	PreventCommandIfReadOnly("idem_sweep()");
	PreventCommandDuringRecovery("idem_sweep()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	segment = dsm_create(sizeof(IdemRound), 0);
	round = dsm_segment_address(segment);
	memset(round, 0, sizeof(IdemRound));
	round->database = MyDatabaseId;
	round->whole = true;
	round->unknown_ttl = idem_unknown_ttl;

	/* or all of max_worker_processes could be taken up by sweeps of one table */
	set_sweep_tag(&tag, MyDatabaseId, true);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	do_round(round, dsm_segment_handle(segment));
	LockRelease(&tag, ExclusiveLock, false);
	check_round(round);

	values[0] = Int64GetDatum(round->expired);
	values[1] = Int64GetDatum(round->deleted);
	values[2] = Int64GetDatum(round->pages);
	dsm_detach(segment);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}
