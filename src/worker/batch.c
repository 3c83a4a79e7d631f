/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The transactions of the sweep: take some rows and write them.
 *
 * A row is taken where it was seen, unless somebody else has it: deleted at
 * once, or locked and then written.  A row version never changes, so one that
 * could be taken is still what it was judged to be; any other one is left
 * alone, and met again in the next revolution.  Thus no caller loses anything
 * to the sweep: whoever was told "reserved" or true has made a new version.
 *
 * The writing is plain SQL as the table's owner, with every trigger and
 * foreign key that an administrator added, and with none of a stranger's; only
 * deletions that no such thing could notice are none.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/idem_worker.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "operate/idem_operate.h"

/* What a trigger that hangs is given */
#define IDEM_HANGING_MSECS	1000

/* What is to be done with a row? */
IdemDue
idem_row_due(const IdemRow *row)
{
	if (row->state == IDEM_STATE_ABSENT)
		return IDEM_DELETE;
	if (row->status == IDEM_IN_PROGRESS && row->state == IDEM_STATE_UNKNOWN)
		return IDEM_MARK;
	return IDEM_NOT_DUE;
}

/*
 * Settle the session as autovacuum does, whatever was set for the database or
 * by an administrator's trigger in the last transaction.
 *
 * Commits need not be waited for, which keeps row locks short: a sweep that is
 * lost in a crash is simply repeated, since it changes no answer.
 */
void
idem_batch_settle(void)
{
	static const struct
	{
		const char *name;
		const char *value;
	}			settings[] =
	{
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"synchronous_commit", "off"},
		{"lock_timeout", "10ms"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
		IDEM_NEWER_TIMEOUTS
		{"row_security", "on"},
		{"enable_seqscan", "off"},
		{"jit", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i].name, settings[i].value,
						PGC_SUSET, PGC_S_SESSION);
}

/*
 * Lock the table without waiting for anybody: then we cannot be part of a
 * deadlock.  That keeps the extension as well, for DROP EXTENSION locks the
 * table before it takes anything away.  The extension has a lock of its own,
 * but whoever may create a temporary function can hold it, and we would be
 * stopped by a role that has nothing to do with us.
 */
static IdemRoundEnd
lock_table(void)
{
	Oid			extension;
	Oid			again;
	Oid			relid = idem_store_locate(&extension);

	if (!OidIsValid(relid))
		return IDEM_ROUND_ABSENT;
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return IDEM_ROUND_LOCKED;

	/* nobody can take it away any more, but did somebody? */
	if (idem_store_locate(&again) != relid || again != extension)
		return IDEM_ROUND_ABSENT;
	return IDEM_ROUND_DONE;
}

/*
 * Begin a transaction with the table open, as its owner.  The round is over
 * unless this returns IDEM_ROUND_DONE.
 */
