/*-------------------------------------------------------------------------
 *
 * reserve.c
 *	  idem_reserve: who may act under a key, and what do the others hear?
 *
 * A call makes one or more attempts.  Each looks at the key, judges what is
 * there in the order that the contract lays down, and either has an answer,
 * or must look again because the key changed under its hands, or finds the
 * key in somebody else's, for which it may wait.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "shared/idem_shared.h"

/* One call of idem_reserve_key() */
typedef struct ReserveCall
{
	const IdemReserveRequest *request;
	IdemReserveOutcome *outcome;	/* of the last attempt */
	uint64		mark;			/* of the key, from before its look */
	IdemWait	wait;
	int			conflicts;		/* insertions that met what no look finds */

	/* what it came to */
	TransactionId rival;		/* busy: whom to wait for, if known */
	TimestampTz next_event;		/* busy: the end of the lease in the way */
	bool		brief;			/* busy: probably not for long */
} ReserveCall;

/* What to do about the key as it was seen */
typedef enum Verdict
{
	REPLAY,						/* settled: the recorded outcome */
	IN_OUR_HANDS,				/* the current transaction's own reservation */
	TOO_LATE,					/* unknown outcome, takeover not permitted */
	BUSY,						/* in somebody else's hands */
	INSERT,						/* absent: a new row */
	REPLACE,					/* absent: a row past its memory is there */
	REOPEN,						/* released */
	TAKE_OVER					/* lapsed, expired, or our own dead attempt's */
} Verdict;

/* How an attempt ended */
typedef enum AttemptResult
{
	ANSWERED,
	LOOK_AGAIN,
	MUST_WAIT
} AttemptResult;

/* Until when may this key be taken over? */
static TimestampTz
takeover_end(ReserveCall *call, const IdemRow *row)
{
	const Interval *takeover = call->request->takeover;

	if (takeover == NULL)
		return idem_seconds_after(row->created_at, idem_takeover);
	return idem_interval_after("takeover", row->created_at, takeover);
}

/* The contract's order of judgement, once bad arguments are out of the way */
static Verdict
judge(ReserveCall *call, IdemLook *look, IdemStore *store)
{
	const IdemReserveRequest *request = call->request;
	const IdemRow *row = &look->row;
	bool		rival = TransactionIdIsValid(look->rival);

	if (row->state == IDEM_STATE_ABSENT)
		return rival ? BUSY : (look->found ? REPLACE : INSERT);

	/* lapsed or not: while we are here, nobody else can have it */
	if (row->status == IDEM_IN_PROGRESS &&
		idem_made_here(look, store, &request->key))
		return IN_OUR_HANDS;

	if (!idem_may_reserve(row))
		idem_report_denied(&request->key, row);

	if (request->fingerprint != NULL &&
		!row->slot->tts_isnull[Anum_idem_fingerprint - 1] &&
		!idem_column_equals(row->slot, Anum_idem_fingerprint, request->fingerprint))
		idem_report(IDEM_MISMATCH, &request->key, row);

	if (row->state == IDEM_STATE_DONE || row->state == IDEM_STATE_FAILED)
		return REPLAY;
	if (rival)
		return BUSY;
	if (row->state == IDEM_STATE_RELEASED)
		return REOPEN;
	if (row->state == IDEM_STATE_UNKNOWN ||
		idem_column_equals(row->slot, Anum_idem_holder, request->holder))
		return takeover_end(call, row) > look->now ? TAKE_OVER : TOO_LATE;

	/* a lease that we only extended here cannot end while we wait */
	return idem_written_here(look) ? IN_OUR_HANDS : BUSY;
}

/* Set the columns that stay with a key from its first reservation on */
static void
fill_new(ReserveCall *call, TupleTableSlot *slot, TimestampTz now)
{
	idem_row_set(slot, Anum_idem_scope, PointerGetDatum(call->request->key.scope));
	idem_row_set(slot, Anum_idem_key, PointerGetDatum(call->request->key.key));
	idem_row_set(slot, Anum_idem_attempt, Int32GetDatum(1));
	idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(false));
	idem_row_set(slot, Anum_idem_owner, PointerGetDatum(idem_owner_for_new()));
	idem_row_set(slot, Anum_idem_created_at, TimestampTzGetDatum(now));
	slot->tts_isnull[Anum_idem_fingerprint - 1] = true;
}

