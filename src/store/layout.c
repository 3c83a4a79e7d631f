/*-------------------------------------------------------------------------
 *
 * layout.c
 *	  Is the table what the extension made?
 *
 * Looks by key, row locations and speculative insertions rely on the columns,
 * on the primary key and on each write being the one that is stored.  A table
 * that is otherwise is refused before anything is read of it.  What an
 * administrator may add, columns behind ours, indexes, constraints, triggers,
 * a place in a partitioned table, is no matter here.
 *
 * Looked at when the table is found, which is once after each change of its
 * definition: a call costs nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "nodes/pg_list.h"
#include "nodes/primnodes.h"
#include "rewrite/prs2lock.h"
#include "rewrite/rewriteDefine.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

static const struct
{
	const char *name;
	Oid			type;
	Oid			collation;
	bool		notnull;
}			columns[Natts_idem] =
{
	{"scope", TEXTOID, C_COLLATION_OID, true},
	{"key", TEXTOID, C_COLLATION_OID, true},
	{"owner", TEXTOID, C_COLLATION_OID, true},
	{"created_at", TIMESTAMPTZOID, InvalidOid, true},
	{"reserved_at", TIMESTAMPTZOID, InvalidOid, true},
	{"token", INT8OID, InvalidOid, true},
	{"attempt", INT4OID, InvalidOid, true},
	{"fingerprint", BYTEAOID, InvalidOid, false},
	{"holder", TEXTOID, DEFAULT_COLLATION_OID, false},
	{"maybe_ran", BOOLOID, InvalidOid, true},
	{"expires_at", TIMESTAMPTZOID, InvalidOid, true},
	{"completed_at", TIMESTAMPTZOID, InvalidOid, false},
	{"status", TEXTOID, DEFAULT_COLLATION_OID, true},
	{"result", JSONBOID, InvalidOid, false},
};

/* The primary key's columns in order, which begin_scan() looks for */
static const AttrNumber key_columns[] = {Anum_idem_key, Anum_idem_scope};

/*
 * A library that is newer or older than the extension's objects expects others
 * than are there: then say so, otherwise what is to be done, if anything.
 */
int
idem_layout_hint(const char *hint)
{
	char	   *version = idem_extension_version();

	if (strcmp(version, IDEM_VERSION) != 0)
		errhint("The library is of version %s, the extension in this database of version %s. Run ALTER EXTENSION %s UPDATE, or install the library of the extension's version.",
				IDEM_VERSION, version, IDEM_EXTENSION_NAME);
	else if (hint != NULL)
		errhint("%s", hint);
	return 0;					/* as the functions of ereport() */
}

static void
check_columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < Natts_idem; i++)
	{
		Form_pg_attribute att;

		att = i < desc->natts ? TupleDescAttr(desc, i) : NULL;
		if (att == NULL ||
			att->attisdropped ||
			att->atttypid != columns[i].type ||
			att->atttypmod != -1 ||
			att->attcollation != columns[i].collation ||
			(columns[i].notnull && !idem_has_no_null(desc, i)) ||
			att->attgenerated ||
			strcmp(NameStr(att->attname), columns[i].name) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" does not have the columns that extension \"%s\" made",
							RelationGetRelationName(rel), IDEM_EXTENSION_NAME),
					 errdetail("Column \"%s\" is missing or was changed.",
							   columns[i].name),
					 idem_layout_hint(NULL)));
	}
}

/* What keeps this primary key from telling which row a key has?  NULL: nothing */
static const char *
key_problem(Relation idx)
{
	Form_pg_index index = idx->rd_index;
	const char *problem = gettext_noop("It is over other columns, or in another order.");

	/*
	 * One that is no longer primary was replaced by REINDEX CONCURRENTLY after
	 * we had found it, and stays good until we let go of the table.
	 */
	if (!index->indisvalid && index->indisprimary)
		return gettext_noop("It is not valid.");
	if (!index->indimmediate)
		return gettext_noop("It is deferrable.");
	if (idx->rd_rel->relam != BTREE_AM_OID ||
		index->indnkeyatts != lengthof(key_columns) ||
		index->indnatts != lengthof(key_columns))
		return problem;
	for (int i = 0; i < lengthof(key_columns); i++)
	{
		if (index->indkey.values[i] != key_columns[i] ||
			idx->rd_indcollation[i] != C_COLLATION_OID ||
			idx->rd_opfamily[i] != TEXT_BTREE_FAM_OID)
			return problem;
	}
	return NULL;
}

/* The primary key, whether or not it can be used; InvalidOid: there is none */
static Oid
find_primary_key(Relation rel)
{
	Oid			pkey = idem_primary_key(rel);
	ListCell   *lc;

	if (OidIsValid(pkey))
		return pkey;

	/* that leaves out those that can not */
	foreach(lc, RelationGetIndexList(rel))
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID,
											ObjectIdGetDatum(lfirst_oid(lc)));

		if (!HeapTupleIsValid(tuple))
			continue;
		if (((Form_pg_index) GETSTRUCT(tuple))->indisprimary)
			pkey = lfirst_oid(lc);
		ReleaseSysCache(tuple);
	}
	return pkey;
}

