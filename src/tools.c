/*-------------------------------------------------------------------------
 *
 * tools.c
 *	  The registry of tools: what a tool does, and which function it is.
 *
 * A tool's function is kept as text, schema-qualified, and looked up when it
 * is called: identifiers would not survive a dump.  Nothing here depends on
 * the search_path.
 *
 * The registry is read by what is committed now, not by the transaction's
 * snapshot: a tool that has just become a write must not go on as a read.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_gate.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/regproc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#define IDEM_TOOLS_NAME		"idem_tools"

/* What idem_register appends to a function's qualified name */
#define IDEM_SIGNATURE		"(jsonb)"

/* Columns of idem_tools, in order */
enum
{
	Anum_tools_tool = 1,
	Anum_tools_function,
	Anum_tools_effect,
	Anum_tools_reservation_ttl,
	Anum_tools_result_ttl,
	Anum_tools_takeover,
	Anum_tools_fallback_ttl
};
#define Natts_tools_used	7

static const Oid column_types[Natts_tools_used] = {
	TEXTOID, TEXTOID, TEXTOID,
	INTERVALOID, INTERVALOID, INTERVALOID, INTERVALOID
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
has_known_layout(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < Natts_tools_used; i++)
	{
		if (i >= desc->natts ||
			TupleDescAttr(desc, i)->attisdropped ||
			TupleDescAttr(desc, i)->atttypid != column_types[i])
			return false;
	}
	return true;
}

/* Find the table in the extension's schema, and leave it open and locked */
static Relation
find_tools(void)
{
	Oid			relid = get_relname_relid(IDEM_TOOLS_NAME,
										  idem_extension_schema());
	Relation	rel = NULL;

	if (OidIsValid(relid))
		rel = try_relation_open(relid, AccessShareLock);
	if (rel == NULL || rel->rd_rel->relkind != RELKIND_RELATION ||
		!has_known_layout(rel) || !OidIsValid(idem_primary_key(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension \"%s\" is missing or was changed",
						IDEM_TOOLS_NAME, IDEM_EXTENSION_NAME)));
	tools_pkey_oid = idem_primary_key(rel);
	tools_oid = relid;
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

/* Look the tool up by its name; false if it is not registered */
static bool
find_tool(IdemTool *tool)
{
	Relation	rel = open_tools();
	Relation	pkey = index_open(tools_pkey_oid, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData skey;
	IndexScanDesc scan;
	bool		found;

	ScanKeyEntryInitialize(&skey, 0, 1, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ,
						   PointerGetDatum(tool->name));
	scan = idem_index_beginscan(rel, pkey, latest, 1);
	index_rescan(scan, &skey, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
		read_tool(tool, slot);
	index_endscan(scan);

	UnregisterSnapshot(latest);
	ExecDropSingleTupleTableSlot(slot);
	index_close(pkey, AccessShareLock);
	relation_close(rel, AccessShareLock);
	return found;
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
	if (!find_tool(tool))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tool \"%s\" is not registered",
						text_to_cstring(tool->name)),
				 errhint("Check the name; new tools are registered with idem_register.")));
}

/* The function of that text, InvalidOid if there is none */
static Oid
lookup_function(char *signature)
{
	static const Oid argtypes[] = {JSONBOID};
	int			namelen = (int) strlen(signature) - (int) strlen(IDEM_SIGNATURE);
	List	   *names;

	if (namelen <= 0 || strcmp(signature + namelen, IDEM_SIGNATURE) != 0)
		return InvalidOid;
	signature[namelen] = '\0';
	names = idem_qualified_name_list(signature);

	/* an unqualified name would be looked up along the search_path */
	if (list_length(names) != 2)
		return InvalidOid;
	return LookupFuncName(names, 1, argtypes, true);
}

/*
 * The function that a tool is, checked to be one that the current user may
 * call.
 */
Oid
idem_tool_function(const IdemTool *tool)
{
	Oid			function;

	if (tool->function == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("tool \"%s\" has no function in this database",
						text_to_cstring(tool->name)),
				 errhint("Call idem_begin, run the tool where it lives, then record the outcome with idem_complete.")));

	function = lookup_function(text_to_cstring(tool->function));
	if (!OidIsValid(function))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s of tool \"%s\" does not exist",
						text_to_cstring(tool->function),
						text_to_cstring(tool->name)),
				 errhint("Register the tool again with idem_register.")));
	idem_check_function(function);
	return function;
}

/*
 * Append an identifier, in double quotes unless it is a plain one.  That is not
 * quote_identifier(), which depends on a setting and on the keywords of a
 * PostgreSQL version: fingerprints are made of this.
 */
static void
append_identifier(StringInfo buf, const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
	static const char others[] = "abcdefghijklmnopqrstuvwxyz_0123456789";

	if (strspn(name, letters) > 0 && strspn(name, others) == strlen(name))
	{
		appendStringInfoString(buf, name);
		return;
	}
	appendStringInfoChar(buf, '"');
	for (const char *c = name; *c; c++)
	{
		if (*c == '"')
			appendStringInfoChar(buf, '"');
		appendStringInfoChar(buf, *c);
	}
	appendStringInfoChar(buf, '"');
}

/*
 * The qualified name of a function that idem_check_function() has let pass,
 * the same on any server that the function is restored on.
 */
text *
idem_function_signature(Oid function)
{
	StringInfoData buf;

	initStringInfo(&buf);
	append_identifier(&buf, get_namespace_name(get_func_namespace(function)));
	appendStringInfoChar(&buf, '.');
	append_identifier(&buf, get_func_name(function));
	appendStringInfoString(&buf, IDEM_SIGNATURE);
	return cstring_to_text_with_len(buf.data, buf.len);
}

/*
 * Refuse what is no plain function from jsonb to jsonb, or one that the
 * current user may not call.
 */
void
idem_check_function(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	AclResult	aclresult;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	if (proc->prokind != PROKIND_FUNCTION || proc->proretset ||
		proc->pronargs != 1 || proc->proargtypes.values[0] != JSONBOID ||
		proc->prorettype != JSONBOID)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%s cannot be run as a tool",
						format_procedure(function)),
				 errdetail("A tool is a function that takes one jsonb and returns one jsonb.")));
	ReleaseSysCache(tuple);

	aclresult = idem_function_aclcheck(function, GetUserId());
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(function));
	InvokeFunctionExecuteHook(function);
}
