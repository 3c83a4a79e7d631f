/*-------------------------------------------------------------------------
 *
 * sweep.c
 *	  One round of the sweep: mark lapsed leases, delete what is forgotten.
 *
 * There is no index to find such rows by, since one would cost every
 * completion its heap-only update.  Instead the sweep walks the table as a
 * clock's hand does: a round visits the next so many pages, whatever is in
 * them, so that its cost does not depend on the size of the table.
 *
 * First it reads some pages without locking anything and notes what is due.
 * Then it takes what it noted in short transactions: lock the row where it was
 * seen, unless somebody else has it, and write.  A row version never changes,
 * so one that could be locked is still what it was judged to be; any other one
 * is left alone, and met again in the next revolution.  Thus no caller loses
 * anything to the sweep: whoever was told "reserved" or true has made a new
 * version.
 *
 * The writing is plain SQL as the table's owner, with every trigger and
 * foreign key that an administrator added.  Where one of them objects, the
 * batch is repeated row by row.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_worker.h"

#include "access/relscan.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

/* Rows that are noted before they are taken, give or take a page */
#define IDEM_LIST			1024

/* Pages read before looking at the clock, and how long that may go on */
#define IDEM_STRETCH		64
#define IDEM_READ_USECS		(50 * 1000)

/*
 * Rows in one transaction: as many as keep it below the first of these times,
 * for a caller whose key is being tidied away waits no longer than
 * IDEM_BRIEF_WAIT.
 */
#define IDEM_BATCH_FIRST	32
#define IDEM_BATCH_LARGEST	256
#define IDEM_BATCH_USECS	(8 * 1000)

/*
 * The end of a round: no reading after the first, no writing after the second,
 * which only triggers that hang can get us to; and what one of those is given.
 * DROP DATABASE waits for us for five seconds.
 */
#define IDEM_ROUND_USECS	(1000 * 1000)
#define IDEM_ROUND_LATEST	(2500 * 1000)
#define IDEM_HANGING_MSECS	1000

/* Deletions of unknown outcomes that a round logs one by one */
#define IDEM_LOGGED			100

/* What is to be done with a row */
typedef enum Due
{
	NOTHING,
	MARK,						/* lapsed: to be "expired" */
	DELETE						/* past its memory */
} Due;

/* A round under way */
typedef struct Sweep
{
	IdemRound  *round;
	TimestampTz start;
	bool		planned;
	uint64		pages_left;
	int			batch_size;		/* of the next transaction, in rows */
	MemoryContext cxt;			/* of the list, and what is said of its rows */
	ItemPointerData *list;		/* rows that seem due */
	int			listed;
	int			list_size;
	int			logged;
	char	   *refusal;		/* what the first refusing row said */
} Sweep;

/* One transaction's rows */
typedef struct Batch
{
	IdemStore	store;
	Datum	   *marks;			/* their places */
	Datum	   *deletes;
	int			nmarks;
	int			ndeletes;
	List	   *forgotten;		/* messages, once it is true */
	char	   *key;			/* the last row's name */
} Batch;

static Due
due(const IdemRow *row)
{
	if (row->state == IDEM_STATE_ABSENT)
		return DELETE;
	if (row->status == IDEM_IN_PROGRESS && row->state == IDEM_STATE_UNKNOWN)
		return MARK;
	return NOTHING;
}

/*
 * Lock the table, and the extension against being dropped, without waiting for
 * anybody: then we cannot be part of a deadlock.
 */
