/*-------------------------------------------------------------------------
 *
 * tools.c
 *	  The registry of tools: what a tool does, and which function it is.
 *
 * The registry is read by what is committed now, not by the transaction's
 * snapshot: a tool that has just become a write must not go on as a read.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#define IDEM_TOOLS_NAME		"idem_tools"

/* Columns of idem_tools, in order */
enum
{
	Anum_tools_tool = 1,
	Anum_tools_function,
	Anum_tools_effect,
	Anum_tools_reservation_ttl,
	Anum_tools_result_ttl,
	Anum_tools_takeover,
	Anum_tools_fallback_ttl,
	Anum_tools_description
};
#define Natts_tools		8

static const Oid column_types[Natts_tools] = {
	TEXTOID, TEXTOID, TEXTOID,
	INTERVALOID, INTERVALOID, INTERVALOID, INTERVALOID, TEXTOID
};

/* Cached identifiers; the table is InvalidOid when they must be looked up */
static Oid	tools_oid = InvalidOid;
static Oid	tools_pkey_oid = InvalidOid;

static void
tools_inval_callback(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == tools_oid || relid == tools_pkey_oid)
		tools_oid = InvalidOid;
}

/* Called once per backend, when the library is loaded */
void
idem_tools_init(void)
{
	CacheRegisterRelcacheCallback(tools_inval_callback, (Datum) 0);
}

/* Has the table the columns that we are going to read? */
static bool
has_known_columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < Natts_tools; i++)
	{
		if (i >= desc->natts ||
			TupleDescAttr(desc, i)->attisdropped ||
			TupleDescAttr(desc, i)->atttypid != column_types[i])
			return false;
	}
	return idem_has_no_null(desc, Anum_tools_effect - 1);
}

/* Is the tool's name its primary key, byte by byte? */
static bool
has_known_key(Relation rel)
{
	Relation	pkey;
	bool		known;

	if (!OidIsValid(idem_primary_key(rel)))
		return false;
	pkey = index_open(idem_primary_key(rel), AccessShareLock);
	known = pkey->rd_index->indnkeyatts == 1 &&
		pkey->rd_index->indkey.values[0] == Anum_tools_tool &&
		pkey->rd_indcollation[0] == C_COLLATION_OID &&
		pkey->rd_opfamily[0] == TEXT_BTREE_FAM_OID;
	index_close(pkey, AccessShareLock);
	return known;
}

/* Find the table in the extension's schema, and leave it open and locked */
static Relation
find_tools(void)
{
	Oid			schema;
	Relation	rel = idem_extension_table(IDEM_TOOLS_NAME, &schema, NULL);

	if (rel == NULL || rel->rd_rel->relkind != RELKIND_RELATION ||
		!has_known_columns(rel) || !has_known_key(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension \"%s\" is missing or was changed",
						IDEM_TOOLS_NAME, IDEM_EXTENSION_NAME),
				 idem_layout_hint(NULL)));
	tools_pkey_oid = idem_primary_key(rel);
	tools_oid = RelationGetRelid(rel);
	return rel;
}

/* The same by what we know, if that is still true under the lock */
static Relation
open_tools(void)
{
	Oid			relid = tools_oid;

	if (!OidIsValid(relid))
		return find_tools();
	LockRelationOid(relid, AccessShareLock);
	if (tools_oid == relid)
		return relation_open(relid, NoLock);
	UnlockRelationOid(relid, AccessShareLock);
	return find_tools();
}

/* A copy of an interval column, NULL if it is not set */
static Interval *
get_interval(TupleTableSlot *slot, AttrNumber attno)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, attno, &isnull);
	Interval   *copy;

	if (isnull)
		return NULL;
	copy = palloc(sizeof(Interval));
	*copy = *DatumGetIntervalP(value);
	return copy;
}

/* The column's check constraint allows three words */
static IdemEffect
get_effect(TupleTableSlot *slot)
{
	bool		isnull;
	text	   *effect = DatumGetTextPP(slot_getattr(slot, Anum_tools_effect,
													 &isnull));

	switch (*VARDATA_ANY(effect))
	{
		case 'r':
			return IDEM_READ;
		case 'i':
			return IDEM_IDEMPOTENT;
	}
	return IDEM_WRITE;
}

