/*-------------------------------------------------------------------------
 *
 * settle.c
 *	  What becomes of a reservation: complete, fail, release, abandon, extend.
 *
 * All five look at the key, check in the same order whether the caller may,
 * and write one new version of the row.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

typedef enum SettleKind
{
	COMPLETE,
	FAIL,
	RELEASE,
	ABANDON,
	EXTEND
} SettleKind;

/* One call of any of the functions */
typedef struct SettleCall
{
	const char *name;			/* of the function, for errors */
	SettleKind	kind;
	FunctionCallInfo fcinfo;
	IdemKey		key;
	int64		token;			/* 0: none given */
	int			ttlarg;			/* argument number of the ttl, if any */
	Datum		result;			/* COMPLETE and FAIL */
	bool		result_isnull;

	/* what came of it */
	bool		answer;
	TimestampTz lease_end;		/* EXTEND */
} SettleCall;

/* What to do after a look */
typedef enum SettleVerdict
{
	WRITE,
	ANSWER_TRUE,				/* nothing to write */
	ANSWER_FALSE
} SettleVerdict;

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_fail);
PG_FUNCTION_INFO_V1(idem_release);
PG_FUNCTION_INFO_V1(idem_abandon);
PG_FUNCTION_INFO_V1(idem_extend);

/* A variable that was never set must not act for somebody else */
static int64
token_from_args(FunctionCallInfo fcinfo, int tokenarg)
{
	if (PG_ARGISNULL(tokenarg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null"),
				 errhint("Pass the token that idem_reserve returned, or leave the argument out to act on a reservation of the current transaction.")));
	return PG_GETARG_INT64(tokenarg);
}

/* The outcome to record, as large as the setting allows */
static void
result_from_args(SettleCall *call, FunctionCallInfo fcinfo, int resultarg)
{
	Size		size;

	call->result_isnull = PG_ARGISNULL(resultarg);
	if (call->result_isnull)
		return;

	/* uncompressed, and without fetching it */
	call->result = PG_GETARG_DATUM(resultarg);
	size = toast_raw_datum_size(call->result);
	if (size > (Size) idem_max_result_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("result is too large to be recorded"),
				 errdetail("It has %zu bytes, the limit is %d.",
						   size, idem_max_result_size),
				 errhint("Record a reference to it, or raise \"%s\". The reservation stays.",
						 "idem_tool.max_result_size")));
}

static bool
same_result(SettleCall *call, const IdemRow *row)
{
	bool		isnull = row->slot->tts_isnull[Anum_idem_result - 1];
	Jsonb	   *recorded;
	Jsonb	   *given;

	if (isnull || call->result_isnull)
		return isnull && call->result_isnull;

	recorded = DatumGetJsonbP(row->slot->tts_values[Anum_idem_result - 1]);
	given = DatumGetJsonbP(call->result);
	return compareJsonbContainers(&recorded->root, &given->root) == 0;
}

/* May a call without a token act on what was found? */
static bool
is_own_reservation(SettleCall *call, IdemLook *look, IdemStore *store)
{
	if (look->row.state == IDEM_STATE_ABSENT)
		return false;
	return idem_made_here(look, store, &call->key) ||
		idem_session_token(&call->key) == look->row.token;
}

/* What a call that was successful counts as */
static IdemCount
counts_as(SettleKind kind)
{
	static const IdemCount count_of[] = {
		[COMPLETE] = IDEM_COUNT_COMPLETED,
		[FAIL] = IDEM_COUNT_FAILED,
		[RELEASE] = IDEM_COUNT_RELEASED,
		[ABANDON] = IDEM_COUNT_ABANDONED,
		[EXTEND] = IDEM_COUNT_EXTENDED,
	};

	return count_of[kind];
}

/* The status column that the settled row gets */
static IdemStatus
settled_status(SettleKind kind)
{
	static const IdemStatus status_of[] = {
		[COMPLETE] = IDEM_DONE,
		[FAIL] = IDEM_FAILED,
		[RELEASE] = IDEM_RELEASED,
		[ABANDON] = IDEM_EXPIRED,
		[EXTEND] = IDEM_IN_PROGRESS,
	};

	return status_of[kind];
}

