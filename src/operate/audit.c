/*-------------------------------------------------------------------------
 *
 * audit.c
 *	  What operators did: a line in the server's log and a row in idem_audit.
 *
 * The row is written in the operator's transaction and goes with it; the line
 * stays.  Neither has a result in it.
 *
 * Operators have no privilege to write the table, so it is written as its
 * owner, in a statement that names no object by the search_path.
 *
 *-------------------------------------------------------------------------
 */
#include "operate/idem_operate.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "store/idem_store.h"

#define IDEM_AUDIT_NAME		"idem_audit"

/* The audit table, and who writes it */
typedef struct AuditTable
{
	Oid			relid;
	const char *name;			/* qualified and quoted */
	IdemCaller	caller;
} AuditTable;

/* Find the table in the extension's schema, never by the search_path */
static Oid
find_table(AuditTable *table)
{
	IdemStore	store;
	Oid			schema;
	HeapTuple	tuple;
	Oid			owner;

	idem_store_open(&store, NULL);
	schema = RelationGetNamespace(store.rel);
	idem_store_close(&store);

	table->relid = get_relname_relid(IDEM_AUDIT_NAME, schema);
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table->relid));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension \"%s\" does not exist",
						IDEM_AUDIT_NAME, IDEM_EXTENSION_NAME)));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);

	table->name = quote_qualified_identifier(get_namespace_name(schema),
											 IDEM_AUDIT_NAME);
	return owner;
}

/*
 * Refuse to write what runs a stranger's trigger.  The lock, which writing wants
 * in any case, keeps new ones out.
 */
static void
check_table(AuditTable *table)
{
	Relation	rel = table_open(table->relid, RowExclusiveLock);

	idem_check_triggers(rel);
	idem_check_cascades(rel);
	table_close(rel, NoLock);
}

static void
become_owner(AuditTable *table, Oid owner)
{
	check_table(table);
	idem_become_owner(&table->caller, owner);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
}

static void
become_caller(AuditTable *table)
{
	SPI_finish();
	idem_become_caller(&table->caller);
}

/* Add the row */
static void
write_row(const char *role, const char *session_role, const char *action,
		  const IdemKey *key, const char *old_status, const char *new_status)
{
	AuditTable	table;
	Oid			owner = find_table(&table);
	Oid			types[] = {TIMESTAMPTZOID, NAMEOID, NAMEOID, TEXTOID, TEXTOID,
	TEXTOID, TEXTOID, TEXTOID};
	Datum		values[] = {
		TimestampTzGetDatum(GetCurrentTimestamp()),
		DirectFunctionCall1(namein, CStringGetDatum(role)),
		DirectFunctionCall1(namein, CStringGetDatum(session_role)),
		CStringGetTextDatum(action),
		PointerGetDatum(key->scope),
		PointerGetDatum(key->key),
		CStringGetTextDatum(old_status),
		CStringGetTextDatum(new_status),
	};

	become_owner(&table, owner);
	if (SPI_execute_with_args(psprintf("INSERT INTO %s (at, role, session_role, action, scope, key, old_status, new_status) "
									   "VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
									   table.name),
							  lengthof(types), types, values, NULL, false, 0) != SPI_OK_INSERT ||
		SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not write to table \"%s\"", IDEM_AUDIT_NAME)));
	become_caller(&table);
}

/*
 * Leave a trace of what the current user did to the key.  The statement may
 * have a result in it, and so may the context: neither is logged with it.
 */
void
idem_audit(const char *action, const IdemKey *key, const char *old_status,
		   const char *new_status)
{
	const char *role = GetUserNameFromId(GetUserId(), false);
	const char *session_role = GetUserNameFromId(GetSessionUserId(), false);

	write_row(role, session_role, action, key, old_status, new_status);
	ereport(LOG_SERVER_ONLY,
			(errmsg("idem_%s by role \"%s\" in a session of \"%s\": key \"%s\" in scope \"%s\" from %s to %s",
					action, role, session_role, text_to_cstring(key->key),
					text_to_cstring(key->scope), old_status, new_status),
			 errhidestmt(true), errhidecontext(true)));
}

/* Leave a trace of what was refused, in the log only: the rest is rolled back */
void
idem_audit_refused(const char *action, const IdemKey *key)
{
	ereport(LOG_SERVER_ONLY,
			(errmsg("idem_%s by role \"%s\" in a session of \"%s\": key \"%s\" in scope \"%s\" refused",
					action, GetUserNameFromId(GetUserId(), false),
					GetUserNameFromId(GetSessionUserId(), false),
					text_to_cstring(key->key), text_to_cstring(key->scope)),
			 errhidestmt(true), errhidecontext(true)));
}

/* Delete the oldest rows that were written before "limit" */
static int64
delete_oldest(AuditTable *table, TimestampTz limit, int max_rows)
{
	Oid			types[] = {TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {TimestampTzGetDatum(limit), Int32GetDatum(max_rows)};
	SPIPlanPtr	plan;
	int			result;

	plan = SPI_prepare(psprintf("DELETE FROM %s WHERE ctid OPERATOR(pg_catalog.=) ANY "
								"(ARRAY(SELECT a.ctid FROM %s AS a "
								"WHERE a.at OPERATOR(pg_catalog.<) $1 ORDER BY a.at LIMIT $2))",
								table->name, table->name),
					   lengthof(types), types);
	if (plan == NULL)
		elog(ERROR, "could not prepare: %s", SPI_result_code_string(SPI_result));

	/* the latest snapshot: what others deleted before us is gone in any case */
	result = SPI_execute_snapshot(plan, values, NULL, GetLatestSnapshot(),
								  InvalidSnapshot, false, true, 0);
	if (result != SPI_OK_DELETE)
		elog(ERROR, "could not delete: %s", SPI_result_code_string(result));
	return (int64) SPI_processed;
}

/*
 * Delete rows older than idem_tool.audit_ttl, the oldest first and at most
 * "max_rows", for the sweep.  Returns how many.
 *
 * The lock keeps rivals from the same rows, so that there is no conflict at
 * any isolation level.  A serializable transaction leaves it to others:
 * reading here could abort an operator's.
 */
int64
idem_audit_trim(int max_rows)
{
	AuditTable	table;
	Oid			owner;
	int64		deleted;

	if (idem_audit_ttl < 0 || IsolationIsSerializable())
		return 0;

	owner = find_table(&table);
	if (!ConditionalLockRelationOid(table.relid, ShareUpdateExclusiveLock))
		return 0;

	become_owner(&table, owner);
	deleted = delete_oldest(&table,
							GetCurrentTimestamp() - (int64) idem_audit_ttl * USECS_PER_SEC,
							max_rows);
	become_caller(&table);
	return deleted;
}
