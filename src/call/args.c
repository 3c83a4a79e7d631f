/*-------------------------------------------------------------------------
 *
 * args.c
 *	  Arguments: validate them, fill in the settings' defaults.
 *
 * Everything here runs before the table is touched, so that a refused call
 * leaves no trace.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/detoast.h"
#include "utils/builtins.h"

#include "keys/idem_keys.h"

/*
 * Intervals beyond this many years are refused, far from where the sum with
 * a timestamp could overflow.
 */
#define IDEM_MAX_YEARS		100000

/*
 * Refuse the text argument "argno" unless it is a proper name.  Its size is
 * checked before it is decompressed: a huge one is not worth that.
 */
text *
idem_name_from_args(FunctionCallInfo fcinfo, int argno, const char *what,
					int maxlen, bool empty_ok)
{
	const char *error;
	text	   *name;

	if (toast_raw_datum_size(PG_GETARG_DATUM(argno)) - VARHDRSZ > maxlen)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be longer than %d bytes", what, maxlen)));

	name = PG_GETARG_TEXT_PP(argno);
	error = idem_name_error(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name),
							maxlen, empty_ok);
	if (error)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s", what, error)));
	return name;
}

/*
 * Make a key of a name and the scope argument "scopearg".  A NULL scope is the
 * setting's, checked when it was set.
 */
void
idem_key_set(IdemKey *key, text *name, FunctionCallInfo fcinfo, int scopearg)
{
	key->key = name;
	key->scope = PG_ARGISNULL(scopearg) ? cstring_to_text(idem_scope) :
		idem_name_from_args(fcinfo, scopearg, "scope", IDEM_MAX_SCOPE, true);
	key->hash = idem_key_hash(key, 0);
}

/*
 * Get the key and its scope from a call; "keyarg" and "scopearg" are their
 * argument numbers.
 */
void
idem_key_from_args(IdemKey *key, FunctionCallInfo fcinfo, int keyarg,
				   int scopearg)
{
	if (PG_ARGISNULL(keyarg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("key must not be null")));
	idem_key_set(key, idem_name_from_args(fcinfo, keyarg, "key", IDEM_MAX_KEY,
										  false),
				 fcinfo, scopearg);
}

/*
 * Refuse intervals that no clock arithmetic should meet, infinite ones too.
 * The fields must be small each, since they are added one after the other.
 */
static void
check_range(const char *what, const Interval *span)
{
	int64		months = span->month < 0 ? -(int64) span->month : span->month;
	int64		days = span->day < 0 ? -(int64) span->day : span->day;
	uint64		usecs = span->time < 0 ? -(uint64) span->time : span->time;

	if (months * DAYS_PER_MONTH + days + (int64) (usecs / USECS_PER_DAY) +
		(usecs % USECS_PER_DAY != 0) >
		(int64) IDEM_MAX_YEARS * MONTHS_PER_YEAR * DAYS_PER_MONTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite and not longer than %d years",
						what, IDEM_MAX_YEARS)));
}

/*
 * An interval's length in microseconds, with months of 30 days as interval
 * comparison has them (interval_cmp_value() in timestamp.c).
 */
int64
idem_interval_usecs(const char *what, const Interval *span)
{
	check_range(what, span);
	return span->time +
		((int64) span->month * DAYS_PER_MONTH + span->day) * USECS_PER_DAY;
}

/*
 * start + span.  A day has 24 hours whatever the session's time zone says, for
 * sessions in different ones must agree on when a key is forgotten.
 */
TimestampTz
idem_interval_after(const char *what, TimestampTz start,
					const Interval *span)
{
	return start + idem_interval_usecs(what, span);
}

/* An optional interval argument, NULL if it is not given */
const Interval *
idem_interval_from_args(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? NULL : PG_GETARG_INTERVAL_P(argno);
}

/* The argument "wait", in microseconds; not given, it is 0 */
int64
idem_wait_from_args(FunctionCallInfo fcinfo, int argno)
{
	int64		usecs = PG_ARGISNULL(argno) ? 0 :
		idem_interval_usecs("wait", PG_GETARG_INTERVAL_P(argno));

	if (usecs < 0 || usecs > IDEM_MAX_WAIT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must be between 0 and 1 hour")));
	return usecs;
}

/*
 * The length of a ttl, which must be positive and within the superuser's limit;
 * "what" is the name of the argument.
 */
static int64
ttl_usecs(const char *what, IdemTtl kind, const Interval *ttl, int limit)
{
	int64		usecs = idem_interval_usecs(what, ttl);

	if (usecs <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be positive", what)));
	if (limit >= 0 && usecs > (int64) limit * USECS_PER_SEC)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be longer than %d seconds", what, limit),
				 errdetail("The limit is the setting \"%s\".",
						   kind == IDEM_LEASE ? "idem_tool.max_reservation_ttl" :
						   "idem_tool.max_result_ttl"),
				 errhint("A bare number is taken as seconds.")));
	return usecs;
}

/* The superuser's limit, in seconds; a negative number is none */
static int
ttl_limit(IdemTtl kind)
{
	return kind == IDEM_LEASE ? idem_max_reservation_ttl : idem_max_result_ttl;
}

/* Refuse a ttl that idem_ttl_end() would refuse; NULL is none */
void
idem_check_ttl(const char *what, IdemTtl kind, const Interval *ttl)
{
	if (ttl != NULL)
		(void) ttl_usecs(what, kind, ttl, ttl_limit(kind));
}

/*
 * When does what begins now end?  By "ttl" or, if that is NULL, by the user's
 * setting.  Errors with 22023 if it is not after now, or beyond the superuser's
 * limit; a setting beyond that counts as the limit.
 */
TimestampTz
idem_ttl_end(IdemTtl kind, const Interval *ttl, TimestampTz now)
{
	int			setting = kind == IDEM_LEASE ? idem_reservation_ttl :
		idem_result_ttl;
	int			limit = ttl_limit(kind);

	if (ttl != NULL)
		return now + ttl_usecs("ttl", kind, ttl, limit);
	if (limit >= 0 && (setting < 0 || setting > limit))
		setting = limit;
	return idem_seconds_after(now, setting);
}

/* Refuse a length of time for takeovers that is none; NULL is none given */
void
idem_check_takeover(const Interval *takeover)
{
	if (takeover != NULL && idem_interval_usecs("takeover", takeover) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("takeover must not be negative")));
}

/* Refuse an outcome that is larger than allowed, stored or as text */
void
idem_check_result_size(Datum result, const char *hint)
{
	/* uncompressed, and without fetching it */
	Size		size = toast_raw_datum_size(result);

	if (size > (Size) idem_max_result_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("result is too large to be recorded"),
				 errdetail("It has %zu bytes, the limit is %d.",
						   size, idem_max_result_size),
				 errhint(hint, "idem_tool.max_result_size")));
	idem_check_printable(result);
}

/* The outcome to record, from a call's arguments; false if it is NULL */
bool
idem_result_from_args(FunctionCallInfo fcinfo, int resultarg, Datum *result)
{
	if (PG_ARGISNULL(resultarg))
		return false;
	*result = PG_GETARG_DATUM(resultarg);
	idem_check_result_size(*result,
						   "Record a reference to it, or raise \"%s\". The reservation stays.");
	return true;
}
