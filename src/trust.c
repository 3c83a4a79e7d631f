/*-------------------------------------------------------------------------
 *
 * trust.c
 *	  Whose triggers may run when we write.
 *
 * A trigger runs as whoever writes, and for its table's operators and for the
 * worker that is the table's owner.  PostgreSQL lets everybody create one who
 * has the privilege TRIGGER, which many a GRANT ALL has given away.  A trigger
 * has no owner, but its function has: that must be a superuser or the owner of
 * the database.  The condition of a trigger runs as well, so the same holds for
 * the functions and types in there.
 *
 * This is looked up at every write to a table that has triggers, which costs
 * little beside the triggers themselves and is never out of date.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

static Oid
database_owner(void)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID,
										ObjectIdGetDatum(MyDatabaseId));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	owner = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
	ReleaseSysCache(tuple);
	return owner;
}

static bool
is_trusted_role(Oid role)
{
	return superuser_arg(role) || role == ROLE_PG_DATABASE_OWNER ||
		role == database_owner();
}

static bool
is_trusted_function(Oid function)
{
	HeapTuple	tuple;
	Oid			owner;

	/* made by initdb, and so the bootstrap superuser's */
	if (function < FirstUnpinnedObjectId)
		return true;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	return is_trusted_role(owner);
}

static bool
is_trusted_type(Oid type)
{
	HeapTuple	tuple;
	Oid			owner;

	if (type < FirstUnpinnedObjectId)
		return true;
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		return false;
	owner = ((Form_pg_type) GETSTRUCT(tuple))->typowner;
	ReleaseSysCache(tuple);
	return is_trusted_role(owner);
}

static bool
is_strange_function(Oid function, void *context)
{
	return !is_trusted_function(function);
}

/*
 * Is there anything of a stranger's in the expression?  A function, or a type:
 * a domain, or a row with a domain in it, has checks that call functions.
 */
static bool
has_strange_part(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, is_strange_function, context))
		return true;
	if (!IsA(node, List) && !is_trusted_type(exprType(node)))
		return true;
	return expression_tree_walker(node, has_strange_part, context);
}

static bool
is_trusted_trigger(const Trigger *trigger)
{
	return is_trusted_function(trigger->tgfoid) &&
		(trigger->tgqual == NULL ||
		 !has_strange_part(stringToNode(trigger->tgqual), NULL));
}

/*
 * Refuse with 55000 to write a table that has a trigger of a stranger's.
 */
void
idem_check_triggers(Relation rel)
{
	TriggerDesc *desc = rel->trigdesc;

	for (int i = 0; desc != NULL && i < desc->numtriggers; i++)
	{
		const Trigger *trigger = &desc->triggers[i];

		if (trigger->tgenabled == TRIGGER_DISABLED || is_trusted_trigger(trigger))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" on table \"%s\" cannot be trusted",
						trigger->tgname, RelationGetRelationName(rel)),
				 errdetail("Its function, or what its condition uses, belongs to neither a superuser nor the owner of the database."),
				 errhint("Drop the trigger, and revoke the privilege TRIGGER on the table from whoever made it.")));
	}
}
