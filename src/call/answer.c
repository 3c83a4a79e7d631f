/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  The row that idem_reserve returns.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

const Oid	idem_answer_types[Natts_answer] = {
	TEXTOID, JSONBOID, INT8OID, INT4OID, BOOLOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT4OID
};

/*
 * Refuse to make a row of a type that somebody has altered: the owner of the
 * database can, and a value taken for one of another type would be a way to
 * read the server's memory.
 */
void
idem_check_columns(TupleDesc desc, const Oid *types, int natts,
				   const char *name)
{
	for (int i = 0; i < Max(natts, desc->natts); i++)
	{
		if (i >= natts || i >= desc->natts ||
			TupleDescAttr(desc, i)->atttypid != types[i])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("type \"%s\" does not have the columns that extension \"%s\" made",
							name, IDEM_EXTENSION_NAME)));
	}
}

/* Seconds from now until "end", rounded up, at least 1 */
static int32
seconds_until(TimestampTz now, TimestampTz end)
{
	int64		seconds = (end - now + USECS_PER_SEC - 1) / USECS_PER_SEC;

	return (int32) Max(1, Min(seconds, PG_INT32_MAX));
}

/*
 * The answer "status" with the figures of "row", or with none if that is
 * absent.  The token is given away with "reserved" only.  Of a key that is in
 * progress the end is known only while the lease that was seen is running;
 * otherwise it is a rival's, and not committed yet.
 */
void
idem_answer(IdemAnswer *answer, const IdemRow *row, IdemStatus status,
			TimestampTz now)
{
	Datum	   *values = answer->values;
	bool	   *nulls = answer->isnull;

	memset(nulls, true, sizeof(answer->isnull));
	values[Anum_answer_status] = idem_status_datum(status);
	nulls[Anum_answer_status] = false;

	if (row->state != IDEM_STATE_ABSENT || status == IDEM_RESERVED)
	{
		values[Anum_answer_attempt] = Int32GetDatum(row->attempt);
		values[Anum_answer_maybe_ran] = BoolGetDatum(row->maybe_ran);
		values[Anum_answer_created_at] = TimestampTzGetDatum(row->created_at);

		/* a lease may be so short that it is over by now */
		values[Anum_answer_expires_at] =
			TimestampTzGetDatum(status == IDEM_RESERVED ? row->expires_at :
								row->memory_end);
		nulls[Anum_answer_attempt] = false;
		nulls[Anum_answer_maybe_ran] = false;
		nulls[Anum_answer_created_at] = false;
		nulls[Anum_answer_expires_at] = status == IDEM_IN_PROGRESS &&
			row->state != IDEM_STATE_RUNNING;
	}

	switch (status)
	{
		case IDEM_RESERVED:
			/* however short the lease, that is its end */
			values[Anum_answer_expires_at] =
				TimestampTzGetDatum(row->expires_at);
			values[Anum_answer_token] = Int64GetDatum(row->token);
			nulls[Anum_answer_token] = false;
			break;
		case IDEM_IN_PROGRESS:
			if (row->state == IDEM_STATE_RUNNING)
			{
				values[Anum_answer_retry_after] =
					Int32GetDatum(seconds_until(now, row->expires_at));
				nulls[Anum_answer_retry_after] = false;
			}
			break;
		case IDEM_DONE:
		case IDEM_FAILED:
			values[Anum_answer_result] =
				idem_row_value(row, Anum_idem_result);
			nulls[Anum_answer_result] =
				row->slot->tts_isnull[Anum_idem_result - 1];
			break;
		default:
			break;
	}
}

/* Move an answer to the current memory context */
void
idem_answer_move(IdemAnswer *answer)
{
	if (!answer->isnull[Anum_answer_result])
		answer->values[Anum_answer_result] =
			datumCopy(answer->values[Anum_answer_result], false, -1);
}

/*
 * The type that the function returns.  If the extension was made anew while the
 * call waited for the table, that is another one than the caller knows, with the
 * same columns, and the function that is running is no longer in the catalogs.
 */
static Oid
answer_type(FunctionCallInfo fcinfo)
{
	Oid			function = fcinfo->flinfo->fn_oid;

	if (SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function)))
		return get_func_rettype(function);
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
						   CStringGetDatum("idem_answer"),
						   ObjectIdGetDatum(idem_extension_schema()));
}

/* The answer as a row of that type */
HeapTuple
idem_answer_tuple(const IdemAnswer *answer, FunctionCallInfo fcinfo)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(answer_type(fcinfo), -1);
	HeapTuple	tuple;

	idem_check_columns(desc, idem_answer_types, Natts_answer, "idem_answer");
	tuple = heap_form_tuple(desc, (Datum *) answer->values,
							(bool *) answer->isnull);
	ReleaseTupleDesc(desc);
	return tuple;
}
