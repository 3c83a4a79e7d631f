/*-------------------------------------------------------------------------
 *
 * report.c
 *	  The errors of the contract, in one voice.
 *
 * DETAIL has the key with its status, attempt and expiry, never a result or a
 * token; HINT says what the caller can do.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "utils/builtins.h"

#include "shared/idem_shared.h"

/* Rivals are not that unlucky */
#define IDEM_MAX_CONFLICTS	100

/*
 * The current user may not act for the row's owner.  Says nothing else about
 * the row.
 */
void
idem_report_denied(const IdemKey *key, const IdemRow *row)
{
	bool		gone = idem_owner_is_gone(row);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for idempotency key"),
			 gone ?
			 errdetail("Key \"%s\" in scope \"%s\" belongs to a role that does not exist any more.",
					   text_to_cstring(key->key), text_to_cstring(key->scope)) :
			 errdetail("Key \"%s\" in scope \"%s\" belongs to a role that the current user is not a member of.",
					   text_to_cstring(key->key), text_to_cstring(key->scope)),
			 gone ?
			 errhint("An operator can settle or free the key, and the owner of the database give it to another role.") :
			 errhint("Roles that share keys need a common \"%s\"; others should use different scopes.",
					 "idem_tool.owner")));
}

/*
 * An insertion met a row of the key that no look had found.  A rival's can
 * come and go, but not over and over: then an index does not have what the
 * others have, and the next attempt would end no other way.
 */
void
idem_count_conflict(int *conflicts, const IdemKey *key)
{
	if (++*conflicts < IDEM_MAX_CONFLICTS)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("idempotency key conflicts with a row that cannot be found"),
			 errdetail("Key \"%s\" in scope \"%s\" could not be inserted in %d attempts.",
					   text_to_cstring(key->key), text_to_cstring(key->scope),
					   *conflicts),
			 errhint("An index may be damaged: run REINDEX TABLE %s.",
					 IDEM_TABLE_NAME)));
}

/* One sentence on the key's state; "row" is what was seen of it */
char *
idem_describe(const IdemKey *key, const IdemRow *row)
{
	char	   *what = psprintf("Key \"%s\" in scope \"%s\" is",
								text_to_cstring(key->key),
								text_to_cstring(key->scope));
	const char *status;

	if (row->state == IDEM_STATE_ABSENT)
		return psprintf("%s absent.", what);
	status = idem_status_name(idem_row_shown_status(row));
	if (TIMESTAMP_NOT_FINITE(row->memory_end))
		return psprintf("%s %s, attempt %d, never expires.", what, status,
						row->attempt);
	return psprintf("%s %s, attempt %d, expires at %s.", what, status,
					row->attempt, timestamptz_to_str(row->memory_end));
}

/*
 * Raise one of the IK errors for what was seen of the key.
 */
void
idem_report(IdemError error, const IdemKey *key, const IdemRow *row)
{
	static const struct
	{
		int			sqlstate;
		const char *message;
		const char *hint;
	}			errors[] =
	{
		[IDEM_MISMATCH] = {
			ERRCODE_IDEM_MISMATCH,
			gettext_noop("idempotency key was used for a different request"),
			gettext_noop("Use another key for another request.")
		},
		[IDEM_LOST] = {
			ERRCODE_IDEM_LOST,
			gettext_noop("reservation was lost to a later attempt"),
			gettext_noop("The later attempt reports the outcome; look it up instead of repeating the action.")
		},
		[IDEM_WRONG_TOKEN] = {
			ERRCODE_IDEM_LOST,
			gettext_noop("token is not this key's"),
			gettext_noop("Pass the token that idem_reserve returned for this key.")
		},
		[IDEM_NO_TOKEN] = {
			ERRCODE_IDEM_NO_RESERVATION,
			gettext_noop("no reservation of the current transaction to act on"),
			gettext_noop("Pass the token that idem_reserve returned.")
		},
		[IDEM_NOT_RESERVED] = {
			ERRCODE_IDEM_NO_RESERVATION,
			gettext_noop("no reservation to act on"),
			gettext_noop("Reserve the key with idem_reserve first.")
		},
		[IDEM_NOT_COMMITTED] = {
			ERRCODE_IDEM_NO_RESERVATION,
			gettext_noop("no reservation to act on"),
			gettext_noop("The reservation may not be committed yet: commit it first, or call in the transaction that made it.")
		},
		[IDEM_SETTLED] = {
			ERRCODE_IDEM_SETTLED,
			gettext_noop("idempotency key is already settled with another outcome"),
			gettext_noop("The first outcome stays; look it up with idem_lookup.")
		},
		[IDEM_RESOLVED] = {
			ERRCODE_IDEM_SETTLED,
			gettext_noop("idempotency key is already settled with another outcome"),
			gettext_noop("The first outcome stays; idem_forget frees the key, so that its action can run again.")
		},
		[IDEM_NOT_RESOLVABLE] = {
			ERRCODE_IDEM_NO_RESERVATION,
			gettext_noop("no reservation to resolve"),
			gettext_noop("To record an outcome nevertheless, pass create_missing => true.")
		},
		[IDEM_LEASED] = {
			ERRCODE_IDEM_IN_PROGRESS,
			gettext_noop("idempotency key is in progress and its lease is running"),
			gettext_noop("Wait for the end of its lease, or settle it with idem_resolve and force => true.")
		},
		[IDEM_UNRESOLVED] = {
			ERRCODE_IDEM_UNKNOWN,
			gettext_noop("outcome of an earlier attempt is unknown"),
			gettext_noop("Find out what has become of it and settle it with idem_resolve.")
		},
	};

	if (error == IDEM_MISMATCH)
		idem_count(IDEM_COUNT_MISMATCHED);
	else if (error == IDEM_LOST || error == IDEM_WRONG_TOKEN)
		idem_count(IDEM_COUNT_LOST);
	ereport(ERROR,
			(errcode(errors[error].sqlstate),
			 errmsg("%s", _(errors[error].message)),
			 errdetail("%s", idem_describe(key, row)),
			 errhint("%s", _(errors[error].hint))));
}
