/*-------------------------------------------------------------------------
 *
 * keystore.c
 *	  The table idempotency_keys: where it is, what its rows say.
 *
 * The only file that knows the table's name and columns' types.  Object
 * identifiers are cached for the session; they would outlive a DROP EXTENSION,
 * so each invalidation of the table makes us look them up anew.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/relation.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "nodes/bitmapset.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define IDEM_SEQUENCE_NAME	"idempotency_keys_token_seq"
#define IDEM_ANSWER_NAME	"idem_answer"

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

static const struct
{
	const char *name;
	Oid			type;
}			columns[Natts_idem] =
{
	{"scope", TEXTOID},
	{"key", TEXTOID},
	{"owner", NAMEOID},
	{"created_at", TIMESTAMPTZOID},
	{"reserved_at", TIMESTAMPTZOID},
	{"token", INT8OID},
	{"attempt", INT4OID},
	{"fingerprint", BYTEAOID},
	{"holder", TEXTOID},
	{"maybe_ran", BOOLOID},
	{"expires_at", TIMESTAMPTZOID},
	{"completed_at", TIMESTAMPTZOID},
	{"status", TEXTOID},
	{"result", JSONBOID},
};

/*
 * Cached identifiers.  The table's is watched for invalidations whether or not
 * it is still "known", that is, trusted without looking it up again.
 */
static bool table_known = false;
static Oid	table_oid = InvalidOid;
static Oid	pkey_oid = InvalidOid;
static Oid	sequence_oid = InvalidOid;
static Oid	answer_type_oid = InvalidOid;

/* Forget what we know if the table or its index changed (0: everything) */
static void
store_inval_callback(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid || relid == pkey_oid)
	{
		table_known = false;
		idem_writer_forget();
	}
}

/* Called once per backend, when the library is loaded */
void
idem_store_init(void)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);

	for (int i = 0; i < lengthof(status_names); i++)
		status_datums[i] = CStringGetTextDatum(status_names[i]);
	MemoryContextSwitchTo(oldcxt);

	CacheRegisterRelcacheCallback(store_inval_callback, (Datum) 0);
}

/* Is the open relation the table that this library was written for? */
static void
check_layout(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < Natts_idem; i++)
	{
		if (i >= desc->natts ||
			TupleDescAttr(desc, i)->attisdropped ||
			TupleDescAttr(desc, i)->atttypid != columns[i].type ||
			strcmp(NameStr(TupleDescAttr(desc, i)->attname),
				   columns[i].name) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" does not have the columns that extension \"%s\" made",
							RelationGetRelationName(rel), IDEM_EXTENSION_NAME)));
	}
}

/*
 * Find the table in the extension's schema, never by the search_path.  Leaves
 * it open and locked.
 */
static Relation
find_table(void)
{
	Oid			schema = idem_extension_schema();
	Oid			relid = get_relname_relid(IDEM_TABLE_NAME, schema);
	Relation	rel = NULL;

	if (OidIsValid(relid))
		rel = try_relation_open(relid, AccessShareLock);
	if (rel == NULL || rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension \"%s\" does not exist",
						IDEM_TABLE_NAME, IDEM_EXTENSION_NAME)));

	check_layout(rel);
	pkey_oid = idem_primary_key(rel);
	sequence_oid = get_relname_relid(IDEM_SEQUENCE_NAME, schema);
	answer_type_oid = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
									  CStringGetDatum(IDEM_ANSWER_NAME),
									  ObjectIdGetDatum(schema));
	if (!OidIsValid(pkey_oid) || !OidIsValid(sequence_oid) ||
		!OidIsValid(answer_type_oid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("objects of extension \"%s\" are missing",
						IDEM_EXTENSION_NAME)));

	if (relid != table_oid)
		idem_writer_forget();
	table_oid = relid;
	table_known = true;			/* last: an error leaves nothing half known */
	return rel;
}

/*
 * Open the table by what we know of it.  Taking the lock brings the news: if
 * the table is still known after that, it is there and will stay.
 */
static Relation
open_known_table(void)
{
	LockRelationOid(table_oid, AccessShareLock);
	if (table_known)
		return relation_open(table_oid, NoLock);
	UnlockRelationOid(table_oid, AccessShareLock);
	return NULL;
}

/* Open the table for reading */
void
idem_store_open(IdemStore *store)
{
	store->rel = table_known ? open_known_table() : NULL;
	if (store->rel == NULL)
		store->rel = find_table();
	store->pkey = NULL;
	store->pkey_oid = pkey_oid;
	store->sequence = sequence_oid;
	store->answer_type = answer_type_oid;
	store->writing = false;
}

/*
 * Lock the table for writing; the lock stays until the transaction ends.  Who
 * has to wait for it lets go of the index: REINDEX keeps writers out of the
 * table while it waits for those who have the index.
 */
void
idem_store_lock_for_write(IdemStore *store)
{
	Oid			relid = RelationGetRelid(store->rel);

	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
	{
		if (store->pkey)
			index_close(store->pkey, AccessShareLock);
		store->pkey = NULL;
		LockRelationOid(relid, RowExclusiveLock);
	}
	store->writing = true;
}

/* The primary key's index; many calls can do without */
Relation
idem_store_pkey(IdemStore *store)
{
	if (store->pkey == NULL)
		store->pkey = index_open(store->pkey_oid, AccessShareLock);
	return store->pkey;
}

/* The same to insert into */
Relation
idem_store_pkey_for_write(IdemStore *store)
{
	LockRelationOid(store->pkey_oid, RowExclusiveLock);
	return idem_store_pkey(store);
}

/*
 * Close the table.  A reader's locks go at once, so that a replay leaves no
 * entry in the lock table; a writer's are not worth taking twice.
 */
void
idem_store_close(IdemStore *store)
{
	LOCKMODE	lockmode = store->writing ? NoLock : AccessShareLock;

	if (store->pkey)
		index_close(store->pkey, lockmode);
	relation_close(store->rel, lockmode);
}

/*
 * A fencing token above "last", the token of the key's row so far.
 *
 * A sequence can lag behind its rows, after a failover to an asynchronous
 * replica for example; the row is then the better witness.
 */
int64
idem_next_token(IdemStore *store, int64 last)
{
	int64		token = nextval_internal(store->sequence, false);

	if (token <= last && pg_add_s64_overflow(last, 1, &token))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("fencing token out of range")));
	return token;
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

	switch (*VARDATA_ANY(DatumGetPointer(status)))
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
	elog(ERROR, "unexpected status in table \"%s\"", IDEM_TABLE_NAME);
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
 * The value of column "attno", for a caller: who may look at it when the table's
 * lock is gone, and with it the table that large values are kept in.
 */
Datum
idem_row_value(const IdemRow *row, AttrNumber attno)
{
	TupleTableSlot *slot = row->slot;
	Datum		value = slot->tts_values[attno - 1];

	if (!slot->tts_isnull[attno - 1] &&
		TupleDescAttr(slot->tts_tupleDescriptor, attno - 1)->attlen == -1 &&
		VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		value = PointerGetDatum(detoast_external_attr((struct varlena *)
													  DatumGetPointer(value)));
	return value;
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
