/*-------------------------------------------------------------------------
 *
 * request.c
 *	  idem_reserve as SQL calls it: what is asked for, and the answer's row.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "keys/idem_keys.h"

/* Argument numbers */
#define ARG_KEY			0
#define ARG_TTL			1
#define ARG_REQUEST		2
#define ARG_WAIT		3
#define ARG_TAKEOVER	4
#define ARG_HOLDER		5
#define ARG_SCOPE		6
#define ARG_TWO_PHASE	7

/* Lengths of the argument types, for callsite.c */
static const int arglens[] = {
	-1, sizeof(Interval), -1, sizeof(Interval), sizeof(Interval), -1, -1,
	IDEM_BY_VALUE
};

PG_FUNCTION_INFO_V1(idem_reserve);

static void
request_from_args(IdemReserveRequest *request, FunctionCallInfo fcinfo)
{
	request->name = "idem_reserve()";
	idem_key_from_args(&request->key, fcinfo, ARG_KEY, ARG_SCOPE);
	request->ttl = idem_interval_from_args(fcinfo, ARG_TTL);

	idem_check_ttl("ttl", IDEM_LEASE, request->ttl);

	request->wait_usecs = idem_wait_from_args(fcinfo, ARG_WAIT);
	request->takeover = idem_interval_from_args(fcinfo, ARG_TAKEOVER);
	idem_check_takeover(request->takeover);

	request->holder = PG_ARGISNULL(ARG_HOLDER) ? NULL :
		idem_name_from_args(fcinfo, ARG_HOLDER, "holder", IDEM_MAX_HOLDER,
							false);
	request->fingerprint = PG_ARGISNULL(ARG_REQUEST) ? NULL :
		idem_fingerprint_jsonb(PG_GETARG_JSONB_P(ARG_REQUEST));
}

/* One call from SQL, in FROM or elsewhere */
static void
reserve(FunctionCallInfo fcinfo, IdemReserveOutcome *outcome)
{
	IdemReserveRequest request;

	request_from_args(&request, fcinfo);
	if (PG_ARGISNULL(ARG_TWO_PHASE) ? idem_two_phase :
		PG_GETARG_BOOL(ARG_TWO_PHASE))
		idem_require_autocommit("idem_reserve()");
	idem_reserve_key(&request, outcome);
}

static bool
scan(FunctionCallInfo fcinfo, Datum *values, bool *isnull)
{
	IdemReserveOutcome outcome;

	reserve(fcinfo, &outcome);
	memcpy(values, outcome.answer.values, sizeof(outcome.answer.values));
	memcpy(isnull, outcome.answer.isnull, sizeof(outcome.answer.isnull));
	return true;
}

const IdemScanFunction idem_reserve_scan = {
	.name = "idem_reserve",
	.function = idem_reserve,
	.nargs = lengthof(arglens),
	.natts = Natts_answer,
	.types = idem_answer_types,
	.call = scan
};

/*
 * idem_reserve(key, ttl, request, wait, takeover, holder, scope, two_phase)
 *		→ one row
 *
 * Reserves the key, or says what has become of it.  The intervals count from
 * the server's clock_timestamp().  Errors: 22023 and 22004 for bad arguments,
 * 42501, IK001, 25006 where it would have to write in a read only
 * transaction, 25001 in a transaction block with two_phase, 55P03 when
 * lock_timeout is shorter than the wait, 55000 when a trigger vetoes the
 * reservation.
 */
Datum
idem_reserve(PG_FUNCTION_ARGS)
{
	HeapTuple	given = idem_callsite_recall(fcinfo, arglens);

	if (given == NULL)
	{
		IdemReserveOutcome outcome;

		reserve(fcinfo, &outcome);
		given = idem_answer_tuple(&outcome.answer, fcinfo);
		idem_callsite_remember(fcinfo, arglens, given);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(given));
}
