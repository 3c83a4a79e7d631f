/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  Who may settle a key: is the reservation that was seen the caller's?
 *
 * A token proves it; without one the reservation must have been made by the
 * current transaction.  While another transaction is changing the key, the
 * claim may depend on what becomes of that; then it has to be waited for.
 * Mostly it does not: what is not committed was reserved by nobody yet, and
 * whoever holds nothing of the committed reservation will not hold it later.
 * To wait in such a case would be to hang until the rival's transaction ends,
 * and for ever if that is the caller's own on another connection.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/xact.h"

/*
 * What is wrong with a claim to a key that may be acted on?  Everything here is
 * certain, whatever a rival does.
 */
static bool
is_refused(const IdemKey *key, int64 token, IdemLook *look, IdemStore *store,
		   IdemError *error)
{
	const IdemRow *row = &look->row;

	if (row->state == IDEM_STATE_ABSENT)
		*error = look->rival_writes ? IDEM_NOT_COMMITTED : IDEM_NOT_RESERVED;
	else if (token == 0 ? idem_made_here(look, store, key) ||
			 idem_session_token(key) == row->token : row->token == token)
		return false;
	else if (look->rival_has_token)
		*error = IDEM_NOT_COMMITTED;
	else if (token == 0)
		*error = IDEM_NO_TOKEN;
	else
		*error = row->attempt > 1 && token < row->token ? IDEM_LOST :
			IDEM_WRONG_TOKEN;
	return true;
}

/*
 * The contract's order: who may act on the row; for release and abandon, which
 * are "lenient", whether there is anything to give back; whose reservation it
 * is.  The committed row decides, and what a rival makes of it is not told.
 */
IdemClaim
idem_claim(const IdemKey *key, int64 token, bool lenient, IdemLook *look,
		   IdemStore *store)
{
	const IdemRow *row = &look->row;
	bool		rival = TransactionIdIsValid(look->rival);
	IdemError	error;

	if (row->state != IDEM_STATE_ABSENT && !idem_may_settle(row))
		idem_report_denied(key, row);

	/* made for a finally block: must not mask the first error */
	if (lenient && row->state != IDEM_STATE_RUNNING &&
		row->state != IDEM_STATE_UNKNOWN)
		return IDEM_CLAIM_VOID;

	if (is_refused(key, token, look, store, &error))
	{
		if (lenient && (token != 0 || rival))
			return IDEM_CLAIM_VOID;
		idem_report(error, key, row);
	}

	/* in a read only transaction nothing depends on what the rival does */
	return rival && !XactReadOnly ? IDEM_CLAIM_DEPENDS : IDEM_CLAIM_HOLDS;
}
