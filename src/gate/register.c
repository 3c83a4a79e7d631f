/*-------------------------------------------------------------------------
 *
 * register.c
 *	  idem_register and idem_unregister: who changes the registry of tools.
 *
 * EXECUTE is the privilege.  The table is written as its owner, in statements
 * that name nothing by the search_path, and nothing is called by its name, so
 * that nobody's function runs as the caller, nor as the owner.
 *
 * Whoever writes has the table for himself until his transaction ends, and
 * reads what is committed by then: no isolation level knows a conflict.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "keys/idem_keys.h"

/* Arguments of idem_register: the columns of idem_tools, in their order */
#define ARG_TOOL			0
#define ARG_FUNCTION		1
#define ARG_EFFECT			2
#define ARG_RESERVATION_TTL	3
#define ARG_RESULT_TTL		4
#define ARG_TAKEOVER		5
#define ARG_FALLBACK_TTL	6
#define ARG_DESCRIPTION		7
#define NARGS				8

PG_FUNCTION_INFO_V1(idem_register);
PG_FUNCTION_INFO_V1(idem_unregister);

static void
check_not_null(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
}

/* The name must be fit for the key that a call without one gets */
static void
check_tool(text *tool)
{
	Datum		args = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

	(void) idem_make_call_key(tool, DatumGetJsonbP(args), NULL);
}

static void
check_effect(text *effect)
{
	static const char *const effects[] = {"read", "write", "idempotent"};
	char	   *name = text_to_cstring(effect);

	for (int i = 0; i < lengthof(effects); i++)
	{
		if (strcmp(name, effects[i]) == 0)
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized effect \"%s\"", name),
			 errhint("The effects are \"read\", \"write\" and \"idempotent\".")));
}

/* The times: what idem_reserve and idem_complete would refuse, at once */
static void
check_times(FunctionCallInfo fcinfo)
{
	idem_check_ttl("reservation_ttl", IDEM_LEASE,
				   idem_interval_from_args(fcinfo, ARG_RESERVATION_TTL));
	idem_check_ttl("result_ttl", IDEM_MEMORY,
				   idem_interval_from_args(fcinfo, ARG_RESULT_TTL));
	idem_check_ttl("fallback_ttl", IDEM_MEMORY,
				   idem_interval_from_args(fcinfo, ARG_FALLBACK_TTL));
	idem_check_takeover(idem_interval_from_args(fcinfo, ARG_TAKEOVER));
}

/* Only a write has use for a key */
static void
check_fallback(FunctionCallInfo fcinfo)
{
	if (!PG_ARGISNULL(ARG_FALLBACK_TTL) &&
		strcmp(text_to_cstring(PG_GETARG_TEXT_PP(ARG_EFFECT)), "write") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fallback_ttl can only be given for a write"),
				 errdetail("Other tools are called without a key.")));
}

/* The text that the function is found by */
static text *
signature_of(Oid function)
{
	idem_check_function_kind(function);
	if (isAnyTempNamespace(get_func_namespace(function)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("temporary function %s cannot be registered",
						text_to_cstring(idem_function_signature(function)))));
	return idem_function_signature(function);
}

/* Run a statement about the registry, which it names "%s", as its owner */
static uint64
write_tools(Relation rel, const char *command, int nargs, const Oid *types,
			const Datum *values, const char *nulls)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));
	const char *name = quote_qualified_identifier(schema,
												  RelationGetRelationName(rel));
	IdemCaller	caller;
	SPIPlanPtr	plan;
	uint64		processed;

	idem_check_triggers(rel);
	idem_check_cascades(rel);
	idem_become_owner(&caller, rel->rd_rel->relowner);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	plan = SPI_prepare(psprintf(command, name), nargs, unconstify(Oid *, types));
	if (plan == NULL)
		elog(ERROR, "could not prepare: %s", SPI_result_code_string(SPI_result));

	/* what others committed since the transaction's snapshot is seen */
	if (SPI_execute_snapshot(plan, unconstify(Datum *, values), nulls,
							 GetLatestSnapshot(), InvalidSnapshot, false,
							 true, 0) < 0)
		elog(ERROR, "could not execute: %s", SPI_result_code_string(SPI_result));
	processed = SPI_processed;
	SPI_finish();
	idem_become_caller(&caller);
	return processed;
}

/* A trigger or a rule of the administrator's has kept the statement from it */
static pg_noreturn void
report_not_written(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("could not write to table \"%s\"",
					RelationGetRelationName(rel))));
}

/*
 * idem_register(tool, function, effect, reservation_ttl, result_ttl, takeover,
 *		fallback_ttl, description)
 *
 * Registers a tool, or replaces its registration.  Errors: 22004, 22023; 42883
 * and 42809 for a function that is not there or no tool; 0A000 for a temporary
 * one; 25006; 55000 if a trigger or a rule keeps it from the table.
 */
Datum
idem_register(PG_FUNCTION_ARGS)
{
	static const Oid types[NARGS] = {TEXTOID, TEXTOID, TEXTOID, INTERVALOID,
	INTERVALOID, INTERVALOID, INTERVALOID, TEXTOID};
	Datum		values[NARGS];
	char		nulls[NARGS];
	Relation	rel;

	check_not_null(fcinfo, ARG_TOOL, "tool");
	check_not_null(fcinfo, ARG_EFFECT, "effect");
	check_tool(PG_GETARG_TEXT_PP(ARG_TOOL));
	check_effect(PG_GETARG_TEXT_PP(ARG_EFFECT));
	check_times(fcinfo);
	check_fallback(fcinfo);
	for (int i = 0; i < NARGS; i++)
	{
		values[i] = fcinfo->args[i].value;
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	if (!PG_ARGISNULL(ARG_FUNCTION))
		values[ARG_FUNCTION] =
			PointerGetDatum(signature_of(PG_GETARG_OID(ARG_FUNCTION)));
	PreventCommandIfReadOnly("idem_register()");

	rel = idem_tools_open_for_write();
	if (write_tools(rel, "INSERT INTO %s (tool, function, effect, "
					"reservation_ttl, result_ttl, takeover, fallback_ttl, "
					"description) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) "
					"ON CONFLICT (tool) DO UPDATE SET (function, effect, "
					"reservation_ttl, result_ttl, takeover, fallback_ttl, "
					"description) = ROW (excluded.function, excluded.effect, "
					"excluded.reservation_ttl, excluded.result_ttl, "
					"excluded.takeover, excluded.fallback_ttl, "
					"excluded.description)",
					NARGS, types, values, nulls) != 1)
		report_not_written(rel);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * idem_unregister(tool) → boolean
 *
 * Removes a tool.  False: it was not there.  Errors: 25006, 55000.
 *
 * It is found as callers find it, and deleted where it is: a statement that
 * looked for it would take SIREAD locks, by which two who register different
 * tools could abort each other at SERIALIZABLE.
 */
Datum
idem_unregister(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TIDOID};
	ItemPointerData tid;
	Datum		values[] = {PointerGetDatum(&tid)};
	Relation	rel;
	bool		found;

	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	PreventCommandIfReadOnly("idem_unregister()");

	rel = idem_tools_open_for_write();
	found = idem_tools_find(rel, PG_GETARG_TEXT_PP(0), &tid);
	if (found &&
		write_tools(rel, "DELETE FROM %s WHERE ctid OPERATOR(pg_catalog.=) $1",
					lengthof(types), types, values, NULL) != 1)
		report_not_written(rel);
	relation_close(rel, NoLock);
	PG_RETURN_BOOL(found);
}