static IdemRoundEnd
lock_table(void)
{
	Oid			extension;
	Oid			again;
	Oid			relid = idem_store_locate(&extension);

	if (!OidIsValid(relid))
		return IDEM_ROUND_ABSENT;
	if (!ConditionalLockDatabaseObject(ExtensionRelationId, extension, 0,
									   AccessShareLock) ||
		!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return IDEM_ROUND_LOCKED;

	/* nobody can take it away any more, but did somebody? */
	if (idem_store_locate(&again) != relid || again != extension)
		return IDEM_ROUND_ABSENT;
	return IDEM_ROUND_DONE;
}

/* Begin a transaction as the table's owner.  False: the round is over. */
static bool
begin(Sweep *sweep, IdemStore *store)
{
	idem_worker_settle();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	sweep->round->end = lock_table();
	if (sweep->round->end != IDEM_ROUND_DONE)
	{
		CommitTransactionCommand();
		MemoryContextSwitchTo(sweep->cxt);
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	idem_store_open(store);
	store->writing = true;		/* lock_table() did that */
	SetUserIdAndSecContext(store->rel->rd_rel->relowner,
						   SECURITY_RESTRICTED_OPERATION);
	return true;
}

/* Commit as the owner, lest anything of his runs as somebody more powerful */
static void
finish(Sweep *sweep, IdemStore *store)
{
	idem_store_close(store);
	PopActiveSnapshot();
	CommitTransactionCommand();
	SetUserIdAndSecContext(GetSessionUserId(), 0);
	MemoryContextSwitchTo(sweep->cxt);

	/* or autovacuum would not hear of what we delete */
	pgstat_report_stat(true);
}

/* How far to go in this round, now that we see the table */
static void
plan(Sweep *sweep, BlockNumber table_pages)
{
	IdemHand   *hand = &sweep->round->hand;

	sweep->planned = true;
	sweep->pages_left = sweep->round->whole ? table_pages :
		Min(table_pages, (BlockNumber) idem_sweep_pages);
	sweep->round->table_pages = table_pages;

	/* anywhere: always at the start would neglect the end of a large table */
	if (hand->page == InvalidBlockNumber && table_pages > 0)
		hand->page = pg_prng_uint64_range(&pg_global_prng_state, 0,
										  table_pages - 1);
}

/* Note that the row at "tid" seems due */
static void
put_on_list(Sweep *sweep, ItemPointer tid)
{
	if (sweep->listed == sweep->list_size)
	{
		sweep->list_size *= 2;
		sweep->list = repalloc_huge(sweep->list,
									sweep->list_size * sizeof(ItemPointerData));
	}
	sweep->list[sweep->listed++] = *tid;
}

/* Read some pages from "first" on.  Returns how many. */
static BlockNumber
read_stretch(Sweep *sweep, Relation rel, BlockNumber first, BlockNumber count)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TimestampTz now = GetCurrentTimestamp();
	BlockNumber last = first;
	ItemPointerData from;
	ItemPointerData to;
	TableScanDesc scan;

	ItemPointerSet(&from, first, FirstOffsetNumber);
	ItemPointerSet(&to, first + count - 1, MaxOffsetNumber);
	scan = table_beginscan_tidrange(rel, GetActiveSnapshot(), &from, &to);
	while (table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot))
	{
		BlockNumber page = ItemPointerGetBlockNumber(&slot->tts_tid);
		IdemRow		row;

		/* full: this page is for the next time */
		if (page != last && sweep->listed >= IDEM_LIST)
		{
			count = page - first;
			break;
		}
		last = page;
		idem_row_read(&row, slot, now);
		if (due(&row) != NOTHING)
			put_on_list(sweep, &slot->tts_tid);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return count;
}

/* The hand has gone on; has it come round? */
static void
move_hand(Sweep *sweep, BlockNumber count, BlockNumber table_pages)
{
	IdemHand   *hand = &sweep->round->hand;
	TimestampTz now = GetCurrentTimestamp();

	sweep->round->pages += count;
	sweep->pages_left -= count;
	hand->page += count;
	hand->walked += count;
	if (hand->walked < table_pages)
		return;
	if (hand->started != 0)
		hand->revolution = now - hand->started;
	hand->started = now;
	hand->walked = 0;
}

static void
report_activity(BlockNumber page, BlockNumber table_pages)
{
	char		activity[80];

	snprintf(activity, sizeof(activity),
			 "sweeping idempotency keys: page %u of %u", page, table_pages);
	pgstat_report_activity(STATE_RUNNING, activity);
}

/*
 * Read the next pages, in a transaction of their own, and list what is due.
 * False: the round is over.
 */
static bool
list_due_rows(Sweep *sweep)
{
	IdemHand   *hand = &sweep->round->hand;
	TimestampTz end = GetCurrentTimestamp() + IDEM_READ_USECS;
	IdemStore	store;
	BlockNumber table_pages;

	if (!begin(sweep, &store))
		return false;
	table_pages = RelationGetNumberOfBlocks(store.rel);
	if (!sweep->planned)
		plan(sweep, table_pages);
	report_activity(hand->page, table_pages);
	if (table_pages == 0)
	{
		sweep->pages_left = 0;
		move_hand(sweep, 0, 0);
	}
	while (sweep->pages_left > 0 && sweep->listed < IDEM_LIST &&
		   GetCurrentTimestamp() < end)
	{
		BlockNumber count;

		/* past the end, which may also have come nearer */
		if (hand->page >= table_pages)
			hand->page = 0;
		count = Min(Min(IDEM_STRETCH, sweep->pages_left),
					table_pages - hand->page);
		count = read_stretch(sweep, store.rel, hand->page, count);
		move_hand(sweep, count, table_pages);
	}
	finish(sweep, &store);
	return true;
}

/* Remember what a locked row is called, and what goes with it */
static void
note_row(Sweep *sweep, Batch *batch, const IdemRow *row, Due what)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(sweep->cxt);
	Datum	   *values = row->slot->tts_values;

	batch->key = psprintf("key \"%s\" in scope \"%s\"",
						  TextDatumGetCString(values[Anum_idem_key - 1]),
						  TextDatumGetCString(values[Anum_idem_scope - 1]));
	if (what == DELETE &&
		(row->status == IDEM_IN_PROGRESS || row->status == IDEM_EXPIRED))
		batch->forgotten =
			lappend(batch->forgotten,
					psprintf("%s, attempt %d of %s, owner \"%s\"",
							 batch->key, row->attempt,
							 timestamptz_to_str(DatumGetTimestampTz(values[Anum_idem_reserved_at - 1])),
							 NameStr(*DatumGetName(values[Anum_idem_owner - 1]))));
	MemoryContextSwitchTo(oldcxt);
}

