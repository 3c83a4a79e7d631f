/*-------------------------------------------------------------------------
 *
 * run.c
 *	  Run a function once: reserve, call, complete, in one transaction.
 *
 * The function runs as the caller, in his transaction.  If it raises, so does
 * the whole statement, and the reservation vanishes with everything else; so
 * no subtransaction is needed and none is made.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/htup_details.h"
#include "utils/builtins.h"

#include "keys/idem_keys.h"

/* Argument numbers of idem_run */
#define ARG_KEY		0
#define ARG_TOOL	1
#define ARG_ARGS	2
#define ARG_TTL		3
#define ARG_WAIT	4
#define ARG_SCOPE	5

PG_FUNCTION_INFO_V1(idem_run);

/*
 * The fingerprint of a tool's call.  A request {"tool": …, "args": …} given to
 * idem_reserve has the same one.
 */
bytea *
idem_call_fingerprint(text *tool, Jsonb *args)
{
	IdemMember	members[2];

	idem_member_text(&members[0], "tool", tool);
	idem_member_jsonb(&members[1], "args", args);
	return idem_fingerprint_object(NULL, members, lengthof(members));
}

/*
 * What idem_reserve answered decides: run the function, or return what its
 * first run returned.  "result_ttl" is how long the result is kept, NULL: as
 * the setting has it.
 */
NullableDatum
idem_run_once(const IdemKey *key, const IdemReserveOutcome *outcome,
			  Oid function, Jsonb *args, const Interval *result_ttl)
{
	NullableDatum result;

	if (outcome->status == IDEM_DONE)
	{
		result.value = outcome->answer.values[Anum_answer_result];
		result.isnull = outcome->answer.isnull[Anum_answer_result];
		return result;
	}
	if (outcome->status != IDEM_RESERVED)
		idem_refuse(key, outcome);

	result = idem_call_function(function, args);
	idem_complete_key(key, outcome->token, result_ttl, &result);
	return result;
}

/* The argument "args" of idem_run, an empty object if it is not given */
static Jsonb *
args_from_args(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(ARG_ARGS))
		return DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
												  CStringGetDatum("{}")));
	return PG_GETARG_JSONB_P(ARG_ARGS);
}

/*
 * idem_run(key, tool, args, ttl, wait, scope) → jsonb
 *
 * Runs the function under the key, once; a duplicate gets the first result.
 * Errors: those of idem_reserve and idem_complete; IK005 in progress, IK006
 * unknown outcome, IK007 failed; 42883, 42809 and 42501 for a function that
 * is not there, not fit, or not the caller's to execute; its own errors.
 */
Datum
idem_run(PG_FUNCTION_ARGS)
{
	IdemReserveRequest request = {.name = "idem_run()"};
	IdemReserveOutcome outcome;
	const Interval *result_ttl;
	Jsonb	   *args;
	Oid			function;
	text	   *signature;
	NullableDatum result;

	idem_key_from_args(&request.key, fcinfo, ARG_KEY, ARG_SCOPE);
	request.wait_usecs = idem_wait_from_args(fcinfo, ARG_WAIT);
	if (PG_ARGISNULL(ARG_TOOL))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("tool must not be null")));
	function = PG_GETARG_OID(ARG_TOOL);
	idem_check_function(function);
	args = args_from_args(fcinfo);

	result_ttl = idem_interval_from_args(fcinfo, ARG_TTL);

	/* refuse a bad ttl before anything runs */
	idem_check_ttl("ttl", IDEM_MEMORY, result_ttl);

	signature = idem_function_signature(function);
	request.fingerprint = idem_call_fingerprint(signature, args);
	idem_reserve_key(&request, &outcome);

	/* that may have waited */
	idem_check_function_again(function, signature);
	result = idem_run_once(&request.key, &outcome, function, args, result_ttl);
	if (result.isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(result.value);
}
