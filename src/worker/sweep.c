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
 * First it reads some pages without locking anything and notes what is due;
 * then it takes what it noted in short transactions (batch.c).  Where a
 * trigger or a foreign key objects, the batch is repeated row by row.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/idem_worker.h"

#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "call/idem_call.h"

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
#define IDEM_BATCH_LARGEST	128
#define IDEM_BATCH_USECS	(4 * 1000)

/*
 * The end of a round: no reading after the first, no writing after the second,
 * which only triggers that hang can get us to.  DROP DATABASE waits for us for
 * five seconds, the launcher for four.
 */
#define IDEM_ROUND_USECS	(1000 * 1000)
#define IDEM_ROUND_LATEST	(2000 * 1000)

/*
 * How often somebody who called idem_sweep() tries to get the table, every 10
 * milliseconds: VACUUM locks it for a moment to shorten it.  The worker has
 * other databases to see to, and comes again anyway.
 */
#define IDEM_LOCK_ATTEMPTS	500
#define IDEM_LOCK_MSECS		10

/* Deletions of unknown outcomes that a round logs one by one */
#define IDEM_LOGGED			100

/* Old records of the audit that a round deletes, in some 20 ms */
#define IDEM_AUDIT_ROWS		500

/* A round under way */
typedef struct Sweep
{
	IdemRound  *round;
	IdemRoundEnd end;			/* as things stand */
	int64		start;			/* by idem_clock() */
	bool		planned;
	uint64		pages_left;
	int			batch_size;		/* of the next transaction, in rows */
	MemoryContext cxt;			/* of the list, and what is said of its rows */
	ItemPointerData *list;		/* rows that seem due */
	int			listed;
	int			list_size;
	int			logged;
	int			lock_attempts;	/* that failed */
	char	   *refusal;		/* what the first refusing row said */
} Sweep;

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
	scan = idem_beginscan_tidrange(rel, GetActiveSnapshot(), &from, &to);
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
		if (row.state != IDEM_STATE_ABSENT && idem_owner_is_gone(&row))
			sweep->round->hand.ownerless++;
		if (idem_row_due(&row) != IDEM_NOT_DUE)
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
	int64		now = idem_clock();

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
	hand->last_ownerless = hand->ownerless;
	hand->ownerless = 0;
}

static void
report_activity(BlockNumber page, BlockNumber table_pages)
{
	char		activity[80];

	snprintf(activity, sizeof(activity),
			 "sweeping idempotency keys: page %u of %u", page, table_pages);
	pgstat_report_activity(STATE_RUNNING, activity);
}

/* After a transaction that ended so: may it be tried again?  Then wait. */
static bool
try_again(Sweep *sweep, IdemRoundEnd end)
{
	sweep->end = end;
	if (end != IDEM_ROUND_LOCKED || !sweep->round->whole ||
		++sweep->lock_attempts > IDEM_LOCK_ATTEMPTS)
		return false;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 IDEM_LOCK_MSECS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * Read the next pages, in a transaction of their own, and list what is due.
 * False: the round is over.
 */
static bool
list_due_rows(Sweep *sweep)
{
	IdemHand   *hand = &sweep->round->hand;
	int64		end = idem_clock() + IDEM_READ_USECS;
	IdemBatch	batch;
	BlockNumber table_pages;

	while (try_again(sweep, idem_batch_begin(&batch)))
		;
	if (sweep->end != IDEM_ROUND_DONE)
		return false;
	table_pages = RelationGetNumberOfBlocks(batch.store.rel);
	if (!sweep->planned)
		plan(sweep, table_pages);
	report_activity(hand->page, table_pages);
	if (table_pages == 0)
	{
		sweep->pages_left = 0;
		move_hand(sweep, 0, 0);
	}
	while (sweep->pages_left > 0 && sweep->listed < IDEM_LIST &&
		   idem_clock() < end)
	{
		BlockNumber count;

		/* past the end, which may also have come nearer */
		if (hand->page >= table_pages)
			hand->page = 0;
		count = Min(Min(IDEM_STRETCH, sweep->pages_left),
					table_pages - hand->page);
		count = read_stretch(sweep, batch.store.rel, hand->page, count);
		move_hand(sweep, count, table_pages);
	}
	idem_batch_commit(&batch);
	return true;
}

/* The transaction is committed: count it, and log what cannot be undone */
static void
count_batch(Sweep *sweep, IdemBatch *batch)
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

/* Somebody has what it takes, for the moment */
static bool
is_passing(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/* Something about a row, or about the table, objected to the sweep */
static void
note_refusal(Sweep *sweep, IdemBatch *batch)
{
	if (is_passing(batch->error))
		return;
	if (sweep->refusal == NULL)
		sweep->refusal = MemoryContextStrdup(TopMemoryContext,
											 psprintf("%s%s%s",
													  batch->key ? batch->key : "",
													  batch->key ? ": " : "",
													  batch->error->message));
	sweep->round->refused += batch->nrows;
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
	return sweep->end == IDEM_ROUND_DONE &&
		(sweep->round->whole ||
		 idem_clock() < sweep->start + IDEM_ROUND_LATEST);
}

/* Take the rows at these places, once we get the table */
static void
write_rows(Sweep *sweep, IdemBatch *batch, ItemPointerData *tids, int n)
{
	do
		idem_batch_write(batch, tids, n);
	while (try_again(sweep, batch->end));
}

/* A batch failed: which of its rows was it? */
static void
write_one_by_one(Sweep *sweep, ItemPointerData *tids, int n)
{
	for (int i = 0; i < n && may_write(sweep); i++)
	{
		IdemBatch	batch;

		write_rows(sweep, &batch, &tids[i], 1);
		if (batch.error)
			note_refusal(sweep, &batch);
		else
			count_batch(sweep, &batch);
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
		int64		start = idem_clock();
		IdemBatch	batch;

		n = Min(sweep->batch_size, sweep->listed - i);
		write_rows(sweep, &batch, tids + i, n);
		if (batch.error && batch.looked)
		{
			write_one_by_one(sweep, tids + i, n);
			continue;
		}
		if (batch.error)
		{
			/* it is not about rows, and so about all of them */
			note_refusal(sweep, &batch);
			continue;
		}
		count_batch(sweep, &batch);
		adapt_batch_size(sweep, idem_clock() - start);
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
				 errdetail_log("First reason: %s.", sweep->refusal)));
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
		 idem_clock() < sweep->start + IDEM_ROUND_USECS);
}

/*
 * Delete the oldest records of the audit, which nobody else keeps bounded.  If
 * a trigger there objects, the keys are swept all the same.
 */
static void
trim_audit(Sweep *sweep)
{
	IdemBatch	batch;

	MemoryContextSwitchTo(sweep->cxt);
	idem_batch_trim_audit(&batch, IDEM_AUDIT_ROWS);
	if (batch.error && !is_passing(batch.error))
		ereport(LOG,
				(errmsg("old records of the audit could not be deleted: %s",
						batch.error->message)));
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
	TimestampTz began = GetCurrentTimestamp();

	sweep.start = idem_clock();
	sweep.cxt = AllocSetContextCreate(TopMemoryContext, "idem_tool sweep",
									  ALLOCSET_DEFAULT_SIZES);
	sweep.end = IDEM_ROUND_DONE;
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
	if (sweep.end == IDEM_ROUND_DONE)
		trim_audit(&sweep);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(sweep.cxt);
	round->end = sweep.end;
	idem_stats_round(round, began, idem_clock() - sweep.start);
}