/* Lock the row at "tid" if it is there, due, and nobody else's */
static Due
lock_row(Sweep *sweep, Batch *batch, ItemPointer tid, TupleTableSlot *slot)
{
	Relation	rel = batch->store.rel;
	Snapshot	snapshot = GetActiveSnapshot();
	TM_FailureData tmfd;
	IdemRow		row;
	Due			what;

	/* VACUUM may have taken it away since, and the end of the table with it */
	if (ItemPointerGetBlockNumber(tid) >= RelationGetNumberOfBlocks(rel) ||
		!table_tuple_fetch_row_version(rel, tid, snapshot, slot))
		return NOTHING;
	idem_row_read(&row, slot, GetCurrentTimestamp());
	what = due(&row);
	if (what == NOTHING)
		return NOTHING;

	/* the weaker lock is no obstacle to those who merely refer to the row */
	if (table_tuple_lock(rel, tid, snapshot, slot, GetCurrentCommandId(false),
						 what == DELETE ? LockTupleExclusive :
						 LockTupleNoKeyExclusive,
						 LockWaitSkip, 0, &tmfd) != TM_Ok)
		return NOTHING;
	slot_getallattrs(slot);
	note_row(sweep, batch, &row, what);
	return what;
}

/* Run one statement on the locked rows; "ttl" is the second parameter */
static void
write_rows(Batch *batch, const char *format, Datum *tids, int n)
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
				 errmsg("a trigger or rule on table \"%s\" suppressed the write",
						RelationGetRelationName(rel))));
}

/*
 * Let deferred triggers fire with the others: at commit they would be refused,
 * for that is no place for what a mere user wrote in a superuser's session.
 */
static void
make_triggers_immediate(void)
{
	ConstraintsSetStmt *all = makeNode(ConstraintsSetStmt);

	all->constraints = NIL;
	all->deferred = false;
	AfterTriggerSetState(all);
}

