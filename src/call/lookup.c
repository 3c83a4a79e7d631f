/*-------------------------------------------------------------------------
 *
 * lookup.c
 *	  idem_lookup: what is known of a key, without touching it.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "catalog/pg_type.h"
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

static const Oid column_types[lengthof(public_columns)] = {
	TEXTOID, TEXTOID, TEXTOID, INT4OID, BOOLOID, TEXTOID, TEXTOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, JSONBOID,
	BYTEAOID
};

/* The row's values, a lapsed lease as everybody is told of it */
static void
read_row(const IdemRow *row, Datum *values, bool *isnull)
{
	for (int i = 0; i < lengthof(public_columns); i++)
	{
		AttrNumber	attno = public_columns[i];

		isnull[i] = row->slot->tts_isnull[attno - 1];
		if (attno == Anum_idem_status)
			values[i] = idem_status_datum(idem_row_shown_status(row));
		else if (attno == Anum_idem_expires_at)
			values[i] = TimestampTzGetDatum(row->memory_end);
		else
			values[i] = idem_row_value(row, attno);
	}
}

/* Look the key up; false if there is no row */
static bool
lookup(FunctionCallInfo fcinfo, Datum *values, bool *isnull)
{
	IdemKey		key;
	IdemStore	store;
	IdemLook	look;
	bool		found;

	idem_key_from_args(&key, fcinfo, 0, 1);

	idem_store_open(&store, NULL);
	idem_look_init(&look, &store);
	idem_look(&look, &store, &key);
	found = look.row.state != IDEM_STATE_ABSENT;
	if (found)
	{
		if (!idem_may_settle(&look.row))
			idem_report_denied(&key, &look.row);
		read_row(&look.row, values, isnull);
	}
	idem_look_end(&look);
	idem_store_close(&store);
	return found;
}

const IdemScanFunction idem_lookup_scan = {
	.name = "idem_lookup",
	.function = idem_lookup,
	.nargs = 2,
	.natts = lengthof(public_columns),
	.types = column_types,
	.call = lookup
};

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
	Datum		values[lengthof(public_columns)];
	bool		isnull[lengthof(public_columns)];

	/* the catalogs would be asked for it in each call, and leave a trace */
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (lookup(fcinfo, values, isnull))
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