/*
 * The contract's order: who may act on the row; for release and abandon
 * whether there is anything to give back; whose reservation it is; status.
 */
static SettleVerdict
judge(SettleCall *call, IdemLook *look, IdemStore *store)
{
	const IdemRow *row = &look->row;
	bool		in_progress = row->state == IDEM_STATE_RUNNING ||
		row->state == IDEM_STATE_UNKNOWN;
	bool		lenient = call->kind == RELEASE || call->kind == ABANDON;

	if (row->state != IDEM_STATE_ABSENT && !idem_may_act(row))
		idem_report_denied(&call->key);

	/* made for a finally block: must not mask the first error */
	if (lenient && !in_progress)
		return ANSWER_FALSE;

	if (call->token == 0)
	{
		if (!is_own_reservation(call, look, store))
			idem_report(IDEM_NO_TOKEN, &call->key, row);
	}
	else if (row->state != IDEM_STATE_ABSENT && row->token != call->token)
	{
		if (lenient)
			return ANSWER_FALSE;
		idem_report(IDEM_LOST, &call->key, row);
	}

	switch (row->state)
	{
		case IDEM_STATE_ABSENT:
		case IDEM_STATE_RELEASED:
			idem_report(IDEM_NOT_RESERVED, &call->key, row);
			break;
		case IDEM_STATE_DONE:
		case IDEM_STATE_FAILED:
			if (row->status == settled_status(call->kind) &&
				same_result(call, row))
				return ANSWER_FALSE;
			idem_report(IDEM_SETTLED, &call->key, row);
			break;
		case IDEM_STATE_UNKNOWN:
			/* that is what abandoning makes of it */
			return call->kind == ABANDON ? ANSWER_TRUE : WRITE;
		case IDEM_STATE_RUNNING:
			break;
	}
	return WRITE;
}

/* Make the new version of the row in the writer's slot */
static void
fill_settled(SettleCall *call, TupleTableSlot *slot, const IdemRow *old)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz end = now;

	idem_row_copy(slot, old);
	idem_row_set(slot, Anum_idem_status,
				 idem_status_datum(settled_status(call->kind)));

	switch (call->kind)
	{
		case COMPLETE:
		case FAIL:
			end = idem_ttl_end(call->fcinfo, call->ttlarg, idem_result_ttl, now);
			idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(false));
			idem_row_set(slot, Anum_idem_completed_at,
						 TimestampTzGetDatum(now));
			idem_row_set_nullable(slot, Anum_idem_result, call->result,
								  call->result_isnull);
			break;
		case RELEASE:
			end = idem_seconds_after(now, idem_result_ttl);
			break;
		case ABANDON:
			end = idem_seconds_after(now, idem_unknown_ttl);
			break;
		case EXTEND:
			end = idem_ttl_end(call->fcinfo, call->ttlarg,
							   idem_reservation_ttl, now);
			if (old->state == IDEM_STATE_RUNNING)
				end = Max(end, old->expires_at);
			break;
	}
	idem_row_set(slot, Anum_idem_expires_at, TimestampTzGetDatum(end));
}

/*
 * Triggers may have changed the row; what was not stored must not be answered.
 */
