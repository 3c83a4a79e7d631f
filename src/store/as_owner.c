/*-------------------------------------------------------------------------
 *
 * as_owner.c
 *	  Write one of our tables as its owner.
 *
 * Callers write as themselves, as into any table.  What operators do, and what
 * nobody has a privilege for, is written by whoever owns the table.  His is
 * then the power that an administrator's trigger has, and no more: a
 * security-restricted operation has no way back to the operator's, and under
 * the fixed search_path nobody's objects take the place of PostgreSQL's.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "miscadmin.h"
#include "utils/guc.h"

/*
 * Become the role "owner" until idem_become_caller(); an error takes that back
 * by itself.
 */
void
idem_become_owner(IdemCaller *caller, Oid owner)
{
	GetUserIdAndSecContext(&caller->user, &caller->sec_context);
	SetUserIdAndSecContext(owner, caller->sec_context |
						   SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	caller->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);

	/* the policies are there for an owner upon whom they are forced */
	(void) set_config_option("row_security", "on",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/* Be who we were before */
void
idem_become_caller(const IdemCaller *caller)
{
	AtEOXact_GUC(false, caller->guc_level);
	SetUserIdAndSecContext(caller->user, caller->sec_context);
}
