/*-------------------------------------------------------------------------
 *
 * extension.c
 *	  Where the extension is: its OID and its schema, by the catalogs alone.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

/* The extension and the schema it was installed in; InvalidOid: there is none */
static Oid
find_extension(Oid *schema)
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

	if (!OidIsValid(find_extension(&schema)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" does not exist", IDEM_EXTENSION_NAME)));
	return schema;
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

	*extension = find_extension(&schema);
	if (!OidIsValid(*extension))
		return InvalidOid;
	relid = get_relname_relid(IDEM_TABLE_NAME, schema);
	if (!OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != *extension)
		return InvalidOid;
	return relid;
}
