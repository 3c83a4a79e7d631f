/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  The row that idem_reserve returns.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/memutils.h"

/* Columns of the answer, in order */
enum
{
	Anum_answer_status = 0,
	Anum_answer_result,
	Anum_answer_token,
	Anum_answer_attempt,
	Anum_answer_maybe_ran,
	Anum_answer_created_at,
	Anum_answer_expires_at,
	Anum_answer_retry_after,
	Natts_answer
};

/*
 * The row type, made and blessed once: asking the catalogs for it in each
 * call would cost as much as looking at the key.
 */
static TupleDesc
answer_desc(void)
{
	static TupleDesc desc = NULL;

	if (desc == NULL)
	{
		MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);
		TupleDesc	new = CreateTemplateTupleDesc(Natts_answer);

		TupleDescInitEntry(new, 1, "status", TEXTOID, -1, 0);
		TupleDescInitEntry(new, 2, "result", JSONBOID, -1, 0);
		TupleDescInitEntry(new, 3, "token", INT8OID, -1, 0);
		TupleDescInitEntry(new, 4, "attempt", INT4OID, -1, 0);
		TupleDescInitEntry(new, 5, "maybe_ran", BOOLOID, -1, 0);
		TupleDescInitEntry(new, 6, "created_at", TIMESTAMPTZOID, -1, 0);
		TupleDescInitEntry(new, 7, "expires_at", TIMESTAMPTZOID, -1, 0);
		TupleDescInitEntry(new, 8, "retry_after", INT4OID, -1, 0);
		desc = BlessTupleDesc(new);
		MemoryContextSwitchTo(oldcxt);
	}
	return desc;
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
HeapTuple
idem_answer(const IdemRow *row, IdemStatus status, TimestampTz now)
{
	Datum		values[Natts_answer];
	bool		nulls[Natts_answer];

	memset(nulls, true, sizeof(nulls));
	values[Anum_answer_status] = idem_status_datum(status);
	nulls[Anum_answer_status] = false;

	if (row->state != IDEM_STATE_ABSENT)
	{
		values[Anum_answer_attempt] = Int32GetDatum(row->attempt);
		values[Anum_answer_maybe_ran] = BoolGetDatum(row->maybe_ran);
		values[Anum_answer_created_at] = TimestampTzGetDatum(row->created_at);
		values[Anum_answer_expires_at] = TimestampTzGetDatum(row->memory_end);
		nulls[Anum_answer_attempt] = false;
		nulls[Anum_answer_maybe_ran] = false;
		nulls[Anum_answer_created_at] = false;
		nulls[Anum_answer_expires_at] = status == IDEM_IN_PROGRESS &&
			row->state != IDEM_STATE_RUNNING;
	}

	switch (status)
	{
		case IDEM_RESERVED:
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
				row->slot->tts_values[Anum_idem_result - 1];
			nulls[Anum_answer_result] =
				row->slot->tts_isnull[Anum_idem_result - 1];
			break;
		default:
			break;
	}
	return heap_form_tuple(answer_desc(), values, nulls);
}