IdemRoundEnd
idem_batch_begin(IdemBatch *batch)
{
	IdemRoundEnd end;

	batch->cxt = CurrentMemoryContext;
	idem_batch_settle();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	end = lock_table();
	if (end != IDEM_ROUND_DONE)
	{
		CommitTransactionCommand();
		MemoryContextSwitchTo(batch->cxt);
		return end;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	idem_store_open(&batch->store, NULL);
	batch->store.writing = true;	/* lock_table() did that */
	SetUserIdAndSecContext(batch->store.rel->rd_rel->relowner,
						   SECURITY_RESTRICTED_OPERATION);
	return end;
}

/* Commit as the owner, lest anything of his runs as somebody more powerful */
void
idem_batch_commit(IdemBatch *batch)
{
	idem_store_close(&batch->store);
	PopActiveSnapshot();
	CommitTransactionCommand();
	SetUserIdAndSecContext(GetSessionUserId(), 0);
	MemoryContextSwitchTo(batch->cxt);

	/* or autovacuum would not hear of what we delete */
	pgstat_report_stat(true);
}

/* Remember what a taken row is called, and what goes with it */
static void
note_row(IdemBatch *batch, const IdemRow *row, IdemDue what)
{
	bool		forgotten = what == IDEM_DELETE &&
		(row->status == IDEM_IN_PROGRESS || row->status == IDEM_EXPIRED);
	Datum	   *values = row->slot->tts_values;
	MemoryContext oldcxt;

	/* of several rows, only what is going to be logged */
	if (!forgotten && batch->nrows > 1)
		return;

	oldcxt = MemoryContextSwitchTo(batch->cxt);
	batch->key = psprintf("key \"%s\" in scope \"%s\"",
						  TextDatumGetCString(values[Anum_idem_key - 1]),
						  TextDatumGetCString(values[Anum_idem_scope - 1]));
	if (forgotten)
		batch->forgotten =
			lappend(batch->forgotten,
					psprintf("%s, attempt %d of %s, owner \"%s\"",
							 batch->key, row->attempt,
							 timestamptz_to_str(DatumGetTimestampTz(values[Anum_idem_reserved_at - 1])),
							 TextDatumGetCString(values[Anum_idem_owner - 1])));
	MemoryContextSwitchTo(oldcxt);
}

/*
 * Can rows be deleted without a statement?  Where a DELETE would do nothing but
 * that, this saves it, and the record of the row's lock in the WAL.  Foreign
 * keys that refer to the table are triggers; a table with rules is not opened.
 */
static bool
may_delete_directly(Relation rel)
{
	return rel->trigdesc == NULL &&
		!rel->rd_rel->relforcerowsecurity &&
		pg_class_aclcheck(RelationGetRelid(rel), rel->rd_rel->relowner,
						  ACL_DELETE) == ACLCHECK_OK;
}

/*
 * Get ready to do it.  The planner would lock the indexes, and so do we: to
 * find the columns of the replica identity they are opened while the page is
 * locked, when nobody could see that we wait, nor end it.
 */
static void
prepare_deletions(IdemBatch *batch)
{
	batch->direct = may_delete_directly(batch->store.rel);
	if (batch->direct)
		idem_store_lock_indexes(&batch->store);
}

/*
 * Get hold of the row, unless somebody else has it or has changed it: delete it
 * if that can be done directly, else lock it.
 */
static TM_Result
take_row(IdemBatch *batch, ItemPointer tid, TupleTableSlot *slot, IdemDue what)
{
	Relation	rel = batch->store.rel;
	Snapshot	snapshot = GetActiveSnapshot();
	TM_FailureData tmfd;

	if (what == IDEM_DELETE && batch->direct)
	{
		CheckCmdReplicaIdentity(rel, CMD_DELETE);
		return idem_tuple_delete_nowait(rel, tid, GetCurrentCommandId(true),
										snapshot, &tmfd);
	}

	/* the weaker lock is no obstacle to those who merely refer to the row */
	return table_tuple_lock(rel, tid, snapshot, slot,
							GetCurrentCommandId(false),
							what == IDEM_DELETE ? LockTupleExclusive :
							LockTupleNoKeyExclusive,
							LockWaitSkip, 0, &tmfd);
}

/* Take the row at "tid" if it is there, due, and nobody else's */
static IdemDue
take_if_due(IdemBatch *batch, ItemPointer tid, TupleTableSlot *slot)
{
	Relation	rel = batch->store.rel;
	IdemRow		row;
	IdemDue		what;

	/* VACUUM may have taken it away since, and the end of the table with it */
	if (ItemPointerGetBlockNumber(tid) >= RelationGetNumberOfBlocks(rel) ||
		!table_tuple_fetch_row_version(rel, tid, GetActiveSnapshot(), slot))
		return IDEM_NOT_DUE;
	idem_row_read(&row, slot, GetCurrentTimestamp());
	what = idem_row_due(&row);
	if (what == IDEM_NOT_DUE || take_row(batch, tid, slot, what) != TM_Ok)
		return IDEM_NOT_DUE;
	slot_getallattrs(slot);
	note_row(batch, &row, what);
	return what;
}

/* Run one statement on the locked rows; "ttl" is the second parameter */
static void
write_rows(IdemBatch *batch, const char *format, Datum *tids, int n)
{
	Relation	rel = batch->store.rel;
	const char *table = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
												   RelationGetRelationName(rel));
	Oid			types[2] = {TIDARRAYOID, INT4OID};
	Datum		values[2];

	if (n == 0)
		return;
	values[0] = PointerGetDatum(construct_array(tids, n, TIDOID,
												sizeof(ItemPointerData),
												false, TYPALIGN_SHORT));
	values[1] = Int32GetDatum(idem_unknown_ttl);
	if (SPI_execute_with_args(psprintf(format, table), 2, types, values, NULL,
							  false, 0) < 0 ||
		SPI_processed != n)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s on table \"%s\" suppressed the write",
						check_enable_rls(RelationGetRelid(rel), InvalidOid, true) == RLS_ENABLED ?
						"row security, a trigger or a rule" :
						"a trigger or rule",
						RelationGetRelationName(rel))));
}

