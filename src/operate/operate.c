/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  Operators' functions: idem_resolve and idem_forget.
 *
 * They act on any key, whoever owns it and without a token: EXECUTE is the
 * privilege.  The row's token stays, so that whoever held the reservation
 * hears the truth when he comes late: false for the outcome that was recorded
 * by hand, IK004 for another, IK003 if the key was given back.
 *
 *-------------------------------------------------------------------------
 */
#include "operate/idem_operate.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "call/idem_call.h"

/* Argument numbers of idem_resolve */
#define ARG_STATUS		1
#define ARG_RESULT		2
#define ARG_TTL			3
#define ARG_FORCE		4
#define ARG_CREATE		5
#define ARG_OWNER		6
#define ARG_SCOPE		7

/* One call of either function */
typedef struct OperatorCall
{
	const char *action;			/* the function's name without "idem_" */
	FunctionCallInfo fcinfo;
	IdemKey		key;
	bool		forget;

	/* idem_resolve's arguments */
	IdemStatus	status;			/* what the row gets; released to forget it */
	Datum		result;
	bool		result_isnull;
	bool		force;
	bool		create_missing;
	text	   *owner;			/* of a key that is created */

	int			conflicts;		/* insertions that met what no look finds */

	/* what came of it */
	bool		answer;
	const char *old_status;
	const char *new_status;
} OperatorCall;

/* What to do after a look */
typedef enum Verdict
{
	NOTHING_TO_DO,
	UPDATE,
	REPLACE,					/* create; a row past its memory is there */
	INSERT						/* create */
} Verdict;

PG_FUNCTION_INFO_V1(idem_resolve);
PG_FUNCTION_INFO_V1(idem_forget);

/* The status that a key is to get */
static IdemStatus
status_from_args(FunctionCallInfo fcinfo)
{
	static const IdemStatus allowed[] = {IDEM_DONE, IDEM_FAILED, IDEM_RELEASED};
	char	   *name;

	if (PG_ARGISNULL(ARG_STATUS))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("status must not be null")));
	name = text_to_cstring(PG_GETARG_TEXT_PP(ARG_STATUS));
	for (int i = 0; i < lengthof(allowed); i++)
	{
		if (strcmp(name, idem_status_name(allowed[i])) == 0)
			return allowed[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a key cannot be resolved to status \"%s\"", name),
			 errhint("Use \"done\", \"failed\" or \"released\".")));
}

/* Refuse arguments that have no meaning together */
static void
check_combination(OperatorCall *call, FunctionCallInfo fcinfo)
{
	if (call->status == IDEM_RELEASED &&
		(!call->result_isnull || !PG_ARGISNULL(ARG_TTL) || call->create_missing))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("result, ttl and create_missing cannot be combined with status \"released\"")));
	if (!PG_ARGISNULL(ARG_OWNER) && !call->create_missing)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("owner can only be given with create_missing"),
				 errhint("A key that is there keeps its owner.")));
}

/* Who is to own a key that is created: a role that exists, or as ever */
static text *
owner_from_args(FunctionCallInfo fcinfo)
{
	char	   *name;

	if (PG_ARGISNULL(ARG_OWNER))
		return idem_owner_for_new();
	name = NameStr(*PG_GETARG_NAME(ARG_OWNER));
	(void) get_role_oid(name, false);
	return cstring_to_text(name);
}

static void
resolve_from_args(OperatorCall *call, FunctionCallInfo fcinfo)
{
	idem_key_from_args(&call->key, fcinfo, 0, ARG_SCOPE);
	call->status = status_from_args(fcinfo);
	call->result_isnull = !idem_result_from_args(fcinfo, ARG_RESULT,
												 &call->result);
	idem_check_ttl("ttl", IDEM_MEMORY, idem_interval_from_args(fcinfo, ARG_TTL));
	call->force = !PG_ARGISNULL(ARG_FORCE) && PG_GETARG_BOOL(ARG_FORCE);
	call->create_missing = !PG_ARGISNULL(ARG_CREATE) &&
		PG_GETARG_BOOL(ARG_CREATE);
	check_combination(call, fcinfo);

	/* as long as the current user is the operator */
	if (call->create_missing)
		call->owner = owner_from_args(fcinfo);
}

/*
 * Refuse the call.  The error rolls back whatever the table could tell of it,
 * and a wrong guess at a result must leave a trace: the server's log has it.
 */
static void
refuse(OperatorCall *call, IdemError error, const IdemRow *row)
{
	idem_audit_refused(call->action, &call->key);
	idem_report(error, &call->key, row);
}

