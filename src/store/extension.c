/*-------------------------------------------------------------------------
 *
 * extension.c
 *	  Where the extension and its tables are, by the catalogs alone.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

static char *
read_version(Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		version = heap_getattr(tuple, Anum_pg_extension_extversion,
									   RelationGetDescr(rel), &isnull);

	return isnull ? pstrdup("") : TextDatumGetCString(version);
}

/*
 * The extension, and the schema it was installed in; InvalidOid: there is none.
 * Its version as well, if that is asked for.
 */
static Oid
find_extension(Oid *schema, char **version)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	Oid			extension = InvalidOid;
	ScanKeyData skey;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&skey, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum(IDEM_EXTENSION_NAME));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &skey);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		extension = ((Form_pg_extension) GETSTRUCT(tuple))->oid;
		*schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
		if (version)
			*version = read_version(rel, tuple);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return extension;
}

/* The schema that the extension was installed in */
Oid
idem_extension_schema(void)
{
	Oid			schema;

	if (!OidIsValid(find_extension(&schema, NULL)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" does not exist", IDEM_EXTENSION_NAME)));
	return schema;
}

/*
 * Open and lock a table of the extension's, never by the search_path; NULL if
 * there is none.  Who had to wait for the lock may find that the table is gone,
 * and the extension created anew: then look again, until there is nothing new.
 */
Relation
idem_extension_table(const char *name, Oid *schema, IdemWait *wait)
{
	Oid			gone = InvalidOid;

	for (;;)
	{
		Relation	rel;
		Oid			relid;

		*schema = idem_extension_schema();
		relid = get_relname_relid(name, *schema);
		if (!OidIsValid(relid) || relid == gone)
			return NULL;
		idem_lock_relation(wait, relid, AccessShareLock);
		rel = try_relation_open(relid, NoLock);
		if (rel != NULL)
			return rel;
		UnlockRelationOid(relid, AccessShareLock);
		gone = relid;
	}
}

/* The version of its SQL objects; "" if there is no extension */
char *
idem_extension_version(void)
{
	char	   *version = NULL;
	Oid			schema;

	if (!OidIsValid(find_extension(&schema, &version)))
		version = pstrdup("");
	return version;
}

/*
 * For the sweep, which is nobody's wish at the moment: the table, or
 * InvalidOid if there is no extension or no table of its.  Locks nothing.
 */
Oid
idem_store_locate(Oid *extension)
{
	Oid			schema;
	Oid			relid;

	*extension = find_extension(&schema, NULL);
	if (!OidIsValid(*extension))
		return InvalidOid;
	relid = get_relname_relid(IDEM_TABLE_NAME, schema);
	if (!OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != *extension)
		return InvalidOid;
	return relid;
}
