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
#include "store/idem_store.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
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

static pg_noreturn void
refuse(const Trigger *trigger, Relation rel, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("trigger \"%s\" on table \"%s\" cannot be trusted",
					trigger->tgname, RelationGetRelationName(rel)),
			 errdetail("Its function, or what its condition uses, belongs to neither a superuser nor the owner of the database."),
			 errhint("%s", hint)));
}

/*
 * Is what an index of a table computes, or is partial by, free of strangers'
 * parts?  Read from the catalog: the relcache runs what looks constant in it.
 */
static bool
is_trusted_index(Oid index)
{
	static const AttrNumber columns[] = {
		Anum_pg_index_indexprs, Anum_pg_index_indpred
	};
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool		trusted = HeapTupleIsValid(tuple);

	for (int i = 0; trusted && i < lengthof(columns); i++)
	{
		bool		isnull;
		Datum		parts = SysCacheGetAttr(INDEXRELID, tuple, columns[i], &isnull);

		trusted = isnull ||
			!has_strange_part(stringToNode(TextDatumGetCString(parts)), NULL);
	}
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return trusted;
}

/*
 * Refuse with 55000 to write a table that has a trigger of a stranger's.
 *
 * We look at a copy, as the executor does: what we look up may have the
 * relcache's made anew.
 */
void
idem_check_triggers(Relation rel)
{
	TriggerDesc *desc = CopyTriggerDesc(rel->trigdesc);

	for (int i = 0; desc != NULL && i < desc->numtriggers; i++)
	{
		const Trigger *trigger = &desc->triggers[i];

		if (trigger->tgenabled != TRIGGER_DISABLED &&
			!is_trusted_trigger(trigger))
			refuse(trigger, rel,
				   "Drop the trigger, and revoke the privilege TRIGGER on the table from whoever made it.");
	}
}

/*
 * Does it fire after a deletion or an update?  What fires before one that a
 * foreign key makes runs as the owner of the table with the foreign key.
 */
static bool
fires_after_cascade(const Trigger *trigger)
{
	return trigger->tgenabled != TRIGGER_DISABLED &&
		!TRIGGER_FOR_BEFORE(trigger->tgtype) &&
		(TRIGGER_FOR_DELETE(trigger->tgtype) ||
		 TRIGGER_FOR_UPDATE(trigger->tgtype));
}

/* Does it write the table with the foreign key? */
static bool
is_cascade(const Trigger *trigger)
{
	switch (trigger->tgfoid)
	{
		case F_RI_FKEY_CASCADE_DEL:
		case F_RI_FKEY_CASCADE_UPD:
		case F_RI_FKEY_SETNULL_DEL:
		case F_RI_FKEY_SETNULL_UPD:
		case F_RI_FKEY_SETDEFAULT_DEL:
		case F_RI_FKEY_SETDEFAULT_UPD:
			return trigger->tgenabled != TRIGGER_DISABLED;
		default:
			return false;
	}
}

/* Add the tables that are written as well if rows of a table are, locked */
static List *
add_cascades(List *tables, const TriggerDesc *desc)
{
	for (int i = 0; desc != NULL && i < desc->numtriggers; i++)
	{
		Oid			other = desc->triggers[i].tgconstrrelid;

		if (!is_cascade(&desc->triggers[i]) ||
			list_member_oid(tables, other))
			continue;

		/* that locks what inherits from it, and not the table itself */
		LockRelationOid(other, RowExclusiveLock);
		tables = list_concat_unique_oid(tables,
										find_all_inheritors(other, RowExclusiveLock,
															NULL));
	}
	return tables;
}

/*
 * Refuse what fires in a table after a cascade unless it can be trusted.  A
 * deferred constraint computes its index's entries once more.
 */
static void
check_after_cascade(const Trigger *trigger, Relation rel)
{
	if (!fires_after_cascade(trigger))
		return;
	if (!is_trusted_trigger(trigger))
		refuse(trigger, rel,
			   "Drop the foreign key, or have the function belong to the owner of the database.");
	if (trigger->tgfoid == F_UNIQUE_KEY_RECHECK &&
		!is_trusted_index(trigger->tgconstrindid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("constraint \"%s\" on table \"%s\" cannot be trusted",
						get_constraint_name(trigger->tgconstraint),
						RelationGetRelationName(rel)),
				 errdetail("Something in its expressions belongs to neither a superuser nor the owner of the database."),
				 errhint("Drop the foreign key, or make the constraint not deferrable.")));
}

/*
 * The triggers of what a rule of such a table writes, too, fire after the
 * cascade: refuse the rules of strangers.
 */
static void
check_rules(Relation rel)
{
	if (rel->rd_rules != NULL && !is_trusted_role(rel->rd_rel->relowner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rules on table \"%s\" cannot be trusted",
						RelationGetRelationName(rel)),
				 errdetail("The table belongs to neither a superuser nor the owner of the database."),
				 errhint("Drop the foreign key, or the rules.")));
}

/*
 * The same for who deletes rows of the table: a foreign key that refers to it
 * may delete or change rows elsewhere, and what fires there afterwards runs as
 * whoever made the first deletion.  Locks these tables, as the foreign keys
 * would, so that nothing is hung on them in between.
 */
void
idem_check_cascades(Relation rel)
{
	List	   *tables = add_cascades(NIL, CopyTriggerDesc(rel->trigdesc));

	/* the list grows as we go */
	for (int i = 0; i < list_length(tables); i++)
	{
		Relation	other = table_open(list_nth_oid(tables, i), NoLock);
		TriggerDesc *desc = CopyTriggerDesc(other->trigdesc);

		for (int j = 0; desc != NULL && j < desc->numtriggers; j++)
			check_after_cascade(&desc->triggers[j], other);
		check_rules(other);
		tables = add_cascades(tables, desc);
		table_close(other, NoLock);
	}
}