static void
read_tool(IdemTool *tool, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		function = slot_getattr(slot, Anum_tools_function, &isnull);

	tool->function = isnull ? NULL : DatumGetTextPCopy(function);
	tool->effect = get_effect(slot);
	tool->reservation_ttl = get_interval(slot, Anum_tools_reservation_ttl);
	tool->result_ttl = get_interval(slot, Anum_tools_result_ttl);
	tool->takeover = get_interval(slot, Anum_tools_takeover);
	tool->fallback_ttl = get_interval(slot, Anum_tools_fallback_ttl);
}

/*
 * Fetch the row of that name as it is committed now, own changes included.
 *
 * Every version is visited and judged by a snapshot taken now.  An MVCC index
 * scan would find the same, but for its SIREAD locks, by which a registration
 * and a call could abort each other at SERIALIZABLE.
 */
static bool
fetch_row(Relation rel, text *name, TupleTableSlot *slot)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	Relation	pkey = index_open(tools_pkey_oid, AccessShareLock);
	ScanKeyData skey;
	IndexScanDesc scan;
	bool		found = false;

	ScanKeyEntryInitialize(&skey, 0, 1, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(name));
	scan = idem_index_beginscan(rel, pkey, SnapshotAny, 1);
	index_rescan(scan, &skey, 1, NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, slot))
		found = table_tuple_satisfies_snapshot(rel, slot, latest);
	index_endscan(scan);

	index_close(pkey, AccessShareLock);
	UnregisterSnapshot(latest);
	return found;
}

/*
 * Open the table for who is going to change it, and keep others from that until
 * the transaction ends.
 */
Relation
idem_tools_open_for_write(void)
{
	Relation	rel = open_tools();

	LockRelationOid(RelationGetRelid(rel), ShareRowExclusiveLock);
	return rel;
}

/* Where is the tool's row?  False if it is not registered */
bool
idem_tools_find(Relation rel, text *name, ItemPointer tid)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		found = fetch_row(rel, name, slot);

	if (found)
		ItemPointerCopy(&slot->tts_tid, tid);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/* Look the tool up by its name; refuse one that is not registered */
static void
find_tool(IdemTool *tool)
{
	Relation	rel = open_tools();
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		found = fetch_row(rel, tool->name, slot);

	if (found)
		read_tool(tool, slot);
	ExecDropSingleTupleTableSlot(slot);
	relation_close(rel, AccessShareLock);

	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tool \"%s\" is not registered",
						text_to_cstring(tool->name)),
				 errhint("Check the name; new tools are registered with idem_register.")));
}

/*
 * Get the tool that the text argument "toolarg" names.  One that is not
 * registered is refused: nobody knows whether it is a write.
 */
void
idem_tool_from_args(IdemTool *tool, FunctionCallInfo fcinfo, int toolarg)
{
	if (PG_ARGISNULL(toolarg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("tool must not be null")));
	tool->name = PG_GETARG_TEXT_PP(toolarg);
	find_tool(tool);
}

/* Are both not set, or equal? */
static bool
same_interval(const Interval *a, const Interval *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return memcmp(a, b, sizeof(Interval)) == 0;
}

/*
 * Read the registration again, for who has waited since he read it.  Refuses a
 * tool that was unregistered, or whose call would have been judged otherwise:
 * with the error goes what was reserved by the old judgement.
 */
void
idem_tool_again(IdemTool *tool)
{
	IdemTool	old = *tool;

	find_tool(tool);
	if (tool->effect != old.effect ||
		!same_interval(tool->reservation_ttl, old.reservation_ttl) ||
		!same_interval(tool->takeover, old.takeover) ||
		!same_interval(tool->fallback_ttl, old.fallback_ttl))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("registration of tool \"%s\" has changed while the call waited",
						text_to_cstring(tool->name)),
				 errhint("Call again with the same key and arguments.")));
}
