/*-------------------------------------------------------------------------
 *
 * owner.c
 *	  Who owns a key, and who may act on it.
 *
 * The row keeps the owner's name, not its OID, so that dumps restore and a
 * dropped role does no harm; a row whose owner is gone is left to superusers
 * and operators.
 *
 * Who reserves goes on to believe what others have recorded.  So a superuser
 * does not get there by his power, but only where somebody has made him a
 * member: otherwise any caller could plant a result for a function of his.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

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

PG_FUNCTION_INFO_V1(idem_may_act);

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
role_by_name(const text *name)
{
	int			len = VARSIZE_ANY_EXHDR(name);

	if (len >= NAMEDATALEN)
		return InvalidOid;
	if (!OidIsValid(cached_role) || NameStr(cached_name)[len] != '\0' ||
		memcmp(NameStr(cached_name), VARDATA_ANY(name), len) != 0)
	{
		memset(&cached_name, 0, sizeof(NameData));
		memcpy(NameStr(cached_name), VARDATA_ANY(name), len);
		cached_role = get_role_oid(NameStr(cached_name), true);
	}
	return cached_role;
}

/* The role that owns the row, InvalidOid if it is gone */
static Oid
row_owner(const IdemRow *row)
{
	return role_by_name(DatumGetTextPP(row->slot->tts_values[Anum_idem_owner - 1]));
}

/* May the user act as the role without being a superuser? */
static bool
acts_as_member(Oid user, Oid role)
{
	return superuser_arg(user) ? is_member_of_role_nosuper(user, role) :
		idem_acts_for(user, role);
}

/*
 * The owner of a key that the current user reserves first: himself, or the
 * role in idem_tool.owner, for which he must be able to act.
 */
text *
idem_owner_for_new(void)
{
	Oid			role;

	if (idem_owner == NULL || idem_owner[0] == '\0')
		return cstring_to_text(GetUserId() == cached_role ?
							   NameStr(cached_name) :
							   GetUserNameFromId(GetUserId(), false));

	role = get_role_oid(idem_owner, true);
	if (!OidIsValid(role) || !acts_as_member(GetUserId(), role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be member of role \"%s\" to reserve keys for it",
						idem_owner),
				 errhint("Check the setting \"%s\".", "idem_tool.owner")));
	return cstring_to_text(idem_owner);
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

/* Is the row's owner a role that does not exist any more? */
bool
idem_owner_is_gone(const IdemRow *row)
{
	return !OidIsValid(row_owner(row));
}

/* May the current user reserve the row's key, and believe what it says? */
bool
idem_may_reserve(const IdemRow *row)
{
	Oid			role = row_owner(row);

	return OidIsValid(role) && acts_as_member(GetUserId(), role);
}

/* May the current user settle the row's key, and learn what is in it? */
bool
idem_may_settle(const IdemRow *row)
{
	Oid			role = row_owner(row);

	if (superuser())
		return true;
	return OidIsValid(role) ? idem_acts_for(GetUserId(), role) :
		is_operator(get_rel_namespace(row->slot->tts_tableOid));
}

/*
 * idem_may_act(owner) → boolean
 *
 * The same of a row's owner, for the policy of the table.  What membership
 * means is decided by the running server, not by the one that a dump is from.
 */
Datum
idem_may_act(PG_FUNCTION_ARGS)
{
	Oid			role;

	/* its owner can make it one that is called for NULL as well */
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	role = role_by_name(PG_GETARG_TEXT_PP(0));
	if (superuser())
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL(OidIsValid(role) ? idem_acts_for(GetUserId(), role) :
				   is_operator(get_func_namespace(fcinfo->flinfo->fn_oid)));
}
