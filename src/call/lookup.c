/*-------------------------------------------------------------------------
 *
 * lookup.c
 *	  idem_lookup: what is known of a key, without touching it.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "funcapi.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(idem_lookup);

/* The public columns: all but the token */
static const AttrNumber public_columns[] = {
	Anum_idem_scope, Anum_idem_key, Anum_idem_status, Anum_idem_attempt,
	Anum_idem_maybe_ran, Anum_idem_owner, Anum_idem_holder,
	Anum_idem_created_at, Anum_idem_reserved_at, Anum_idem_completed_at,
	Anum_idem_expires_at, Anum_idem_result, Anum_idem_fingerprint
};

/* Add the row to the result, a lapsed lease as everybody is told of it */
static void
put_row(ReturnSetInfo *rsinfo, const IdemRow *row)
{
	Datum		values[lengthof(public_columns)];
	bool		nulls[lengthof(public_columns)];

	for (int i = 0; i < lengthof(public_columns); i++)
	{
		AttrNumber	attno = public_columns[i];

		values[i] = idem_row_value(row, attno);
		nulls[i] = row->slot->tts_isnull[attno - 1];
		if (attno == Anum_idem_status)
			values[i] = idem_status_datum(idem_row_shown_status(row));
		else if (attno == Anum_idem_expires_at)
			values[i] = TimestampTzGetDatum(row->memory_end);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * idem_lookup(key, scope) → the public columns, or no row
 *
 * Judges as the others do: by the latest committed state and the caller's own
 * changes, at the server's time.  Errors: 22004, 22023, 42501.
 */
Datum
idem_lookup(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemKey		key;
	IdemStore	store;
	IdemLook	look;

	/* the catalogs would be asked for it in each call, and leave a trace */
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	idem_key_from_args(&key, fcinfo, 0, 1);

	idem_store_open(&store, NULL);
	idem_look_init(&look, &store);
	idem_look(&look, &store, &key);
	if (look.row.state != IDEM_STATE_ABSENT)
	{
		if (!idem_may_settle(&look.row))
			idem_report_denied(&key, &look.row);
		put_row(rsinfo, &look.row);
	}
	idem_look_end(&look);
	idem_store_close(&store);
	return (Datum) 0;
}