static void
check_stored(SettleCall *call, TupleTableSlot *slot, int64 token)
{
	IdemRow		row;

	idem_row_read(&row, slot, GetCurrentTimestamp());
	idem_hint_note(&call->key, &slot->tts_tid);
	if (row.status != settled_status(call->kind) || row.token != token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a trigger changed the status or the token of a reservation")));
	call->answer = true;
	call->lease_end = row.expires_at;
}

/* Tell durable.c what this commit would leave behind or take away */
static void
note_durable(SettleCall *call, bool made_here)
{
	if (!made_here)
		idem_durable_must_flush();
	else if (call->kind != EXTEND && call->kind != ABANDON)
		idem_durable_settled();
}

/* Write the new version; false if the row changed under our hands */
static bool
write_settled(SettleCall *call, IdemStore *store, IdemLook *look)
{
	bool		made_here = idem_made_here(look, store, &call->key);
	IdemWriter *writer;
	IdemWriteResult result;

	PreventCommandIfReadOnly(call->name);

	writer = idem_writer_open(store);
	fill_settled(call, idem_writer_slot(writer), &look->row);
	result = idem_writer_update(writer, &look->row.slot->tts_tid);
	if (result == IDEM_WRITTEN)
	{
		check_stored(call, idem_writer_slot(writer), look->row.token);
		note_durable(call, made_here);
		idem_count(counts_as(call->kind));
	}
	idem_writer_close(writer);
	return result == IDEM_WRITTEN;
}

/*
 * Look and act once.  False: the key is changing; "rival" is who does it, if
 * that is to be waited for.
 */
static bool
attempt(SettleCall *call, TransactionId *rival)
{
	IdemStore	store;
	IdemLook	look;
	bool		finished = true;

	idem_store_open(&store);
	idem_look_init(&look, &store);
	idem_look(&look, &store, &call->key, true);

	/* in a read only transaction nothing depends on what the rival does */
	*rival = XactReadOnly ? InvalidTransactionId : look.rival;
	if (TransactionIdIsValid(*rival))
		finished = false;
	else
	{
		switch (judge(call, &look, &store))
		{
			case WRITE:
				finished = write_settled(call, &store, &look);
				break;
			case ANSWER_TRUE:
				call->answer = true;
				break;
			case ANSWER_FALSE:
				call->answer = false;
				break;
		}
	}

	idem_look_end(&look);
	idem_store_close(&store);
	return finished;
}

static void
settle(SettleCall *call, FunctionCallInfo fcinfo, int tokenarg, int scopearg)
{
	TransactionId rival;

	call->fcinfo = fcinfo;
	idem_key_from_args(&call->key, fcinfo, 0, scopearg);
	call->token = token_from_args(fcinfo, tokenarg);
	if (call->ttlarg > 0)
		(void) idem_ttl_end(fcinfo, call->ttlarg, idem_result_ttl,
							GetCurrentTimestamp());

	/* as any UPDATE waits: lock_timeout and deadlock detection apply */
	while (!attempt(call, &rival))
	{
		if (TransactionIdIsValid(rival))
			XactLockTableWait(rival, NULL, NULL, XLTW_None);
	}
}

/*
 * idem_complete(key, result, token, ttl, scope) → boolean
 *
 * Records the result.  True: by this call; false: an equal one was there.
 * Errors: 22004, 22023, 42501, 54000, IK002, IK003, IK004, 25006.
 */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_complete()", .kind = COMPLETE,.ttlarg = 3};

	result_from_args(&call, fcinfo, 1);
	settle(&call, fcinfo, 2, 4);
	PG_RETURN_BOOL(call.answer);
}

/*
 * idem_fail(key, error, token, ttl, scope) → boolean
 *
 * The same for a definitive failure, replayed as such.
 */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_fail()", .kind = FAIL,.ttlarg = 3};

	result_from_args(&call, fcinfo, 1);
	settle(&call, fcinfo, 2, 4);
	PG_RETURN_BOOL(call.answer);
}

/*
 * idem_release(key, token, scope) → boolean
 *
 * It did not run: gives the reservation back.  False: there was none, or the
 * token is not its current one.  Errors: 22004, 22023, 42501, IK003, 25006.
 */
Datum
idem_release(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_release()", .kind = RELEASE};

	settle(&call, fcinfo, 1, 2);
	PG_RETURN_BOOL(call.answer);
}

/*
 * idem_abandon(key, token, scope) → boolean
 *
 * Nobody knows whether it ran: ends the lease, so that the next caller takes
 * over at once.  Answers and errors as idem_release.
 */
Datum
idem_abandon(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_abandon()", .kind = ABANDON};

	settle(&call, fcinfo, 1, 2);
	PG_RETURN_BOOL(call.answer);
}

/*
 * idem_extend(key, ttl, token, scope) → timestamptz
 *
 * Heartbeat and fence: the lease ends no earlier than ttl from now, and nobody
 * can take the key over before the transaction ends.  Returns its end.
 * Errors: 22004, 22023, 42501, IK002, IK003, IK004, 25006.
 */
Datum
idem_extend(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_extend()", .kind = EXTEND,.ttlarg = 1};

	settle(&call, fcinfo, 2, 3);
	PG_RETURN_TIMESTAMPTZ(call.lease_end);
}
