/*-------------------------------------------------------------------------
 *
 * function.c
 *	  Functions that are run as tools: found by their names, checked, called.
 *
 * A tool's function is kept as text, schema-qualified, and looked up when it
 * is called: identifiers would not survive a dump.  Nothing here depends on
 * the search_path.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/htup_details.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "pgstat.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

/* What idem_register appends to a function's qualified name */
#define IDEM_SIGNATURE		"(jsonb)"

/* The function of that text, InvalidOid if there is none */
static Oid
lookup_function(char *signature)
{
	static const Oid argtypes[] = {JSONBOID};
	int			namelen = (int) strlen(signature) - (int) strlen(IDEM_SIGNATURE);
	List	   *parts;

	if (namelen <= 0 || strcmp(signature + namelen, IDEM_SIGNATURE) != 0)
		return InvalidOid;
	signature[namelen] = '\0';

	/* an unqualified name would be looked up along the search_path */
	if (!SplitIdentifierString(signature, '.', &parts) ||
		list_length(parts) != 2)
		return InvalidOid;
	return LookupFuncName(list_make2(makeString(linitial(parts)),
									 makeString(lsecond(parts))),
						  1, argtypes, true);
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

static pg_noreturn void
report_no_function(Oid function)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_FUNCTION),
			 errmsg("function with OID %u does not exist", function)));
}

/*
 * The qualified name of a function that idem_check_function() has let pass,
 * the same on any server that the function is restored on.  Somebody may be
 * just dropping it.
 */
text *
idem_function_signature(Oid function)
{
	char	   *schema = get_namespace_name(get_func_namespace(function));
	char	   *name = get_func_name(function);
	StringInfoData buf;

	if (schema == NULL || name == NULL)
		report_no_function(function);
	initStringInfo(&buf);
	append_identifier(&buf, schema);
	appendStringInfoChar(&buf, '.');
	append_identifier(&buf, name);
	appendStringInfoString(&buf, IDEM_SIGNATURE);
	return cstring_to_text_with_len(buf.data, buf.len);
}

/*
 * Refuse what is no plain function from jsonb to jsonb.
 */
void
idem_check_function_kind(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;

	if (!HeapTupleIsValid(tuple))
		report_no_function(function);
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
}

/*
 * The same, and refuse a function that the current user may not call.
 */
void
idem_check_function(Oid function)
{
	AclResult	aclresult;

	idem_check_function_kind(function);
	aclresult = idem_function_aclcheck(function, GetUserId());
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(function));
	InvokeFunctionExecuteHook(function);
}

/*
 * Refuse a function that has gone since it was checked, or that the current
 * user may not call any more.
 */
void
idem_check_function_again(Oid function, text *signature)
{
	if (!SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s does not exist any more",
						text_to_cstring(signature))));
	idem_check_function(function);
}

/* Call the function as an expression would, counted by track_functions */
NullableDatum
idem_call_function(Oid function, Jsonb *args)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	flinfo;
	PgStat_FunctionCallUsage usage;
	NullableDatum result;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = JsonbPGetDatum(args);
	fcinfo->args[0].isnull = false;

	pgstat_init_function_usage(fcinfo, &usage);
	result.value = FunctionCallInvoke(fcinfo);
	result.isnull = fcinfo->isnull;
	pgstat_end_function_usage(&usage, true);
	return result;
}
