/*-------------------------------------------------------------------------
 *
 * row.c
 *	  What a row of idempotency_keys says, and how a new version is made.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/detoast.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/bitmapset.h"
#include "rewrite/rewriteHandler.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

static const char *const status_names[] = {
	[IDEM_IN_PROGRESS] = "in_progress",
	[IDEM_DONE] = "done",
	[IDEM_FAILED] = "failed",
	[IDEM_RELEASED] = "released",
	[IDEM_EXPIRED] = "expired",
	[IDEM_RESERVED] = "reserved",
};

/* The same as text datums, made once */
static Datum status_datums[lengthof(status_names)];

PG_FUNCTION_INFO_V1(idem_memory_end);

/* Called once per backend, when the library is loaded */
void
idem_row_init(void)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);

	for (int i = 0; i < lengthof(status_names); i++)
		status_datums[i] = CStringGetTextDatum(status_names[i]);
	MemoryContextSwitchTo(oldcxt);
}

const char *
idem_status_name(IdemStatus status)
{
	return status_names[status];
}

Datum
idem_status_datum(IdemStatus status)
{
	return status_datums[status];
}

/*
 * The status column of a row.  Its check constraint allows five words, which
 * differ in their first letter.
 */
IdemStatus
idem_row_status(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		status = slot_getattr(slot, Anum_idem_status, &isnull);

	/* whoever took the constraint away may have left it empty */
	switch (VARSIZE_ANY_EXHDR(DatumGetPointer(status)) > 0 ?
			*VARDATA_ANY(DatumGetPointer(status)) : '\0')
	{
		case 'i':
			return IDEM_IN_PROGRESS;
		case 'd':
			return IDEM_DONE;
		case 'f':
			return IDEM_FAILED;
		case 'r':
			return IDEM_RELEASED;
		case 'e':
			return IDEM_EXPIRED;
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" has a row with an unknown status",
					IDEM_TABLE_NAME)));
}

/*
 * start + seconds; a negative number, "for ever", gives infinity, and so does
 * what comes after the end of time
 */
TimestampTz
idem_seconds_after(TimestampTz start, int seconds)
{
	if (seconds < 0 ||
		start >= END_TIMESTAMP - (int64) seconds * USECS_PER_SEC)
		return DT_NOEND;
	return start + (int64) seconds * USECS_PER_SEC;
}

/*
 * What the row means now, and until when.
 *
 * The one rule of memory: done, failed, released and expired rows carry its
 * end; a lapsed lease has what an expired row will have once it is marked.
 */
static void
judge_state(IdemRow *row, TimestampTz now)
{
	static const IdemState state_of[] = {
		[IDEM_IN_PROGRESS] = IDEM_STATE_UNKNOWN,
		[IDEM_DONE] = IDEM_STATE_DONE,
		[IDEM_FAILED] = IDEM_STATE_FAILED,
		[IDEM_RELEASED] = IDEM_STATE_RELEASED,
		[IDEM_EXPIRED] = IDEM_STATE_UNKNOWN,
	};

	row->memory_end = row->expires_at;
	if (row->status == IDEM_IN_PROGRESS)
	{
		if (row->expires_at > now)
		{
			row->state = IDEM_STATE_RUNNING;
			return;
		}
		row->memory_end = idem_seconds_after(row->expires_at,
											 idem_unknown_ttl);
	}
	row->state = row->memory_end > now ? state_of[row->status] :
		IDEM_STATE_ABSENT;
}

/* Read the row in "slot" and judge it by the time "now" */
void
idem_row_read(IdemRow *row, TupleTableSlot *slot, TimestampTz now)
{
	slot_getallattrs(slot);
	row->slot = slot;
	row->status = idem_row_status(slot);
	row->attempt = DatumGetInt32(slot->tts_values[Anum_idem_attempt - 1]);
	row->maybe_ran = DatumGetBool(slot->tts_values[Anum_idem_maybe_ran - 1]);
	row->token = DatumGetInt64(slot->tts_values[Anum_idem_token - 1]);
	row->created_at =
		DatumGetTimestampTz(slot->tts_values[Anum_idem_created_at - 1]);
	row->expires_at =
		DatumGetTimestampTz(slot->tts_values[Anum_idem_expires_at - 1]);
	judge_state(row, now);
}

/* Does a column of a varlena type have this value?  NULL equals nothing. */
bool
idem_column_equals(TupleTableSlot *slot, AttrNumber attno, const void *value)
{
	bool		isnull;
	Datum		datum = slot_getattr(slot, attno, &isnull);
	text	   *stored;

	if (isnull || value == NULL)
		return false;
	stored = DatumGetTextPP(datum);
	return VARSIZE_ANY_EXHDR(stored) == VARSIZE_ANY_EXHDR(value) &&
		memcmp(VARDATA_ANY(stored), VARDATA_ANY(value),
			   VARSIZE_ANY_EXHDR(value)) == 0;
}