/* May the outcome be recorded over what was seen? */
static Verdict
judge_resolve(OperatorCall *call, IdemLook *look)
{
	const IdemRow *row = &look->row;

	switch (row->state)
	{
		case IDEM_STATE_ABSENT:
			if (call->create_missing)
				return look->found ? REPLACE : INSERT;
			refuse(call, IDEM_NOT_RESOLVABLE, row);
			break;
		case IDEM_STATE_RUNNING:
			if (!call->force)
				refuse(call, IDEM_LEASED, row);
			break;
		case IDEM_STATE_UNKNOWN:
			break;
		case IDEM_STATE_RELEASED:
			/* as free as an absent key, for a true result that comes late */
			if (call->status == IDEM_RELEASED)
				return NOTHING_TO_DO;
			if (!call->create_missing)
				refuse(call, IDEM_NOT_RESOLVABLE, row);
			break;
		case IDEM_STATE_DONE:
		case IDEM_STATE_FAILED:
			if (row->status == call->status &&
				idem_same_result(row, call->result, call->result_isnull))
				return NOTHING_TO_DO;
			refuse(call, IDEM_RESOLVED, row);
			break;
	}
	return UPDATE;
}

/* May the key be forgotten? */
static Verdict
judge_forget(OperatorCall *call, IdemLook *look)
{
	switch (look->row.state)
	{
		case IDEM_STATE_ABSENT:
			return NOTHING_TO_DO;
		case IDEM_STATE_RUNNING:
			refuse(call, IDEM_LEASED, &look->row);
			break;
		case IDEM_STATE_UNKNOWN:
			refuse(call, IDEM_UNRESOLVED, &look->row);
			break;
		default:
			break;
	}
	return UPDATE;
}

/* Set what the outcome changes */
static void
fill_resolved(OperatorCall *call, TupleTableSlot *slot, TimestampTz now)
{
	TimestampTz end = idem_ttl_end(IDEM_MEMORY,
								   idem_interval_from_args(call->fcinfo, ARG_TTL),
								   now);

	idem_row_set(slot, Anum_idem_expires_at, TimestampTzGetDatum(end));
	if (call->status == IDEM_RELEASED)
		return;
	idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(false));
	idem_row_set(slot, Anum_idem_completed_at, TimestampTzGetDatum(now));
	idem_row_set_nullable(slot, Anum_idem_result, call->result,
						  call->result_isnull);
}

/*
 * A forgotten key is past its memory: absent to every function, while its
 * token bears witness, until the sweep takes the row away, that the next one
 * must be higher.  What was recorded and requested goes at once.
 */
static void
fill_forgotten(TupleTableSlot *slot, TimestampTz now)
{
	idem_row_set(slot, Anum_idem_expires_at, TimestampTzGetDatum(now));
	idem_row_set(slot, Anum_idem_maybe_ran, BoolGetDatum(false));
	slot->tts_isnull[Anum_idem_fingerprint - 1] = true;
	slot->tts_isnull[Anum_idem_holder - 1] = true;
	slot->tts_isnull[Anum_idem_completed_at - 1] = true;
	slot->tts_isnull[Anum_idem_result - 1] = true;
}

/* The columns of a key that was never reserved, or not within memory */
static void
fill_created(OperatorCall *call, TupleTableSlot *slot, TimestampTz now)
{
	idem_row_set(slot, Anum_idem_scope, PointerGetDatum(call->key.scope));
	idem_row_set(slot, Anum_idem_key, PointerGetDatum(call->key.key));
	idem_row_set(slot, Anum_idem_attempt, Int32GetDatum(1));
	idem_row_set(slot, Anum_idem_owner, PointerGetDatum(call->owner));
	idem_row_set(slot, Anum_idem_created_at, TimestampTzGetDatum(now));
	idem_row_set(slot, Anum_idem_reserved_at, TimestampTzGetDatum(now));
	slot->tts_isnull[Anum_idem_fingerprint - 1] = true;
	slot->tts_isnull[Anum_idem_holder - 1] = true;
}

/* Make the new row in the writer's slot; its token */
static int64
fill(OperatorCall *call, IdemStore *store, IdemWriter *writer, IdemLook *look,
	 Verdict verdict)
{
	TupleTableSlot *slot = idem_writer_slot(writer);
	TimestampTz now = GetCurrentTimestamp();
	int64		token = verdict == INSERT ? 0 : look->row.token;

	if (verdict != INSERT)
		idem_row_copy(slot, &look->row);
	if (verdict != UPDATE)
	{
		fill_created(call, slot, now);
		token = idem_next_token(store, token);
		idem_row_set(slot, Anum_idem_token, Int64GetDatum(token));
	}
	idem_row_set(slot, Anum_idem_status, idem_status_datum(call->status));
	if (call->forget)
		fill_forgotten(slot, now);
	else
		fill_resolved(call, slot, now);
	return token;
}

/*
 * Insert the key, under the lock that makes sure that no caller does the same
 * at this moment.
 */
