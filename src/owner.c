/*-------------------------------------------------------------------------
 *
 * owner.c
 *	  Who owns a key, and who may act on it.
 *
 * The row keeps the owner's name, not its OID, so that dumps restore and a
 * dropped role does no harm; a row whose owner is gone is left to superusers
 * and operators.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* The role that was looked up last: keys tend to have one owner */
static NameData cached_name;
static Oid	cached_role = InvalidOid;

static void
role_inval_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	cached_role = InvalidOid;
}

/* Called once per backend, when the library is loaded */
void
idem_owner_init(void)
{
	CacheRegisterSyscacheCallback(AUTHOID, role_inval_callback, (Datum) 0);
}

/* The OID of a role that may be gone */
static Oid
role_by_name(Name name)
{
	if (!OidIsValid(cached_role) ||
		strcmp(NameStr(cached_name), NameStr(*name)) != 0)
	{
		cached_role = get_role_oid(NameStr(*name), true);
		cached_name = *name;
	}
	return cached_role;
}

/*
 * The owner of a key that the current user reserves first: himself, or the
 * role in idem_tool.owner, of which he must be a member.
 */
void
idem_owner_for_new(Name owner)
{
	Oid			role;

	if (idem_owner == NULL || idem_owner[0] == '\0')
	{
		namestrcpy(owner, GetUserNameFromId(GetUserId(), false));
		return;
	}

	role = get_role_oid(idem_owner, true);
	if (!OidIsValid(role) || !is_member_of_role(GetUserId(), role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be member of role \"%s\" to reserve keys for it",
						idem_owner),
				 errhint("Check the setting \"%s\".", "idem_tool.owner")));
	namestrcpy(owner, idem_owner);
}

/*
 * Is the current user an operator: may he execute idem_resolve?  Only the
 * extension's own counts, others may have made more of that name.
 */
static bool
is_operator(Oid schema)
{
	Oid			args[] = {TEXTOID, TEXTOID, JSONBOID, INTERVALOID, BOOLOID,
	BOOLOID, NAMEOID, TEXTOID};
	Oid			func = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
									   CStringGetDatum("idem_resolve"),
									   PointerGetDatum(buildoidvector(args, lengthof(args))),
									   ObjectIdGetDatum(schema));

	return OidIsValid(func) &&
		idem_function_aclcheck(func, GetUserId()) == ACLCHECK_OK;
}

/* May the current user act on this row, and learn what is in it? */
bool
idem_may_act(const IdemRow *row)
{
	Name		owner = DatumGetName(row->slot->tts_values[Anum_idem_owner - 1]);
	Oid			role = role_by_name(owner);

	if (!OidIsValid(role))
		return superuser() ||
			is_operator(get_rel_namespace(row->slot->tts_tableOid));
	return is_member_of_role(GetUserId(), role);
}