/* Mark and delete in one transaction.  False: the round is over. */
static bool
write_batch(Sweep *sweep, Batch *batch, ItemPointerData *tids, int n)
{
	TupleTableSlot *slot;

	if (!begin(sweep, &batch->store))
		return false;

	batch->marks = palloc(n * sizeof(Datum));
	batch->deletes = palloc(n * sizeof(Datum));
	slot = table_slot_create(batch->store.rel, NULL);
	for (int i = 0; i < n; i++)
	{
		Due			what = lock_row(sweep, batch, &tids[i], slot);

		if (what == MARK)
			batch->marks[batch->nmarks++] = PointerGetDatum(&tids[i]);
		else if (what == DELETE)
			batch->deletes[batch->ndeletes++] = PointerGetDatum(&tids[i]);
	}
	ExecDropSingleTupleTableSlot(slot);

	make_triggers_immediate();
	SPI_connect();
	write_rows(batch,
			   "DELETE FROM ONLY %s WHERE ctid OPERATOR(pg_catalog.=) ANY ($1)",
			   batch->deletes, batch->ndeletes);
	write_rows(batch,
			   "UPDATE ONLY %s SET status = 'expired', expires_at ="
			   " CASE WHEN $2 OPERATOR(pg_catalog.<) 0 THEN 'infinity'"
			   " ELSE expires_at OPERATOR(pg_catalog.+)"
			   " pg_catalog.make_interval(secs => $2) END"
			   " WHERE ctid OPERATOR(pg_catalog.=) ANY ($1)",
			   batch->marks, batch->nmarks);
	SPI_finish();
	finish(sweep, &batch->store);
	return true;
}

/* The transaction failed: clean up, and say why */
static ErrorData *
recover(Sweep *sweep)
{
	ErrorData  *error;

	MemoryContextSwitchTo(sweep->cxt);
	error = CopyErrorData();
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(sweep->cxt);
	pgstat_report_stat(true);
	return error;
}

/* The transaction is committed: count it, and log what cannot be undone */
static void
count_batch(Sweep *sweep, Batch *batch)
{
	IdemRound  *round = sweep->round;
	ListCell   *lc;

	round->expired += batch->nmarks;
	round->deleted += batch->ndeletes;
	round->forgotten += list_length(batch->forgotten);
	foreach(lc, batch->forgotten)
	{
		if (sweep->logged++ < IDEM_LOGGED)
			ereport(LOG,
					(errmsg("idempotency key of unknown outcome was forgotten: %s",
							(char *) lfirst(lc))));
	}
}

/*
 * Mark and delete rows.  Returns NULL if that went well, or what was raised;
 * what the batch was about is left in "batch" either way.
 */
static ErrorData *
try_batch(Sweep *sweep, Batch *batch, ItemPointerData *tids, int n)
{
	ErrorData  *volatile error = NULL;

	memset(batch, 0, sizeof(Batch));
	enable_timeout_after(STATEMENT_TIMEOUT, IDEM_HANGING_MSECS);
	PG_TRY();
	{
		if (write_batch(sweep, batch, tids, n))
			count_batch(sweep, batch);
	}
	PG_CATCH();
	{
		error = recover(sweep);
	}
	PG_END_TRY();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	return error;
}

/* Something about one row objected to its being swept */
static void
note_refusal(Sweep *sweep, Batch *batch, ErrorData *error)
{
	/* somebody has what it takes, for the moment */
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED)
		return;

	if (sweep->refusal == NULL)
		sweep->refusal = MemoryContextStrdup(TopMemoryContext,
											 psprintf("%s: %s",
													  batch->key ? batch->key : "unknown row",
													  error->message));
	sweep->round->refused++;
}

/* Aim at a duration: half as many rows if it took longer, or up to twice */
static void
adapt_batch_size(Sweep *sweep, int64 usecs)
{
	if (usecs > IDEM_BATCH_USECS)
		sweep->batch_size = Max(sweep->batch_size / 2, 1);
	else if (usecs < IDEM_BATCH_USECS / 3)
		sweep->batch_size = Min(sweep->batch_size * 2, IDEM_BATCH_LARGEST);
}

