/*-------------------------------------------------------------------------
 *
 * refuse.c
 *	  What callers of idem_run and idem_call are told if they get no result.
 *
 * These functions return a bare value, so whatever else idem_reserve can
 * answer is an error here.  Its reader is often a program that has to decide
 * what to do next; the hint says that.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/htup_details.h"
#include "utils/builtins.h"

#include "keys/idem_keys.h"

/* One sentence on a key in progress; its end is known only if committed */
static char *
describe_in_progress(const IdemKey *key, const Datum *values,
					 const bool *nulls)
{
	IdemRow		row = {.status = IDEM_IN_PROGRESS,.state = IDEM_STATE_RUNNING};

	if (nulls[Anum_answer_expires_at])
		return psprintf("Key \"%s\" in scope \"%s\" is in_progress in a transaction that has not ended yet.",
						text_to_cstring(key->key),
						text_to_cstring(key->scope));
	row.attempt = DatumGetInt32(values[Anum_answer_attempt]);
	row.memory_end = DatumGetTimestampTz(values[Anum_answer_expires_at]);
	return idem_describe(key, &row);
}

/* One sentence on a key whose outcome is settled or lost */
static char *
describe_ended(const IdemKey *key, IdemStatus status, IdemState state,
			   const Datum *values)
{
	IdemRow		row = {.status = status,.state = state};

	row.attempt = DatumGetInt32(values[Anum_answer_attempt]);
	row.memory_end = DatumGetTimestampTz(values[Anum_answer_expires_at]);
	return idem_describe(key, &row);
}

/* IK005, about somebody else's reservation */
static pg_noreturn void
refuse_in_progress(const IdemKey *key, const Datum *values, const bool *nulls)
{
	bool		known = !nulls[Anum_answer_retry_after];

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_IN_PROGRESS),
			 errmsg("action is already in progress"),
			 errdetail("%s", describe_in_progress(key, values, nulls)),
			 known ?
			 errhint("Another call is carrying it out; its lease has %d seconds left. Wait, then call again with the same key and arguments; do not use another key.",
					 DatumGetInt32(values[Anum_answer_retry_after])) :
			 errhint("Another call is carrying it out right now. Wait a moment, then call again with the same key and arguments; do not use another key.")));
}

/* IK005, about a reservation of the current transaction's own */
static pg_noreturn void
refuse_ours(const IdemKey *key, const Datum *values, const bool *nulls)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_IN_PROGRESS),
			 errmsg("action is already in progress in the current transaction"),
			 errdetail("%s", describe_in_progress(key, values, nulls)),
			 errhint("Waiting cannot help. A tool that calls another one must give it a key of its own; a reservation made before must be completed or released.")));
}

/* IK006 */
static pg_noreturn void
refuse_unknown(const IdemKey *key, const Datum *values)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_UNKNOWN),
			 errmsg("outcome of an earlier attempt is unknown"),
			 errdetail("%s", describe_ended(key, IDEM_EXPIRED,
											IDEM_STATE_UNKNOWN, values)),
			 errhint("Find out whether the action has had its effect and have an operator record that with idem_resolve; do not repeat it under another key.")));
}

/*
 * IK007.  The stored error is for the caller and may hold what nobody wants
 * in the server's log; that gets the key and its state instead.
 */
static pg_noreturn void
refuse_failed(const IdemKey *key, const Datum *values, const bool *nulls)
{
	char	   *error = "null";

	/* one that cannot be read was recorded by a trigger, or by hand */
	if (!nulls[Anum_answer_result] &&
		!idem_is_printable(values[Anum_answer_result]))
		error = "\"The recorded error is too long to be shown.\"";
	else if (!nulls[Anum_answer_result])
	{
		Jsonb	   *jb = DatumGetJsonbP(values[Anum_answer_result]);

		error = JsonbToCString(NULL, &jb->root, VARSIZE(jb));
	}
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_FAILED),
			 errmsg("action failed definitively"),
			 errdetail("%s", error),
			 errdetail_log("%s", describe_ended(key, IDEM_FAILED,
												IDEM_STATE_FAILED, values)),
			 errhint("Every call with this key gets this recorded failure. Do not retry; to try again is a new decision and needs a new key.")));
}

/*
 * Raise the error for an answer of idem_reserve that brings no result.
 */
void
idem_refuse(const IdemKey *key, const IdemReserveOutcome *outcome)
{
	const Datum *values = outcome->answer.values;
	const bool *nulls = outcome->answer.isnull;

	if (outcome->status == IDEM_FAILED)
		refuse_failed(key, values, nulls);
	if (outcome->status == IDEM_EXPIRED)
		refuse_unknown(key, values);
	if (outcome->ours)
		refuse_ours(key, values, nulls);
	refuse_in_progress(key, values, nulls);
}

/*
 * IK008: the tool is a write, and there is neither a key nor a fallback.
 */
void
idem_refuse_unkeyed(const IdemTool *tool)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_UNKEYED),
			 errmsg("tool \"%s\" is a write and needs an idempotency key",
					text_to_cstring(tool->name)),
			 errdetail("Without a key a repeated call would act again."),
			 errhint("Pass a key that names the action and is the same for every retry of it, such as idem_key makes.")));
}