static IdemWriteResult
write_new(OperatorCall *call, IdemStore *store, IdemWriter *writer,
		  IdemLook *look, int64 *token)
{
	IdemWriteResult result = IDEM_CONFLICT;

	idem_key_lock(&call->key);
	idem_look(look, store, &call->key);
	if (!look->found && !TransactionIdIsValid(look->rival))
	{
		*token = fill(call, store, writer, look, INSERT);
		result = idem_writer_insert(writer);
		if (result == IDEM_CONFLICT)
			idem_count_conflict(&call->conflicts, &call->key);
	}
	idem_key_unlock(&call->key);
	return result;
}

/* Write over the row that was seen; it is locked first, and waited for */
static IdemWriteResult
write_over(OperatorCall *call, IdemStore *store, IdemWriter *writer,
		   IdemLook *look, Verdict verdict, int64 *token)
{
	ItemPointer tid = &look->row.slot->tts_tid;
	IdemWriteResult result = idem_writer_lock(writer, tid, true);

	if (result != IDEM_WRITTEN)
		return result;
	*token = fill(call, store, writer, look, verdict);
	return idem_writer_update(writer, tid, verdict == REPLACE);
}

/*
 * Write as the verdict has it, as the table's owner; false if the key changed
 * under our hands
 */
static bool
write_row(OperatorCall *call, IdemStore *store, IdemLook *look,
		  Verdict verdict)
{
	IdemCaller	operator;
	IdemWriter *writer;
	IdemWriteResult result;
	IdemRow		stored;
	int64		token = 0;

	idem_become_owner(&operator, store->rel->rd_rel->relowner);
	writer = idem_writer_open(store, &call->key);
	if (verdict == INSERT)
		result = write_new(call, store, writer, look, &token);
	else
		result = write_over(call, store, writer, look, verdict, &token);
	if (result == IDEM_WRITTEN)
	{
		idem_check_stored(&stored, idem_writer_slot(writer), &call->key,
						  call->status, token);
		idem_durable_must_flush();
		call->answer = true;
	}
	idem_writer_close(writer);
	idem_become_caller(&operator);
	return result == IDEM_WRITTEN;
}

/* The word for what was seen, or was made of it */
static const char *
state_name(const IdemRow *row)
{
	return row->state == IDEM_STATE_ABSENT ? "absent" :
		idem_status_name(idem_row_shown_status(row));
}

/* Note what the audit says of this call */
static void
note_change(OperatorCall *call, const IdemRow *row, Verdict verdict)
{
	call->old_status = state_name(row);
	if (verdict == NOTHING_TO_DO)
		call->new_status = call->old_status;
	else
		call->new_status = call->forget ? "absent" :
			idem_status_name(call->status);
}

/*
 * Look and act once.  False: the key is changing; "rival" is who does it, if
 * that is to be waited for.
 */
static bool
attempt(OperatorCall *call, TransactionId *rival)
{
	IdemStore	store;
	IdemLook	look;
	Verdict		verdict;
	bool		finished = false;

	idem_store_open(&store, NULL);
	idem_look_init(&look, &store);
	idem_look(&look, &store, &call->key);

	*rival = look.rival;
	if (!TransactionIdIsValid(*rival))
	{
		verdict = call->forget ? judge_forget(call, &look) :
			judge_resolve(call, &look);
		note_change(call, &look.row, verdict);
		finished = verdict == NOTHING_TO_DO ||
			write_row(call, &store, &look, verdict);
	}

	idem_look_end(&look);
	idem_store_close(&store);
	return finished;
}

/*
 * Every use is recorded, also one that finds nothing to do, so none is possible
 * in a read only transaction.
 */
static void
operate(OperatorCall *call)
{
	TransactionId rival;

	PreventCommandIfReadOnly(call->forget ? "idem_forget()" : "idem_resolve()");

	/* as any UPDATE waits: lock_timeout and deadlock detection apply */
	while (!attempt(call, &rival))
	{
		if (TransactionIdIsValid(rival))
			XactLockTableWait(rival, NULL, NULL, XLTW_None);
	}
	idem_audit(call->action, &call->key, call->old_status, call->new_status);
}

/*
 * idem_resolve(key, status, result, ttl, force, create_missing, owner, scope)
 *		→ boolean
 *
 * Settles a key by hand.  True: by this call; false: it was so already.
 * Errors: 22004, 22023, 42704, 54000, IK003, IK004, IK005, 25006, 55000.
 */
Datum
idem_resolve(PG_FUNCTION_ARGS)
{
	OperatorCall call = {.action = "resolve",.fcinfo = fcinfo};

	resolve_from_args(&call, fcinfo);
	operate(&call);
	PG_RETURN_BOOL(call.answer);
}

/*
 * idem_forget(key, scope) → boolean
 *
 * Frees a settled key.  False: it was free.  Errors: 22004, 22023, IK005,
 * IK006, 25006, 55000.
 */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	OperatorCall call = {.action = "forget",.fcinfo = fcinfo,
	.forget = true,.status = IDEM_RELEASED};

	idem_key_from_args(&call.key, fcinfo, 0, 1);
	operate(&call);
	PG_RETURN_BOOL(call.answer);
}
