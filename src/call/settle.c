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
#include "call/idem_call.h"

#include "access/heaptoast.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/jsonb.h"

#include "shared/idem_shared.h"

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
	IdemKey		key;
	int64		token;			/* 0: none given */
	const Interval *ttl;		/* NULL: the setting's */
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
	ANSWER_FALSE,
	WAIT						/* for the rival */
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

/* Does the settled row have this outcome already? */
bool
idem_same_result(const IdemRow *row, Datum result, bool result_isnull)
{
	bool		isnull = row->slot->tts_isnull[Anum_idem_result - 1];
	Jsonb	   *recorded;
	Jsonb	   *given;

	if (isnull || result_isnull)
		return isnull && result_isnull;

	recorded = DatumGetJsonbP(row->slot->tts_values[Anum_idem_result - 1]);
	given = DatumGetJsonbP(result);
	return compareJsonbContainers(&recorded->root, &given->root) == 0;
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

/* The contract's order: whose reservation it is, then its status */
static SettleVerdict
judge(SettleCall *call, IdemLook *look, IdemStore *store)
{
	const IdemRow *row = &look->row;
	bool		lenient = call->kind == RELEASE || call->kind == ABANDON;

	switch (idem_claim(&call->key, call->token, lenient, look, store))
	{
		case IDEM_CLAIM_VOID:
			return ANSWER_FALSE;
		case IDEM_CLAIM_DEPENDS:
			return WAIT;
		case IDEM_CLAIM_HOLDS:
			break;
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
				idem_same_result(row, call->result, call->result_isnull))
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

/*
 * What the row's page should have room for, beside a row as large as the one
 * that is there.  Nobody needs what a lease that is extended over and over
 * leaves: there it is taken away as early as can be.
 */
static Size
room_wanted(SettleCall *call)
{
	if (call->kind == EXTEND)
		return BLCKSZ;
	if ((call->kind != COMPLETE && call->kind != FAIL) || call->result_isnull)
		return 0;
	return Min(VARSIZE_ANY(DatumGetPointer(call->result)),
			   TOAST_TUPLE_THRESHOLD);
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
			end = idem_ttl_end(IDEM_MEMORY, call->ttl, now);
			idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(false));
			idem_row_set(slot, Anum_idem_completed_at,
						 TimestampTzGetDatum(now));
			idem_row_set_nullable(slot, Anum_idem_result, call->result,
								  call->result_isnull);
			break;
		case RELEASE:
			end = idem_ttl_end(IDEM_MEMORY, NULL, now);
			break;
		case ABANDON:
			end = idem_seconds_after(now, idem_unknown_ttl);
			break;
		case EXTEND:
			end = idem_ttl_end(IDEM_LEASE, call->ttl, now);
			if (old->state == IDEM_STATE_RUNNING)
				end = Max(end, old->expires_at);
			break;
	}
	idem_row_set(slot, Anum_idem_expires_at, TimestampTzGetDatum(end));
}

/*
 * Triggers may have changed the row; what was not stored must not be answered.
 * Reads the row as it was stored.
 */
void
idem_check_stored(IdemRow *row, TupleTableSlot *slot, const IdemKey *key,
				  IdemStatus status, int64 token)
{
	idem_row_read(row, slot, GetCurrentTimestamp());
	idem_hint_note(key, &slot->tts_tid);
	if (row->status != status || row->token != token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a trigger changed the status or the token of a reservation")));
}

/* Keep what the caller is told of the stored row, a trigger's work included */
static void
note_stored(SettleCall *call, const IdemRow *stored)
{
	Datum		result = stored->slot->tts_values[Anum_idem_result - 1];

	call->answer = true;
	call->lease_end = stored->expires_at;
	call->result_isnull = stored->slot->tts_isnull[Anum_idem_result - 1];
	if (!call->result_isnull && result != call->result)
		call->result = datumCopy(result, false, -1);
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
	IdemRow		stored;

	PreventCommandIfReadOnly(call->name);

	writer = idem_writer_open(store, &call->key);
	fill_settled(call, idem_writer_slot(writer), &look->row);
	result = idem_writer_update(writer, &look->row.slot->tts_tid, false);
	if (result == IDEM_WRITTEN)
	{
		idem_check_stored(&stored, idem_writer_slot(writer), &call->key,
						  settled_status(call->kind), look->row.token);
		note_stored(call, &stored);
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

	idem_store_open_to_write(&store);
	idem_look_init(&look, &store);
	look.token = call->token ? call->token : idem_session_token(&call->key);
	look.room = room_wanted(call);
	idem_look(&look, &store, &call->key);

	*rival = InvalidTransactionId;
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
		case WAIT:
			*rival = look.rival;
			finished = false;
			break;
	}

	idem_look_end(&look);
	idem_store_close(&store);
	return finished;
}

static void
settle(SettleCall *call)
{
	TransactionId rival;

	idem_check_ttl("ttl", call->kind == EXTEND ? IDEM_LEASE : IDEM_MEMORY,
				   call->ttl);

	/* waits as any UPDATE: lock_timeout and deadlock detection apply */
	while (!attempt(call, &rival))
	{
		if (TransactionIdIsValid(rival))
			XactLockTableWait(rival, NULL, NULL, XLTW_None);
	}
}

static void
settle_from_args(SettleCall *call, FunctionCallInfo fcinfo, int tokenarg,
				 int scopearg)
{
	idem_key_from_args(&call->key, fcinfo, 0, scopearg);
	call->token = token_from_args(fcinfo, tokenarg);
	settle(call);
}

/* idem_complete and idem_fail differ in what the outcome is called */
static Datum
record_from_args(SettleCall *call, FunctionCallInfo fcinfo)
{
	call->result_isnull = !idem_result_from_args(fcinfo, 1, &call->result);
	call->ttl = idem_interval_from_args(fcinfo, 3);
	settle_from_args(call, fcinfo, 2, 4);
	PG_RETURN_BOOL(call->answer);
}

/*
 * Record the result of a reservation that the current transaction made.  If a
 * trigger stored another value, "result" becomes that one.
 */
void
idem_complete_key(const IdemKey *key, int64 token, const Interval *ttl,
				  NullableDatum *result)
{
	SettleCall	call = {.name = "idem_complete()", .kind = COMPLETE,
		.key = *key,.token = token,.ttl = ttl,
		.result = result->value,.result_isnull = result->isnull};

	if (!result->isnull)
		idem_check_result_size(result->value,
							   "Let the tool return a reference to it, or raise \"%s\".");
	settle(&call);
	result->value = call.result;
	result->isnull = call.result_isnull;
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
	SettleCall	call = {.name = "idem_complete()", .kind = COMPLETE};

	return record_from_args(&call, fcinfo);
}

/*
 * idem_fail(key, error, token, ttl, scope) → boolean
 *
 * The same for a definitive failure, replayed as such.
 */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	SettleCall	call = {.name = "idem_fail()", .kind = FAIL};

	return record_from_args(&call, fcinfo);
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

	settle_from_args(&call, fcinfo, 1, 2);
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

	settle_from_args(&call, fcinfo, 1, 2);
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
	SettleCall	call = {.name = "idem_extend()", .kind = EXTEND};

	call.ttl = idem_interval_from_args(fcinfo, 1);
	settle_from_args(&call, fcinfo, 2, 3);
	PG_RETURN_TIMESTAMPTZ(call.lease_end);
}