/* Count a further attempt at a key that is there */
static void
fill_next_attempt(TupleTableSlot *slot, const IdemRow *old, Verdict verdict)
{
	if (old->attempt == PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("too many attempts at one idempotency key")));
	idem_row_set(slot, Anum_idem_attempt, Int32GetDatum(old->attempt + 1));
	if (verdict == TAKE_OVER)
		idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(true));
}

/*
 * Make the reservation's row in the writer's slot.  The fencing token is taken
 * here, when nobody else can win the key any more.
 */
static void
fill_reservation(ReserveCall *call, IdemStore *store, TupleTableSlot *slot,
				 const IdemRow *old, Verdict verdict)
{
	TimestampTz now = GetCurrentTimestamp();
	const IdemReserveRequest *request = call->request;
	TimestampTz end = idem_ttl_end(IDEM_LEASE, request->ttl, now);
	int64		old_token = verdict == INSERT ? 0 : old->token;

	if (verdict != INSERT)
		idem_row_copy(slot, old);
	if (verdict == INSERT || verdict == REPLACE)
		fill_new(call, slot, now);
	else
		fill_next_attempt(slot, old, verdict);
	if (verdict == TAKE_OVER)
		end = Min(end, takeover_end(call, old));

	idem_row_set(slot, Anum_idem_status, idem_status_datum(IDEM_IN_PROGRESS));
	call->outcome->token = idem_next_token(store, old_token);
	idem_row_set(slot, Anum_idem_token, Int64GetDatum(call->outcome->token));
	if (slot->tts_isnull[Anum_idem_fingerprint - 1])
		idem_row_set_nullable(slot, Anum_idem_fingerprint,
							  PointerGetDatum(request->fingerprint),
							  request->fingerprint == NULL);
	idem_row_set_nullable(slot, Anum_idem_holder,
						  PointerGetDatum(request->holder),
						  request->holder == NULL);
	idem_row_set(slot, Anum_idem_reserved_at, TimestampTzGetDatum(now));
	idem_row_set(slot, Anum_idem_expires_at, TimestampTzGetDatum(end));
	slot->tts_isnull[Anum_idem_completed_at - 1] = true;
	slot->tts_isnull[Anum_idem_result - 1] = true;
}

/* Answer with "status" and the figures of the row */
static void
answer(ReserveCall *call, const IdemRow *row, IdemStatus status,
	   TimestampTz now)
{
	call->outcome->status = status;
	idem_answer(&call->outcome->answer, row, status, now);
}

/*
 * The key is ours.  Triggers may have changed the row: the answer is what was
 * stored, and if that is no reservation of this token, there is none.
 */
static void
answer_reserved(ReserveCall *call, TupleTableSlot *slot)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemRow		row;

	idem_row_read(&row, slot, now);
	idem_hint_note(&call->request->key, &slot->tts_tid);
	if (row.status != IDEM_IN_PROGRESS || row.token != call->outcome->token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a trigger changed the status or the token of a reservation")));
	answer(call, &row, IDEM_RESERVED, now);
	idem_durable_reserved();
}

/* Write the reservation over a row that is there; it is locked first */
static IdemWriteResult
write_over(ReserveCall *call, IdemWriter *writer, IdemStore *store,
		   IdemLook *look, Verdict verdict)
{
	TupleTableSlot *slot = idem_writer_slot(writer);
	ItemPointer tid = &look->row.slot->tts_tid;
	IdemWriteResult result = idem_writer_lock(writer, tid, false);

	if (result != IDEM_WRITTEN)
		return result;
	fill_reservation(call, store, slot, &look->row, verdict);
	return idem_writer_update(writer, tid, verdict == REPLACE);
}

/*
 * Insert the reservation.  Only one caller of the key does this at a time, and
 * looks a second time before he does if another one did since the first look.
 */
static IdemWriteResult
write_new(ReserveCall *call, IdemWriter *writer, IdemStore *store,
		  IdemLook *look)
{
	IdemWriteResult result = IDEM_CONFLICT;

	if (!idem_key_trylock(&call->request->key))
		return IDEM_BUSY;
	if (idem_key_mark(&call->request->key) != call->mark)
		idem_look(look, store, &call->request->key);
	if (!look->found && !TransactionIdIsValid(look->rival))
	{
		fill_reservation(call, store, idem_writer_slot(writer), NULL, INSERT);
		result = idem_writer_insert(writer);
		if (result == IDEM_CONFLICT)
			idem_count_conflict(&call->conflicts, &call->request->key);
	}
	idem_key_unlock(&call->request->key);
	return result;
}