/* Is the row in the slot this key's? */
bool
idem_row_has_key(TupleTableSlot *slot, const IdemKey *key)
{
	return idem_column_equals(slot, Anum_idem_scope, key->scope) &&
		idem_column_equals(slot, Anum_idem_key, key->key);
}

/* Start a new version of the row in "slot": all its columns, to be changed */
void
idem_row_copy(TupleTableSlot *slot, const IdemRow *row)
{
	int			natts = slot->tts_tupleDescriptor->natts;

	memcpy(slot->tts_values, row->slot->tts_values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, row->slot->tts_isnull, natts * sizeof(bool));
}

/*
 * A copy of the value of column "attno", for a caller: who may look at it when
 * the row's page and the table that large values are kept in are closed.
 */
Datum
idem_row_value(const IdemRow *row, AttrNumber attno)
{
	TupleTableSlot *slot = row->slot;
	Form_pg_attribute att = TupleDescAttr(slot->tts_tupleDescriptor, attno - 1);
	Datum		value = slot->tts_values[attno - 1];

	if (slot->tts_isnull[attno - 1])
		return value;
	if (att->attlen == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		return PointerGetDatum(detoast_external_attr((struct varlena *)
													 DatumGetPointer(value)));
	return datumCopy(value, att->attbyval, att->attlen);
}

/* Set column "attno" of a new version */
void
idem_row_set(TupleTableSlot *slot, AttrNumber attno, Datum value)
{
	slot->tts_values[attno - 1] = value;
	slot->tts_isnull[attno - 1] = false;
}

/* The same for a value that may be NULL */
void
idem_row_set_nullable(TupleTableSlot *slot, AttrNumber attno, Datum value,
					  bool isnull)
{
	slot->tts_values[attno - 1] = value;
	slot->tts_isnull[attno - 1] = isnull;
}

/*
 * The status that callers are told: a lapsed lease is "expired" to everybody,
 * marked or not.
 */
IdemStatus
idem_row_shown_status(const IdemRow *row)
{
	return row->state == IDEM_STATE_UNKNOWN ? IDEM_EXPIRED : row->status;
}

/* Add column "attno" to a set of columns, as the executor counts them */
static Bitmapset *
add_column(Bitmapset *columns, AttrNumber attno)
{
	return bms_add_member(columns, attno - FirstLowInvalidHeapAttributeNumber);
}

/* Columns that an attempt or its outcome assigns */
Bitmapset *
idem_changing_columns(void)
{
	Bitmapset  *columns = NULL;

	for (AttrNumber attno = Anum_idem_reserved_at; attno <= Natts_idem; attno++)
		columns = add_column(columns, attno);
	return columns;
}

/* Columns that are assigned when a key begins anew: all but the key */
Bitmapset *
idem_all_columns(Relation rel)
{
	Bitmapset  *columns = NULL;

	for (AttrNumber attno = Anum_idem_owner;
		 attno <= RelationGetNumberOfAttributes(rel); attno++)
		columns = add_column(columns, attno);
	return columns;
}

/* A domain can refuse NULL where the column does not */
static void
check_null_allowed(Oid type)
{
	if (get_typtype(type) == TYPTYPE_DOMAIN)
		domain_check((Datum) 0, true, type, NULL, NULL);
}

/*
 * Columns that an administrator added begin with their defaults.  Generated
 * ones are computed later.
 */
void
idem_row_default_columns(TupleTableSlot *slot, Relation rel, EState *estate)
{
	for (int attno = Natts_idem + 1; attno <= RelationGetNumberOfAttributes(rel); attno++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attno - 1);
		Node	   *expr;

		if (att->attisdropped || att->attgenerated)
			continue;

		slot->tts_isnull[attno - 1] = true;
		expr = build_column_default(rel, attno);
		if (expr == NULL)
			check_null_allowed(att->atttypid);
		else
			slot->tts_values[attno - 1] =
				ExecEvalExpr(ExecPrepareExpr((Expr *) expr, estate),
							 GetPerTupleExprContext(estate),
							 &slot->tts_isnull[attno - 1]);
	}
}

/*
 * idem_memory_end(status, expires_at) → timestamptz
 *
 * When a row with these columns stops meaning anything; for views, which could
 * not read the setting before the library is loaded.
 */
Datum
idem_memory_end(PG_FUNCTION_ARGS)
{
	const char *in_progress = idem_status_name(IDEM_IN_PROGRESS);
	text	   *status;
	TimestampTz end;

	/* its owner can make it one that is called for NULL as well */
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	status = PG_GETARG_TEXT_PP(0);
	end = PG_GETARG_TIMESTAMPTZ(1);
	if (!TIMESTAMP_NOT_FINITE(end) &&
		VARSIZE_ANY_EXHDR(status) == strlen(in_progress) &&
		memcmp(VARDATA_ANY(status), in_progress, strlen(in_progress)) == 0)
		end = idem_seconds_after(end, idem_unknown_ttl);
	PG_RETURN_TIMESTAMPTZ(end);
}
