/*-------------------------------------------------------------------------
 *
 * autocommit.c
 *	  Refuse to reserve where the reservation would not be committed at once.
 *
 * An effect outside the database must not begin before the reservation is
 * committed, and drivers like to open transactions by themselves.  What cannot
 * be seen from here is a function of the caller's around the call.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/xact.h"

/*
 * Errors with 25001 in a transaction block, a subtransaction, and with other
 * statements in one message or pipeline.  "function" is the SQL function's name.
 */
void
idem_require_autocommit(const char *function)
{
	if (IsInTransactionBlock(true))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot reserve inside a transaction block",
						function),
				 errdetail("The reservation must be committed before the action has its effect outside the database."),
				 errhint("Switch the connection to autocommit for this call, or commit first.")));

	/* a pipeline must commit before its next command */
	PreventInTransactionBlock(true, function);
}