/*
 * Let deferred triggers fire with the others: at commit they would be refused,
 * for that is no place for what a mere user wrote in a superuser's session.
 * This process has no others under way than those of its own writes.
 */
static void
make_triggers_immediate(void)
{
	ConstraintsSetStmt *all = makeNode(ConstraintsSetStmt);

	all->constraints = NIL;
	all->deferred = false;
	AfterTriggerSetState(all);
}

/* Take those of the rows that are due */
static void
take_rows(IdemBatch *batch)
{
	TupleTableSlot *slot = table_slot_create(batch->store.rel, NULL);

	batch->marks = palloc(batch->nrows * sizeof(Datum));
	batch->deletes = palloc(batch->nrows * sizeof(Datum));
	for (int i = 0; i < batch->nrows; i++)
	{
		IdemDue		what = take_if_due(batch, &batch->tids[i], slot);

		if (what == IDEM_MARK)
			batch->marks[batch->nmarks++] = PointerGetDatum(&batch->tids[i]);
		else if (what == IDEM_DELETE)
			batch->deletes[batch->ndeletes++] = PointerGetDatum(&batch->tids[i]);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/* Mark and delete in one transaction */
static IdemRoundEnd
write_batch(IdemBatch *batch)
{
	IdemRoundEnd end = idem_batch_begin(batch);

	if (end != IDEM_ROUND_DONE)
		return end;

	idem_check_triggers(batch->store.rel);
	idem_check_cascades(batch->store.rel);
	prepare_deletions(batch);
	batch->looked = true;
	take_rows(batch);
	make_triggers_immediate();
	SPI_connect();
	write_rows(batch,
			   "DELETE FROM ONLY %s WHERE ctid OPERATOR(pg_catalog.=) ANY ($1)",
			   batch->deletes, batch->direct ? 0 : batch->ndeletes);
	write_rows(batch,
			   "UPDATE ONLY %s SET status = 'expired', expires_at ="
			   " CASE WHEN $2 OPERATOR(pg_catalog.<) 0 THEN 'infinity'"
			   " ELSE expires_at OPERATOR(pg_catalog.+)"
			   " pg_catalog.make_interval(secs => $2) END"
			   " WHERE ctid OPERATOR(pg_catalog.=) ANY ($1)",
			   batch->marks, batch->nmarks);
	SPI_finish();
	idem_batch_commit(batch);
	return end;
}

/* The transaction failed: clean up, and say why */
static ErrorData *
recover(IdemBatch *batch)
{
	ErrorData  *error;

	MemoryContextSwitchTo(batch->cxt);
	error = CopyErrorData();
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(batch->cxt);
	pgstat_report_stat(true);
	return error;
}

/*
 * Do the work of one transaction.  A trigger that hangs is given up; an error,
 * whoever's it is, undoes the transaction and is left in "batch".
 */
static void
run(IdemBatch *batch, IdemRoundEnd (*work) (IdemBatch *batch))
{
	enable_timeout_after(STATEMENT_TIMEOUT, IDEM_HANGING_MSECS);
	PG_TRY();
	{
		batch->end = work(batch);
	}
	PG_CATCH();
	{
		batch->error = recover(batch);
		batch->end = IDEM_ROUND_DONE;
	}
	PG_END_TRY();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
}

/*
 * Mark and delete the rows at these places, as far as they are due and nobody
 * else's.  The result is in "batch"; if that has an error, nothing was done.
 */
void
idem_batch_write(IdemBatch *batch, ItemPointerData *tids, int n)
{
	memset(batch, 0, sizeof(IdemBatch));
	batch->tids = tids;
	batch->nrows = n;
	run(batch, write_batch);
}

static IdemRoundEnd
trim_audit(IdemBatch *batch)
{
	IdemRoundEnd end = idem_batch_begin(batch);

	if (end != IDEM_ROUND_DONE)
		return end;
	(void) idem_audit_trim(batch->nrows);
	idem_batch_commit(batch);
	return end;
}

/* Delete the oldest records of the audit, "max_rows" of them at most */
void
idem_batch_trim_audit(IdemBatch *batch, int max_rows)
{
	memset(batch, 0, sizeof(IdemBatch));
	batch->nrows = max_rows;
	run(batch, trim_audit);
}