/* Make the key ours as the verdict has it */
static AttemptResult
write_reservation(ReserveCall *call, IdemStore *store, IdemLook *look,
				  Verdict verdict)
{
	IdemWriter *writer;
	IdemWriteResult result;

	PreventCommandIfReadOnly(call->request->name);

	writer = idem_writer_open(store, &call->request->key);
	result = verdict == INSERT ?
		write_new(call, writer, store, look) :
		write_over(call, writer, store, look, verdict);
	if (result == IDEM_WRITTEN)
		answer_reserved(call, idem_writer_slot(writer));
	idem_writer_close(writer);

	if (result == IDEM_WRITTEN)
	{
		idem_count(verdict == TAKE_OVER ? IDEM_COUNT_TAKEN_OVER :
				   IDEM_COUNT_RESERVED);
		return ANSWERED;
	}
	return result == IDEM_BUSY ? MUST_WAIT : LOOK_AGAIN;
}

/*
 * The key is in somebody else's hands: what to say, and what to wait for.  A
 * rival that only marks, deletes or locks what is past its time is likely to
 * be the sweep.
 */
static AttemptResult
busy(ReserveCall *call, IdemLook *look)
{
	const IdemRow *row = &look->row;

	answer(call, row, IDEM_IN_PROGRESS, look->now);
	call->rival = look->rival;
	call->next_event = row->state == IDEM_STATE_RUNNING ? row->expires_at :
		DT_NOEND;
	call->brief = look->found && !look->rival_writes &&
		(row->state == IDEM_STATE_ABSENT || row->state == IDEM_STATE_UNKNOWN);

	/* somebody is just inserting the key, or one with its hash */
	if (!look->found && !TransactionIdIsValid(look->rival))
		call->brief = true;
	return MUST_WAIT;
}

/* Look at the key once and act on it */
static AttemptResult
attempt(ReserveCall *call)
{
	IdemStore	store;
	IdemLook	look;
	Verdict		verdict;
	AttemptResult result = ANSWERED;

	idem_store_open(&store, &call->wait);
	idem_look_init(&look, &store);

	call->mark = idem_key_mark(&call->request->key);
	idem_look(&look, &store, &call->request->key);
	verdict = judge(call, &look, &store);
	switch (verdict)
	{
		case REPLAY:
			idem_count(IDEM_COUNT_REPLAYED);
			answer(call, &look.row, look.row.status, look.now);
			break;
		case IN_OUR_HANDS:
			idem_count(IDEM_COUNT_IN_PROGRESS);
			answer(call, &look.row, IDEM_IN_PROGRESS, look.now);
			call->outcome->ours = true;
			break;
		case TOO_LATE:
			idem_count(IDEM_COUNT_UNKNOWN);
			answer(call, &look.row, IDEM_EXPIRED, look.now);
			break;
		case BUSY:
			result = MUST_WAIT;
			break;
		default:
			result = write_reservation(call, &store, &look, verdict);
			break;
	}
	if (result == MUST_WAIT)
		result = busy(call, &look);

	idem_look_end(&look);
	idem_store_close(&store);
	return result;
}

/*
 * Reserve the key, or find out what has become of it: attempt until there is
 * an answer or no more time to wait.  Further attempts run in a memory context
 * of their own: an hour of them must not add up.
 */
void
idem_reserve_key(const IdemReserveRequest *request,
				 IdemReserveOutcome *outcome)
{
	ReserveCall call = {.request = request,.outcome = outcome};
	MemoryContext oldcxt = CurrentMemoryContext;
	MemoryContext cxt = NULL;
	AttemptResult result;

	memset(outcome, 0, sizeof(IdemReserveOutcome));
	idem_wait_init(&call.wait, &request->key, request->wait_usecs);
	while ((result = attempt(&call)) != ANSWERED)
	{
		if (result == MUST_WAIT &&
			!idem_wait(&call.wait, call.brief, call.rival, call.next_event))
			break;

		if (cxt == NULL)
			cxt = AllocSetContextCreate(oldcxt, "idem_reserve attempt",
										ALLOCSET_SMALL_SIZES);
		else
			MemoryContextReset(cxt);
		MemoryContextSwitchTo(cxt);
	}
	idem_wait_end(&call.wait);
	if (result != ANSWERED)
		idem_count(IDEM_COUNT_IN_PROGRESS);
	idem_session_note(&request->key,
					  outcome->status == IDEM_RESERVED ? outcome->token : 0);

	if (cxt != NULL)
	{
		MemoryContextSwitchTo(oldcxt);
		idem_answer_move(&outcome->answer);
		MemoryContextDelete(cxt);
	}
}