static bool
may_write(Sweep *sweep)
{
	CHECK_FOR_INTERRUPTS();
	return sweep->round->end == IDEM_ROUND_DONE &&
		(sweep->round->whole ||
		 GetCurrentTimestamp() < sweep->start + IDEM_ROUND_LATEST);
}

/* A batch failed: which of its rows was it? */
static void
write_one_by_one(Sweep *sweep, ItemPointerData *tids, int n)
{
	for (int i = 0; i < n && may_write(sweep); i++)
	{
		Batch		batch;
		ErrorData  *error = try_batch(sweep, &batch, &tids[i], 1);

		if (error)
			note_refusal(sweep, &batch, error);
	}
}

/*
 * Take what is on the list, in batches.  We begin anywhere in it: if triggers
 * hang and time runs out, it will be others that are left next time.
 */
static void
write_list(Sweep *sweep)
{
	int			turn = sweep->listed <= 1 ? 0 :
		pg_prng_uint64_range(&pg_global_prng_state, 0, sweep->listed - 1);
	ItemPointerData *tids = MemoryContextAllocHuge(sweep->cxt,
												   (sweep->listed + 1) * sizeof(ItemPointerData));
	int			n;

	memcpy(tids, sweep->list + turn,
		   (sweep->listed - turn) * sizeof(ItemPointerData));
	memcpy(tids + sweep->listed - turn, sweep->list,
		   turn * sizeof(ItemPointerData));

	for (int i = 0; i < sweep->listed && may_write(sweep); i += n)
	{
		TimestampTz start = GetCurrentTimestamp();
		Batch		batch;

		n = Min(sweep->batch_size, sweep->listed - i);
		if (try_batch(sweep, &batch, tids + i, n) == NULL)
			adapt_batch_size(sweep, GetCurrentTimestamp() - start);
		else
			write_one_by_one(sweep, tids + i, n);
	}
}

/* One line for what was skipped in the round, and for what was not logged */
static void
log_round(Sweep *sweep)
{
	IdemRound  *round = sweep->round;

	if (round->refused > 0)
		ereport(LOG,
				(errmsg("%lld idempotency keys could not be swept and were skipped",
						(long long) round->refused),
				 errdetail_log("The first was %s.", sweep->refusal)));
	if (sweep->logged > IDEM_LOGGED)
		ereport(LOG,
				(errmsg("%d more idempotency keys of unknown outcome were forgotten",
						sweep->logged - IDEM_LOGGED)));
}

static bool
may_read(Sweep *sweep)
{
	return may_write(sweep) &&
		(!sweep->planned || sweep->pages_left > 0) &&
		(sweep->round->whole ||
		 GetCurrentTimestamp() < sweep->start + IDEM_ROUND_USECS);
}

/*
 * Sweep as the order in "round" has it, and fill in the result.  The caller is
 * a process that does nothing else, connected to the database as a superuser
 * and outside a transaction.
 */
void
idem_sweep_round(IdemRound *round)
{
	Sweep		sweep = {.round = round,.batch_size = IDEM_BATCH_FIRST};

	sweep.start = GetCurrentTimestamp();
	sweep.cxt = AllocSetContextCreate(TopMemoryContext, "idem_tool sweep",
									  ALLOCSET_DEFAULT_SIZES);
	round->end = IDEM_ROUND_DONE;
	while (may_read(&sweep))
	{
		MemoryContextReset(sweep.cxt);
		MemoryContextSwitchTo(sweep.cxt);
		sweep.list_size = IDEM_LIST + MaxHeapTuplesPerPage;
		sweep.list = palloc(sweep.list_size * sizeof(ItemPointerData));
		sweep.listed = 0;
		if (list_due_rows(&sweep))
			write_list(&sweep);
	}
	round->cut_short = sweep.pages_left > 0;
	log_round(&sweep);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(sweep.cxt);
	idem_stats_round(round, sweep.start);
}