static Oid
check_primary_key(Relation rel, IdemWait *wait)
{
	Oid			pkey = find_primary_key(rel);
	const char *problem = gettext_noop("It has none.");

	if (OidIsValid(pkey))
	{
		Relation	idx;

		idem_lock_relation(wait, pkey, AccessShareLock);
		idx = index_open(pkey, NoLock);
		problem = key_problem(idx);
		index_close(idx, AccessShareLock);
	}
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" does not have the primary key that extension \"%s\" made",
						RelationGetRelationName(rel), IDEM_EXTENSION_NAME),
				 errdetail("%s", _(problem)),
				 idem_layout_hint("Make it PRIMARY KEY (key, scope), not deferrable.")));
	return pkey;
}

/* A rule rewrites statements, and there are none here: it would be bypassed */
static void
check_rules(Relation rel)
{
	for (int i = 0; rel->rd_rules != NULL && i < rel->rd_rules->numLocks; i++)
	{
		if (rel->rd_rules->rules[i]->enabled != RULE_DISABLED)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" must not have rules",
							RelationGetRelationName(rel)),
					 errhint("Drop the rules, or make triggers of them.")));
	}
}

/*
 * Refuse with 55000 a table that is not what the extension made.  Returns the
 * primary key's index.
 */
Oid
idem_check_layout(Relation rel, IdemWait *wait)
{
	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" must be of access method \"%s\"",
						RelationGetRelationName(rel), "heap")));
	check_columns(rel);
	check_rules(rel);
	return check_primary_key(rel, wait);
}

/*
 * Does the index see to it that no two rows have the same key, whatever else
 * it is over?
 */
static bool
is_arbiter(Relation idx)
{
	Form_pg_index index = idx->rd_index;
	bool		found[lengthof(key_columns)] = {false};

	if (!index->indisunique || !index->indimmediate)
		return false;
	for (int i = 0; i < index->indnkeyatts; i++)
	{
		for (int j = 0; j < lengthof(key_columns); j++)
		{
			/* text is equal if its bytes are, unless its collation says no */
			if (index->indkey.values[i] == key_columns[j] &&
				(idx->rd_opfamily[i] == TEXT_BTREE_FAM_OID ||
				 idx->rd_opfamily[i] == TEXT_PATTERN_BTREE_FAM_OID) &&
				get_collation_isdeterministic(idx->rd_indcollation[i]))
				found[j] = true;
		}
	}
	return found[0] && found[1];
}

/*
 * Of the open indexes, those in which a conflict says that the key is there.
 *
 * That is the primary key, an administrator's unique index over the same or
 * more columns, be it partial, and the twin that an index has while it is
 * rebuilt concurrently, which gets entries before it is valid.  In any other
 * unique index a conflict is an error of the administrator's making.
 */
List *
idem_arbiters(Relation *indexes, int n)
{
	List	   *arbiters = NIL;

	for (int i = 0; i < n; i++)
	{
		if (is_arbiter(indexes[i]))
			arbiters = lappend_oid(arbiters, RelationGetRelid(indexes[i]));
	}
	return arbiters;
}

/* Is the node this word as a constant? */
static bool
is_constant(Node *node, const char *word)
{
	Const	   *constant = (Const *) node;

	return IsA(node, Const) && !constant->constisnull &&
		constant->consttype == TEXTOID &&
		strcmp(TextDatumGetCString(constant->constvalue), word) == 0;
}

/* Does the constraint say that the status is one of some words, with all ours? */
static bool
allows_each_status(ConstrCheck *check)
{
	ScalarArrayOpExpr *expr = stringToNode(check->ccbin);
	ArrayExpr  *array;

	if (!IsA(expr, ScalarArrayOpExpr) || !expr->useOr ||
		expr->opno != TextEqualOperator ||
		!IsA(linitial(expr->args), Var) ||
		linitial_node(Var, expr->args)->varattno != Anum_idem_status ||
		!IsA(lsecond(expr->args), ArrayExpr))
		return false;
	array = lsecond_node(ArrayExpr, expr->args);
	for (IdemStatus status = IDEM_IN_PROGRESS; status < IDEM_RESERVED; status++)
	{
		bool		found = false;
		ListCell   *lc;

		foreach(lc, array->elements)
			found |= is_constant(lfirst(lc), idem_status_name(status));
		if (!found)
			return false;
	}
	return true;
}

/*
 * Does the table have just what the extension made: no trigger or foreign key,
 * no further index, column or constraint?  Then whatever we write is right, and
 * nothing has to be asked.  "nindexes" is how many it has.
 */
bool
idem_has_plain_shape(Relation rel, int nindexes)
{
	TupleDesc	desc = RelationGetDescr(rel);
	TupleConstr *constr = desc->constr;

	if (rel->trigdesc != NULL || nindexes != 1 ||
		rel->rd_rel->relispartition || desc->natts != Natts_idem ||
		constr == NULL || constr->num_check != 1 ||
		constr->has_generated_stored)
		return false;
	for (int i = 0; i < Natts_idem; i++)
	{
		if (TupleDescAttr(desc, i)->attnotnull && !columns[i].notnull)
			return false;
	}
	return allows_each_status(&constr->check[0]);
}
